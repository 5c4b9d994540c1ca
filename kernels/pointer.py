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
from tunekit.kernels.operands import dot_settings, in_units, split_workspace
from tunekit.kernels.protocol import KernelCall
from tunekit.key import Problem
from tunekit.space import VariantSpace


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
def store_or_reduce(
    c_ptrs,
    c_mask,
    acc,
    pid,
    part,
    workspace_ptr,
    arrivals_ptr,
    SPLIT_K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Store a finished tile, or hand in one part of it; the last part to arrive stores the sum."""
    if SPLIT:
        tile: tl.constexpr = BLOCK_M * BLOCK_N
        inner = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        parts = workspace_ptr + pid.to(tl.int64) * SPLIT_K * tile + inner
        tl.store(parts + part.to(tl.int64) * tile, acc)
        # Every thread's partial must be visible before the one that counts it.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals_ptr + pid, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLIT_K - 1:
            total = tl.zeros((BLOCK_M, BLOCK_N), dtype=acc.dtype)
            for _ in range(0, SPLIT_K):
                # .cg: the other parts' stores are in L2, and this SM's L1 may hold older lines.
                total += tl.load(parts, cache_modifier=".cg")
                parts += tile
            tl.store(c_ptrs, total.to(c_ptrs.dtype.element_ty), mask=c_mask)
            tl.store(arrivals_ptr + pid, 0)  # ready for the next launch on this stream
    else:
        tl.store(c_ptrs, acc.to(c_ptrs.dtype.element_ty), mask=c_mask)


@triton.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE", "SPLIT_K"])
def pointer_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    workspace_ptr,
    arrivals_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    GROUP_SIZE,
    SPLIT_K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    UNIT_M: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_K: tl.constexpr,
    UNIT_AM: tl.constexpr,
    UNIT_AK: tl.constexpr,
    UNIT_BK: tl.constexpr,
    UNIT_BN: tl.constexpr,
    UNIT_CM: tl.constexpr,
    UNIT_CN: tl.constexpr,
):
    """Compute a tile of C = A @ B, or one part of it. Sizes and strides come in their units."""
    M, N, K = M * UNIT_M, N * UNIT_N, K * UNIT_K
    stride_am, stride_ak = stride_am * UNIT_AM, stride_ak * UNIT_AK
    stride_bk, stride_bn = stride_bk * UNIT_BK, stride_bn * UNIT_BN
    stride_cm, stride_cn = stride_cm * UNIT_CM, stride_cn * UNIT_CN
    pid = tl.program_id(0)
    part = tl.program_id(1)
    tile_m, tile_n = tile_of(pid, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)

    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    in_m = (offs_m < M)[:, None]
    in_n = (offs_n < N)[None, :]

    k_tiles = tl.cdiv(K, BLOCK_K)
    first = part * k_tiles // SPLIT_K if SPLIT else 0
    last = (part + 1) * k_tiles // SPLIT_K if SPLIT else k_tiles

    # Offsets are 64-bit: a row times its stride passes 2^31 long before memory runs out.
    wide_m = offs_m.to(tl.int64)
    wide_n = offs_n.to(tl.int64)
    wide_k = (first * BLOCK_K + offs_k).to(tl.int64)
    a_ptrs = a_ptr + wide_m[:, None] * stride_am + wide_k[None, :] * stride_ak
    b_ptrs = b_ptr + wide_k[:, None] * stride_bk + wide_n[None, :] * stride_bn
    step = tl.full((), BLOCK_K, tl.int64)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
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
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    c_ptrs = c_ptr + wide_m[:, None] * stride_cm + wide_n[None, :] * stride_cn
    store_or_reduce(
        c_ptrs, in_m & in_n, acc, pid, part, workspace_ptr, arrivals_ptr, SPLIT_K,
        BLOCK_M, BLOCK_N, SPLIT,
    )  # fmt: skip


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
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any
    ) -> KernelCall:
        """Launch one program per tile and part."""
        tiles = rules.tile_count(config, problem)
        workspace, arrivals = split_workspace(config, out, tiles)
        sizes, units = in_units(problem, a.stride(), b.stride(), out.stride())
        args = (a, b, out, workspace, arrivals, *sizes, config.group_size, config.split_k)
        options = {
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "SPLIT": config.split_k > 1,
            "EVEN_K": problem.k % config.block_k == 0,
            **dot_settings(problem),
            **units,
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        return KernelCall(pointer_kernel, (tiles, config.split_k), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return rules.shared_bytes(config, problem, device)
