"""Pointer tiles: the portable variant. Any strides, any sizes, any target Triton compiles for.

One program computes one BLOCK_M x BLOCK_N tile of C, or one of SPLIT_K parts of its sum over K.
Edges are masked. Tiles are walked in groups of GROUP_SIZE tile rows so that neighbours share
operands in L2 (the order of Triton's matmul tutorial). Split-K is deterministic and needs no
zeroed output: every part writes its float32 partial to a workspace, and the last to arrive at a
tile adds them up in fixed order.
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
from tunekit.kernels.partials import finish_tile, split_settings
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.scaling import scaled
from tunekit.kernels.stand_ins import dot_settings, in_units
from tunekit.kernels.sums import accumulator_dtype, scale_pointers, sum_settings
from tunekit.kernels.tiles import Grid, place_of, steps_of
from tunekit.kernels.workspaces import split_workspace
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace


@triton.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE", "SPLIT_SHIFT"])
def pointer_kernel(
    a_ptr,
    b_ptr,
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
    GROUP_SIZE,
    SPLIT_SHIFT,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PARTS: tl.constexpr,
    ALONE: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    INTEGER: tl.constexpr,
    IMPRECISE: tl.constexpr,
    SCALING: tl.constexpr,
    BATCHED: tl.constexpr,
    ON_AXES: tl.constexpr,
    UNIT_M: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_K: tl.constexpr,
    UNIT_AM: tl.constexpr,
    UNIT_AK: tl.constexpr,
    UNIT_BK: tl.constexpr,
    UNIT_BN: tl.constexpr,
    UNIT_CM: tl.constexpr,
    UNIT_CN: tl.constexpr,
    UNIT_AB: tl.constexpr,
    UNIT_BB: tl.constexpr,
    UNIT_CB: tl.constexpr,
):
    """Compute a tile of C = A @ B, or one part of it. Sizes and strides come in their units.

    BATCHED: there are several A, B and C; the tiles of one come after those of another.
    """
    M, N, K = M * UNIT_M, N * UNIT_N, K * UNIT_K
    stride_am, stride_ak = stride_am * UNIT_AM, stride_ak * UNIT_AK
    stride_bk, stride_bn = stride_bk * UNIT_BK, stride_bn * UNIT_BN
    stride_cm, stride_cn = stride_cm * UNIT_CM, stride_cn * UNIT_CN
    part = tl.program_id(2)
    pid, which, tile_m, tile_n = place_of(M, N, GROUP_SIZE, BLOCK_M, BLOCK_N, BATCHED, ON_AXES)
    if BATCHED:
        a_ptr += which.to(tl.int64) * stride_ab * UNIT_AB
        b_ptr += which.to(tl.int64) * stride_bb * UNIT_BB
        c_ptr += which.to(tl.int64) * stride_cb * UNIT_CB

    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    in_m = (offs_m < M)[:, None]
    in_n = (offs_n < N)[None, :]

    first, last = steps_of(part, tl.cdiv(K, BLOCK_K), SPLIT_SHIFT, SPLIT)

    # Offsets are 64-bit: a row times its stride passes 2^31 long before memory runs out.
    wide_m = offs_m.to(tl.int64)
    wide_n = offs_n.to(tl.int64)
    wide_k = (first * BLOCK_K + offs_k).to(tl.int64)
    a_ptrs = a_ptr + wide_m[:, None] * stride_am + wide_k[None, :] * stride_ak
    b_ptrs = b_ptr + wide_k[:, None] * stride_bk + wide_n[None, :] * stride_bn
    step = tl.full((), BLOCK_K, tl.int64)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32 if INTEGER else tl.float32)
    for tile_k in range(first, last):
        if EVEN_K:
            a = tl.load(a_ptrs, mask=in_m, other=0.0)
            b = tl.load(b_ptrs, mask=in_n, other=0.0)
        else:
            in_k = offs_k < K - tile_k * BLOCK_K
            a = tl.load(a_ptrs, mask=in_m & in_k[None, :], other=0.0)
            b = tl.load(b_ptrs, mask=in_k[:, None] & in_n, other=0.0)
        if UPCAST:  # Triton's interpreter multiplies the bit patterns of bfloat16
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        acc = tl.dot(
            a, b, acc, PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=acc.dtype
        )  # fmt: skip
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    acc = scaled(
        acc, scale_a_ptr, scale_b_ptr, tile_m * BLOCK_M, tile_n * BLOCK_N, M, N,
        BLOCK_M, BLOCK_N, SCALING,
    )  # fmt: skip
    finish_tile(
        c_ptr, acc, tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, stride_cm, stride_cn, pid, part,
        workspace_ptr, arrivals_ptr, 1 << SPLIT_SHIFT, BLOCK_M, BLOCK_N,
        SPLIT, AT_ONCE, PARTS, False, ALONE,
    )  # fmt: skip


def _left_to_tma(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Leave to the variants that load by TMA, where those can, what they do at less cost."""
    if not 90 <= device.capability < 110 or (problem.dtype == "float32" and not _turnable(problem)):
        return None
    area = config.block_m * config.block_n
    if not rules.tma_multiplies(problem):
        if not _turnable(problem):
            return None
    elif not problem.aligned:
        small = (
            problem.batch == 1
            and area < LEAST_BESIDE_PADDED
            and min(problem.m, problem.n, problem.k) >= 128
        )
        return f"{config.block_m}x{config.block_n} tile beside padded copies" if small else None
    if rules.next_power_of_two(problem.k) < LEAST_K_OF_TMA:
        return None
    if area > LARGEST_BESIDE_TMA:
        return f"{config.block_m}x{config.block_n} tile, at most {LARGEST_BESIDE_TMA} elements"
    tiles = rules.tile_count(config, problem)
    if tiles > WAVES_BESIDE_TMA * device.multiprocessors:
        return f"{tiles} tiles on {device.multiprocessors} multiprocessors"
    if config.block_k * ITEMSIZE[problem.dtype] < 128 < problem.k * ITEMSIZE[problem.dtype]:
        return f"block_k={config.block_k}, less than a line of shared memory"
    if config.block_m >= 64 and config.num_warps < 4:
        return f"{config.num_warps} warps are no warpgroup"
    return None


