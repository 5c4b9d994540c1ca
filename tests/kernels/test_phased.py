"""Phased rows: rows of A that start at the same place of a cache line, a tile of them at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from trying import H200, HOPPER_HERE, Trying, needs_descriptors, place

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.phased import PhasedRows, of_one_phase, phases_of
from tunekit.kernels.stand_ins import stand_ins
from tunekit.key import ITEMSIZE, Problem

FAMILY = MatmulFamily((PhasedRows(),))
TRYING = Trying(FAMILY, on_gpu=HOPPER_HERE)
PLACE = place(TRYING.on_gpu)
SMALL = Config("phased", 64, 32, 64, num_warps=4, num_stages=2)
pytestmark = needs_descriptors


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    dtype, precision = draw(
        st.sampled_from((("bfloat16", "ieee"), ("float16", "ieee"), ("float32", "tf32")))
    )
    whole = 16 // ITEMSIZE[dtype]
    k = whole * draw(st.integers(1, 40))
    phases = phases_of(k, ITEMSIZE[dtype])
    layout = "nt" if dtype == "float32" else draw(st.sampled_from(("nt", "nn")))
    n = draw(st.integers(1, 150)) if layout == "nt" else whole * draw(st.integers(1, 15))
    m = phases * draw(st.integers(1, 70))
    problem = Problem("matmul", m, n, k, dtype, precision=precision, layout=layout)
    configs = FAMILY.space(problem, H200).configs
    assume(configs)
    return problem, configs[draw(st.integers(0, len(configs) - 1))]


@settings(max_examples=max(10, settings.default.max_examples // 3))
@given(problem_and_config(), st.integers(0, 3))
def test_any_config_is_right_on_operands_ringed_with_nan(case, seed):
    TRYING.assert_right(*case, seed)


@pytest.mark.parametrize("k", [1000, 1032, 1016, 40])
def test_rows_of_every_phase_and_steps_past_both_ends_are_right(k):
    """In 8, 4 or 8 phases; with one step more along K for those that begin before their start."""
    TRYING.assert_right(Problem("matmul", 8 * 33, 40, k, "float16", layout="nt"), SMALL)


@pytest.mark.parametrize(("rows", "pitch"), [(24, 128), (24, 96), (24, 104), (12, 104), (6, 112)])
def test_operands_of_another_pitch_than_the_problems(rows, pitch):
    """Whatever the phases of the pitch: also where they do not divide the rows."""
    memory = torch.full((rows, pitch), torch.nan, dtype=torch.float16, device=PLACE)
    a = memory[:, :96]
    a.copy_(torch.randn(rows, 96))
    b = torch.randn(40, 96, device=PLACE).to(torch.float16).T
    out = torch.full((rows, 40), torch.nan, dtype=torch.float16, device=PLACE)
    problem = Problem("matmul", rows, 40, 96, "float16", layout="nt")
    FAMILY.bind(SMALL, problem, H200, a, b, out)(a, b, out)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=2e-3, atol=2e-3)


def test_a_descriptor_of_a_has_a_phase_after_the_other_and_the_grid_too():
    problem = Problem("matmul", 1000, 1000, 1000, "bfloat16", layout="nt")
    config = Config("phased", 128, 64, 64, num_stages=7)
    a, b, out = stand_ins(problem)
    call = PhasedRows().call(config, problem, H200, a, b, out)
    assert call.grid == (16, 1, 8)
    assert call.args[0].base is a
    assert (call.args[0].shape, call.args[0].strides) == ([8, 125, 1000], [1000, 8000, 1])
    assert of_one_phase(problem) == Problem(
        "matmul", 125, 1000, 1000, "bfloat16", layout="nt", batch=8
    )


@pytest.mark.parametrize(
    ("pitch", "itemsize", "phases"),
    [(1000, 2, 8), (1032, 2, 8), (1056, 2, 2), (64, 2, 1), (36, 4, 8)],
)
def test_rows_start_again_at_the_same_place_of_a_line(pitch, itemsize, phases):
    assert phases_of(pitch, itemsize) == phases
    assert pitch * itemsize * phases % 128 == 0


@pytest.mark.parametrize(("k", "phases"), [(1023, 1), (1001, 4), (1050, 2), (1000, 8)])
def test_aligned_rows_of_odd_length_have_the_phases_of_the_pitch_they_have(k, phases):
    problem = Problem("matmul", 1000, 1000, k, "bfloat16", layout="nt")
    assert of_one_phase(problem).batch == phases
    space = FAMILY.space(problem, H200)
    assert bool(space.configs) == (phases > 1)
    a, b, out = stand_ins(problem)
    for config in space.configs[:1]:
        assert PhasedRows().call(config, problem, H200, a, b, out).grid[2] == phases


def test_rows_of_tiles_fit_on_the_grids_second_axis_whatever_the_pitch():
    tall = Problem("matmul", 65536 * 64, 64, 72, "float16", layout="nt")
    broken = FAMILY.violation(SMALL, tall, H200)
    assert broken is not None
    assert broken.rule == "grid"
    assert FAMILY.violation(replace(SMALL, block_m=128), tall, H200) is None


def test_it_is_for_rows_that_cross_lines_on_gpus_that_load_by_tma():
    crossing = Problem("matmul", 1000, 1000, 1000, "bfloat16", layout="nt")
    assert FAMILY.space(crossing, H200).configs
    assert FAMILY.space(crossing, KNOWN_DEVICES["sm_100"]).configs
    assert not FAMILY.space(crossing, KNOWN_DEVICES["sm_80"]).configs
    for other in (
        Problem("matmul", 1024, 1024, 1024, "bfloat16", layout="nt"),  # whole lines
        Problem("matmul", 1001, 1000, 1000, "bfloat16", layout="nt"),  # no whole number of phases
        Problem("matmul", 1000, 1000, 1000, "bfloat16", layout="tn"),  # A along M
        Problem("matmul", 1023, 1023, 1023, "bfloat16", layout="nt"),  # no descriptor at all
        Problem("matmul", 1000, 1000, 1000, "bfloat16", layout="nt", batch=2),
    ):
        space = FAMILY.space(other, H200)
        assert not space.configs
        assert sum(space.pruned.values()) == len(list(PhasedRows.space.candidates()))
