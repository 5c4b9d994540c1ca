"""Padded copies: for operands that no wide load can read, copied to where one can.

Rows of 1023 elements start at odd addresses, so nothing wider than an element can be loaded from
them, and no descriptor can lie on them. One kernel copies both operands into a workspace with
leading dimensions of whole 16 bytes, at memory speed; the TMA-tile kernel multiplies the copies.
The copies cost (M + N) K elements read and written, little beside M N K products.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.kernels.operands import StandIn, interpreting, workspace
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.tma import TmaTiles, shared_bytes, tma_kernel, waiting
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace

COPY_BLOCKS = ((1024, 4), (2048, 4), (4096, 8))
"""What one program may copy: elements of the copy, and warps."""


@triton.jit
def copy_block(
    source, copy, block, lines, length, stride_line, stride_inner, leading,
    BLOCK: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Fill one block of a copy whose lines start `leading` elements apart. FAR: offsets pass 2^31.

    Blocks go through the copy as it lies in memory, so that it is written in whole vectors.
    """
    first = block.to(tl.int64) * BLOCK if FAR else block * BLOCK
    at = first + tl.arange(0, BLOCK)
    line = at // leading
    column = at % leading
    inside = (line < lines) & (column < length)
    values = tl.load(source + line * stride_line + column * stride_inner, mask=inside, other=0.0)
    tl.store(copy + at, values, mask=at < lines * leading)


@triton.jit(
    do_not_specialize=[
        "a_lines", "a_length", "a_line", "a_units", "b_lines", "b_length", "b_line", "b_units",
        "a_blocks",
    ]
)  # fmt: skip
def padding_kernel(
    a, b, a_copy, b_copy,
    a_lines, a_length, a_line, a_inner, a_units,
    b_lines, b_length, b_line, b_inner, b_units,
    a_blocks,
    UNIT: tl.constexpr, BLOCK: tl.constexpr, FAR: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Copy both operands, a block a program: those of A first.

    EARLY lets the launch that reads the copies start; it waits until they are made.
    """
    if EARLY:
        gdc_launch_dependents()
    block = tl.program_id(0)
    if block < a_blocks:
        copy_block(a, a_copy, block, a_lines, a_length, a_line, a_inner, a_units * UNIT, BLOCK, FAR)
    else:
        copy_block(
            b, b_copy, block - a_blocks, b_lines, b_length, b_line, b_inner, b_units * UNIT,
            BLOCK, FAR,
        )  # fmt: skip


def as_copied(problem: Problem) -> Problem:
    """Return the problem that is left once the operands are copied."""
    return replace(problem, aligned=True)


def _unaligned(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if problem.aligned:
        return "the operands are aligned as they are"
    return None


def _bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    return shared_bytes(config, as_copied(problem), device)


def _on_copies(rule: Rule) -> Rule:
    """Ask a rule of TMA tiles about the copies."""

    def check(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
        return rule.check(config, as_copied(problem), device)

    return Rule(rule.name, check, rule.fields)


_TMA = TmaTiles.space
_TMA_CHOICES = {
    **_TMA.choices,
    "shared": (0,),  # all parts at once, and before the copies have ended, is no launch there is
    "copy": tuple(range(len(COPY_BLOCKS))),
}


class PaddedTiles:
    """The padded-copy variant as the family knows it."""

    name = "padded"
    kernels = (padding_kernel, tma_kernel)
    space = VariantSpace(
        variant="padded",
        choices=_TMA_CHOICES,
        rules=(
            Rule("unaligned", _unaligned, ("variant",)),
            rules.SINGLE,
            *map(_on_copies, _TMA.rules),
        ),
        worth=tuple(map(_on_copies, _TMA.worth)),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch the copies, then TMA tiles on them."""
        a_copy, a_sizes = _copy_of(a, "n" if problem.layout[0] == "n" else "t", "a")
        b_copy, b_sizes = _copy_of(b, "n" if problem.layout[1] == "n" else "t", "b")
        whole = 16 // ITEMSIZE[problem.dtype]
        block, warps = COPY_BLOCKS[config.switch("copy")]
        copied = [sizes[0] * sizes[-1] * whole for sizes in (a_sizes, b_sizes)]
        a_blocks, b_blocks = (rules.ceil_div(size, block) for size in copied)
        farthest = max(*copied, _reach(a), _reach(b))
        copies = KernelCall(
            padding_kernel,
            (a_blocks + b_blocks,),
            (a, b, a_copy, b_copy, *a_sizes, *b_sizes, a_blocks),
            {
                "UNIT": whole,
                "BLOCK": block,
                "FAR": farthest + block >= 1 << 31,
                "EARLY": not interpreting(),
                "num_warps": warps,
            },
        )
        product = TmaTiles().call(config, as_copied(problem), device, a_copy, b_copy, out, *scales)
        return waiting(replace(product, before=(copies,)))

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return _bytes(config, problem, device)


def _reach(matrix: Any) -> int:
    """Return the offset of the last element of a matrix."""
    (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.stride()
    return int((rows - 1) * row_stride + (columns - 1) * column_stride)


def _copy_of(matrix: Any, layout: str, purpose: str) -> tuple[Any, tuple[int, ...]]:
    """Return the aligned copy an operand will have, and its sizes as the kernel takes them."""
    rows, columns = matrix.shape
    row_stride, column_stride = matrix.stride()
    stored = layout == "n"
    lines, length = (rows, columns) if stored else (columns, rows)
    line, inner = (row_stride, column_stride) if stored else (column_stride, row_stride)
    whole = 16 // matrix.dtype.itemsize
    units = rules.ceil_div(length, whole)
    memory = workspace(matrix, purpose, lines * units * whole, matrix.dtype)
    strides = (units * whole, 1) if stored else (1, units * whole)
    if isinstance(memory, StandIn):
        copy: Any = StandIn(matrix.dtype, (rows, columns), strides)
    else:
        assert isinstance(memory, torch.Tensor)
        copy = memory.as_strided((rows, columns), strides)
    return copy, (lines, length, line, inner, units)