def _turnable(problem: Problem) -> bool:
    """Say whether copies that are turned to lie along K pay: a product of many of its elements."""
    least = min(problem.m, problem.n, problem.k)
    tensor_cores = problem.dtype != "float32" or problem.precision == "tf32"
    along_k = rules.tma_multiplies(problem)
    return tensor_cores and not along_k and problem.batch == 1 and least >= LEAST_TURNED


LEAST_TURNED = 256
LEAST_BESIDE_PADDED = 64 * 64
"""Elements of the smallest tile that is tried on unaligned operands that can be copied."""


def _unpipelined(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Try one depth only where no asynchronous copy can be made: loads of under 4 bytes."""
    if config.num_stages == 2 or problem.aligned or ITEMSIZE[problem.dtype] >= 4:
        return None
    return f"num_stages={config.num_stages} of loads too narrow to be asynchronous"


def _unrolled(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Leave out what takes the compiler ten times as long as others: no such tile was ever fast."""
    along_k = config.block_k * ITEMSIZE[problem.dtype]
    products = config.block_m * config.block_n * along_k // (16 * 8 * 32 * config.num_warps)
    if products > MOST_UNROLLED and not rules.warpgroup_dot(config, problem, device):
        return f"{products} products of a warp in one step"
    threads = config.num_warps * device.warp_size
    loads = (config.block_m + config.block_n) * config.block_k // threads
    if loads > MOST_LOADS and not problem.aligned:
        return f"{loads} loads of a thread in one step"
    return None


MOST_UNROLLED = 128
"""Products that a warp issues in one step along K, each of 16 by 8 elements and 32 bytes of K."""

MOST_LOADS = 192
"""Elements that a thread loads one by one in a step."""

LEAST_K_OF_TMA = 32
"""Along a shorter K every tile by TMA is oversized."""

LARGEST_BESIDE_TMA = 64 * 128
WAVES_BESIDE_TMA = 4
"""Up to this tile size and number of waves pointers are tried where TMA is to be had."""


class PointerTiles:
    """The pointer-tile variant as the family knows it."""

    name = "pointer"
    kernels = (pointer_kernel,)
    space = VariantSpace(
        variant="pointer",
        choices={
            "block_m": (16, 32, 64, 128, 256),
            "block_n": (16, 32, 64, 128, 256),
            "block_k": (16, 32, 64, 128, 256),
            "group_size": (1, 8),
            "split_k": (1, 2, 4, 8, 16, 32),
            "num_warps": (2, 4, 8),
            "num_stages": (2, 3, 4, 5, 6),
        },
        rules=rules.TILE_RULES,
        worth=(
            Rule("left-to-tma", _left_to_tma, (*rules.TILE, "num_warps")),
            Rule("unpipelined", _unpipelined, ("num_stages",)),
            Rule("unrolled", _unrolled, (*rules.TILE, "num_warps")),
            *rules.TILE_WORTH,
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch one program per tile and part."""
        grid = Grid.of(config, problem)
        tiles = rules.tile_count(config, problem)
        workspace, arrivals = split_workspace(config, out, tiles, accumulator_dtype(problem))
        sizes, units = in_units(problem, a.stride(), b.stride(), out.stride())
        args = (
            a, b, out, workspace, arrivals, *scale_pointers(scales, out),
            *sizes, config.group_size, grid.split_shift,
        )  # fmt: skip
        options = {
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            **split_settings(config, device),
            "EVEN_K": problem.k % config.block_k == 0,
            **dot_settings(problem),
            **sum_settings(config, problem),
            **units,
            "ON_AXES": grid.on_axes,
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        return KernelCall(pointer_kernel, grid.axes, args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return rules.shared_bytes(config, problem, device)
