"""The pointer variant, run for real in Triton's interpreter (on a GPU, compiled)."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trying import H200, Trying, place

from tunekit.config import Config
from tunekit.errors import ConfigError
from tunekit.kernels.matmul_family import MATMUL, MatmulFamily
from tunekit.kernels.pointer import PointerTiles, pointer_kernel
from tunekit.kernels.workspaces import split_workspace
from tunekit.key import Problem

FAMILY = MatmulFamily((PointerTiles(),))
LAYOUTS = ("nn", "nt", "tn", "tt")
TRYING = Trying(FAMILY)
run, assert_right = TRYING.run, TRYING.assert_right
PLACE = place(TRYING.on_gpu)


def launch_directly(config: Config, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Launch a config without asking whether it is legal."""
    dtype = str(a.dtype)
    problem = Problem("matmul", a.shape[0], b.shape[1], a.shape[1], dtype, aligned=False)
    call = PointerTiles().call(config, problem, H200, a, b, out)
    call.kernel[call.grid](*call.args, **call.options)


def matrix(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    return torch.randn(rows, columns, generator=generator).to(dtype).to(PLACE)


def assert_equals_torch(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    wide = a.double() @ b.double()
    scale = a.double().norm(dim=1)[:, None] * b.double().norm(dim=0)[None, :]
    slack = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[out.dtype]
    assert torch.isfinite(out).all()
    assert ((out.double() - wide).abs() <= slack * scale + 1e-6).all()


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    dtype = draw(st.sampled_from(("float16", "bfloat16", "float32")))
    precision = draw(st.sampled_from(("ieee", "tf32"))) if dtype == "float32" else "ieee"
    problem = Problem(
        "matmul",
        draw(st.integers(1, 130)),
        draw(st.integers(1, 130)),
        draw(st.integers(1, 200)),
        dtype,
        precision=precision,
        layout=draw(st.sampled_from(LAYOUTS)),
        aligned=draw(st.booleans()),
    )
    configs = FAMILY.space(problem, H200).configs
    return problem, configs[draw(st.integers(0, len(configs) - 1))]


@given(problem_and_config(), st.integers(0, 3))
def test_any_legal_config_is_right_for_any_problem(case, seed):
    problem, config = case
    assert_right(problem, config, seed)


@pytest.mark.parametrize("block_k", [16, 32, 64])
def test_a_k_tail_is_masked(block_k):
    # K = 40 is no multiple of any of them; the operands are ringed with NaN
    problem = Problem("matmul", 48, 48, 40, "float32", aligned=False)
    assert_right(problem, Config("pointer", 16, 16, block_k, num_warps=2, num_stages=2))


@pytest.mark.parametrize("k", [1, 7, 8, 15, 16, 17, 31, 33])
def test_k_below_and_around_the_smallest_block_is_right_and_repeatable(k):
    problem = Problem("matmul", 20, 20, k, "float16", aligned=False)
    config = FAMILY.space(problem, H200).configs[0]
    first, second = run(problem, config), run(problem, config)
    assert FAMILY.error_ratio(first) <= 1
    assert torch.equal(first.out, second.out)


@pytest.mark.parametrize("tile", [(128, 32, 64), (128, 64, 32), (64, 128, 64), (16, 256, 32)])
def test_the_last_row_of_tiles_is_right(tile):
    problem = Problem("matmul", 511, 256, 96, "float32")
    assert_right(problem, Config("pointer", *tile, num_warps=8, num_stages=2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_sizes_throughout(layout):
    problem = Problem("matmul", 127, 129, 65, "float16", layout=layout, aligned=False)
    assert_right(problem, Config("pointer", 64, 64, 32, group_size=8, num_stages=2))


def test_one_narrow_column_under_a_wide_block():
    # not a legal config, for being wasteful; a stored one must still not read or write beyond
    a, b = matrix(300, 642, torch.float16), matrix(642, 30, torch.float16)
    out = torch.full((300, 30), math.nan, dtype=torch.float16, device=PLACE)
    launch_directly(Config("pointer", 32, 256, 32, num_warps=8, num_stages=2), a, b, out)
    assert_equals_torch(out, a, b)


@pytest.mark.parametrize("majors", list(itertools.product("rc", repeat=3)))
def test_every_row_and_column_major_combination(majors):
    a, b, out = matrix(33, 40), matrix(40, 50), torch.full((33, 50), math.nan, device=PLACE)
    operands = [
        x if major == "r" else x.t().contiguous().t()
        for x, major in zip((a, b, out), majors, strict=True)
    ]
    launch_directly(Config("pointer", 16, 32, 16, num_stages=2), *operands)
    assert_equals_torch(operands[2], a, b)


def test_strided_views_and_output_with_gaps():
    a, b = matrix(66, 80)[::2, ::2], matrix(80, 100)[::2, ::2]
    memory = torch.full((66, 100), math.nan, device=PLACE)
    out = memory[::2, ::2]
    launch_directly(Config("pointer", 16, 32, 16, num_stages=2), a, b, out)
    assert_equals_torch(out, a, b)
    assert torch.isnan(memory[1::2]).all()
    assert torch.isnan(memory[:, 1::2]).all()


def test_broadcast_operands_with_stride_zero():
    a, b = matrix(1, 40).expand(33, 40), matrix(40, 1).expand(40, 50)
    out = torch.full((33, 50), math.nan, device=PLACE)
    launch_directly(Config("pointer", 16, 32, 16, num_stages=2), a, b, out)
    assert_equals_torch(out, a, b)


def test_padded_column_major_operand_at_an_odd_address():
    memory = matrix(61, 1954).reshape(-1)
    a = memory.as_strided((57, 40), (1, 61), 3)
    b = matrix(40, 51)[:, :49]
    out = torch.full((57, 49), math.nan, device=PLACE)
    launch_directly(Config("pointer", 16, 32, 32, num_stages=2), a, b, out)
    assert_equals_torch(out, a, b)


@pytest.mark.parametrize("elements_past", [-1, 1])
def test_offsets_around_two_to_the_31(elements_past):
    # (rows - 1) * stride misses, or crosses, 2^31; memory that is not touched costs nothing
    rows, k = 3, 24
    stride = (2**31 + elements_past * 2 * k) // (rows - 1)
    memory = torch.empty((rows - 1) * stride + k, dtype=torch.float16, device=PLACE)
    a = memory.as_strided((rows, k), (stride, 1))
    a.copy_(matrix(rows, k, torch.float16))
    b = matrix(k, 40, torch.float16)
    out = torch.full((rows, 40), math.nan, dtype=torch.float16, device=PLACE)
    launch_directly(Config("pointer", 16, 32, 16, num_stages=2), a, b, out)
    assert_equals_torch(out, a, b)


@pytest.mark.parametrize("stride", [2**31 - 8, 2**31 - 1, 2**31, 2**31 + 8])
def test_a_stride_around_two_to_the_31(stride):
    # a stride of whole 16 bytes is passed in units of 16 bytes, which must not bring it below 2^31
    memory = torch.empty(stride + 32, dtype=torch.float16, device=PLACE)
    a = memory.as_strided((2, 32), (stride, 1))
    a.copy_(matrix(2, 32, torch.float16))
    b = matrix(32, 40, torch.float16)
    out = torch.full((2, 40), math.nan, dtype=torch.float16, device=PLACE)
    launch_directly(Config("pointer", 16, 32, 16, num_stages=2), a, b, out)
    assert_equals_torch(out, a, b)


@pytest.mark.parametrize("split_k", [2, 4, 8])
def test_split_k_needs_no_zeroed_memory_and_repeats_bit_by_bit(split_k):
    problem = Problem("matmul", 40, 70, 16 * 17, "float32", aligned=False)
    config = Config("pointer", 16, 32, 16, split_k=split_k, num_stages=2)
    prepared = run(problem, config)
    first = prepared.out.clone()
    assert FAMILY.error_ratio(prepared) <= 1
    launch = FAMILY.launch(config, prepared)
    for _ in range(2):  # the same counters serve the second launch
        FAMILY.poison(prepared)
        launch()
        assert torch.equal(prepared.out, first)


def test_split_k_leaves_its_counters_at_zero():
    problem = Problem("matmul", 40, 70, 128, "float32")
    config = Config("pointer", 16, 32, 16, split_k=4, num_stages=2)
    prepared = FAMILY.prepare(problem, H200, index=TRYING.index, seed=0)
    call = PointerTiles().call(config, problem, H200, prepared.a, prepared.b, prepared.out)
    call.kernel[call.grid](*call.args, **call.options)
    assert call.args[4].dtype == torch.int32
    assert not call.args[4].any()


def test_without_split_k_there_is_no_workspace():
    out = torch.empty(4, 4, device=PLACE)
    workspace, arrivals = split_workspace(Config("pointer", 16, 16, 16), out, 1)
    assert workspace is out
    assert arrivals is out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_are_kept_in_float32(dtype):
    # summed in float16, 8192 products of 0.01 stop growing at about 0.25; in bfloat16 sooner
    a = torch.full((16, 8192), 0.1, dtype=dtype, device=PLACE)
    b = torch.full((8192, 16), 0.1, dtype=dtype, device=PLACE)
    out = torch.full((16, 16), math.nan, dtype=dtype, device=PLACE)
    launch_directly(Config("pointer", 16, 16, 128, num_stages=2), a, b, out)
    expected = 8192 * float(a[0, 0]) * float(b[0, 0])
    assert out.float().allclose(torch.tensor(expected), rtol=2**-7, atol=0)


def test_partial_sums_beyond_float16_are_no_overflow():
    a = torch.full((16, 64), 200.0, dtype=torch.float16, device=PLACE)
    b = torch.full((64, 16), 100.0, dtype=torch.float16, device=PLACE)
    b[32:] = -100.0  # the sum passes 600,000 on its way back to zero
    out = torch.full((16, 16), math.nan, dtype=torch.float16, device=PLACE)
    launch_directly(Config("pointer", 16, 16, 16, num_stages=2), a, b, out)
    assert (out == 0).all()


def test_a_result_beyond_float16_is_infinite_as_in_torch():
    a = torch.full((16, 128), 30.0, dtype=torch.float16, device=PLACE)
    b = torch.full((128, 16), 30.0, dtype=torch.float16, device=PLACE)
    out = torch.full((16, 16), math.nan, dtype=torch.float16, device=PLACE)
    launch_directly(Config("pointer", 16, 16, 64, num_stages=2), a, b, out)
    assert torch.equal(out, torch.full_like(out, math.inf))
    assert torch.equal((a.float() @ b.float()).half(), out)


@pytest.mark.parametrize("m", range(1, 16))
def test_every_m_below_the_smallest_tile(m):
    problem = Problem("matmul", m, 48, 32, "float16")
    for config in FAMILY.space(problem, H200).configs[::37]:
        assert_right(problem, config)


def test_a_block_that_is_no_power_of_two_is_refused_with_its_name():
    problem = Problem("matmul", 96, 96, 96, "float16")
    prepared = FAMILY.prepare(problem, H200, index=TRYING.index, seed=0)
    with pytest.raises(ConfigError, match="block_n=48"):
        FAMILY.launch(Config("pointer", 32, 48, 32), prepared)


def test_a_wrong_config_bound_for_other_sizes_is_right_at_neighbouring_sizes():
    # a config chosen at one shape serves shapes just below it too
    config = Config("pointer", 32, 32, 32, num_stages=2)
    for m, n, k in itertools.product((63, 64), (63, 64), (63, 64)):
        problem = Problem("matmul", m, n, k, "float16")
        natural = dataclasses.replace(problem, aligned=problem.naturally_aligned())
        assert_right(natural, config)


def test_every_tile_is_visited_once_in_any_grouping():
    # each element of an output of ones would be counted if a tile were done twice or left out
    for group_size, m in itertools.product((1, 3, 8), (1, 16, 17, 100)):
        a, b = torch.ones(m, 16, device=PLACE), torch.ones(16, 70, device=PLACE)
        out = torch.full((m, 70), math.nan, device=PLACE)
        config = Config("pointer", 16, 16, 16, group_size=group_size, num_stages=2)
        launch_directly(config, a, b, out)
        assert (out == 16).all()


def test_the_family_declares_this_kernel():
    assert MATMUL.variant("pointer").kernels == (pointer_kernel,)
