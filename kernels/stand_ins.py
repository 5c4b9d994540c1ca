"""Operands as the compiler sees them: shapes, strides and stand-ins. It loads no torch.

To load torch takes longer than all else that compilers need.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tunekit.key import ITEMSIZE, Problem


def interpreting() -> bool:
    """Say whether Triton's kernels run in its interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class StandInDtype:
    """What the compiler needs to know of torch's dtype, so that it need not load torch."""

    name: str

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.name]

    def __str__(self) -> str:
        return f"torch.{self.name}"


@dataclass(frozen=True, slots=True)
class StandIn:
    """What the compiler needs to know of a tensor: dtype, strides, and whether it is aligned."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = True

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides in elements, or that of one dimension."""
        return self.strides if dim is None else self.strides[dim]

    def data_ptr(self) -> int:
        """Return an address with the alignment the real operand will have."""
        return 0 if self.aligned else int(self.dtype.itemsize)

    @staticmethod
    def ptr_range() -> int:
        """Say that offsets may pass 32 bits, as AMD's backend asks."""
        return 1 << 40


Strides = tuple[int, ...]


def operand_strides(problem: Problem) -> tuple[Strides, Strides, Strides]:
    """Return the strides, in elements, that A, B and C of a problem have when tunekit makes them.

    Dense where that gives the alignment the problem states. Otherwise the leading dimension is
    padded: to whole 16 bytes for an aligned problem, to one element more for an unaligned one.
    Where there are several, matrices lie one after the other and the first stride leads to the
    next.
    """
    lda, ldb = problem.leading_dimensions()
    whole = 16 // ITEMSIZE[problem.dtype]
    if problem.aligned:
        lda, ldb = -(-lda // whole) * whole, -(-ldb // whole) * whole
    elif problem.naturally_aligned():
        lda, ldb = lda + 1, ldb + 1
    a_lines = problem.m if problem.layout[0] == "n" else problem.k
    b_lines = problem.k if problem.layout[1] == "n" else problem.n
    a: Strides = (lda, 1) if problem.layout[0] == "n" else (1, lda)
    b: Strides = (ldb, 1) if problem.layout[1] == "n" else (1, ldb)
    c: Strides = (problem.n, 1)
    if problem.batch == 1:
        return a, b, c
    return (a_lines * lda, *a), (b_lines * ldb, *b), (problem.m * problem.n, *c)


def operand_shapes(problem: Problem) -> tuple[Strides, Strides, Strides]:
    """Return the shapes of A, B and C, the number of matrices first where there are several."""
    several = () if problem.batch == 1 else (problem.batch,)
    m, n, k = problem.m, problem.n, problem.k
    return (*several, m, k), (*several, k, n), (*several, m, n)


def scale_shapes(problem: Problem) -> tuple[Strides, ...]:
    """Return the shapes of the float32 scales of A and of B: none, one number, or one a row."""
    if problem.scaling == "none":
        return ()
    return ((problem.m, 1), (1, problem.n)) if problem.scaling == "row" else ((), ())


def stand_ins(problem: Problem) -> tuple[StandIn, ...]:
    """Return stand-ins for A, B, C and the scales, with the layout and alignment it states."""
    strides_a, strides_b, strides_c = operand_strides(problem)
    shape_a, shape_b, shape_c = operand_shapes(problem)
    dtype, out = StandInDtype(problem.dtype), StandInDtype(problem.out_dtype)
    offset_free = problem.aligned or not problem.naturally_aligned()
    scales = [
        StandIn(StandInDtype("float32"), shape, (1,) * len(shape))
        for shape in scale_shapes(problem)
    ]
    return (
        StandIn(dtype, shape_a, strides_a, offset_free),
        StandIn(dtype, shape_b, strides_b, offset_free),
        StandIn(out, shape_c, strides_c),
        *scales,
    )


_SIZES = ("M", "N", "K", "AM", "AK", "BK", "BN", "CM", "CN", "AB", "BB", "CB")


def in_units(
    problem: Problem, a: Strides, b: Strides, c: Strides
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return sizes and strides, each in its unit, and the units by name as kernels take them.

    The unit is 16 bytes of operands where that divides, else one element. Triton by itself learns
    only whether an argument is a multiple of 16 or equal to 1. Rows of 1000 elements are neither,
    though they start at whole 16 bytes; multiplied by its unit in the kernel, the stride says so.
    The last three are the strides from one matrix to the next.
    """
    whole = 16 // ITEMSIZE[problem.dtype]
    values = (problem.m, problem.n, problem.k, *a[-2:], *b[-2:], *c[-2:], *batch_strides(a, b, c))
    # What passes 32 bits stays in elements: only so does it arrive as a 64-bit argument.
    units = [whole if value % whole == 0 and value < 1 << 31 else 1 for value in values]
    if problem.layout[0] == "n":
        units[0] = 1  # M is then no vector's length: one kernel for every M
    in_unit = tuple(value // unit for value, unit in zip(values, units, strict=True))
    return in_unit, {f"UNIT_{name}": unit for name, unit in zip(_SIZES, units, strict=True)}


def in_unit(size: int, itemsize: int) -> tuple[int, int]:
    """Return a size in units of 16 bytes and that unit, or in elements where it is not whole.

    The kernel multiplies them, so the compiler knows that rows start at whole 16 bytes, and one
    binary serves every such size. What passes 32 bits stays in elements, as in `in_units`.
    """
    whole = 16 // itemsize
    return (size // whole, whole) if size % whole == 0 and size < 1 << 31 else (size, 1)


def batch_strides(*strides: Strides) -> tuple[int, ...]:
    """Return the stride from one matrix to the next of each operand, 0 where there is one."""
    return tuple(each[0] if len(each) == 3 else 0 for each in strides)


def dot_settings(problem: Problem) -> dict[str, Any]:
    """Return the compile-time constants of the dot product."""
    return {
        "PRECISION": problem.precision,
        "UPCAST": interpreting() and problem.dtype == "bfloat16",
    }
