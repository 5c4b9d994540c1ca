"""TMA tiles: one program per tile, operands brought by tensor descriptors (Hopper, Blackwell).

Like pointer tiles, but a single thread asks for a whole tile of an operand at a time, so that no
registers hold addresses, no instructions compute them, and the edges need no masks. The pipeline
takes all of shared memory; the epilogue reuses it and stores through masked pointers, so C may
have any strides. Split-K as in the pointer variant.
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
from tunekit.kernels.descriptors import descriptor, load_tile
from tunekit.kernels.operands import dot_settings, split_workspace
from tunekit.kernels.partials import partials_at_once, store_or_sum
from tunekit.kernels.pointer import tile_of
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.tma_rules import TMA_RULES, TMA_WORTH, deep_rule
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import VariantSpace


@triton.jit(do_not_specialize=["M", "N", "K", "stride_cm", "GROUP_SIZE", "SPLIT_K"])
def tma_kernel(
    a,
    b,
    c_ptr,
    workspace_ptr,
    arrivals_ptr,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    GROUP_SIZE,
    SPLIT_K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_CM: tl.constexpr,
    A_STORED: tl.constexpr,
    B_STORED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Compute a tile of C = A @ B, or one part of it."""
    N, stride_cm = N * UNIT_N, stride_cm * UNIT_CM
    pid = tl.program_id(0)
    part = tl.program_id(1)
    tile_m, tile_n = tile_of(pid, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
    first_m = tile_m * BLOCK_M
    first_n = tile_n * BLOCK_N

    k_tiles = tl.cdiv(K, BLOCK_K)
    first = part * k_tiles // SPLIT_K if SPLIT else 0
    last = (part + 1) * k_tiles // SPLIT_K if SPLIT else k_tiles

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for tile_k in range(first, last):
        a_tile = load_tile(a, first_m, tile_k * BLOCK_K, A_STORED)
        b_tile = load_tile(b, tile_k * BLOCK_K, first_n, B_STORED)
        if UPCAST:  # Triton's interpreter multiplies the bit patterns of bfloat16
            a_tile = a_tile.to(tl.float32)
            b_tile = b_tile.to(tl.float32)
        acc = tl.dot(a_tile, b_tile, acc, input_precision=PRECISION)

    offs_m = first_m + tl.arange(0, BLOCK_M)
    offs_n = first_n + tl.arange(0, BLOCK_N)
    # Offsets are 64-bit: a row times its stride passes 2^31 long before memory runs out.
    wide_m = offs_m.to(tl.int64)[:, None]
    wide_n = offs_n.to(tl.int64)[None, :]
    c_ptrs = c_ptr + wide_m * stride_cm + wide_n * stride_cn
    inner = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    store_or_sum(
        c_ptrs, (offs_m < M)[:, None] & (offs_n < N)[None, :], acc, inner, pid, part,
        workspace_ptr, arrivals_ptr, SPLIT_K, BLOCK_M * BLOCK_N, AT_ONCE, SPLIT,
    )  # fmt: skip


def in_unit(size: int, itemsize: int) -> tuple[int, int]:
    """Return a size in units of 16 bytes and that unit, or in elements where it is not whole.

    The kernel multiplies them, so the compiler knows that rows start at whole 16 bytes, and one
    binary serves every such size.
    """
    whole = 16 // itemsize
    return (size // whole, whole) if size % whole == 0 else (size, 1)


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of one program: the pipeline, or the epilogue that reuses it."""
    stage = (config.block_m + config.block_n) * config.block_k * ITEMSIZE[problem.dtype]
    wide = problem.out_dtype == "float32" or config.split_k > 1
    epilogue = config.block_m * config.block_n * (4 if wide else 2)
    barriers = 64 if device.capability >= 100 else 16
    return max((stage + 16) * config.num_stages + barriers, epilogue)


class TmaTiles:
    """The TMA-tile variant as the family knows it."""

    name = "tma"
    kernels = (tma_kernel,)
    space = VariantSpace(
        variant="tma",
        choices={
            "block_m": (64, 128, 256),
            "block_n": (32, 64, 128, 256),
            "block_k": (32, 64, 128, 256),
            "group_size": (1, 8, 16),
            "split_k": (1, 2, 4, 8, 16, 32),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4, 5, 6, 7, 8),
        },
        rules=(*TMA_RULES, rules.POWER_OF_TWO, rules.REGISTERS, rules.shared_rule(shared_bytes)),
        worth=(*TMA_WORTH, deep_rule(shared_bytes)),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any
    ) -> KernelCall:
        """Launch one program per tile and part."""
        tiles = rules.tile_count(config, problem)
        workspace, arrivals = split_workspace(config, out, tiles)
        a_stored, b_stored = (major == "n" for major in problem.layout)
        block_m, block_n, block_k = config.block_m, config.block_n, config.block_k
        itemsize = ITEMSIZE[problem.out_dtype]
        n, unit_n = in_unit(problem.n, itemsize)
        stride_cm, unit_cm = in_unit(out.stride(0), itemsize)
        args = (
            descriptor(a, stored=a_stored, block_rows=block_m, block_columns=block_k),
            descriptor(b, stored=b_stored, block_rows=block_k, block_columns=block_n),
            out, workspace, arrivals,
            problem.m, n, problem.k, stride_cm, out.stride(1),
            config.group_size, config.split_k,
        )  # fmt: skip
        options = {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "SPLIT": config.split_k > 1,
            "AT_ONCE": partials_at_once(config, device),
            "UNIT_N": unit_n,
            "UNIT_CM": unit_cm,
            "A_STORED": a_stored,
            "B_STORED": b_stored,
            **dot_settings(problem),
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        return KernelCall(tma_kernel, (tiles, config.split_k), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)
