"""Matrix times vector: products with one row or one column, without tensor cores.

One program takes BLOCK_N columns of B (for a single row of A; BLOCK_M rows of A for a single column
of B) and goes along K in steps of BLOCK_K, multiplying and adding in float32 registers; sums across
threads are taken once, at the end. What counts is the number of wide loads under way. With
`num_stages` = 1 they are the loads of one step, so tiles hold several for each thread; with more,
that many steps are under way through shared memory.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules
from tunekit.kernels.partials import partials_at_once, store_or_sum
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.stand_ins import batch_strides
from tunekit.kernels.sums import accumulator_dtype, scale_pointers, sum_settings
from tunekit.kernels.workspaces import split_workspace
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace


@triton.jit(do_not_specialize=["row_units", "k_units", "leading_units", "SPLIT_K"])
def gemv_kernel(
    matrix_ptr,
    vector_ptr,
    out_ptr,
    workspace_ptr,
    arrivals_ptr,
    scale_matrix_ptr,
    scale_vector_ptr,
    row_units,
    k_units,
    leading_units,
    stride_inner,
    stride_vector,
    stride_out,
    matrix_units,
    vector_units,
    out_units,
    SPLIT_K,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    EVEN_K: tl.constexpr,
    ROW_UNIT: tl.constexpr,
    K_UNIT: tl.constexpr,
    LEADING_UNIT: tl.constexpr,
    ALONG_K: tl.constexpr,
    STAGES: tl.constexpr,
    INTEGER: tl.constexpr,
    SCALING: tl.constexpr,
    BATCHED: tl.constexpr,
    MATRIX_UNIT: tl.constexpr,
    VECTOR_UNIT: tl.constexpr,
    OUT_UNIT: tl.constexpr,
):
    """Compute BLOCK_ROWS elements of matrix @ vector, or one part of their sum over K.

    Sizes and the leading dimension come in units, so that the compiler knows what divides them:
    loads of 16 bytes need no more than that, where Triton itself only asks for multiples of 16.
    BATCHED: there are several of each, as far apart as the last units say.
    """
    ROWS = row_units * ROW_UNIT
    K = k_units * K_UNIT
    leading = leading_units.to(tl.int64) * LEADING_UNIT
    if ALONG_K:
        stride_row = leading
        stride_k = stride_inner
    else:
        stride_row = stride_inner
        stride_k = leading
    pid = tl.program_id(0)
    part = tl.program_id(1)
    block = pid
    if BATCHED:
        blocks = tl.cdiv(ROWS, BLOCK_ROWS)
        block = pid % blocks
        which = (pid // blocks).to(tl.int64)
        matrix_ptr += which * matrix_units * MATRIX_UNIT
        vector_ptr += which * vector_units * VECTOR_UNIT
        out_ptr += which * out_units * OUT_UNIT
    rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    offs_k = tl.arange(0, BLOCK_K)
    in_rows = rows < ROWS

    k_tiles = tl.cdiv(K, BLOCK_K)
    first = part * k_tiles // SPLIT_K if SPLIT else 0
    last = (part + 1) * k_tiles // SPLIT_K if SPLIT else k_tiles

    # Offsets are 64-bit: a row times its stride passes 2^31 long before memory runs out.
    wide_rows = rows.to(tl.int64)
    wide_k = (first * BLOCK_K + offs_k).to(tl.int64)
    tile_ptrs = matrix_ptr + wide_rows[:, None] * stride_row + wide_k[None, :] * stride_k
    chunk_ptrs = vector_ptr + wide_k * stride_vector
    step = tl.full((), BLOCK_K, tl.int64)

    sums: tl.constexpr = tl.int32 if INTEGER else tl.float32
    acc = tl.zeros((BLOCK_ROWS, BLOCK_K), dtype=sums)
    for tile_k in tl.range(first, last, num_stages=STAGES):
        # The matrix is read once, the vector by every program: keep the vector in L2.
        if EVEN_K:
            chunk = tl.load(chunk_ptrs, eviction_policy="evict_last")
            if EVEN_ROWS:
                tile = tl.load(tile_ptrs, eviction_policy="evict_first")
            else:
                tile = tl.load(
                    tile_ptrs, mask=in_rows[:, None], other=0.0, eviction_policy="evict_first"
                )
        else:
            in_k = offs_k < K - tile_k * BLOCK_K
            chunk = tl.load(chunk_ptrs, mask=in_k, other=0.0, eviction_policy="evict_last")
            tile = tl.load(
                tile_ptrs,
                mask=in_rows[:, None] & in_k[None, :],
                other=0.0,
                eviction_policy="evict_first",
            )
        acc += tile.to(sums) * chunk.to(sums)[None, :]
        tile_ptrs += step * stride_k
        chunk_ptrs += step * stride_vector

    total = tl.sum(acc, axis=1)
    if SCALING:
        total *= tl.load(scale_vector_ptr)
        if SCALING == 1:
            total *= tl.load(scale_matrix_ptr)
        else:
            total *= tl.load(scale_matrix_ptr + rows, mask=in_rows, other=0.0)
    store_or_sum(
        out_ptr + wide_rows * stride_out, in_rows, total, tl.arange(0, BLOCK_ROWS),
        pid, part, workspace_ptr, arrivals_ptr, SPLIT_K, BLOCK_ROWS, AT_ONCE, SPLIT,
    )  # fmt: skip


def vector_is_a(problem: Problem) -> bool:
    """Say whether A is the vector: it has one row. Otherwise B has one column."""
    return problem.m == 1


def block_rows(config: Config) -> int:
    """Return how many results a program computes."""
    return config.block_m * config.block_n


def contiguous_along_k(problem: Problem) -> bool:
    """Say whether the matrix is stored along the dimension that is summed."""
    return problem.layout[1] == "t" if vector_is_a(problem) else problem.layout[0] == "n"


def _vector(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if problem.m != 1 and problem.n != 1:
        return f"{problem.m}x{problem.n}, neither is 1"
    name = "block_m" if vector_is_a(problem) else "block_n"
    if getattr(config, name) != 1:
        return f"{name}={getattr(config, name)} for a size of 1"
    return None


def _dtype(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Nothing is multiplied in float8, but it has to be read as something else."""
    if problem.dtype == "float8_e4m3fn" and 0 < device.capability < 89:
        return f"{problem.dtype} is read from compute capability 8.9 on, {device.arch} is older"
    return None


