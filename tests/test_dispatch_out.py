"""`out=` and `out_dtype=` of `tunekit.matmul`, by torch's rules."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tunekit
from tunekit import products, widening
from tunekit.config import Config
from tunekit.errors import ProblemError
from tunekit.kernels.matmul_family import MATMUL

pytestmark = [
    pytest.mark.filterwarnings("ignore::tunekit.serving.MissWarning"),
    pytest.mark.usefixtures("forget"),
]


@pytest.fixture
def outs(monkeypatch):
    """The addresses that kernels wrote to, in order."""
    seen = []
    bind = MATMUL.bind

    def noting(*of):
        launch = bind(*of)

        def noted(a, b, out):
            seen.append(out.data_ptr())
            launch(a, b, out)

        return noted

    monkeypatch.setattr(MATMUL, "bind", noting)
    return seen


def by_triton(a, b, out):
    return tunekit.matmul(a, b, out=out, backend="triton")


@pytest.mark.interpreted
@pytest.mark.parametrize("shape", [(4, 8), (3, 4, 8)])
def test_a_result_of_the_right_form_is_written_by_the_kernel(outs, shape):
    a, b = torch.randn(shape), torch.randn(8, 6)
    out = torch.full((*shape[:-1], 6), float("nan"))
    version = out._version
    for _ in range(2):
        assert by_triton(a, b, out) is out
    torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)
    assert outs == [out.data_ptr()] * 2
    assert out._version == version + 2


@pytest.mark.interpreted
def test_rows_of_a_larger_tensor_are_written_and_nothing_beside(outs):
    a, b, large = torch.randn(4, 8), torch.randn(8, 6), torch.full((6, 10), 7.0)
    out = large[1:5, 2:8]
    by_triton(a, b, out)
    torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)
    assert outs == [out.data_ptr()]
    large[1:5, 2:8] = 7
    assert (large == 7).all()


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(0),
        lambda: torch.empty(2, 3),
        lambda: torch.empty(6, 4).t(),
        lambda: torch.empty(4, 12)[:, ::2],
        lambda: torch.empty(4, 6, dtype=torch.float64),
        lambda: torch.empty(4, 6, device="meta"),
        lambda: torch.empty(1, 6).expand(4, 6),
        lambda: torch.empty(4, 6, requires_grad=True),
        lambda: [0.0],
        lambda: torch.empty(4, 6).to_sparse(),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_every_other_result_is_as_torch_has_it(make, backend):
    a, b = torch.randn(4, 8), torch.randn(8, 6)
    answers = []
    for multiply in (lambda out: tunekit.matmul(a, b, out=out, backend=backend),
                     lambda out: torch.matmul(a, b, out=out)):  # fmt: skip
        out = make()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = multiply(out)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                answers.append((type(error), str(error)[:40]))
            else:
                assert result is out
                told = [str(w.message)[:40] for w in caught if "resized" in str(w.message)]
                answers.append((out.shape, out.stride(), len(told)))
                torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)
    if backend == "triton" and answers[0][0] is ProblemError:
        assert "triton" in answers[0][1]  # it says that no kernel has a part in this
    else:
        assert answers[0] == answers[1]


def test_a_result_that_is_an_operand_is_as_in_torch():
    for multiply in (tunekit.matmul, torch.matmul):
        a = torch.arange(16.0).view(4, 4)
        multiply(a, a.clone(), out=a)
        assert torch.equal(a, torch.arange(16.0).view(4, 4) @ torch.arange(16.0).view(4, 4))
    a = torch.arange(16.0).view(4, 4)
    expected = a @ a
    tunekit.matmul(a, a, out=a, backend="triton")
    torch.testing.assert_close(a, expected)


@pytest.mark.interpreted
def test_gradients_and_out_exclude_each_other():
    a, out = torch.randn(4, 4, requires_grad=True), torch.empty(4, 4)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        tunekit.matmul(a, a, out=out)
    with torch.no_grad():
        assert by_triton(a, a, out) is out


@pytest.mark.interpreted
def test_a_saved_tensor_that_was_overwritten_is_noticed():
    a, out = torch.randn(4, 4), torch.randn(4, 4)
    w = torch.randn(4, 4, requires_grad=True)
    loss = (w * out).sum()
    by_triton(a, a, out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_out_with_the_automatic_backend_goes_by_the_rows(monkeypatch, outs):
    from tunekit import serving
    from tunekit.device import KNOWN_DEVICES

    monkeypatch.setattr(serving, "_device_info", lambda *_: KNOWN_DEVICES["sm_90"])
    monkeypatch.setattr(products, "on_gpu", lambda a: True)
    a, b, out = torch.randn(4, 8), torch.randn(8, 6), torch.empty(4, 6)
    assert tunekit.matmul(a, b, out=out) is out  # there are none
    assert torch.equal(out, a @ b)
    assert outs == []


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_a_wider_result_is_not_rounded(narrow):
    a, b = torch.randn(4, 300).to(narrow), torch.randn(300, 6).to(narrow)
    wide = tunekit.matmul(a, b, out_dtype=torch.float32)
    assert wide.dtype is torch.float32
    torch.testing.assert_close(wide.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)
    out = torch.empty(4, 6)
    assert tunekit.matmul(a, b, out_dtype=torch.float32, out=out) is out
    assert torch.equal(out, wide)
    assert tunekit.matmul(a, b, out_dtype=narrow).dtype is narrow


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 64)])
def test_sums_of_bytes_are_exact_as_int32(shape):
    a = torch.randint(-127, 128, shape, dtype=torch.int8)
    b = torch.full((64, 5), 127, dtype=torch.int8)
    found = tunekit.matmul(a, b, out_dtype=torch.int32)
    assert found.dtype is torch.int32
    assert torch.equal(found, torch.matmul(a.int(), b.int()))
    assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))  # as torch: eight bits, wrapped


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [(torch.float32, torch.float64), (torch.float16, torch.int32), (torch.int8, torch.float32)],
)
def test_a_result_dtype_that_is_none_of_an_operands_is_an_error(dtype, wanted):
    a = torch.ones(4, 4).to(dtype)
    with pytest.raises(ProblemError, match=re.escape(f"out_dtype={wanted} from {dtype}")):
        tunekit.matmul(a, a, out_dtype=wanted)


class Function(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Operation(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _under(mode):
    def run(wide, a, b):
        with mode():
            return wide(a, b)

    return run


def _dual(wide, a, b):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(wide(forward_ad.make_dual(a, 2 * a), b)).tangent / 2


WATCHED = {
    "negative": lambda wide, a, b: -wide(torch._neg_view(a), b),
    "vmap": lambda wide, a, b: torch.vmap(wide, in_dims=(0, None))(a[None].expand(3, -1, -1), b)[1],
    "jvp": lambda wide, a, b: torch.func.jvp(lambda x: wide(x, b), (a,), (a,))[1],
    "dual": _dual,
    "trace": lambda wide, a, b: torch.jit.trace(wide, (2 * a, b), check_trace=False)(a, b),
    "make_fx": lambda wide, a, b: make_fx(wide)(2 * a, b)(a, b),
    "functional": lambda wide, a, b: torch.func.functionalize(wide)(a, b),
    "function": _under(Function),
    "operation": _under(Operation),
    "autocast": _under(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "subclass": lambda wide, a, b: wide(a.as_subclass(Named), b).as_subclass(torch.Tensor),
}


class Named(torch.Tensor):
    pass


@pytest.mark.parametrize("how", WATCHED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_wider_result_is_right_whoever_has_a_say(how, pretend_gpu, monkeypatch):
    monkeypatch.setattr(widening, "on_gpu", lambda a: True)
    a, b = torch.randn(32, 32).bfloat16(), torch.randn(32, 32).bfloat16()

    def wide(x, y):
        return tunekit.matmul(x, y, out_dtype=torch.float32)

    pinned = Config("pointer", 32, 32, 32)  # so that a kernel is what runs where one may
    with tunekit.policy(config=pinned), warnings.catch_warnings():
        warnings.filterwarnings("error", category=torch.jit.TracerWarning)
        found = WATCHED[how](wide, a, b)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, a.float() @ b.float(), rtol=1e-4, atol=1e-3)


def test_a_trace_asks_nothing_that_the_oldest_torch_cannot_trace(monkeypatch):
    asked = torch.compiler.disable(torch.amp.is_autocast_available)
    monkeypatch.setattr(torch.amp, "is_autocast_available", asked)
    multiply = torch.compile(tunekit.matmul, backend="eager", fullgraph=True)
    a = torch.randn(8, 8).half()
    assert torch.equal(multiply(a, a), a @ a)
    for place in ("cpu", "meta"):
        there = a.to(place)
        assert multiply(there, there, out_dtype=torch.float32).dtype is torch.float32


@pytest.mark.parametrize("compiled", [False, True])
def test_under_autocast_the_result_has_the_dtype_that_was_asked_for(compiled):
    def multiply(a, b, out_dtype):
        return tunekit.matmul(a, b, out_dtype=out_dtype)

    if compiled:
        multiply = torch.compile(multiply, backend="eager", fullgraph=True)
    a = torch.randn(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wide = multiply(a, a, torch.float32)
        assert multiply(a, a, torch.bfloat16).dtype is torch.bfloat16
    assert wide.dtype is torch.float32
    assert torch.equal(wide, a.bfloat16().float() @ a.bfloat16().float())


def test_a_fake_operand_has_a_wider_result():
    with FakeTensorMode():
        a = torch.empty(3, 4, dtype=torch.float16)
        wide = tunekit.matmul(a, a.t(), out_dtype=torch.float32)
    assert (wide.dtype, wide.shape) == (torch.float32, (3, 3))


def test_operands_of_a_device_without_autocast_are_torchs():
    a = torch.empty(3, 4, dtype=torch.float16, device="meta", requires_grad=True)
    for multiply in (tunekit.matmul, torch.compile(tunekit.matmul, backend="eager")):
        wide = multiply(a, a.t(), out_dtype=torch.float32)
        assert (wide.dtype, wide.shape) == (torch.float32, (3, 3))
    for call in (tunekit.matmul, tunekit.explain, tunekit.linear):
        with (
            tunekit.policy(backend="triton"),
            pytest.raises(ProblemError, match="the operands are on meta"),
        ):
            call(a, a if call is tunekit.linear else a.t())


@pytest.mark.interpreted
def test_an_inference_tensor_is_written_in_inference_mode_alone(outs):
    a, b = torch.randn(16, 16).half(), torch.randn(16, 16).half()
    with torch.inference_mode():
        out = torch.zeros(16, 16).half()
        assert tunekit.matmul(a, b, out=out, backend="triton") is out
    with pytest.raises(RuntimeError, match="inference tensor outside InferenceMode"):
        tunekit.matmul(a, a, out=out, backend="triton")


def test_gradients_go_through_a_wider_result():
    a, b = (torch.randn(4, 4).half().requires_grad_() for _ in range(2))
    tunekit.matmul(a, b, out_dtype=torch.float32).sum().backward()
    assert a.grad.dtype is torch.float16
    torch.testing.assert_close(a.grad, b.detach().sum(1).expand(4, 4), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("sizes", [(0, 4, 5), (4, 0, 5), (4, 5, 0)])
@pytest.mark.parametrize(
    ("narrow", "wide"), [(torch.int8, torch.int32), (torch.bfloat16, torch.float32)]
)
@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_an_empty_or_zero_product_has_no_kernel_to_ask_for(sizes, narrow, wide, backend):
    m, n, k = sizes
    a, b = torch.ones(m, k).to(narrow), torch.ones(k, n).to(narrow)
    with tunekit.policy(backend=backend):
        found = tunekit.matmul(a, b, out_dtype=wide)
    assert torch.equal(found, torch.zeros(m, n, dtype=wide))
