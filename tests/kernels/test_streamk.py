"""The variant with a cut last wave, run in Triton's interpreter (on a Hopper GPU, compiled)."""

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
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.stand_ins import stand_ins
from tunekit.kernels.streamk import PARTS, StreamK, last_wave, streamk_kernel
from tunekit.key import Problem
from tunekit.space import enumerate_space

SIX = dataclasses.replace(H200, multiprocessors=6)
VARIANT = StreamK()
FAMILY = MatmulFamily((VARIANT,))
LAYOUTS = ("nn", "nt", "tn", "tt")
TRYING = Trying(FAMILY, SIX, on_gpu=HOPPER_HERE)
run, assert_right = TRYING.run, TRYING.assert_right
PLACE = place(TRYING.on_gpu)
pytestmark = needs_descriptors


def config(*tile: int, epilogue: int = 1, **fields: int) -> Config:
    return Config("streamk", *tile, switches=(("epilogue", epilogue),), **fields)


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    dtype = draw(st.sampled_from(("float16", "bfloat16", "float32")))
    wide = dtype == "float32"
    problem = Problem(
        "matmul",
        draw(st.integers(33, 300)),
        8 * draw(st.integers(5, 50)),
        draw(st.integers(65, 400)),
        dtype,
        precision="tf32" if wide else "ieee",
        layout="nt" if wide else draw(st.sampled_from(LAYOUTS)),
    )
    fields = {
        name: draw(st.sampled_from(VARIANT.space.choices[name]))
        for name in ("block_m", "block_n", "group_size", "num_warps", "epilogue")
    }
    tile = (fields.pop("block_m"), fields.pop("block_n"), 64)
    whole = config(*tile, **fields, split_k=2, num_stages=2)
    fits = [
        cut
        for cut in (dataclasses.replace(whole, split_k=parts) for parts in PARTS)
        if FAMILY.violation(cut, problem, SIX) is None
    ]
    assume(fits)
    return problem, draw(st.sampled_from(fits))


@given(problem_and_config(), st.integers(0, 3))
def test_any_legal_config_is_right_for_any_aligned_problem(case, seed):
    problem, config = case
    assert_right(problem, config, seed)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_sizes_with_padded_leading_dimensions(layout):
    # 2 x 4 tiles: six whole, two in three parts; the padding between lines is NaN
    problem = Problem("matmul", 127, 232, 150, "float16", layout=layout)
    tile = config(64, 64, 64, split_k=3, num_stages=2)
    assert last_wave(tile, problem, SIX) == (1, 2)
    assert_right(problem, tile)


@pytest.mark.parametrize("parts", [2, 3])
def test_fewer_tiles_than_programs_are_all_cut(parts):
    problem = Problem("matmul", 70, 56, 250, "float16")
    tile = config(64, 64, 64, split_k=parts, num_stages=2)
    assert last_wave(tile, problem, SIX) == (0, 2)
    assert_right(problem, tile)


