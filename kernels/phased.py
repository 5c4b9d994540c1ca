"""Phased rows: for rows of A that start at different places of a cache line.

Rows of 1000 elements of 16 bits are 2000 bytes, so a step of 128 bytes along K lies on two lines of
the cache in seven rows of eight, and is asked for twice. But every eighth row starts at the same
place. A tile takes such rows alone, rows of one phase, and begins its steps along K so much before
their start that each lies on one line; what lies before the start arrives as zero. So a product is
as many products as there are phases, each with its rows of A and of C, and B is what it was. Where
A and B have the same pitch, B's lines are still crossed: tiles of many rows and few columns gain.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.kernels.descriptors import descriptor, multiply_add, store_tile
from tunekit.kernels.padded import LINE_BYTES
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.stand_ins import dot_settings, in_unit
from tunekit.kernels.sums import sum_settings
from tunekit.kernels.tiles import MOST_ON_AXIS
from tunekit.kernels.tma import shared_bytes
from tunekit.kernels.tma_rules import TMA_RULES, TMA_WORTH, deep_rule
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace


@triton.jit(do_not_specialize=["ROWS", "N", "K", "stride_cm", "stride_phase", "APART"])
def phased_kernel(
    a,
    b,
    c,
    ROWS,
    N,
    K,
    stride_cm,
    stride_phase,
    stride_cn,
    APART,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LINE: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_CM: tl.constexpr,
    UNIT_PHASE: tl.constexpr,
    B_STORED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    INTEGER: tl.constexpr,
    IMPRECISE: tl.constexpr,
):
    """Compute a tile of the rows of one phase of C = A @ B.

    A phase has ROWS rows of A and of C. LINE is a cache line in elements, and APART by how many of
    them a row starts further along its line than the row before.
    """
    phase = tl.program_id(2)
    first_m = tl.program_id(1) * BLOCK_M
    first_n = tl.program_id(0) * BLOCK_N
    before = phase * APART % LINE

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32 if INTEGER else tl.float32)
    for step in range(0, tl.cdiv(K + before, BLOCK_K)):
        acc = multiply_add(
            a, b, acc, first_m, first_n, step * BLOCK_K - before, True, B_STORED, PRECISION, UPCAST,
            phase, True, False, IMPRECISE,
        )  # fmt: skip

    store_tile(
        c + phase.to(tl.int64) * (stride_phase * UNIT_PHASE), acc, first_m, first_n, ROWS,
        N * UNIT_N, stride_cm * UNIT_CM, stride_cn, BLOCK_M, BLOCK_N, False,
    )  # fmt: skip


def phases_of(pitch: int, itemsize: int) -> int:
    """Return after how many rows, so many elements apart, a line's same place comes again."""
    return LINE_BYTES // gcd(pitch * itemsize, LINE_BYTES)


def _natural_phases(problem: Problem) -> int:
    """Return the phases of rows that lie as closely as aligned ones can."""
    size = ITEMSIZE[problem.dtype]
    whole = 16 // size
    pitch = rules.ceil_div(problem.leading_dimensions()[0], whole) * whole
    return phases_of(pitch, size)


def of_one_phase(problem: Problem) -> Problem:
    """Return what is left of a problem: as many products as there are phases, of fewer rows."""
    phases = gcd(_natural_phases(problem), problem.m)
    return replace(problem, m=problem.m // phases, batch=phases)


def _phased(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if problem.layout[0] != "n":
        return f"A is stored along M in {problem.layout}"
    phases = _natural_phases(problem)
    if phases == 1:
        return "rows of A start where a line of the cache does"
    if problem.m % phases:
        return f"{problem.m} rows are no multiple of {phases} phases"
    return None


def _grid(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Keep rows of tiles on the grid's second axis, also those of a pitch that has one phase."""
    tiles = rules.ceil_div(problem.m, config.block_m)
    return f"{tiles} rows of tiles on an axis" if tiles > MOST_ON_AXIS else None


class PhasedRows:
    """The phased variant as the family knows it."""

    name = "phased"
    kernels = (phased_kernel,)
    space = VariantSpace(
        variant="phased",
        choices={
            "block_m": (64, 128, 256),
            "block_n": (32, 64, 128, 256),
            "block_k": (32, 64, 128, 256),
            "group_size": (1,),
            "split_k": (1,),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4, 5, 6, 7, 8),
        },
        rules=(
            Rule("phases", _phased, ("variant",)),
            Rule("grid", _grid, ("block_m",)),
            rules.PLAIN,
            rules.SINGLE,
            *(rule.on(of_one_phase) for rule in (*TMA_RULES, rules.POWER_OF_TWO, rules.REGISTERS)),
            rules.shared_rule(shared_bytes),
        ),
        worth=(
            *(rule.on(of_one_phase) for rule in TMA_WORTH if rule.name != "one-order"),
            deep_rule(shared_bytes).on(of_one_phase),
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch one program per tile of each phase."""
        itemsize, block_k = ITEMSIZE[problem.dtype], config.block_k
        pitch = a.stride(0) if problem.m > 1 else LINE_BYTES // itemsize
        # Rows of another pitch than the problem states may have phases that do not divide M.
        phases = gcd(phases_of(pitch, itemsize), problem.m)
        rows, line = problem.m // phases, LINE_BYTES // itemsize
        n, unit_n = in_unit(problem.n, ITEMSIZE[problem.out_dtype])
        stride_cm, unit_cm = in_unit(phases * out.stride(0), ITEMSIZE[problem.out_dtype])
        stride_phase, unit_phase = in_unit(out.stride(0), ITEMSIZE[problem.out_dtype])
        b_stored = problem.layout[1] == "n"
        args = (
            TensorDescriptor(
                a, [phases, rows, problem.k], [pitch, phases * pitch, 1],
                [1, config.block_m, block_k],
            ),
            descriptor(b, stored=b_stored, block_rows=block_k, block_columns=config.block_n),
            out, rows, n, problem.k, stride_cm, stride_phase, out.stride(1), pitch % line,
        )  # fmt: skip
        sums = sum_settings(config, problem)
        options = {
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": block_k,
            "LINE": line,
            "UNIT_N": unit_n,
            "UNIT_CM": unit_cm,
            "UNIT_PHASE": unit_phase,
            "B_STORED": b_stored,
            **dot_settings(problem),
            "INTEGER": sums["INTEGER"],
            "IMPRECISE": sums["IMPRECISE"],
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        tiles = (rules.ceil_div(problem.n, config.block_n), rules.ceil_div(rows, config.block_m))
        return KernelCall(phased_kernel, (*tiles, phases), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)