def _rows(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    rows = problem.n if vector_is_a(problem) else problem.m
    if block_rows(config) > max(ROWS_ACROSS[0], tile_rules.next_power_of_two(rows)):
        return f"{block_rows(config)} rows at a time of {rows}"
    return None


def _orientation(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Lay a warp along the contiguous dimension, in loads of 16 bytes."""
    wide = 16 // ITEMSIZE[problem.dtype] * device.warp_size
    if contiguous_along_k(problem):
        # All warps side by side: the vector is then where it is needed, in every thread.
        if config.block_k < wide * config.num_warps and config.block_k < STEPS_ALONG[-1]:
            return f"block_k={config.block_k} along K, less than {wide} a warp"
        if config.block_k < STEPS_ALONG[0]:
            return f"block_k={config.block_k} along K"
        if block_rows(config) > ROWS_ALONG[-1]:
            return f"{block_rows(config)} rows at a time along K"
    elif block_rows(config) < ROWS_ACROSS[0] or config.block_k > STEPS_ACROSS[-1]:
        return f"{block_rows(config)}x{config.block_k} tile across K"
    return None


def _per_thread(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    per_thread = block_rows(config) * config.block_k // (config.num_warps * device.warp_size)
    if not 8 <= per_thread <= 64:
        return f"{per_thread} products a thread and step, 8 to 64 are worth it"
    return None


def _steps(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    smallest = STEPS_ALONG[0] if contiguous_along_k(problem) else STEPS_ACROSS[0]
    if config.block_k > max(smallest, tile_rules.next_power_of_two(problem.k)):
        return f"block_k={config.block_k} for a size of {problem.k}"
    steps = 1 if device.backend == "hip" else tile_rules.k_tiles_per_part(config, problem)
    if config.num_stages > 1 and config.num_stages > steps:
        return f"num_stages={config.num_stages} for {steps} steps along K"
    return None


def _split(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    warps = tile_rules.tile_count(config, problem) * config.split_k * config.num_warps
    if config.split_k > 1 and warps > MOST_WARPS * device.multiprocessors:
        return f"{warps} warps on {device.multiprocessors} multiprocessors: no need to split"
    return None


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of one program, never under what the compiler takes."""
    itemsize = ITEMSIZE[problem.dtype]
    step = (block_rows(config) + 1) * config.block_k * itemsize
    across_warps = block_rows(config) * config.num_warps * 4
    spread_vector = config.block_k * 4  # one that is not contiguous
    return max(step * (config.num_stages - 1), across_warps, spread_vector)


ROWS_ALONG = (1, 2, 4, 8, 16)
ROWS_ACROSS = (128, 256)
STEPS_ALONG = (256, 512, 1024, 2048)
STEPS_ACROSS = (16, 32, 64)
MOST_WARPS = 32
"""Resident warps of a multiprocessor that are enough to keep memory busy."""

_BLOCKS = ("block_m", "block_n")


class MatrixVector:
    """The matrix-times-vector variant as the family knows it."""

    name = "gemv"
    kernels = (gemv_kernel,)
    space = VariantSpace(
        variant="gemv",
        choices={
            "block_m": ROWS_ALONG + ROWS_ACROSS,
            "block_n": ROWS_ALONG + ROWS_ACROSS,
            "block_k": STEPS_ACROSS + STEPS_ALONG,
            "group_size": (1,),
            "split_k": (1, 2, 4, 8, 16),
            "num_warps": (1, 2, 4, 8),
            "num_stages": (1, 3, 4),
        },
        rules=(
            Rule("vector", _vector, _BLOCKS),
            tile_rules.INDEX_RANGE,
            Rule("dtype-support", _dtype, ("variant",)),
            Rule("per-thread", _per_thread, (*_BLOCKS, "block_k", "num_warps")),
            Rule("parts", tile_rules.PARTS.check, tile_rules.PARTS.fields),
            tile_rules.shared_rule(shared_bytes),
        ),
        worth=(
            Rule("rows", _rows, _BLOCKS),
            Rule("orientation", _orientation, (*_BLOCKS, "block_k", "num_warps")),
            Rule("steps", _steps, ("block_k", "split_k", "num_stages")),
            Rule("idle-split", _split, (*_BLOCKS, "block_k", "split_k", "num_warps")),
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch one program per tile and part."""
        tiles = tile_rules.tile_count(config, problem)
        workspace, arrivals = split_workspace(config, out, tiles, accumulator_dtype(problem))
        scale_vector, scale_matrix = scale_pointers(scales, out)
        if vector_is_a(problem):
            rows, matrix, vector = problem.n, b, a
            strides = (b.stride(-1), b.stride(-2))
            along = (a.stride(-1), out.stride(-1))
        else:
            rows, matrix, vector = problem.m, a, b
            strides = (a.stride(-2), a.stride(-1))
            along = (b.stride(-2), out.stride(-2))
            scale_vector, scale_matrix = scale_matrix, scale_vector
        along_k = contiguous_along_k(problem)
        leading, inner = strides if along_k else strides[::-1]
        whole = 16 // ITEMSIZE[problem.dtype]
        units = [math.gcd(size, whole) for size in (rows, problem.k, leading)]
        apart = batch_strides(matrix.stride(), vector.stride(), out.stride())
        apart_units = [math.gcd(stride, whole) for stride in apart]
        args = (
            matrix, vector, out, workspace, arrivals, scale_matrix, scale_vector,
            rows // units[0], problem.k // units[1], leading // units[2],
            inner, *along, *(s // u for s, u in zip(apart, apart_units, strict=True)),
            config.split_k,
        )  # fmt: skip
        settings = sum_settings(config, problem)
        options = {
            "BLOCK_ROWS": block_rows(config),
            "BLOCK_K": config.block_k,
            "SPLIT": config.split_k > 1,
            "AT_ONCE": partials_at_once(config, device),
            "EVEN_ROWS": rows % block_rows(config) == 0,
            "EVEN_K": problem.k % config.block_k == 0,
            "ROW_UNIT": units[0],
            "K_UNIT": units[1],
            "LEADING_UNIT": units[2],
            "ALONG_K": along_k,
            "STAGES": config.num_stages,
            **{name: settings[name] for name in ("INTEGER", "SCALING", "BATCHED")},
            "MATRIX_UNIT": apart_units[0],
            "VECTOR_UNIT": apart_units[1],
            "OUT_UNIT": apart_units[2],
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        return KernelCall(gemv_kernel, (tiles, config.split_k), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)
