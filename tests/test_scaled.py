"""`tunekit.scaled_mm` and int8 products: by kernels where they take them, else as torch."""

from __future__ import annotations

import warnings

import pytest
import torch

import tunekit
from tunekit import products, scaled
from tunekit.errors import ProblemError
from tunekit.serving import MissWarning

ON_GPU = torch.cuda.is_available()
PLACE = "cuda" if ON_GPU else "cpu"
pytestmark = pytest.mark.skipif(
    ON_GPU and torch.cuda.get_device_capability() < (8, 9), reason="this GPU has no float8"
)


@pytest.fixture(autouse=True)
def fresh():
    tunekit.reload()
    yield
    tunekit.reload()


def float8(rows: int, columns: int, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + columns)
    return torch.randn(rows, columns, generator=generator).to(dtype).to(PLACE)


def scales(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(0.5 + torch.rand(shape, device=PLACE) for shape in (shape_a, shape_b))


def expected(a, b, scale_a, scale_b):
    return (a.double() @ b.double()) * scale_a.double() * scale_b.double()


@pytest.mark.parametrize("shapes", [((), ()), ((1, 1), (1,)), ((32, 1), (1, 48))])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_a_kernel_scales_as_torch_does(shapes, out_dtype):
    a, b = float8(32, 64), float8(48, 64).t()
    scale_a, scale_b = scales(*shapes)
    with tunekit.policy(backend="triton", on_miss="fallback"):
        found = tunekit.scaled_mm(a, b, scale_a, scale_b, out_dtype=out_dtype)
        again = tunekit.scaled_mm(a, b, scale_a, scale_b, out_dtype=out_dtype)
    assert found.dtype is out_dtype
    exact = expected(a, b, scale_a, scale_b)
    slack = 2**-7 if out_dtype is torch.bfloat16 else 2**-9
    assert torch.allclose(found.double(), exact, rtol=slack, atol=0.02)
    assert torch.equal(found, again)
    (key,) = products.STATE.misses
    assert key.scaling == ("row" if shapes[0] == (32, 1) else "tensor")
    assert (key.dtype, key.out_dtype) == ("float8_e4m3fn", str(out_dtype).removeprefix("torch."))


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_kernels_take_layouts_and_sizes_that_torch_refuses(layout):
    a = float8(17, 33, torch.float8_e5m2)
    a = a if layout[0] == "n" else a.t().contiguous().t()
    b = float8(33, 19, torch.float8_e5m2)
    scale_a, scale_b = scales((17, 1), (1, 19))
    with tunekit.policy(backend="triton", on_miss="fallback"):
        found = tunekit.scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.float32)
    assert torch.allclose(found.double(), expected(a, b, scale_a, scale_b), rtol=1e-3, atol=0.02)


def test_without_a_row_the_result_is_torchs_own():
    a, b = float8(32, 64), float8(48, 64).t()
    one = torch.ones((), device=PLACE)
    with tunekit.policy(on_miss="fallback"):
        found = tunekit.scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
    assert torch.equal(found, torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16))


def test_what_is_torchs_has_a_reason():
    a, b, one = float8(32, 64), float8(48, 64).t(), torch.ones((), device=PLACE)
    other = float8(48, 64, torch.float8_e5m2).t()
    rows = torch.ones(32, 1, device=PLACE)
    cases = [
        ("not one float8", (a, other, one, one), {}),
        ("bias", (a, b, one, one), {"bias": torch.ones(48, device=PLACE)}),
        ("fast sums", (a, b, one, one), {"use_fast_accum": True}),
        ("out_dtype=None", (a, b, one, one), {"out_dtype": None}),
        ("neither two numbers", (a, b, rows, one), {}),
        ("scales are float32", (a, b, one.half(), one), {}),
        ("cannot be multiplied", (a, b.t(), one, one), {}),
        ("not what its memory holds", (a, b, torch._neg_view(one), one), {}),
        ("gradients are recorded", (a, b, one, one.clone().requires_grad_()), {}),
    ]
    for text, operands, options in cases:
        with (
            tunekit.policy(backend="triton"),
            pytest.raises(ProblemError, match=text),
        ):
            tunekit.scaled_mm(*operands, **{"out_dtype": torch.bfloat16, **options})


