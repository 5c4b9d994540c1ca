"""How operands of any rank become those of one product, without a copy.

The rules are `torch.matmul`'s: a vector is a row on the left and a column on the right, and what
comes before the last two dimensions is broadcast. Where only the left operand has such dimensions,
they join its rows, if its memory allows that without moving anything. Otherwise the product is one
of many pairs of matrices, which are evenly spaced in memory, or no single product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest

import torch

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A view of an operand's memory as rows and columns, from its first element on.

    A third dimension, before them, counts matrices; its stride is 0 where one serves every product.
    """

    shape: Shape
    strides: Shape

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the view."""
        if tensor.shape == self.shape and tensor.stride() == self.strides:
            return tensor
        return tensor.as_strided(self.shape, self.strides)


@dataclass(frozen=True, slots=True)
class Fold:
    """One product that gives the whole result: its operands, and the shape of the result."""

    a: Matrix
    b: Matrix
    out: Shape


def result_shape(a: Shape, b: Shape) -> Shape:
    """Return the shape of a product of operands that can be multiplied."""
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    return (*_broadcast(a[:-2], b[:-2]), *rows, *columns)


def _broadcast(a: Sequence[int], b: Sequence[int]) -> Shape:
    # torch.broadcast_shapes loads SymPy, which takes as long as torch itself.
    pairs = zip_longest(reversed(a), reversed(b), fillvalue=1)
    return tuple(theirs if mine == 1 else mine for mine, theirs in pairs)[::-1]


def multiplies(a: Sequence[int], b: Sequence[int]) -> bool:
    """Say whether operands of these shapes can be multiplied."""
    if not a or not b or a[-1] != (b[0] if len(b) == 1 else b[-2]):
        return False
    pairs = zip(reversed(a[:-2]), reversed(b[:-2]), strict=False)
    return all(mine == theirs or 1 in (mine, theirs) for mine, theirs in pairs)


def fold(a: torch.Tensor, b: torch.Tensor) -> Fold | None:
    """Return the one product of two operands that can be multiplied, or None if it takes many.

    It is of two matrices, or of as many pairs of them where both are evenly spaced.
    """
    out = result_shape(tuple(a.shape), tuple(b.shape))
    if all(size == 1 for size in b.shape[:-2]):
        rows = _rows(tuple(a.shape), a.stride())
        if rows is not None:
            return Fold(rows, _columns(b), out)
    left = a if a.dim() > 1 else a[None, :]
    right = b if b.dim() > 1 else b[:, None]
    batch = _broadcast(left.shape[:-2], right.shape[:-2])
    stacked_a, stacked_b = _stacked(left, batch), _stacked(right, batch)
    if stacked_a is None or stacked_b is None:
        return None
    return Fold(stacked_a, stacked_b, out)


def _stacked(operand: torch.Tensor, batch: Shape) -> Matrix | None:
    """Return an operand's matrices, repeated as broadcasting does it, if they are evenly spaced."""
    count, spacing = 1, 0
    expanded = operand.expand(*batch, *operand.shape[-2:])
    for size, stride in zip(reversed(batch), reversed(expanded.stride()[:-2]), strict=True):
        if size == 1:
            continue
        if count == 1:
            spacing = stride
        elif stride != count * spacing:
            return None
        count *= size
    return Matrix((count, *operand.shape[-2:]), (spacing, *operand.stride()[-2:]))


def pairs(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield the operands and the result of each product of a batched one, as matrices.

    `out` has the shape of the whole result and is contiguous.
    """
    a = a if a.dim() > 1 else a[None, :]
    b = b if b.dim() > 1 else b[:, None]
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    results = out.view(-1, a.shape[-2], b.shape[-1])
    a = a.expand(*batch, *a.shape[-2:])
    b = b.expand(*batch, *b.shape[-2:])
    for result, place in zip(results, product(*map(range, batch)), strict=True):
        yield a[place], b[place], result


def _rows(shape: Shape, strides: Shape) -> Matrix | None:
    """Return the left operand as one matrix, or None if its rows are not evenly spaced."""
    if len(shape) == 1:
        return Matrix((1, shape[0]), (shape[0] * strides[0], strides[0]))
    count, spacing = shape[-2], strides[-2]
    for size, stride in zip(reversed(shape[:-2]), reversed(strides[:-2]), strict=True):
        if size == 1:
            continue
        if count == 1:
            spacing = stride
        elif stride != count * spacing:
            return None
        count *= size
    return Matrix((count, shape[-1]), (spacing, strides[-1]))


def _columns(b: torch.Tensor) -> Matrix:
    """Return the right operand, whose leading dimensions are all 1, as one matrix."""
    if b.dim() == 1:
        return Matrix((b.shape[0], 1), (b.stride(0), 1))
    return Matrix((b.shape[-2], b.shape[-1]), (b.stride(-2), b.stride(-1)))
