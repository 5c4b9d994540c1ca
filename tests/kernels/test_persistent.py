"""The persistent TMA variant, run for real in Triton's interpreter (on a Hopper GPU, compiled)."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from trying import H200, HOPPER_HERE, Trying, needs_descriptors, place

from tunekit.config import Config
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.persistent import PersistentTiles, persistent_kernel
from tunekit.kernels.stand_ins import stand_ins
from tunekit.key import Problem

FEW_PROCESSORS = dataclasses.replace(H200, multiprocessors=2)
FAMILY = MatmulFamily((PersistentTiles(),))
LAYOUTS = ("nn", "nt", "tn", "tt")
TRYING = Trying(FAMILY, on_gpu=HOPPER_HERE)
run, assert_right = TRYING.run, TRYING.assert_right
PLACE = place(TRYING.on_gpu)
pytestmark = needs_descriptors


def config(*tile: int, epilogue: int = 1, residents: int = 1, **fields: int) -> Config:
    switches = (("epilogue", epilogue), ("residents", residents))
    return Config("persistent", *tile, switches=switches, **fields)


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    dtype = draw(st.sampled_from(("float16", "bfloat16", "float32")))
    wide = dtype == "float32"
    problem = Problem(
        "matmul",
        draw(st.integers(33, 300)),
        8 * draw(st.integers(3, 40)),
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
def test_odd_sizes_with_padded_leading_dimensions(layout):
    # every edge is inside a tile, and the padding between lines is NaN
    problem = Problem("matmul", 127, 136, 65, "float16", layout=layout)
    assert_right(problem, config(64, 64, 64, num_stages=2))


def launch_directly(config: Config, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Launch a config without asking whether it is legal."""
    problem = Problem("matmul", a.shape[0], b.shape[1], a.shape[1], str(a.dtype))
    call = PersistentTiles().call(config, problem, FEW_PROCESSORS, a, b, out)
    call.kernel[call.grid](*call.args, **call.options)


@pytest.mark.parametrize("epilogue", [1, 2])
def test_programs_walk_through_every_tile_once(epilogue):
    # 3 x 4 tiles for 2 programs, in every order
    for group_size in (1, 2, 8):
        a = torch.ones(150, 64, dtype=torch.float16, device=PLACE)
        b = torch.ones(248, 64, dtype=torch.float16, device=PLACE).t()
        out = torch.full((150, 248), math.nan, dtype=torch.float16, device=PLACE)
        tile = config(64, 64, 64, epilogue=epilogue, group_size=group_size, num_stages=2)
        launch_directly(tile, a, b, out)
        assert (out == 64).all()


@pytest.mark.parametrize("epilogue", [1, 2])
def test_outputs_that_no_descriptor_can_lie_on_are_stored_all_the_same(epilogue):
    a = torch.randn(70, 64).half().to(PLACE)
    b = torch.randn(72, 64).half().to(PLACE).t()
    expected = a.float() @ b.float()
    tile = config(64, 64, 64, epilogue=epilogue, num_stages=2)
    memory = torch.full((140, 144), math.nan, dtype=torch.float16, device=PLACE)
    column_major = torch.full((72, 70), math.nan, dtype=torch.float16, device=PLACE).t()
    for out in (memory[::2, ::2], column_major, memory[:70, 1:73]):
        memory.fill_(math.nan)
        launch_directly(tile, a, b, out)
        assert torch.allclose(out.float(), expected, atol=0.05)
    assert torch.isnan(memory[:, 0]).all()
    assert torch.isnan(memory[:, 73:]).all()


def test_rows_that_no_descriptor_can_step_through_are_refused_by_name():
    broken = FAMILY.violation(config(64, 64, 64), Problem("matmul", 64, 100, 64, "float16"), H200)
    assert broken is not None
    assert broken.rule == "tma-output"


def test_halves_are_offered_only_where_they_buy_a_stage():
    problem = Problem("matmul", 4096, 4096, 4096, "bfloat16")
    wide = {"group_size": 8, "num_warps": 8}
    assert FAMILY.violation(config(128, 256, 64, num_stages=3, **wide), problem, H200) is None
    four = config(128, 256, 64, epilogue=2, num_stages=4, **wide)
    assert FAMILY.violation(four, problem, H200) is None
    whole = FAMILY.violation(config(128, 256, 64, num_stages=4, **wide), problem, H200)
    assert whole is not None
    assert whole.rule == "shared-memory"
    halved = config(128, 256, 64, epilogue=2, num_stages=3, **wide)
    three = PersistentTiles.space.doubt(halved, problem, H200)
    assert three is not None
    assert three.rule == "epilogue"


def test_the_grid_is_what_the_device_holds_or_the_tiles_there_are():
    problem = Problem("matmul", 4096, 4096, 4096, "bfloat16")
    variant = PersistentTiles()
    operands = stand_ins(problem)
    one = config(128, 128, 64, num_stages=6)
    assert variant.call(one, problem, H200, *operands).grid == (132,)
    two = config(128, 128, 64, residents=2, epilogue=2, num_stages=3)
    assert variant.call(two, problem, H200, *operands).grid == (264,)
    small = Problem("matmul", 256, 256, 256, "bfloat16")
    assert variant.call(one, small, H200, *stand_ins(small)).grid == (4,)


def test_corners_compile_and_need_the_shared_memory_predicted(compile_corners):
    cases = [
        ("sm_90", dict(family="matmul", m=4096, n=4096, k=4096, dtype="bfloat16", layout="nt")),
        ("sm_90", dict(family="matmul", m=64, n=4096, k=8192, dtype="float16", layout="tn")),
        ("sm_100", dict(family="matmul", m=1024, n=1024, k=1024, dtype="bfloat16", layout="nt")),
    ]
    for found in compile_corners("tunekit.kernels.persistent:PersistentTiles", cases):
        assert found["shared"] <= found["predicted"] <= 1.1 * found["shared"], found["config"]
        assert "cp.async.bulk.tensor" in found["ptx"], found["config"]
        assert found["config"].startswith("sm_100") or "wgmma.mma_async" in found["ptx"]


def test_the_variant_declares_its_kernel():
    assert FAMILY.variant("persistent").kernels == (persistent_kernel,)
