"""Swapped operands: for few rows of A, the columns of B take the M side of the MMA.

A tensor core's instruction has at least 64 rows on Hopper and 16 elsewhere, and as few as 8
columns. With fewer rows of A than that most of its work is wasted, and the tile that is loaded at a
time stays small. So this variant computes C^T = B^T A^T: BLOCK_N columns of B are the rows of the
accumulator, and all rows of A are its BLOCK_M columns. Such products move B once and do little
else; what counts is how many bytes of it are on their way at any time: deep pipelines, and split-K
until every multiprocessor has a part. B and A come through TMA descriptors (switch `tma` = 1,
Hopper) or through masked pointers with any strides.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import triton
import triton.language as tl

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules
from tunekit.kernels.descriptors import descriptor, load_tile_of, several
from tunekit.kernels.partials import finish_tile, split_settings
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.scaling import scaled
from tunekit.kernels.stand_ins import batch_strides, dot_settings, in_unit
from tunekit.kernels.sums import accumulator_dtype, scale_pointers, sum_settings
from tunekit.kernels.tiles import Grid, place_of, steps_of
from tunekit.kernels.workspaces import split_workspace
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace

MOST_ROWS = 128
"""Rows of A beyond which other variants fill the tensor cores as well."""


@triton.jit(do_not_specialize=["SPLIT_SHIFT"])
def swapped_kernel(
    a,
    b,
    c_ptr,
    workspace_ptr,
    arrivals_ptr,
    scale_a_ptr,
    scale_b_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    stride_ab,
    stride_bb,
    stride_cb,
    SPLIT_SHIFT,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EVEN_K: tl.constexpr,
    TMA: tl.constexpr,
    PARTS: tl.constexpr,
    A_STORED: tl.constexpr,
    B_STORED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    INTEGER: tl.constexpr,
    IMPRECISE: tl.constexpr,
    SCALING: tl.constexpr,
    BATCHED: tl.constexpr,
    ON_AXES: tl.constexpr,
    A_SEVERAL: tl.constexpr,
    B_SEVERAL: tl.constexpr,
    UNIT_AB: tl.constexpr,
    UNIT_BB: tl.constexpr,
    UNIT_CB: tl.constexpr,
    ALONE: tl.constexpr,
):
    """Compute BLOCK_N columns of C = A @ B for BLOCK_M rows, or one part of their sum over K.

    BATCHED: there are several C, and as many A and B where A_SEVERAL and B_SEVERAL say so.
    """
    part = tl.program_id(2)
    pid, which, tile_m, tile_n = place_of(M, N, 1, BLOCK_M, BLOCK_N, BATCHED, ON_AXES)
    if BATCHED:
        c_ptr += which.to(tl.int64) * stride_cb * UNIT_CB
        if not TMA:
            a += which.to(tl.int64) * stride_ab * UNIT_AB
            b += which.to(tl.int64) * stride_bb * UNIT_BB
    first_n = tile_n * BLOCK_N
    first_m = tile_m * BLOCK_M

    offs_n = first_n + tl.arange(0, BLOCK_N)
    offs_m = first_m + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K)
    in_n = (offs_n < N)[:, None]
    in_m = (offs_m < M)[None, :]
    # Offsets are 64-bit: a row times its stride passes 2^31 long before memory runs out.
    wide_n = offs_n.to(tl.int64)
    wide_m = offs_m.to(tl.int64)

    first, last = steps_of(part, tl.cdiv(K, BLOCK_K), SPLIT_SHIFT, SPLIT)

    if not TMA:
        wide_k = (first * BLOCK_K + offs_k).to(tl.int64)
        b_ptrs = b + wide_n[:, None] * stride_bn + wide_k[None, :] * stride_bk
        a_ptrs = a + wide_k[:, None] * stride_ak + wide_m[None, :] * stride_am
        step = tl.full((), BLOCK_K, tl.int64)

    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.int32 if INTEGER else tl.float32)
    for tile_k in range(first, last):
        if TMA:
            rows = load_tile_of(b, which, tile_k * BLOCK_K, first_n, B_STORED, B_SEVERAL).T
            columns = load_tile_of(a, which, first_m, tile_k * BLOCK_K, A_STORED, A_SEVERAL).T
        elif EVEN_K:
            # B is read once, A by every program: keep A in L2.
            rows = tl.load(b_ptrs, mask=in_n, other=0.0, eviction_policy="evict_first")
            columns = tl.load(a_ptrs, mask=in_m, other=0.0, eviction_policy="evict_last")
        else:
            in_k = offs_k < K - tile_k * BLOCK_K
            rows = tl.load(
                b_ptrs, mask=in_n & in_k[None, :], other=0.0, eviction_policy="evict_first"
            )
            columns = tl.load(
                a_ptrs, mask=in_k[:, None] & in_m, other=0.0, eviction_policy="evict_last"
            )
        if UPCAST:  # Triton's interpreter multiplies the bit patterns of bfloat16
            rows = rows.to(tl.float32)
            columns = columns.to(tl.float32)
        acc = tl.dot(
            rows, columns, acc, PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=acc.dtype
        )  # fmt: skip
        if not TMA:
            b_ptrs += step * stride_bk
            a_ptrs += step * stride_ak

    acc = scaled(acc, scale_b_ptr, scale_a_ptr, first_n, first_m, N, M, BLOCK_N, BLOCK_M, SCALING)
    finish_tile(
        c_ptr, acc, first_n, first_m, N, M, stride_cn, stride_cm, pid, part,
        workspace_ptr, arrivals_ptr, 1 << SPLIT_SHIFT, BLOCK_N, BLOCK_M,
        SPLIT, AT_ONCE, PARTS, True, ALONE,
    )  # fmt: skip


@lru_cache(maxsize=64)  # asked for each config
def transposed(problem: Problem) -> Problem:
    """Return the product C^T = B^T A^T that gives the same numbers."""
    layout = "".join("t" if major == "n" else "n" for major in reversed(problem.layout))
    return replace(problem, m=problem.n, n=problem.m, layout=layout)


def few_rows(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Take products of few rows, and the smallest tile that holds them all."""
    if problem.m > MOST_ROWS:
        return f"{problem.m} rows, swapped operands are for at most {MOST_ROWS}"
    fitting = max(16, tile_rules.next_power_of_two(problem.m))
    if config.block_m > fitting:
        return f"block_m={config.block_m}, {problem.m} rows take {fitting}"
    columns = tile_rules.ceil_div(problem.n, config.block_n)
    if config.block_m < fitting and 8 * columns > device.multiprocessors:
        # Smaller tiles read B again; where there are few of them they spread the work.
        return f"block_m={config.block_m} for {problem.m} rows, {columns} tiles wide"
    return None


