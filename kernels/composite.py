"""Composite tiles: one program, two accumulators side by side that share the rows of A.

Triton's blocks are powers of two, and so are the steps between the numbers of tiles: 192 tiles of
128x128 on 132 multiprocessors leave a quarter of them idle in the second wave. A tile of 128x192,
computed as 128 and 64 columns, makes 128 tiles of the same product. BLOCK_N is the whole width
(48, 96, 160, 192, 320, 384): the sum of two powers of two, WIDE and NARROW. One program computes
one tile: a pipelined loop brings both parts of B for each tile of A, and both products are on their
way at once. The epilogue reuses the pipeline's shared memory and stores through masked pointers,
the wide part first, so C may have any strides. Two accumulators also make tiles that one cannot:
256x192 and 128x384 read fewer bytes for each product than 256x128, and still fit the registers.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.kernels.descriptors import descriptor, load_tile, store_tile
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.stand_ins import dot_settings, in_unit
from tunekit.kernels.tiles import tile_of
from tunekit.kernels.tma_rules import (
    TMA_RULES,
    TMA_WORTH,
    deep_rule,
    whole_rows,
)
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace

LEAST_ACCUMULATORS = 24
MOST_ACCUMULATORS = 192
"""Float32 accumulators a thread may hold: TMA leaves the rest of its 255 registers free."""

LEAST_STEPS = 3
"""Steps along K from which a pipeline has loads under way while it multiplies."""


@triton.jit(do_not_specialize=["M", "N", "K", "stride_cm", "GROUP_SIZE"])
def composite_kernel(
    a,
    b_wide,
    b_narrow,
    c_ptr,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    GROUP_SIZE,
    BLOCK_M: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_CM: tl.constexpr,
    A_STORED: tl.constexpr,
    B_STORED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Compute a tile of C = A @ B, WIDE + NARROW columns."""
    N, stride_cm = N * UNIT_N, stride_cm * UNIT_CM
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, GROUP_SIZE, BLOCK_M, WIDE + NARROW)
    first_m = tile_m * BLOCK_M
    first_n = tile_n * (WIDE + NARROW)

    wide = tl.zeros((BLOCK_M, WIDE), dtype=tl.float32)
    narrow = tl.zeros((BLOCK_M, NARROW), dtype=tl.float32)
    for tile_k in range(0, tl.cdiv(K, BLOCK_K)):
        first_k = tile_k * BLOCK_K
        rows = load_tile(a, first_m, first_k, A_STORED)
        left = load_tile(b_wide, first_k, first_n, B_STORED)
        right = load_tile(b_narrow, first_k, first_n + WIDE, B_STORED)
        if UPCAST:  # Triton's interpreter multiplies the bit patterns of bfloat16
            rows = rows.to(tl.float32)
            left = left.to(tl.float32)
            right = right.to(tl.float32)
        wide = tl.dot(rows, left, wide, input_precision=PRECISION)
        narrow = tl.dot(rows, right, narrow, input_precision=PRECISION)

    store_tile(
        c_ptr, wide, first_m, first_n, M, N, stride_cm, stride_cn, BLOCK_M, WIDE, False
    )  # fmt: skip
    store_tile(
        c_ptr, narrow, first_m, first_n + WIDE, M, N, stride_cm, stride_cn, BLOCK_M, NARROW, False
    )  # fmt: skip


