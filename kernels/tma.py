"""TMA tiles: one program per tile, operands brought by tensor descriptors (Hopper, Blackwell).

Like pointer tiles, but a single thread asks for a whole tile of an operand at a time, so that no
registers hold addresses, no instructions compute them, and the edges need no masks. The pipeline
takes all of shared memory; the epilogue reuses it. It stores a tile at a time too, where rows of C
lie on whole cache lines and there are several tiles each way (on an H200 that takes 1 to 4 % less
time at 256 to 1024 cubed, and as much or more with one row or column of tiles); else through masked
pointers, so C may have any strides. Split-K as in the pointer variant.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.kernels.descriptors import describes, descriptor, multiply_add, several
from tunekit.kernels.partials import finish_tile, split_settings
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.scaling import scaled
from tunekit.kernels.stand_ins import batch_strides, dot_settings, in_unit, interpreting
from tunekit.kernels.sums import accumulator_dtype, scale_pointers, sum_settings
from tunekit.kernels.tiles import Grid, place_of, steps_of
from tunekit.kernels.tma_rules import TMA_RULES, TMA_WORTH, deep_rule
from tunekit.kernels.workspaces import split_workspace
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import VariantSpace


@triton.jit(
    do_not_specialize=["M", "N", "K", "stride_cm", "stride_cb", "GROUP_SIZE", "SPLIT_SHIFT"]
)
def tma_kernel(
    a,
    b,
    c,
    workspace_ptr,
    arrivals_ptr,
    scale_a_ptr,
    scale_b_ptr,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    stride_cb,
    GROUP_SIZE,
    SPLIT_SHIFT,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_CM: tl.constexpr,
    UNIT_CB: tl.constexpr,
    PARTS: tl.constexpr,
    ALONE: tl.constexpr,
    A_STORED: tl.constexpr,
    B_STORED: tl.constexpr,
    C_DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    INTEGER: tl.constexpr,
    IMPRECISE: tl.constexpr,
    SCALING: tl.constexpr,
    BATCHED: tl.constexpr,
    ON_AXES: tl.constexpr,
    A_SEVERAL: tl.constexpr,
    B_SEVERAL: tl.constexpr,
    WAITING: tl.constexpr,
):
    """Compute a tile of C = A @ B, or one part of it.

    BATCHED: there are several C, and as many A and B where A_SEVERAL and B_SEVERAL say so.
    WAITING: the launch before this one, which makes the operands, may not have ended yet.
    """
    if WAITING:
        gdc_wait()
    N, stride_cm = N * UNIT_N, stride_cm * UNIT_CM
    part = tl.program_id(2)
    pid, which, tile_m, tile_n = place_of(M, N, GROUP_SIZE, BLOCK_M, BLOCK_N, BATCHED, ON_AXES)
    if BATCHED:
        c += which.to(tl.int64) * stride_cb * UNIT_CB
    first_m = tile_m * BLOCK_M
    first_n = tile_n * BLOCK_N

    first, last = steps_of(part, tl.cdiv(K, BLOCK_K), SPLIT_SHIFT, SPLIT)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32 if INTEGER else tl.float32)
    for tile_k in range(first, last):
        acc = multiply_add(
            a, b, acc, first_m, first_n, tile_k * BLOCK_K, A_STORED, B_STORED, PRECISION, UPCAST,
            which, A_SEVERAL, B_SEVERAL, IMPRECISE,
        )  # fmt: skip

    acc = scaled(acc, scale_a_ptr, scale_b_ptr, first_m, first_n, M, N, BLOCK_M, BLOCK_N, SCALING)
    if C_DESCRIBED:
        c.store([first_m, first_n], acc.to(c.dtype))
    else:
        finish_tile(
            c, acc, first_m, first_n, M, N, stride_cm, stride_cn, pid, part,
            workspace_ptr, arrivals_ptr, 1 << SPLIT_SHIFT, BLOCK_M, BLOCK_N,
            SPLIT, AT_ONCE, PARTS, False, ALONE,
        )  # fmt: skip


def waiting(call: KernelCall) -> KernelCall:
    """Let a launch of `tma_kernel` start before the one that makes its operands has ended.

    Its program starts are then not waited for in turn (programmatic dependent launch).
    """
    if interpreting():
        return call
    return replace(call, options={**call.options, "WAITING": True, "launch_pdl": True})


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of one program: the pipeline, or the epilogue that reuses it."""
    stage = (config.block_m + config.block_n) * config.block_k * ITEMSIZE[problem.dtype]
    wide = ITEMSIZE[problem.out_dtype] == 4 or config.split_k > 1
    epilogue = config.block_m * config.block_n * (4 if wide else 2)
    barriers = 64 if device.capability >= 100 else 16
    return max((stage + 16) * config.num_stages + barriers, epilogue)


