"""The matrix-times-vector variant, run for real in Triton's interpreter (on a GPU, compiled)."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trying import H200, Trying, place

from tunekit.config import Config
from tunekit.kernels.gemv import MatrixVector
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.key import LAYOUTS, Problem

FAMILY = MatmulFamily((MatrixVector(),))
TRYING = Trying(FAMILY)
run, assert_right = TRYING.run, TRYING.assert_right
PLACE = place(TRYING.on_gpu)


def launch_directly(config: Config, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    dtype = str(a.dtype)
    problem = Problem("matmul", a.shape[0], b.shape[1], a.shape[1], dtype, aligned=False)
    call = MatrixVector().call(config, problem, H200, a, b, out)
    call.kernel[call.grid](*call.args, **call.options)


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    m, n = draw(st.sampled_from(((1, 0), (0, 1), (1, 1))))
    problem = Problem(
        "matmul",
        m or draw(st.integers(1, 300)),
        n or draw(st.integers(1, 300)),
        draw(st.integers(1, 1500)),
        draw(st.sampled_from(("float16", "bfloat16", "float32"))),
        layout=draw(st.sampled_from(LAYOUTS)),
        aligned=draw(st.booleans()),
    )
    configs = FAMILY.space(problem, H200).configs
    return problem, configs[draw(st.integers(0, len(configs) - 1))]


@given(problem_and_config(), st.integers(0, 3))
def test_any_legal_config_is_right_for_any_problem(case, seed):
    assert_right(*case, seed)


@pytest.mark.parametrize("k", [1, 8, 257])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_k_tail_and_a_row_tail_are_masked(k, layout):
    for m, n in ((1, 131), (131, 1)):
        problem = Problem("matmul", m, n, k, "float16", layout=layout, aligned=False)
        for config in FAMILY.space(problem, H200).configs[::29]:
            assert_right(problem, config)


@pytest.mark.parametrize("split_k", [2, 16])
@pytest.mark.parametrize("shape", [(1, 22), (22, 1)])
def test_split_k_repeats_bit_by_bit_and_leaves_its_counters_at_zero(split_k, shape):
    problem = Problem("matmul", *shape, 256 * 17, "float32")
    blocks = (1, 4) if shape[0] == 1 else (4, 1)
    layout = "nt"
    problem = dataclasses.replace(problem, layout=layout)
    config = Config("gemv", *blocks, 256, split_k=split_k, num_warps=2, num_stages=1)
    prepared = assert_right(problem, config)
    first = prepared.out.clone()
    call = MatrixVector().call(config, problem, H200, prepared.a, prepared.b, prepared.out)
    for _ in range(2):
        FAMILY.poison(prepared)
        call.kernel[call.grid](*call.args, **call.options)
        assert torch.equal(prepared.out, first)
    assert not call.args[4].any()


def test_strided_operands_and_a_strided_output():
    a = torch.randn(1, 900, device=PLACE)[:, ::3]
    b = torch.randn(600, 140, device=PLACE)[::2, ::2]
    memory = torch.full((1, 140), math.nan, device=PLACE)
    launch_directly(Config("gemv", 1, 4, 256, num_warps=1, num_stages=1), a, b, memory[:, ::2])
    assert torch.allclose(memory[:, ::2], a @ b, atol=1e-3)
    assert torch.isnan(memory[:, 1::2]).all()


@pytest.mark.parametrize("elements_past", [-1, 1])
def test_offsets_around_two_to_the_31(elements_past):
    # (rows - 1) * stride misses, or crosses, 2^31; memory that is not touched costs nothing
    rows, k = 3, 24
    stride = (2**31 + elements_past * 2 * k) // (rows - 1)
    memory = torch.empty((rows - 1) * stride + k, dtype=torch.float16, device=PLACE)
    a = memory.as_strided((rows, k), (stride, 1))
    a.copy_(torch.randn(rows, k))
    b = torch.randn(k, 1, device=PLACE).half()
    out = torch.full((rows, 1), math.nan, dtype=torch.float16, device=PLACE)
    launch_directly(Config("gemv", 4, 1, 256, num_warps=1, num_stages=1), a, b, out)
    assert torch.allclose(out.float(), a.float() @ b.float(), atol=1e-2)


def test_sums_are_kept_in_float32():
    a = torch.full((1, 8192), 0.1, dtype=torch.float16, device=PLACE)
    b = torch.full((16, 8192), 0.1, dtype=torch.float16, device=PLACE).t()
    out = torch.full((1, 16), math.nan, dtype=torch.float16, device=PLACE)
    launch_directly(Config("gemv", 1, 4, 256, num_warps=1, num_stages=1), a, b, out)
    expected = 8192 * float(a[0, 0]) * float(b[0, 0])
    assert out.float().allclose(torch.tensor(expected), rtol=2**-7, atol=0)


def test_only_products_with_a_vector_have_configs():
    assert not FAMILY.space(Problem("matmul", 2, 4096, 4096, "bfloat16"), H200).configs


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 4096), (4096, 1)])
def test_the_space_is_small_and_puts_the_vector_on_its_side(layout, shape):
    problem = Problem("matmul", *shape, 4096, "bfloat16", layout=layout)
    configs = FAMILY.space(problem, H200).configs
    assert 20 <= len(configs) <= 400
    assert {c.block_m if shape[0] == 1 else c.block_n for c in configs} == {1}


def test_corners_compile_for_every_target_and_need_the_shared_memory_predicted(compile_corners):
    row = {"family": "matmul", "m": 1, "n": 4096, "k": 4096, "dtype": "bfloat16"}
    cases = [("sm_90", row), ("sm_90", {**row, "layout": "nn"}), ("sm_90", {**row, "k": 1000})]
    cases += [("sm_90", {**row, "m": 4096, "n": 1}), ("sm_90", {**row, "dtype": "float32"})]
    cases += [(arch, row) for arch in ("sm_80", "sm_86", "sm_100", "gfx942")]
    for found in compile_corners("tunekit.kernels.gemv:MatrixVector", cases):
        # what a sum across threads takes is small and differs between compilers: up to 8 KiB
        assert found["shared"] <= found["predicted"], found
        assert found["predicted"] <= max(1.1 * found["shared"], found["shared"] + 8192), found
        if found["config"].startswith("sm_90"):
            assert "v4.b32" in found["ptx"], f"no loads of 16 bytes: {found}"
