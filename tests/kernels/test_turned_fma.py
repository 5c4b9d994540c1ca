"""Turned copies of full float32: an operand that lies along K is copied to lie across it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from trying import H200, Trying, place

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.stand_ins import stand_ins
from tunekit.kernels.turned_fma import LEAST_USES, TURNED_FMA
from tunekit.key import LAYOUTS, Problem

FAMILY = MatmulFamily(TURNED_FMA)
TRYING = Trying(FAMILY)
PLACE = place(TRYING.on_gpu)
POINTER, SWAPPED = TURNED_FMA


def full(m: int, n: int, k: int, layout: str = "nt", **fields) -> Problem:
    return Problem("matmul", m, n, k, "float32", precision="ieee", layout=layout, **fields)


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    size = st.integers(1, 140)
    problem = full(
        draw(size), draw(size), draw(st.integers(1, 300)),
        draw(st.sampled_from(("nt", "tt"))), aligned=draw(st.booleans()),
    )  # fmt: skip
    variant = draw(st.sampled_from(TURNED_FMA))
    configs = MatmulFamily((variant,)).space(problem, H200).configs
    assume(configs)
    return problem, configs[draw(st.integers(0, len(configs) - 1))]


@settings(max_examples=max(10, settings.default.max_examples // 3))
@given(problem_and_config(), st.integers(0, 3))
def test_any_config_is_right_on_operands_ringed_with_nan(case, seed):
    TRYING.assert_right(*case, seed)


@pytest.mark.parametrize("aligned", [True, False])
def test_every_block_of_the_copy_reaches_every_edge(aligned):
    problem = full(65, 130, 129, aligned=aligned)
    for variant in TURNED_FMA:
        TRYING.assert_right(problem, MatmulFamily((variant,)).space(problem, H200).configs[0])


def test_pointer_tiles_read_a_copy_of_b_and_swapped_ones_of_a():
    problem = full(64, 256, 512)
    a, b, out = stand_ins(problem)
    for variant, copied, strides in ((POINTER, 1, (256, 1)), (SWAPPED, 0, (1, 64))):
        config = MatmulFamily((variant,)).space(problem, H200).configs[0]
        copying, product = variant.call(config, problem, H200, a, b, out).sequence()
        assert product.args[copied].strides == strides
        assert product.args[1 - copied] is (a, b)[1 - copied]
        assert copying.grid == (8 * (256 if copied else 64) // 64,)  # blocks of 64 x 64


def test_operands_without_a_contiguous_dimension():
    a = torch.randn(2 * 70, 2 * 96, device=PLACE)[::2, ::2]
    b = torch.randn(2 * 96, 2 * 80, device=PLACE)[::2, ::2]
    out = torch.full((70, 80), torch.nan, device=PLACE)
    problem = full(70, 80, 96, aligned=False)
    for variant in TURNED_FMA:
        config = MatmulFamily((variant,)).space(problem, H200).configs[0]
        FAMILY.bind(config, problem, H200, a, b, out)(a, b, out)
        torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_what_lies_along_k_is_copied_and_on_any_gpu(arch, layout):
    space = FAMILY.space(full(64, 512, 512, layout), KNOWN_DEVICES[arch])
    there = {config.variant for config in space.configs}
    wanted = {"nt": {"turned-pointer", "turned-swapped"}, "tt": {"turned-pointer"}}
    assert there == wanted.get(layout, set())


def test_no_copy_is_made_for_few_uses_nor_where_tensor_cores_multiply():
    few = FAMILY.space(full(LEAST_USES - 1, 512, 512), H200)
    assert {config.variant for config in few.configs} == {"turned-swapped"}
    assert few.pruned["copy"]
    for other in (
        Problem("matmul", 512, 512, 512, "float32", precision="tf32", layout="nt"),
        Problem("matmul", 512, 512, 512, "float16", layout="nt"),
        full(64, 512, 512, batch=4),
    ):
        assert not FAMILY.space(other, H200).configs