def call_directly(
    config: Config, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> KernelCall:
    problem = Problem("matmul", a.shape[0], b.shape[1], a.shape[1], str(a.dtype))
    return VARIANT.call(config, problem, SIX, a, b, out)


def test_every_order_of_the_tiles_covers_each_once():
    # 3 x 5 tiles for 6 programs: two waves, then three tiles in halves
    for group_size in (1, 2, 8):
        a = torch.ones(150, 136, dtype=torch.float16, device=PLACE)
        b = torch.ones(312, 136, dtype=torch.float16, device=PLACE).t()
        out = torch.full((150, 312), math.nan, dtype=torch.float16, device=PLACE)
        tile = config(64, 64, 64, group_size=group_size, split_k=2, num_stages=2)
        call = call_directly(tile, a, b, out)
        call.kernel[call.grid](*call.args, **call.options)
        assert (out == 136).all()


def test_sums_repeat_bit_by_bit_and_leave_the_counters_at_zero():
    a = torch.randn(128, 64 * 7).half().to(PLACE)
    b = torch.randn(256, 64 * 7).half().to(PLACE).t()
    out = torch.full((128, 256), math.nan, dtype=torch.float16, device=PLACE)
    tile = config(64, 64, 64, split_k=3, num_stages=2)
    call = call_directly(tile, a, b, out)
    results = []
    for _ in range(3):  # the same workspace and counters serve every launch
        out.fill_(math.nan)
        call.kernel[call.grid](*call.args, **call.options)
        results.append(out.clone())
    arrivals = call.args[list(call.kernel.arg_names).index("arrivals_ptr")]
    assert not arrivals.any()
    assert torch.allclose(results[0].float(), a.float() @ b.float(), atol=0.1)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("epilogue", [1, 2])
def test_outputs_that_no_descriptor_can_lie_on_are_stored_all_the_same(epilogue):
    a = torch.randn(70, 128).half().to(PLACE)
    b = torch.randn(232, 128).half().to(PLACE).t()
    expected = a.float() @ b.float()
    tile = config(64, 64, 64, epilogue=epilogue, split_k=2, num_stages=2)
    memory = torch.full((140, 464), math.nan, dtype=torch.float16, device=PLACE)
    column_major = torch.full((232, 70), math.nan, dtype=torch.float16, device=PLACE).t()
    for out in (memory[::2, ::2], column_major, memory[:70, 1:233]):
        memory.fill_(math.nan)
        call = call_directly(tile, a, b, out)
        call.kernel[call.grid](*call.args, **call.options)
        assert torch.allclose(out.float(), expected, atol=0.1)
    assert torch.isnan(memory[:, 0]).all()
    assert torch.isnan(memory[:, 233:]).all()


def test_what_cannot_be_cut_is_refused_by_name():
    tall = Problem("matmul", 512, 6144, 4096, "bfloat16")  # 192 tiles, 60 after the first wave
    tile = config(128, 128, 64, split_k=2, group_size=8)
    assert FAMILY.violation(tile, tall, H200) is None
    cases = {
        dataclasses.replace(tile, split_k=3): (tall, "last-wave"),
        dataclasses.replace(tile, split_k=1): (tall, "split_k-choice"),
        tile: (Problem("matmul", 1536, 1408, 4096, "bfloat16"), "last-wave"),  # 132 tiles
        dataclasses.replace(tile, block_k=128): (
            Problem("matmul", 512, 6144, 128, "bfloat16"),
            "split-k",
        ),
    }
    for cut, (problem, rule) in cases.items():
        broken = FAMILY.violation(cut, problem, H200)
        assert broken is not None
        assert broken.rule == rule


def worth(m: int, n: int, k: int) -> set[tuple[int, int, int]]:
    """Return the tiles and parts worth a trial on an H200."""
    problem = Problem("matmul", m, n, k, "bfloat16")
    space = enumerate_space((VARIANT.space,), problem, H200)
    assert len(space) < 200
    return {(c.block_m, c.block_n, c.split_k) for c in space.configs}


def test_only_a_wave_that_idles_is_worth_a_trial():
    assert (128, 128, 2) in worth(512, 6144, 4096)
    # 800 tiles of 128x256 are six waves and 8 tiles: more parts would fit than pay
    assert {parts for m, n, parts in worth(5120, 5120, 5120) if (m, n) == (128, 256)} == {4, 8}
    assert worth(2048, 2048, 2048) == set()
    # fewer tiles than programs are cut here only as plain split-K cannot cut them
    assert {parts for m, n, parts in worth(512, 1408, 8192) if (m, n) == (128, 128)} == {3}


def test_the_grid_is_the_device_or_the_parts_there_are():
    problem = Problem("matmul", 512, 6144, 4096, "bfloat16")
    tile = config(128, 128, 64, split_k=2, group_size=8)
    assert VARIANT.call(tile, problem, H200, *stand_ins(problem)).grid == (132,)
    small = Problem("matmul", 512, 1408, 8192, "bfloat16")
    third = dataclasses.replace(tile, split_k=3)
    assert VARIANT.call(third, small, H200, *stand_ins(small)).grid == (132,)
    half = dataclasses.replace(tile, split_k=2)
    assert VARIANT.call(half, small, H200, *stand_ins(small)).grid == (88,)


def test_corners_compile_and_need_the_shared_memory_predicted(compile_corners):
    cases = [
        ("sm_90", dict(family="matmul", m=512, n=6144, k=4096, dtype="bfloat16", layout="nt")),
        ("sm_90", dict(family="matmul", m=5120, n=5120, k=5120, dtype="float16", layout="tn")),
        ("sm_100", dict(family="matmul", m=512, n=6144, k=4096, dtype="bfloat16", layout="nt")),
    ]
    for found in compile_corners("tunekit.kernels.streamk:StreamK", cases):
        assert found["shared"] <= found["predicted"] <= 1.1 * found["shared"], found["config"]
        assert "cp.async.bulk.tensor" in found["ptx"], found["config"]
        assert found["config"].startswith("sm_100") or "wgmma.mma_async" in found["ptx"]


def test_the_variant_declares_its_kernel():
    assert FAMILY.variant("streamk").kernels == (streamk_kernel,)
