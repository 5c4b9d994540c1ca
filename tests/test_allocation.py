"""The tensor a product is written to is the one torch would have made."""

from __future__ import annotations

import pytest
import torch

from tunekit import allocation
from tunekit.allocation import allocating


def fill(a, b, out):
    out.fill_(7)


@pytest.fixture(params=["directly", "by torch"])
def way(request, monkeypatch):
    if request.param == "by torch":
        both = {kind: allocation.by_torch(kind) for kind in ("cpu", "cuda")}
        monkeypatch.setattr(allocation, "ALLOCATORS", both)
    else:
        for kind, allocate in allocation.ALLOCATORS.items():
            own = getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", None)
            assert allocate is own, "this torch has lost it"
    return request.param


@pytest.mark.parametrize("shape", [(3, 5), (5,), (2, 1, 4), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_result_is_dense_and_like_the_operand(way, shape, dtype):
    a = torch.ones(3, 4, dtype=dtype, requires_grad=True)
    made = allocating(fill, shape, a)(a, a)
    expected = torch.full(shape, 7, dtype=dtype)
    assert torch.equal(made, expected)
    assert (made.stride(), made.dtype, made.device) == (expected.stride(), dtype, a.device)
    assert not made.requires_grad
    assert made.is_leaf


def test_each_call_makes_its_own(way):
    multiply = allocating(fill, (3, 5), torch.ones(1))
    first, second = (multiply(torch.ones(1), torch.ones(1)) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()


def test_a_result_of_inference_is_an_inference_tensor(way):
    with torch.inference_mode():
        made = allocating(fill, (3, 5), torch.ones(1))(torch.ones(1), torch.ones(1))
    assert made.is_inference()


@pytest.mark.gpu
def test_it_is_allocated_on_the_gpu(way):
    a = torch.ones(3, 4, device="cuda", dtype=torch.float16)
    made = allocating(fill, (3, 5), a)(a, a)
    assert (made.device, made.dtype) == (a.device, a.dtype)
    assert torch.equal(made, torch.full((3, 5), 7, device="cuda", dtype=torch.float16))
