"""Padded copies: for operands whose lines lie badly, copied to where they lie well.

Rows of 1023 elements start at odd addresses, so nothing wider than an element can be loaded from
them, and no descriptor can lie on them. Rows of 1000 start at whole 16 bytes, so a descriptor can,
but each of its 128 bytes then lies on two lines of the cache. One kernel copies such operands into
a workspace with leading dimensions of whole 128 bytes, at memory speed; the TMA-tile kernel
multiplies the copies. They cost (M + N) K elements read and written, little beside M N K products.
An operand that lies well is left where it is.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.stand_ins import StandIn, interpreting
from tunekit.kernels.tma import TmaTiles, shared_bytes, tma_kernel, waiting
from tunekit.kernels.workspaces import workspace
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace

LINE_BYTES = 128
"""What TMA fetches at a time: lines of copies are whole ones."""

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
    A_LENGTH_UNIT: tl.constexpr, A_LINE_UNIT: tl.constexpr,
    B_LENGTH_UNIT: tl.constexpr, B_LINE_UNIT: tl.constexpr,
):  # fmt: skip
    """Copy the operands that have blocks to copy, a block a program: those of A first.

    Lengths and strides come in units, so that the compiler knows what divides them and reads whole
    vectors where it may. EARLY lets the launch that reads the copies start; it waits until they are
    made.
    """
    if EARLY:
        gdc_launch_dependents()
    block = tl.program_id(0)
    if block < a_blocks:
        copy_block(
            a, a_copy, block, a_lines, a_length * A_LENGTH_UNIT, a_line * A_LINE_UNIT, a_inner,
            a_units * UNIT, BLOCK, FAR,
        )  # fmt: skip
    else:
        copy_block(
            b, b_copy, block - a_blocks, b_lines, b_length * B_LENGTH_UNIT, b_line * B_LINE_UNIT,
            b_inner, b_units * UNIT, BLOCK, FAR,
        )  # fmt: skip


def as_copied(problem: Problem) -> Problem:
    """Return the problem that is left once the operands are copied."""
    return replace(problem, aligned=True)


def lies_well(problem: Problem) -> tuple[bool, bool]:
    """Say of A and of B whether its lines are whole ones of the cache, so that it is not copied."""
    if not problem.aligned:
        return False, False
    size = ITEMSIZE[problem.dtype]
    a_lines = problem.m if problem.layout[0] == "n" else problem.k
    b_lines = problem.k if problem.layout[1] == "n" else problem.n
    a, b = (
        lines == 1 or leading * size % LINE_BYTES == 0
        for lines, leading in zip((a_lines, b_lines), problem.leading_dimensions(), strict=True)
    )
    return a, b


def _unaligned(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if all(lies_well(problem)):
        return "the operands are aligned as they are"
    return None


def _bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    return shared_bytes(config, as_copied(problem), device)


def _copy(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Try one way of copying where whole vectors are read: it takes little time in any of them."""
    if problem.aligned and config.switch("copy") != 1:
        return f"copy={config.switch('copy')} of aligned operands"
    return None


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
            *(rule.on(as_copied) for rule in _TMA.rules),
        ),
        worth=(Rule("copy", _copy, ("switches",)), *(rule.on(as_copied) for rule in _TMA.worth)),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch the copies, then TMA tiles on them."""
        keep_a, keep_b = lies_well(problem)
        a_copy, a_sizes, a_units = _copy_of(a, problem.layout[0] == "n", "a", keep=keep_a)
        b_copy, b_sizes, b_units = _copy_of(b, problem.layout[1] == "n", "b", keep=keep_b)
        whole = LINE_BYTES // ITEMSIZE[problem.dtype]
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
                "A_LENGTH_UNIT": a_units[0],
                "A_LINE_UNIT": a_units[1],
                "B_LENGTH_UNIT": b_units[0],
                "B_LINE_UNIT": b_units[1],
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


def _copy_of(
    matrix: Any, stored: bool, purpose: str, *, keep: bool
) -> tuple[Any, tuple[int, ...], tuple[int, int]]:
    """Return the copy an operand will have, its sizes as the kernel takes them, and their units.

    `stored` says that its second dimension is the contiguous one; what is kept has no lines to
    copy.
    """
    rows, columns = matrix.shape
    row_stride, column_stride = matrix.stride()
    lines, length = (rows, columns) if stored else (columns, rows)
    line, inner = (row_stride, column_stride) if stored else (column_stride, row_stride)
    vector = 16 // matrix.dtype.itemsize
    # What passes 32 bits stays in elements: only so does it arrive as a 64-bit argument.
    units = gcd(length, vector), gcd(line, vector) if line < 1 << 31 else 1
    whole = LINE_BYTES // matrix.dtype.itemsize
    leading = rules.ceil_div(length, whole)
    sizes = (0 if keep else lines, length // units[0], line // units[1], inner, leading)
    if keep:
        return matrix, sizes, units
    strides = (leading * whole, 1) if stored else (1, leading * whole)
    return copy_in_memory(matrix, purpose, strides, lines * leading * whole), sizes, units


def copy_in_memory(matrix: Any, purpose: str, strides: tuple[int, int], elements: int) -> Any:
    """Return a matrix of the same shape in a workspace of this many elements, not yet filled."""
    memory = workspace(matrix, purpose, elements, str(matrix.dtype).removeprefix("torch."))
    if isinstance(memory, StandIn):
        return StandIn(matrix.dtype, tuple(matrix.shape), strides)
    return memory.as_strided(matrix.shape, strides)