def _is_described(config: Config, problem: Problem, out: Any) -> bool:
    whole = config.split_k == 1 and problem.batch == 1
    # Of wider results and narrower operands the tile to store lies beside the pipeline's buffers.
    two_bytes = ITEMSIZE[problem.dtype] == ITEMSIZE[problem.out_dtype] == 2
    several_tiles = problem.m > config.block_m and problem.n > config.block_n
    whole_lines = out.stride(-2) * ITEMSIZE[problem.out_dtype] % LINE_BYTES == 0
    return whole and two_bytes and several_tiles and whole_lines and describes(out)


LINE_BYTES = 128
"""Rows that do not begin on a line of the cache were up to 15 % slower to store by TMA."""


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
            "split_k": (1, 2, 4, 8, 16, 32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4, 5, 6, 7, 8),
            "shared": (0, 1),
        },
        rules=(
            *TMA_RULES,
            rules.POWER_OF_TWO,
            rules.REGISTERS,
            rules.shared_rule(shared_bytes),
            rules.SHARED_SUM,
        ),
        worth=(*TMA_WORTH, rules.SUM_WORTH, deep_rule(shared_bytes)),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch one program per tile and part."""
        grid = Grid.of(config, problem)
        tiles = rules.tile_count(config, problem)
        workspace, arrivals = split_workspace(config, out, tiles, accumulator_dtype(problem))
        a_stored, b_stored = (major == "n" for major in problem.layout)
        block_m, block_n, block_k = config.block_m, config.block_n, config.block_k
        itemsize = ITEMSIZE[problem.out_dtype]
        n, unit_n = in_unit(problem.n, itemsize)
        stride_cm, unit_cm = in_unit(out.stride(-2), itemsize)
        stride_cb, unit_cb = in_unit(batch_strides(out.stride())[0], itemsize)
        described = _is_described(config, problem, out)
        c = out
        if described:  # it has the strides, so that one binary serves every N
            c = descriptor(out, stored=True, block_rows=block_m, block_columns=block_n)
            stride_cm, unit_cm, stride_cb, unit_cb = 0, 1, 0, 1
        args = (
            descriptor(a, stored=a_stored, block_rows=block_m, block_columns=block_k),
            descriptor(b, stored=b_stored, block_rows=block_k, block_columns=block_n),
            c, workspace, arrivals, *scale_pointers(scales, out),
            problem.m, n, problem.k, stride_cm, out.stride(-1), stride_cb,
            config.group_size, grid.split_shift,
        )  # fmt: skip
        options = {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            **split_settings(config, device),
            "UNIT_N": unit_n,
            "UNIT_CM": unit_cm,
            "UNIT_CB": unit_cb,
            "A_STORED": a_stored,
            "B_STORED": b_stored,
            "C_DESCRIBED": described,
            **dot_settings(problem),
            **sum_settings(config, problem),
            "A_SEVERAL": several(a),
            "B_SEVERAL": several(b),
            "ON_AXES": grid.on_axes,
            "WAITING": False,
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        return KernelCall(tma_kernel, grid.axes, args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)
