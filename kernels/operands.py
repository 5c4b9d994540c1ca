"""Operands of a launch as torch has them, and the problem that they are."""

from __future__ import annotations

import torch

from tunekit.kernels.stand_ins import stand_ins
from tunekit.key import Problem


def dense_operands(problem: Problem, place: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return operands of a problem, with nothing in them, in the layout and alignment it states."""
    made = []
    for one in stand_ins(problem)[:2]:
        extent = sum((n - 1) * stride for n, stride in zip(one.shape, one.strides, strict=True)) + 1
        memory = torch.empty(extent + 1, dtype=torch_dtype(problem.dtype), device=place)
        made.append(memory.as_strided(one.shape, one.strides, 0 if one.aligned else 1))
    return made[0], made[1]


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of this name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def float32_precision() -> str:
    """Return the arithmetic torch is set to use for float32 products: `ieee` or `tf32`."""
    # What torch.backends.cuda.matmul.fp32_precision asks, without the time its attributes take.
    setting = _fp32_precision("cuda", "matmul")
    if setting == "none":
        setting = _fp32_precision("generic", "all")
    return "tf32" if setting == "tf32" else "ieee"


_fp32_precision = torch._C._get_fp32_precision_getter


def describe(
    a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None, scaling: str = "none"
) -> Problem:
    """Return the problem of two matrices, or of as many pairs of them as both have.

    Args:
        a: (m, k), or (batch, m, k) in any strides: 0 repeats one matrix.
        b: (k, n), or (batch, k, n).
        out_dtype: of the result; the operands' own where it is not given.
        scaling: how the product is scaled, as `Problem` says it.
    """
    a_layout, a_aligned = _storage(a, prefer="n")
    b_layout, b_aligned = _storage(b, prefer="t")
    return Problem(
        family="matmul",
        m=a.shape[-2],
        n=b.shape[-1],
        k=a.shape[-1],
        dtype=str(a.dtype),
        out_dtype="" if out_dtype is None else str(out_dtype),
        precision=float32_precision() if a.dtype is torch.float32 else "ieee",
        layout=a_layout + b_layout,
        aligned=a_aligned and b_aligned,
        scaling=scaling,
        batch=1 if len(a.shape) == 2 else a.shape[0],
    )


def _storage(matrix: torch.Tensor, *, prefer: str) -> tuple[str, bool]:
    """Say which dimension of a matrix is contiguous, and whether its rows start at 16 bytes."""
    rows, columns = matrix.shape[-2:]
    row_stride, column_stride = matrix.stride()[-2:]
    fits = {"n": column_stride == 1 and columns > 1, "t": row_stride == 1 and rows > 1}
    if not fits["n"] and not fits["t"]:
        # One element a line, or no contiguous dimension at all.
        fits = {"n": columns == 1, "t": rows == 1}
    if not fits["n"] and not fits["t"]:
        return ("n" if column_stride <= row_stride else "t"), False
    layout = prefer if fits[prefer] else ("t" if prefer == "n" else "n")
    lines, length, leading = (
        (rows, columns, row_stride) if layout == "n" else (columns, rows, column_stride)
    )
    itemsize = matrix.element_size()
    # Lines that overlap (broadcast, or windows) are no operand for TMA, whatever their stride.
    apart = leading >= length and leading * itemsize % 16 == 0
    whole = lines == 1 or apart
    if len(matrix.shape) == 3 and matrix.shape[0] > 1:
        whole = whole and matrix.stride(0) >= 0 and matrix.stride(0) * itemsize % 16 == 0
    return layout, whole and matrix.data_ptr() % 16 == 0
