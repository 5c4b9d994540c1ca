"""Warp-specialised tiles in Gluon, for Hopper: one warp loads, two warpgroups multiply.

A persistent program goes along its tiles. A producer warp fills a ring of NUM_STAGES buffers by TMA
and runs ahead into the next tile while the consumers still store the last one; a pair of barriers a
buffer says when it is full and when it is free. Registers move from the producer to the consumers.
Widths of 96, 160 and 192 are composite: two accumulators, WIDE and NARROW, share the rows of A.
"""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules
from tunekit.kernels.composite import widths
from tunekit.kernels.descriptors import describes, descriptor
from tunekit.kernels.gluon_ring import gluon_kernel
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.tma_rules import TMA_WORTH, row_fits
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace


def _hardware(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if not 90 <= device.capability < 100:
        return f"warpgroup products are Hopper's, not {device.arch}'s"
    if ITEMSIZE[problem.dtype] != 2:
        return f"{problem.dtype}, this variant multiplies 16-bit operands"
    if not problem.aligned:
        return "an operand's base or leading dimension is no multiple of 16 bytes"
    return None


def _deep(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Keep the deepest ring that fits and the one before it: a lone program has all the memory."""
    steps = tile_rules.k_tiles_per_part(config, problem)
    deeper = config.num_stages + 2
    if deeper > min(STAGES[-1], max(2, steps)):
        return None
    if _bytes(config, problem, deeper) > device.shared_bytes:
        return None
    return f"num_stages={config.num_stages} where {deeper} fit"


def _bytes(config: Config, problem: Problem, num_stages: int) -> int:
    ring = (config.block_m + config.block_n) * config.block_k * num_stages
    stored = config.block_m * config.block_n if row_fits(problem) else 0
    return (ring + stored) * ITEMSIZE[problem.dtype] + 512


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of one program: the ring, the tile to store, and barriers."""
    return _bytes(config, problem, config.num_stages)


def _widths(block_n: int) -> tuple[int, int]:
    """Return the columns of both accumulators, the second 0 where one holds the whole tile."""
    return (block_n, 0) if block_n & (block_n - 1) == 0 else widths(block_n)


def _two_powers(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    for name in ("block_m", "block_k", "num_warps"):
        value = getattr(config, name)
        if value & (value - 1):
            return f"{name}={value} is not a power of two"
    wide, narrow = _widths(config.block_n)
    if wide & (wide - 1) or 0 < narrow < 16:
        return f"block_n={config.block_n} is not the sum of two powers of two from 16"
    if narrow and config.block_m != 128:
        return f"block_n={config.block_n} with block_m={config.block_m}, two accumulators take 128"
    return None


STAGES = (2, 3, 4, 5, 6, 7, 8)


class WarpSpecialised:
    """The warp-specialised variant as the family knows it."""

    name = "gluon"
    kernels = (gluon_kernel,)
    space = VariantSpace(
        variant="gluon",
        choices={
            "block_m": (64, 128, 256),
            "block_n": (64, 96, 128, 160, 192, 256),
            "block_k": (64, 128),
            "group_size": (1, 8, 16),
            "split_k": (1,),
            "num_warps": (8,),
            "num_stages": STAGES,
        },
        rules=(
            Rule("hopper", _hardware, ("variant",)),
            tile_rules.PLAIN,
            Rule("two-powers", _two_powers, (*tile_rules.TILE, "num_warps")),
            *tile_rules.DOT_RULES,
            tile_rules.REGISTERS,
            tile_rules.shared_rule(shared_bytes),
        ),
        worth=(
            tile_rules.OVERSIZED,
            *(rule for rule in TMA_WORTH if rule.name in ("one-order", "small-tiles")),
            Rule("deep-pipeline", _deep, (*tile_rules.TILE, "split_k", "num_stages")),
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch one program per multiprocessor, at most one per tile."""
        m, k = config.block_m, config.block_k
        wide, narrow = _widths(config.block_n)
        a_stored, b_stored = (major == "n" for major in problem.layout)
        store_tma = describes(out)
        boxes_b = [_described(b, b_stored, k, columns) for columns in (wide, narrow or wide)]
        boxes_c = [
            _described(out, True, m, columns) if store_tma else out
            for columns in (wide, narrow or wide)
        ]
        args = (
            _described(a, a_stored, m, k),
            *boxes_b,
            *boxes_c,
            problem.m, problem.n, problem.k,
            *((0, 0) if store_tma else out.stride()),
            config.group_size,
        )  # fmt: skip
        options = {
            "BLOCK_M": m,
            "WIDE": wide,
            "NARROW": narrow,
            "BLOCK_K": k,
            "STAGES": config.num_stages,
            "A_STORED": a_stored,
            "B_STORED": b_stored,
            "STORE_TMA": store_tma,
            "num_warps": config.num_warps,
        }
        programs = min(device.multiprocessors, tile_rules.tile_count(config, problem))
        return KernelCall(gluon_kernel, (programs,), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)


def _described(matrix: Any, stored: bool, rows: int, columns: int) -> TensorDescriptor:
    """Describe a matrix as it lies in memory, in boxes of one tile with Gluon's own swizzle."""
    plain = descriptor(matrix, stored=stored, block_rows=rows, block_columns=columns)
    layout = gl.NVMMASharedLayout.get_default_for(plain.block_shape, _DTYPES[str(matrix.dtype)])
    return TensorDescriptor(matrix, plain.shape, plain.strides, plain.block_shape, layout)


_DTYPES = {"torch.float16": gl.float16, "torch.bfloat16": gl.bfloat16}
