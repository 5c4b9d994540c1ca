"""Tensor descriptors (TMA) of operands: how they are made, loaded from and stored through.

A descriptor lies on the operand as it is stored, its contiguous dimension last; the kernel turns
the loaded tile. What lies outside the operand arrives as zero and is never written, so no edge
needs a mask.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def load_tile(descriptor, row, column, STORED: tl.constexpr):
    """Load the tile whose first element is (row, column) of the operand, zero outside of it.

    STORED says that the operand's second dimension is the contiguous one.
    """
    return descriptor.load([row, column]) if STORED else descriptor.load([column, row]).T


@triton.jit
def load_tile_of(descriptor, which, row, column, STORED: tl.constexpr, SEVERAL: tl.constexpr):
    """Load a tile of one of the matrices that a descriptor lies on, if it lies on SEVERAL."""
    if SEVERAL:
        if STORED:
            box = descriptor.load([which, row, column])
        else:
            box = descriptor.load([which, column, row])
        tile = tl.reshape(box, (box.shape[1], box.shape[2]))
        return tile if STORED else tile.T
    else:
        return load_tile(descriptor, row, column, STORED)


@triton.jit
def multiply_add(
    a, b, acc, first_m, first_n, first_k,
    A_STORED: tl.constexpr,
    B_STORED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    which=0,
    A_SEVERAL: tl.constexpr = False,
    B_SEVERAL: tl.constexpr = False,
    IMPRECISE: tl.constexpr = None,
):  # fmt: skip
    """Add the product of one step along K to a tile, of the operands' matrices `which`."""
    a_tile = load_tile_of(a, which, first_m, first_k, A_STORED, A_SEVERAL)
    b_tile = load_tile_of(b, which, first_k, first_n, B_STORED, B_SEVERAL)
    if UPCAST:  # Triton's interpreter multiplies the bit patterns of bfloat16
        a_tile = a_tile.to(tl.float32)
        b_tile = b_tile.to(tl.float32)
    return tl.dot(
            a_tile, b_tile, acc, PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=acc.dtype
        )  # fmt: skip


@triton.jit
def store_tile(
    c,
    tile,
    first_m,
    first_n,
    M,
    N,
    stride_cm,
    stride_cn,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    which=0,
    SEVERAL: tl.constexpr = False,
):
    """Store a tile of C, through its descriptor or through masked pointers.

    SEVERAL: the descriptor lies on many matrices, and `which` is the tile's.
    """
    if DESCRIBED and SEVERAL:
        c.store([which, first_m, first_n], tl.reshape(tile.to(c.dtype), (1, ROWS, COLUMNS)))
    elif DESCRIBED:
        c.store([first_m, first_n], tile.to(c.dtype))
    else:
        offs_m = first_m + tl.arange(0, ROWS)
        offs_n = first_n + tl.arange(0, COLUMNS)
        # Offsets are 64-bit: a row times its stride passes 2^31 long before memory runs out.
        wide_m = offs_m.to(tl.int64)[:, None]
        wide_n = offs_n.to(tl.int64)[None, :]
        mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
        tl.store(c + wide_m * stride_cm + wide_n * stride_cn, tile.to(c.dtype.element_ty), mask)


@triton.jit
def halves(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Cut a tile into its left and right half. Each thread keeps what it has."""
    return tl.reshape(tile, (ROWS, 2, COLUMNS // 2)).permute(0, 2, 1).split()


@triton.jit
def store_parts(
    c,
    tile,
    first_m,
    first_n,
    M,
    N,
    stride_cm,
    stride_cn,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    which=0,
    SEVERAL: tl.constexpr = False,
):
    """Store a tile of C at once, or (PARTS = 2) one half of its columns after the other."""
    if PARTS == 1:
        store_tile(
            c, tile, first_m, first_n, M, N, stride_cm, stride_cn, ROWS, COLUMNS, DESCRIBED,
            which, SEVERAL,
        )  # fmt: skip
    else:
        half: tl.constexpr = COLUMNS // 2
        left, right = halves(tile, ROWS, COLUMNS)
        store_tile(
            c, left, first_m, first_n, M, N, stride_cm, stride_cn, ROWS, half, DESCRIBED,
            which, SEVERAL,
        )  # fmt: skip
        store_tile(
            c, right, first_m, first_n + half, M, N, stride_cm, stride_cn, ROWS, half, DESCRIBED,
            which, SEVERAL,
        )  # fmt: skip


def descriptor(matrix: Any, *, stored: bool, block_rows: int, block_columns: int) -> Any:
    """Describe a matrix (a tensor, or a stand-in) to the hardware, in blocks of the given size.

    `stored` says that its second dimension is the contiguous one.
    """
    (rows, columns), (row_stride, column_stride) = matrix.shape[-2:], matrix.stride()[-2:]
    lines, length, leading = (
        (rows, columns, row_stride) if stored else (columns, rows, column_stride)
    )
    if lines == 1:
        # The stride of a single line means nothing, so it may be anything, which TMA refuses.
        whole = 16 // matrix.dtype.itemsize
        leading = -(-length // whole) * whole
    block = [block_rows, block_columns] if stored else [block_columns, block_rows]
    if several(matrix):
        shape, strides = [matrix.shape[0], lines, length], [matrix.stride(0), leading, 1]
        return TensorDescriptor(matrix, shape, strides, [1, *block])
    return TensorDescriptor(matrix, [lines, length], [leading, 1], block)


def several(matrix: Any) -> bool:
    """Say whether an operand is many matrices: not where one serves every product."""
    return len(matrix.shape) == 3 and matrix.shape[0] > 1 and matrix.stride(0) != 0


def describes(matrix: Any) -> bool:
    """Say whether a row-major descriptor can lie on this output.

    Its rows must be of whole 16 bytes: where a row was a single element of 2 bytes, stores on an
    H200 changed what lies behind it.
    """
    row_stride, column_stride = matrix.stride()[-2:]
    itemsize = matrix.dtype.itemsize
    whole_rows = matrix.shape[-1] * itemsize % 16 == 0
    lines_apart = row_stride * itemsize % 16 == 0 or matrix.shape[-2] == 1
    matrices_apart = len(matrix.shape) == 2 or matrix.stride(0) * itemsize % 16 == 0
    on_whole = matrix.data_ptr() % 16 == 0
    return bool(column_stride == 1 and whole_rows and lines_apart and matrices_apart and on_whole)
