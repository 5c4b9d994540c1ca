"""Which tile, and which part of its sum, a program computes.

Where a program's first load waits for a division it waits a hundred cycles, and for the code of it,
which lies in memory when a model comes to the kernel: a few per cent of a small product. So the
grid has the tiles' rows and columns as axes where their order allows it, and parts are counted in
powers of two.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tunekit.config import Config
from tunekit.kernels.tile_rules import ceil_div, tile_count
from tunekit.key import Problem

MOST_ON_AXIS = 65535
"""What CUDA allows on the second and third axis of a grid."""


@triton.jit
def tile_of(pid, M, N, GROUP_SIZE, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Map a program to its tile in group-major order."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    in_group = GROUP_SIZE * tiles_n
    first_m = pid // in_group * GROUP_SIZE
    rows = tl.minimum(tiles_m - first_m, GROUP_SIZE)
    return first_m + pid % in_group % rows, pid % in_group // rows


@triton.jit
def place_of(
    M, N, GROUP_SIZE,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BATCHED: tl.constexpr,
    ON_AXES: tl.constexpr,
):  # fmt: skip
    """Return a program's number without its part, its C, and its tile's row and column there."""
    if ON_AXES:
        tile_m, tile_n = tl.program_id(1), tl.program_id(0)
        return tile_m * tl.num_programs(0) + tile_n, 0, tile_m, tile_n
    pid = tl.program_id(0)
    tile = pid
    which = 0
    if BATCHED:
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        tile = pid % tiles
        which = pid // tiles
    tile_m, tile_n = tile_of(tile, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
    return pid, which, tile_m, tile_n


@triton.jit
def steps_of(part, k_tiles, SPLIT_SHIFT, SPLIT: tl.constexpr):
    """Return the first step along K of a part of 2**SPLIT_SHIFT, and the one after its last."""
    first = (part * k_tiles) >> SPLIT_SHIFT if SPLIT else 0
    last = ((part + 1) * k_tiles) >> SPLIT_SHIFT if SPLIT else k_tiles
    return first, last


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of one program per tile and part: the part is on its third axis."""

    axes: tuple[int, int, int]
    on_axes: bool
    """The first axis has the tiles' columns and the second their rows, not the first all tiles."""
    split_shift: int
    """The number of parts as a power of two."""

    @classmethod
    def of(cls, config: Config, problem: Problem) -> Grid:
        """Lay out a config's programs: row by row if its groups are of one row."""
        tiles_m = ceil_div(problem.m, config.block_m)
        shift = config.split_k.bit_length() - 1
        if config.group_size == 1 and problem.batch == 1 and tiles_m <= MOST_ON_AXIS:
            tiles_n = ceil_div(problem.n, config.block_n)
            return cls((tiles_n, tiles_m, config.split_k), True, shift)
        return cls((tile_count(config, problem), 1, config.split_k), False, shift)
