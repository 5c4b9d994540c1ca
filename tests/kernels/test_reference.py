"""The check every config must pass: it must see each kind of wrong result, and no right one."""

from __future__ import annotations

import math

import pytest
import torch

from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.reference import guard_is_intact
from tunekit.kernels.stand_ins import operand_strides
from tunekit.key import Problem

H200 = KNOWN_DEVICES["sm_90"]
DTYPES = ("float16", "bfloat16", "float32")


def prepare(problem: Problem, seed: int = 0):
    return MATMUL.prepare(problem, H200, index=-1, seed=seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_vendor_passes(dtype, layout):
    prepared = prepare(Problem("matmul", 65, 130, 513, dtype, layout=layout, aligned=False))
    MATMUL.poison(prepared)
    MATMUL.vendor(prepared)()
    assert 0 < MATMUL.error_ratio(prepared) <= 1


def test_the_vendor_multiplies_integers():
    prepared = prepare(Problem("matmul", 32, 64, 128, "int8", out_dtype="int32", layout="nt"))
    MATMUL.poison(prepared)
    MATMUL.vendor(prepared)()
    assert MATMUL.error_ratio(prepared) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_unwritten_element_never_passes(dtype):
    prepared = prepare(Problem("matmul", 40, 40, 64, dtype))
    MATMUL.vendor(prepared)()
    prepared.out[17, 23] = math.nan
    assert MATMUL.error_ratio(prepared) == math.inf


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [16, 300, 4096])
def test_one_product_too_few_is_seen(dtype, k):
    # the smallest mistake a kernel makes: one of the K products is left out, or counted twice
    prepared = prepare(Problem("matmul", 64, 64, k, dtype))
    exact = prepared.a.double() @ prepared.b.double()
    missing = prepared.a[:, :1].double() @ prepared.b[:1].double()
    for wrong in (exact - missing, exact + missing):
        prepared.out.copy_(wrong)
        assert MATMUL.error_ratio(prepared) > 1


def test_low_precision_accumulation_is_seen():
    prepared = prepare(Problem("matmul", 32, 32, 4096, "float16"))
    total = torch.zeros(32, 32, dtype=torch.float16)
    for k in range(4096):
        total += prepared.a[:, k : k + 1] * prepared.b[k : k + 1]
    prepared.out.copy_(total)
    assert MATMUL.error_ratio(prepared) > 1


def test_tf32_arithmetic_passes_for_tf32_and_not_for_ieee():
    def rounded(x: torch.Tensor) -> torch.Tensor:
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)

    ratios = {}
    for precision in ("ieee", "tf32"):
        prepared = prepare(Problem("matmul", 64, 64, 512, "float32", precision=precision))
        product = (
            rounded(prepared.a.contiguous()).double() @ rounded(prepared.b.contiguous()).double()
        )
        prepared.out.copy_(product)
        ratios[precision] = MATMUL.error_ratio(prepared)
    assert ratios["tf32"] <= 1 < ratios["ieee"]


def test_the_tolerance_grows_with_the_root_of_k():
    means = {}
    for k in (256, 4096):
        prepared = prepare(Problem("matmul", 64, 64, k, "float32"))
        means[k] = (prepared.tolerance - 2 * 2.0**-24 * prepared.reference.abs()).mean().item()
    assert means[4096] / means[256] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("k", [64, 65])
def test_operands_have_the_layout_and_alignment_the_problem_states(aligned, layout, k):
    problem = Problem("matmul", 48, 80, k, "float16", layout=layout, aligned=aligned)
    prepared = prepare(problem)
    for x, letter in ((prepared.a, layout[0]), (prepared.b, layout[1])):
        unit, leading = (1, 0) if letter == "n" else (0, 1)
        assert x.stride(unit) == 1
        whole = x.data_ptr() % 16 == 0 and x.stride(leading) * x.element_size() % 16 == 0
        if aligned:
            assert whole
    if not aligned:
        strides_a, strides_b, _ = operand_strides(problem)
        leading = (max(strides_a), max(strides_b))
        assert any(size * 2 % 16 for size in leading)


def test_operands_are_random_finite_and_repeat_with_the_seed():
    problem = Problem("matmul", 30, 40, 50, "bfloat16", aligned=False)
    first, again, other = prepare(problem, 1), prepare(problem, 1), prepare(problem, 2)
    assert torch.equal(first.a, again.a)
    assert not torch.equal(first.a, other.a)
    assert torch.isfinite(first.a).all()
    assert first.a.float().std().item() == pytest.approx(1, rel=0.1)
    assert first.b.float().std().item() == pytest.approx(50**-0.5, rel=0.1)


def test_a_write_outside_the_output_is_seen():
    prepared = prepare(Problem("matmul", 16, 16, 16, "float16"))
    assert guard_is_intact(prepared)
    prepared.out.as_strided((1,), (1,), prepared.out.storage_offset() + 256).zero_()
    assert not guard_is_intact(prepared)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_below_the_normal_range_passes_and_a_zero_in_its_place_does_not(dtype):
    # one product an element; float16 ends at 6e-8, and its last bits are no longer relative
    prepared = prepare(Problem("matmul", 64, 64, 1, dtype, layout="nn", aligned=False), seed=0)
    prepared.out.copy_(prepared.a.double() @ prepared.b.double())
    assert MATMUL.error_ratio(prepared) <= 1
    prepared.out[prepared.reference.abs() > 1e-3] = 0
    assert MATMUL.error_ratio(prepared) > 1