def widths(block_n: int) -> tuple[int, int]:
    """Return the two powers of two that a composite width is the sum of, the greater first."""
    narrow = block_n & -block_n
    return block_n - narrow, narrow


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of one program: the pipeline, or the epilogue that reuses it."""
    stage = (config.block_m + config.block_n) * config.block_k * ITEMSIZE[problem.dtype]
    part = config.block_m * widths(config.block_n)[0] * ITEMSIZE[problem.out_dtype]
    return max((stage + 24) * config.num_stages + 24, part)


def _two_powers(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    for name in ("block_m", "block_k", "num_warps"):
        value = getattr(config, name)
        if value & (value - 1):
            return f"{name}={value} is not a power of two"
    wide, narrow = widths(config.block_n)
    if wide == 0 or wide & (wide - 1) or narrow < 16:
        return f"block_n={config.block_n} is not the sum of two powers of two from 16"
    return None


def _registers(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    per_thread = config.block_m * config.block_n // (config.num_warps * device.warp_size)
    if not LEAST_ACCUMULATORS <= per_thread <= MOST_ACCUMULATORS:
        return f"{per_thread} accumulators a thread, of {LEAST_ACCUMULATORS} to {MOST_ACCUMULATORS}"
    return None


def _short(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    steps = rules.k_tiles_per_part(config, problem)
    if steps < LEAST_STEPS:
        return f"{steps} steps along K, the products need {LEAST_STEPS} to overlap with loads"
    return None


def _reads(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Refuse the least width where its products, and not the memory behind B, take the time.

    A warpgroup's product of 64 rows and 16 along K takes N / 2 cycles, and 16 + N / 4 to read its
    operands in shared memory. Each part reads A again: 32 and 16 columns take 44, 64 take 32.
    """
    if config.block_n < 64 and problem.m > config.block_m:
        return f"block_n={config.block_n} reads as much shared memory as a wider tile"
    return None


def _hopper(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if 90 <= device.capability < 100:
        return None
    return f"two accumulators a thread are held on Hopper, {device.arch} keeps them elsewhere"


class CompositeTiles:
    """The composite-tile variant as the family knows it."""

    name = "composite"
    kernels = (composite_kernel,)
    space = VariantSpace(
        variant="composite",
        choices={
            "block_m": (64, 128, 256),
            "block_n": (48, 96, 160, 192, 320, 384),
            "block_k": (32, 64, 128),
            "group_size": (1, 8, 16),
            "split_k": (1,),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4, 5, 6, 7, 8),
        },
        rules=(
            Rule("hopper", _hopper, ("variant",)),
            Rule("two-powers", _two_powers, ("block_m", "block_n", "block_k", "num_warps")),
            Rule("whole-rows", whole_rows, ("block_m", "num_warps")),
            Rule("registers", _registers, ("block_m", "block_n", "num_warps")),
            rules.PLAIN,
            *TMA_RULES,
            rules.shared_rule(shared_bytes),
        ),
        worth=(
            Rule("short-loop", _short, ("block_k", "split_k")),
            Rule("operand-reads", _reads, ("block_m", "block_n")),
            *TMA_WORTH,
            deep_rule(shared_bytes),
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch one program per tile."""
        a_stored, b_stored = (major == "n" for major in problem.layout)
        block_m, block_k = config.block_m, config.block_k
        wide, narrow = widths(config.block_n)
        itemsize = ITEMSIZE[problem.out_dtype]
        n, unit_n = in_unit(problem.n, itemsize)
        stride_cm, unit_cm = in_unit(out.stride(0), itemsize)
        args = (
            descriptor(a, stored=a_stored, block_rows=block_m, block_columns=block_k),
            descriptor(b, stored=b_stored, block_rows=block_k, block_columns=wide),
            descriptor(b, stored=b_stored, block_rows=block_k, block_columns=narrow),
            out, problem.m, n, problem.k, stride_cm, out.stride(1),
            config.group_size,
        )  # fmt: skip
        options = {
            "BLOCK_M": block_m,
            "WIDE": wide,
            "NARROW": narrow,
            "BLOCK_K": block_k,
            "UNIT_N": unit_n,
            "UNIT_CM": unit_cm,
            "A_STORED": a_stored,
            "B_STORED": b_stored,
            **dot_settings(problem),
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        tiles = rules.tile_count(config, problem)
        return KernelCall(composite_kernel, (tiles,), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)
