"""The padded-copy variant: two kernels, the second on what the first has copied."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.padded import COPY_BLOCKS, PaddedTiles, lies_well
from tunekit.kernels.reference import guard_is_intact
from tunekit.kernels.stand_ins import stand_ins
from tunekit.kernels.target import compile_key
from tunekit.key import Problem

H200 = KNOWN_DEVICES["sm_90"]
FAMILY = MatmulFamily((PaddedTiles(),))
INDEX = 0 if torch.cuda.is_available() else -1


def config(*tile: int, copy: int = 0, **fields: int) -> Config:
    return Config("padded", *tile, switches=(("copy", copy), ("shared", 0)), **fields)


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    problem = Problem(
        "matmul",
        draw(st.integers(33, 140)),
        draw(st.integers(33, 140)),
        draw(st.integers(17, 200)),
        draw(st.sampled_from(("float16", "bfloat16"))),
        layout=draw(st.sampled_from(("nn", "nt", "tn", "tt"))),
        aligned=False,
    )
    configs = FAMILY.space(problem, H200).configs
    return problem, configs[draw(st.integers(0, len(configs) - 1))]


@given(problem_and_config())
def test_any_config_is_right_on_operands_ringed_with_nan(case):
    problem, chosen = case
    prepared = FAMILY.prepare(problem, H200, index=INDEX, seed=0)
    FAMILY.poison(prepared)
    FAMILY.launch(chosen, prepared)()
    assert FAMILY.error_ratio(prepared) <= 1, f"{chosen} is wrong for {problem}"
    assert guard_is_intact(prepared)


@pytest.mark.parametrize("copy", range(len(COPY_BLOCKS)))
def test_every_copy_block_reaches_every_edge(copy):
    problem = Problem("matmul", 65, 67, 1031, "float16", aligned=False)
    prepared = FAMILY.prepare(problem, H200, index=INDEX, seed=0)
    FAMILY.poison(prepared)
    FAMILY.launch(config(64, 64, 64, copy=copy, num_stages=3), prepared)()
    assert FAMILY.error_ratio(prepared) <= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="operands on the CPU, in the interpreter")
def test_operands_without_a_contiguous_dimension():
    a = torch.randn(96, 160).half()[::2, ::2]
    b = torch.randn(160, 128).half()[::2, ::2]
    out = torch.full((48, 64), math.nan, dtype=torch.float16)
    problem = Problem("matmul", 48, 64, 80, "float16", layout="nn", aligned=False)
    launch = FAMILY.bind(config(64, 64, 64, num_stages=2), problem, H200, a, b, out)
    launch(a, b, out)
    assert torch.allclose(out.float(), a.float() @ b.float(), rtol=1e-2, atol=5e-2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="operands on the CPU, in the interpreter")
def test_lines_further_apart_than_32_bits_count():
    memory = torch.empty(2**31 + 200, dtype=torch.float16)  # only what is touched takes room
    a = memory.as_strided((2, 80), (2**31 + 1, 1))
    a.copy_(torch.randn(2, 80))
    b = torch.randn(33, 80).half()[:, :79].t()
    a = a[:, :79]
    out = torch.full((2, 33), math.nan, dtype=torch.float16)
    problem = Problem("matmul", 2, 33, 79, "float16", aligned=False)
    launch = FAMILY.bind(config(64, 64, 64, num_stages=2), problem, H200, a, b, out)
    launch(a, b, out)
    assert torch.allclose(out.float(), a.float() @ b.float(), rtol=1e-2, atol=5e-2)


def test_lines_of_whole_128_bytes_are_not_copied():
    problem = Problem("matmul", 128, 128, 128, "float16")
    broken = FAMILY.violation(config(64, 64, 64, num_stages=2), problem, H200)
    assert broken is not None
    assert broken.rule == "unaligned"
    older = Problem("matmul", 129, 129, 129, "float16", aligned=False)
    assert len(FAMILY.space(older, KNOWN_DEVICES["sm_80"])) == 0


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_aligned_lines_that_are_no_whole_lines_of_the_cache_are_copied(layout):
    problem = Problem("matmul", 72, 88, 104, "float16", layout=layout)
    prepared = FAMILY.prepare(problem, H200, index=INDEX, seed=0)
    FAMILY.poison(prepared)
    FAMILY.launch(config(64, 64, 64, copy=1, num_stages=2), prepared)()
    assert FAMILY.error_ratio(prepared) <= 1
    assert guard_is_intact(prepared)


def test_only_the_operand_that_lies_badly_is_copied():
    # A has rows of 128 bytes, B of 144
    problem = Problem("matmul", 80, 72, 64, "float16", layout="nn")
    assert lies_well(problem) == (True, False)
    a, b, out = stand_ins(problem)
    copies, product = PaddedTiles().call(config(64, 64, 64), problem, H200, a, b, out).sequence()
    assert product.args[0].base is a
    assert product.args[1].base.strides == (128, 1)
    assert copies.grid == (64 * 128 // COPY_BLOCKS[0][0],)
    prepared = FAMILY.prepare(problem, H200, index=INDEX, seed=0)
    FAMILY.poison(prepared)
    FAMILY.launch(config(64, 64, 64, copy=1, num_stages=2), prepared)()
    assert FAMILY.error_ratio(prepared) <= 1


def test_both_kernels_are_part_of_what_is_compiled():
    problem = Problem("matmul", 129, 129, 129, "float16", aligned=False)
    call = PaddedTiles().call(config(64, 64, 64, num_stages=2), problem, H200, *stand_ins(problem))
    assert [one.kernel.fn.__name__ for one in call.sequence()] == ["padding_kernel", "tma_kernel"]
    other = PaddedTiles().call(
        config(64, 64, 64, copy=1, num_stages=2), problem, H200, *stand_ins(problem)
    )
    assert compile_key(call) != compile_key(other)


def test_corners_compile_within_their_shared_memory(compile_corners):
    cases = [("sm_90", {"family": "matmul", "m": 1023, "n": 1023, "k": 1023,
                        "dtype": "bfloat16", "aligned": False})]  # fmt: skip
    found = compile_corners("tunekit.kernels.padded:PaddedTiles", cases)
    assert len(found) >= 2
    for one in found:
        assert one["shared"] <= one["predicted"] <= 1.1 * one["shared"] + 1024, one