def _tma(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if not config.switch("tma"):
        return None
    if device.backend != "cuda" or not 90 <= device.capability < 110:
        return f"tma=1 on {device.arch}"
    if not problem.aligned:
        return "tma=1 with operands that are not aligned to 16 bytes"
    if not tile_rules.tma_multiplies(problem):
        return f"tma=1 for {problem}, which tensor cores do not multiply as TMA brings it"
    return None


def _tf32_layout(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if problem.precision == "tf32" and problem.layout != "nt":
        return f"tensor cores read tf32 along K, the layout is {problem.layout}"
    return None


def _warps(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if config.num_warps > 4 and config.block_n < 32 * config.num_warps // 2:
        return f"{config.num_warps} warps for {config.block_n} rows of the MMA"
    if config.num_warps < 4 and config.block_n > 16 * config.num_warps:
        return f"{config.num_warps} warps for {config.block_n} rows of the MMA"
    return None


def _parallel(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Refuse to leave half of the multiprocessors idle where more parts would be legal."""
    programs = tile_rules.tile_count(config, problem) * config.split_k
    more = tile_rules.ceil_div(problem.k, config.block_k) >= 4 * config.split_k
    if 2 * programs <= device.multiprocessors and more and config.split_k < max(SPLITS):
        return f"{programs} programs on {device.multiprocessors} multiprocessors"
    return None


def _in_flight(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Refuse pipelines too shallow to cover the latency of memory."""
    step = config.block_n * config.block_k * ITEMSIZE[problem.dtype]
    deepest = max(2, min(max(STAGES), tile_rules.k_tiles_per_part(config, problem)))
    if config.num_stages < deepest and step * config.num_stages < LEAST_IN_FLIGHT:
        return f"{step * config.num_stages} bytes in flight, at least {LEAST_IN_FLIGHT}"
    return None


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of one program, never under what the compiler takes."""
    turned = replace(config, block_m=config.block_n, block_n=config.block_m)
    warpgroup = tile_rules.warpgroup_dot(turned, transposed(problem), device)
    # AMD's pipeliner loads further ahead where only one operand's loads are wide.
    ragged = device.backend == "hip" and problem.layout[0] == "t" and problem.m % 16 != 0
    buffers = config.num_stages if warpgroup or ragged else config.num_stages - 1
    step = (config.block_m + config.block_n) * config.block_k * ITEMSIZE[problem.dtype]
    # The store turns the tile, in the dtype of the result.
    turning = config.block_m * config.block_n * ITEMSIZE[problem.out_dtype]
    barriers = 256 if config.switch("tma") or device.capability >= 100 else 0
    return max(step * buffers, turning) + barriers


SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
STAGES = (2, 3, 4, 5, 6, 8)
LEAST_IN_FLIGHT = 32 * 1024


class SwappedOperands:
    """The swapped-operand variant as the family knows it."""

    name = "swapped"
    kernels = (swapped_kernel,)
    space = VariantSpace(
        variant="swapped",
        choices={
            "block_m": (16, 32, 64, 128),
            "block_n": (32, 64, 128, 256),
            "block_k": (64, 128, 256),
            "group_size": (1,),
            "split_k": SPLITS,
            "num_warps": (2, 4, 8),
            "num_stages": STAGES,
            "tma": (0, 1),
            "shared": (0, 1),
        },
        rules=(
            Rule("tma", _tma, ("switches",)),
            Rule("tf32-layout", _tf32_layout, ("variant",)),
            tile_rules.POWER_OF_TWO,
            *tile_rules.DOT_RULES,
            tile_rules.REGISTERS,
            tile_rules.shared_rule(shared_bytes, whole=True),
            tile_rules.SHARED_SUM,
        ),
        worth=(
            Rule("few-rows", few_rows, ("block_m", "block_n")),
            *tile_rules.TILE_WORTH,
            tile_rules.SUM_WORTH,
            Rule("mma-rows", _warps, ("block_n", "num_warps")),
            Rule("parallel", _parallel, (*tile_rules.TILE, "split_k")),
            Rule("in-flight", _in_flight, ("block_n", "block_k", "split_k", "num_stages")),
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch one program per tile and part."""
        grid = Grid.of(config, problem)
        tiles = tile_rules.tile_count(config, problem)
        workspace, arrivals = split_workspace(config, out, tiles, accumulator_dtype(problem))
        tma = config.switch("tma") == 1
        a_stored, b_stored = (major == "n" for major in problem.layout)
        strides = (*a.stride()[-2:], *b.stride()[-2:])
        apart = batch_strides(a.stride(), b.stride(), out.stride())
        dtypes = (problem.dtype, problem.dtype, problem.out_dtype)
        in_units = [in_unit(s, ITEMSIZE[d]) for s, d in zip(apart, dtypes, strict=True)]
        a_several, b_several = several(a), several(b)
        if tma:
            strides = (0, 0, 0, 0)
            a = descriptor(
                a, stored=a_stored, block_rows=config.block_m, block_columns=config.block_k
            )
            b = descriptor(
                b, stored=b_stored, block_rows=config.block_k, block_columns=config.block_n
            )
        args = (
            a, b, out, workspace, arrivals, *scale_pointers(scales, out),
            problem.m, problem.n, problem.k,
            *strides, *out.stride()[-2:], *(stride for stride, _ in in_units),
            grid.split_shift,
        )  # fmt: skip
        options = {
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            **split_settings(config, device),
            "EVEN_K": tma or problem.k % config.block_k == 0,
            "TMA": tma,
            "A_STORED": a_stored,
            "B_STORED": b_stored,
            **dot_settings(problem),
            **sum_settings(config, problem),
            "A_SEVERAL": a_several,
            "B_SEVERAL": b_several,
            **{f"UNIT_{x}B": unit for x, (_, unit) in zip("ABC", in_units, strict=True)},
            "ON_AXES": grid.on_axes,
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        return KernelCall(swapped_kernel, grid.axes, args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)