def test_a_miss_is_told_once_with_the_command_that_cures_it():
    a, b, one = float8(32, 64), float8(48, 64).t(), torch.ones((), device=PLACE)
    with tunekit.policy(backend="triton"):
        with pytest.warns(MissWarning) as told:
            tunekit.scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tunekit.scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
    assert "32x48x64 float8_e4m3fn nt -> bfloat16 scaled per tensor" in str(told[0].message)


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_int8_gives_exact_int32(layout):
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-128, 128, (33, 200), dtype=torch.int8, generator=generator).to(PLACE)
    b = torch.randint(-128, 128, (40, 200), dtype=torch.int8, generator=generator).to(PLACE).t()
    b = b if layout == "nt" else b.contiguous()
    exact = (a.double() @ b.double()).int()
    assert torch.equal(tunekit.matmul(a, b, out_dtype=torch.int32), exact)
    with tunekit.policy(on_miss="fallback"):
        found = tunekit.matmul(a, b, out_dtype=torch.int32, backend="triton")
    assert torch.equal(found, exact)
    (key,) = products.STATE.misses
    assert (key.dtype, key.out_dtype) == ("int8", "int32")


def test_halves_into_float32_keep_what_rounding_would_lose():
    a, b = torch.full((16, 32), 0.1).half().to(PLACE), torch.full((32, 16), 0.1).half().to(PLACE)
    with tunekit.policy(on_miss="fallback"):
        found = tunekit.matmul(a, b, out_dtype=torch.float32, backend="triton")
    assert found.dtype is torch.float32
    assert torch.allclose(found.double(), a.double() @ b.double(), rtol=1e-6)


@pytest.fixture
def no_kernel(monkeypatch):
    monkeypatch.setattr(products, "on_gpu", lambda a: True)
    monkeypatch.setattr(scaled, "on_gpu", lambda a: True)
    monkeypatch.setattr(scaled, "computed", lambda *a: pytest.fail("a kernel was asked for"))


@pytest.mark.usefixtures("no_kernel")
def test_a_trace_holds_torchs_call_and_serves_other_scales():
    def call(a, b, scale):
        return tunekit.scaled_mm(a, b, scale, scale, out_dtype=torch.bfloat16)

    a, b, one = float8(32, 64), float8(48, 64).t(), torch.ones((), device=PLACE)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(call, (a, b, one), check_trace=False)
    assert "aten::_scaled_mm" in str(traced.graph)
    expected = torch._scaled_mm(a, b, 2 * one, 2 * one, out_dtype=torch.bfloat16)
    assert torch.equal(traced(a, b, 2 * one), expected)
    with tunekit.policy(backend="triton"), pytest.raises(ProblemError, match="traced"):
        torch.jit.trace(call, (a, b, one))


@pytest.mark.usefixtures("no_kernel")
def test_who_watches_functions_or_differentiates_gets_torchs_call():
    seen = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    a, b, one = float8(32, 64), float8(48, 64).t(), torch.ones((), device=PLACE)
    with Watching():
        tunekit.scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
    assert seen == [torch._scaled_mm]
    with torch.autograd.forward_ad.dual_level():
        scale = torch.autograd.forward_ad.make_dual(one, one)
        with pytest.raises(NotImplementedError, match="forward AD"):  # and not without a word
            tunekit.scaled_mm(a, b, scale, one, out_dtype=torch.bfloat16)


@pytest.mark.usefixtures("no_kernel")
def test_where_there_is_nothing_to_sum_torch_says_what_that_gives():
    one = torch.ones((), device=PLACE)
    for a, b in ((float8(0, 64), float8(48, 64).t()), (float8(16, 0), float8(48, 0).t())):
        with tunekit.policy(backend="triton"):
            found = tunekit.scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
        assert torch.equal(found, torch.zeros_like(found))
        assert found.shape == (a.shape[0], 48)
        assert found.dtype is torch.bfloat16
