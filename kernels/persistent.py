"""Persistent TMA tiles: as many programs as the GPU holds, each walking through its tiles.

The loop over tiles and the loop over K are one flattened loop, so the next tile's operands are on
their way while this one's result is stored. The epilogue therefore cannot reuse the pipeline's
shared memory; stored in two parts (switch `epilogue` = 2) it needs half as much, which can leave
room for one more stage. `residents` says how many programs share a multiprocessor: two smaller
ones overlap one's epilogue with the other's products.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.kernels.descriptors import (
    describes,
    descriptor,
    multiply_add,
    several,
    store_parts,
)
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.scaling import scaled
from tunekit.kernels.stand_ins import batch_strides, dot_settings
from tunekit.kernels.sums import scale_pointers, sum_settings
from tunekit.kernels.tiles import tile_of
from tunekit.kernels.tma_rules import (
    OUTPUT_RULE,
    TMA_RULES,
    TMA_WORTH,
    deep_rule,
    residents,
    residents_rule,
    whole_rows,
)
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace


@triton.jit(do_not_specialize=["M", "N", "K", "BATCH", "GROUP_SIZE"])
def persistent_kernel(
    a,
    b,
    c,
    scale_a_ptr,
    scale_b_ptr,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    stride_cb,
    BATCH,
    GROUP_SIZE,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EPILOGUE: tl.constexpr,
    A_STORED: tl.constexpr,
    B_STORED: tl.constexpr,
    C_DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    INTEGER: tl.constexpr,
    IMPRECISE: tl.constexpr,
    SCALING: tl.constexpr,
    BATCHED: tl.constexpr,
    A_SEVERAL: tl.constexpr,
    B_SEVERAL: tl.constexpr,
):
    """Compute every tile of C = A @ B that falls to this program.

    BATCHED: there are BATCH of C, and as many A and B where A_SEVERAL and B_SEVERAL say so.
    """
    k_tiles = tl.cdiv(K, BLOCK_K)
    tl.assume(k_tiles > 0)
    in_one = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    tiles = in_one * BATCH if BATCHED else in_one
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        which = number // in_one
        tile = number % in_one if BATCHED else number
        tile_m, tile_n = tile_of(tile, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
        first_m = tile_m * BLOCK_M
        first_n = tile_n * BLOCK_N

        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32 if INTEGER else tl.float32)
        for tile_k in range(k_tiles):
            acc = multiply_add(
                a, b, acc, first_m, first_n, tile_k * BLOCK_K,
                A_STORED, B_STORED, PRECISION, UPCAST, which, A_SEVERAL, B_SEVERAL, IMPRECISE,
            )  # fmt: skip

        acc = scaled(
            acc, scale_a_ptr, scale_b_ptr, first_m, first_n, M, N, BLOCK_M, BLOCK_N, SCALING
        )
        place = c
        if BATCHED and not C_DESCRIBED:
            place = c + which.to(tl.int64) * stride_cb
        store_parts(
            place, acc, first_m, first_n, M, N, stride_cm, stride_cn,
            BLOCK_M, BLOCK_N, EPILOGUE, C_DESCRIBED, which, BATCHED,
        )  # fmt: skip


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of one program: the pipeline and, beside it, the epilogue."""
    stage = (config.block_m + config.block_n) * config.block_k * ITEMSIZE[problem.dtype]
    tile = config.block_m * config.block_n * ITEMSIZE[problem.out_dtype]
    if problem.scaling == "row":  # scales are handed to the threads that hold their row
        tile += config.switch("epilogue") * 4 * max(config.block_m, config.block_n)
    if device.capability >= 100:  # the parts of an epilogue there do not share their memory
        return (stage + 16) * config.num_stages + 64 + tile
    return (stage + 16) * config.num_stages + 16 + tile // config.switch("epilogue")


def _whole_rows(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    return None if config.switch("epilogue") == 1 else whole_rows(config, problem, device)


def _epilogue(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Store in halves only where a whole tile leaves no room for as many stages."""
    if config.switch("epilogue") == 1:
        return None
    whole = replace(config, switches=(("epilogue", 1), ("residents", 1)))
    fit = residents(config, device, shared_bytes(whole, problem, device))
    fits = shared_bytes(whole, problem, device) <= device.shared_bytes
    if fits and fit >= config.switch("residents"):
        return f"{config.num_stages} stages leave room to store the whole tile"
    return None


class PersistentTiles:
    """The persistent TMA variant as the family knows it."""

    name = "persistent"
    kernels = (persistent_kernel,)
    space = VariantSpace(
        variant="persistent",
        choices={
            "block_m": (64, 128, 256),
            "block_n": (32, 64, 128, 256),
            "block_k": (32, 64, 128),
            "group_size": (1, 8, 16),
            "split_k": (1,),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4, 5, 6, 7, 8),
            "epilogue": (1, 2),
            "residents": (1, 2),
        },
        rules=(
            OUTPUT_RULE,
            *TMA_RULES,
            rules.POWER_OF_TWO,
            rules.REGISTERS,
            Rule("whole-rows", _whole_rows, ("block_m", "num_warps", "switches")),
            rules.shared_rule(shared_bytes),
        ),
        worth=(
            *TMA_WORTH,
            residents_rule(shared_bytes),
            Rule("epilogue", _epilogue, (*rules.TILE, "num_warps", "num_stages", "switches")),
            deep_rule(shared_bytes),
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch as many programs as the device holds, or as there are tiles."""
        a_stored, b_stored = (major == "n" for major in problem.layout)
        block_m, block_n, block_k = config.block_m, config.block_n, config.block_k
        epilogue = config.switch("epilogue")
        described = describes(out)
        strides = (0, 0, 0)  # a described C has them in its descriptor: one binary for every N
        if described:
            c = descriptor(out, stored=True, block_rows=block_m, block_columns=block_n // epilogue)
        else:
            c, epilogue = out, 1
            strides = (*out.stride()[-2:], *batch_strides(out.stride()))
        args = (
            descriptor(a, stored=a_stored, block_rows=block_m, block_columns=block_k),
            descriptor(b, stored=b_stored, block_rows=block_k, block_columns=block_n),
            c, *scale_pointers(scales, out),
            problem.m, problem.n, problem.k, *strides,
            problem.batch, config.group_size,
        )  # fmt: skip
        options = {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "EPILOGUE": epilogue,
            "A_STORED": a_stored,
            "B_STORED": b_stored,
            "C_DESCRIBED": described,
            **dot_settings(problem),
            **sum_settings(config, problem),
            "A_SEVERAL": several(a),
            "B_SEVERAL": several(b),
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        most = device.multiprocessors * config.switch("residents")
        programs = min(rules.tile_count(config, problem), most)
        return KernelCall(persistent_kernel, (programs,), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)
