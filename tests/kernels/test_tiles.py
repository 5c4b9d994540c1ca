"""Which programs there are, and that each tile and step along K is one program's."""

import pytest

from tunekit.config import Config
from tunekit.kernels.pointer import PointerTiles
from tunekit.kernels.swapped import SwappedOperands
from tunekit.kernels.tiles import MOST_ON_AXIS, Grid
from tunekit.kernels.tma import TmaTiles
from tunekit.key import Problem

ROWS = Config("tma", 64, 128, 64, group_size=1, split_k=1)


def test_tiles_of_one_row_after_the_other_are_the_axes_of_the_grid():
    assert Grid.of(ROWS, Problem("matmul", 200, 1000, 64, "float16")) == Grid((8, 4, 1), True, 0)


@pytest.mark.parametrize("split_k", [1, 2, 64])
def test_parts_are_on_the_third_axis_and_counted_in_powers_of_two(split_k):
    config = Config("tma", 64, 128, 64, split_k=split_k)
    grid = Grid.of(config, Problem("matmul", 200, 1000, 64 * 64, "float16"))
    assert grid.axes[2] == split_k == 1 << grid.split_shift


def test_groups_of_rows_and_batches_walk_one_axis():
    problem = Problem("matmul", 200, 1000, 64, "float16")
    grouped = Config("tma", 64, 128, 64, group_size=8)
    assert Grid.of(grouped, problem) == Grid((32, 1, 1), False, 0)
    batch = Problem("matmul", 200, 1000, 64, "float16", batch=3)
    assert Grid.of(ROWS, batch) == Grid((96, 1, 1), False, 0)


def test_more_rows_of_tiles_than_an_axis_takes_walk_one_axis():
    most = Problem("matmul", 64 * MOST_ON_AXIS, 128, 64, "float16")
    assert Grid.of(ROWS, most).axes == (1, MOST_ON_AXIS, 1)
    more = Problem("matmul", 64 * MOST_ON_AXIS + 1, 128, 64, "float16")
    assert Grid.of(ROWS, more) == Grid((MOST_ON_AXIS + 1, 1, 1), False, 0)


@pytest.mark.parametrize("variant", [PointerTiles, TmaTiles, SwappedOperands])
def test_parts_are_powers_of_two_wherever_they_are_shifted(variant):
    for split_k in variant.space.choices["split_k"]:
        grid = Grid.of(Config(variant.name, 64, 64, 64, split_k=split_k), Problem(
            "matmul", 64, 64, 64 * 128, "float16"
        ))  # fmt: skip
        assert 1 << grid.split_shift == split_k
