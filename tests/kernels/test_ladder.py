"""The ladder: each step gives the product, in the interpreter (on a GPU, compiled)."""

from __future__ import annotations

import math

import pytest
import torch
from trying import H200, Trying

from tunekit.errors import ConfigError
from tunekit.kernels.ladder import (
    LIST_OF_15,
    blocked_loops,
    blockwise,
    grouped,
    listed,
    listed_config,
    three_loops,
)
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.reference import guard_is_intact
from tunekit.key import Problem

TRYING = Trying(MATMUL)
STEPS = {"blockwise": blockwise, "grouped": grouped}
ARITHMETIC = [
    ("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee"),
]  # fmt: skip


def tried(problem: Problem, step, **settings) -> None:
    """Run a step on operands ringed with NaN and hold the result to the reference."""
    prepared = MATMUL.prepare(problem, H200, index=TRYING.index, seed=0)
    MATMUL.poison(prepared)
    step(prepared.a, prepared.b, prepared.out, precision=problem.precision, **settings)
    assert MATMUL.error_ratio(prepared) <= 1
    assert guard_is_intact(prepared)


@pytest.mark.parametrize("size", [26, 64])
def test_loops_multiply(size):
    generator = torch.Generator().manual_seed(size)
    a = torch.randn(size, size, generator=generator)
    b = torch.randn(size, size, generator=generator)
    expected = (a.double() @ b.double()).float()
    assert torch.allclose(three_loops(a, b), expected, rtol=1e-6, atol=1e-6)
    assert torch.allclose(blocked_loops(a, b), expected, rtol=1e-6, atol=1e-6)


def test_loops_take_sizes_that_no_block_divides():
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    expected = a.double() @ b.double()
    assert torch.allclose(three_loops(a, b).double(), expected, atol=1e-5)
    assert torch.allclose(blocked_loops(a, b, block=4).double(), expected, atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC)
def test_a_triton_step_is_right(name, dtype, precision):
    problem = Problem("matmul", 70, 90, 100, dtype, precision=precision, layout="nn", aligned=False)
    tried(problem, STEPS[name], block=32)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_a_triton_step_is_right_in_other_blocks_and_layouts(name, block, layout):
    tried(Problem("matmul", 50, 33, 40, "float16", layout=layout, aligned=False), STEPS[name],
          block=block)  # fmt: skip


@pytest.mark.parametrize("entry", LIST_OF_15)
def test_each_config_of_the_list_is_right(entry):
    tried(Problem("matmul", 130, 140, 70, "float16"), listed, config=listed_config(*entry))


def test_more_rows_of_blocks_than_a_group_are_each_visited_once():
    a, b = torch.ones(16 * 19, 16), torch.ones(16, 16 * 3)
    if TRYING.on_gpu:
        a, b = a.cuda(), b.cuda()
    out = torch.full((16 * 19, 16 * 3), math.nan, device=a.device)
    grouped(a, b, out, block=16)
    assert (out == 16).all()


@pytest.mark.parametrize("name", STEPS)
def test_a_block_below_16_is_an_error_before_the_compiler_sees_it(name):
    a = torch.ones(16, 16)
    with pytest.raises(ConfigError, match=r"block=8: tl\.dot needs blocks of at least 16"):
        STEPS[name](a, a, a, block=8)
    with pytest.raises(ConfigError, match="block=48 is no power of two"):
        STEPS[name](a, a, a, block=48)
    with pytest.raises(ConfigError, match="block_k=8"):
        listed_config(64, 64, 8, 3, 4)


def test_the_list_is_the_fifteen():
    assert len(set(LIST_OF_15)) == 15
    assert LIST_OF_15[0] == (128, 256, 64, 3, 8)
    assert LIST_OF_15[-1] == (32, 32, 32, 5, 2)
