"""The composite-tile variant, run for real in Triton's interpreter (on a Hopper GPU, compiled)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from trying import H200, HOPPER_HERE, Trying, needs_descriptors, place

from tunekit.config import Config
from tunekit.kernels.composite import CompositeTiles, composite_kernel, widths
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.stand_ins import stand_ins
from tunekit.kernels.tma_rules import residents
from tunekit.key import Problem

FAMILY = MatmulFamily((CompositeTiles(),))
LAYOUTS = ("nn", "nt", "tn", "tt")
TRYING = Trying(FAMILY, on_gpu=HOPPER_HERE)
run, assert_right = TRYING.run, TRYING.assert_right
PLACE = place(TRYING.on_gpu)
pytestmark = needs_descriptors


def config(*tile: int, **fields: int) -> Config:
    return Config("composite", *tile, **fields)


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    dtype = draw(st.sampled_from(("float16", "bfloat16", "float32")))
    wide = dtype == "float32"
    problem = Problem(
        "matmul",
        draw(st.integers(33, 300)),
        draw(st.integers(33, 320)),
        draw(st.integers(1, 300)),
        dtype,
        precision="tf32" if wide else "ieee",
        layout="nt" if wide else draw(st.sampled_from(LAYOUTS)),
    )
    configs = FAMILY.space(problem, H200).configs
    assume(configs)
    return problem, configs[draw(st.integers(0, len(configs) - 1))]


@given(problem_and_config(), st.integers(0, 3))
def test_any_legal_config_is_right_for_any_aligned_problem(case, seed):
    problem, config = case
    assert_right(problem, config, seed)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [48, 96, 160, 192])
def test_odd_sizes_with_padded_leading_dimensions(layout, width):
    # every edge is inside a tile, and the padding between lines is NaN
    problem = Problem("matmul", 127, 201, 65, "float16", layout=layout)
    assert_right(problem, config(64, width, 64, num_stages=2))


def launch_directly(config: Config, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Launch a config without asking whether it is legal."""
    problem = Problem("matmul", a.shape[0], b.shape[1], a.shape[1], str(a.dtype))
    call = CompositeTiles().call(config, problem, H200, a, b, out)
    call.kernel[call.grid](*call.args, **call.options)


@pytest.mark.parametrize(
    ("whole", "parts"),
    [(48, (32, 16)), (96, (64, 32)), (160, (128, 32)), (192, (128, 64)), (320, (256, 64))],
)
def test_a_width_is_the_sum_of_two_powers_of_two(whole, parts):
    assert widths(whole) == parts


@pytest.mark.parametrize("width", [48, 96, 160, 192, 320, 384])
def test_every_tile_is_computed_whatever_the_order(width):
    for group_size in (1, 8):
        a = torch.ones(150, 64, dtype=torch.float16, device=PLACE)
        b = torch.ones(400, 64, dtype=torch.float16, device=PLACE).t()
        out = torch.full((150, 400), math.nan, dtype=torch.float16, device=PLACE)
        launch_directly(config(64, width, 64, group_size=group_size, num_stages=2), a, b, out)
        assert (out == 64).all()


def test_outputs_may_have_any_strides():
    a = torch.randn(70, 64).half().to(PLACE)
    b = torch.randn(72, 64).half().to(PLACE).t()
    expected = a.float() @ b.float()
    memory = torch.full((140, 144), math.nan, dtype=torch.float16, device=PLACE)
    column_major = torch.full((72, 70), math.nan, dtype=torch.float16, device=PLACE).t()
    for out in (memory[::2, ::2], column_major, memory[:70, 1:73]):
        memory.fill_(math.nan)
        launch_directly(config(64, 96, 64, num_stages=2), a, b, out)
        assert torch.allclose(out.float(), expected, atol=0.05)
    assert torch.isnan(memory[:, 0]).all()
    assert torch.isnan(memory[:, 73:]).all()


@pytest.mark.parametrize("width", [40, 64, 112, 136])
def test_any_other_width_is_refused_by_name(width):
    problem = Problem("matmul", 4096, 4096, 4096, "bfloat16")
    broken = FAMILY.violation(config(128, width, 64), problem, H200)
    assert broken is not None
    assert f"block_n={width}" in str(broken)


def test_a_width_between_powers_of_two_fills_one_wave():
    # 4 x 48 tiles of 128x128 are 1.45 waves on 132 multiprocessors, 4 x 32 of 128x192 are one
    problem = Problem("matmul", 512, 6144, 4096, "bfloat16")
    tile = config(128, 192, 64, num_warps=8, num_stages=5)
    assert FAMILY.violation(tile, problem, H200) is None
    assert CompositeTiles().call(tile, problem, H200, *stand_ins(problem)).grid == (128,)
    assert tile in FAMILY.space(problem, H200).configs


def test_a_space_is_small_and_holds_what_an_expert_would_try():
    configs = set(FAMILY.space(Problem("matmul", 4096, 6144, 4096, "bfloat16"), H200).configs)
    assert 0 < len(configs) < 80
    assert config(256, 192, 64, 8, num_warps=8, num_stages=4) in configs
    assert config(128, 160, 64, 8, num_warps=4, num_stages=3) in configs  # two to a multiprocessor


@pytest.mark.parametrize("rows", [64, 4096])
def test_the_least_width_is_tried_only_where_each_part_of_b_is_read_once(rows):
    configs = FAMILY.space(Problem("matmul", rows, 2048, 4096, "bfloat16"), H200).configs
    assert configs
    assert any(one.block_n == 48 for one in configs) == (rows == 64)


def test_two_programs_share_a_multiprocessor_where_their_memory_fits():
    problem = Problem("matmul", 512, 6144, 4096, "bfloat16")
    for tile in (config(128, 96, 64, 8, num_stages=4), config(128, 160, 64, 8, num_stages=3)):
        assert residents(tile, H200, CompositeTiles().shared_bytes(tile, problem, H200)) == 2


def test_corners_compile_and_need_the_shared_memory_predicted(compile_corners):
    cases = [
        ("sm_90", dict(family="matmul", m=4096, n=4096, k=4096, dtype="bfloat16", layout="nt")),
        ("sm_90", dict(family="matmul", m=64, n=4096, k=8192, dtype="float16", layout="tn")),
    ]
    for found in compile_corners("tunekit.kernels.composite:CompositeTiles", cases):
        assert found["shared"] <= found["predicted"] <= 1.1 * found["shared"], found["config"]
        assert "cp.async.bulk.tensor" in found["ptx"], found["config"]
        assert found["config"].startswith("sm_100") or "wgmma.mma_async" in found["ptx"]


def test_the_variant_declares_its_kernel():
    assert FAMILY.variant("composite").kernels == (composite_kernel,)
