"""Operands of a launch: real tensors, stand-ins for the compiler, and the split-K workspace."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import torch

from tunekit.config import Config
from tunekit.key import ITEMSIZE, Problem


def interpreting() -> bool:
    """Say whether Triton's kernels run in its interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class StandIn:
    """What the compiler needs to know of a tensor: dtype, strides, and whether it is aligned."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = True

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides in elements, or that of one dimension."""
        return self.strides if dim is None else self.strides[dim]

    def data_ptr(self) -> int:
        """Return an address with the alignment the real operand will have."""
        return 0 if self.aligned else ITEMSIZE[str(self.dtype).removeprefix("torch.")]

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
    dtype, out = torch_dtype(problem.dtype), torch_dtype(problem.out_dtype)
    offset_free = problem.aligned or not problem.naturally_aligned()
    scales = [StandIn(torch.float32, shape, (1,) * len(shape)) for shape in scale_shapes(problem)]
    return (
        StandIn(dtype, shape_a, strides_a, offset_free),
        StandIn(dtype, shape_b, strides_b, offset_free),
        StandIn(out, shape_c, strides_c),
        *scales,
    )


def dense_operands(problem: Problem, place: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return operands of a problem, with nothing in them, in the layout and alignment it states."""
    made = []
    for one in stand_ins(problem)[:2]:
        extent = sum((n - 1) * stride for n, stride in zip(one.shape, one.strides, strict=True)) + 1
        memory = torch.empty(extent + 1, dtype=one.dtype, device=place)
        made.append(memory.as_strided(one.shape, one.strides, 0 if one.aligned else 1))
    return made[0], made[1]


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of this name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


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


_kept: dict[tuple[object, ...], torch.Tensor] = {}
_kept_lock = threading.RLock()


def _after_fork() -> None:
    global _kept_lock
    _kept_lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def split_workspace(
    config: Config, out: Any, tiles: int, dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """Return the workspace for partial tiles of a dtype and the zeroed arrival counters.

    There are two counters for each tile. Launches on one stream run one after the other, and each
    leaves the first at zero and the second at a multiple of `partials.COUNTED`. Without split-K the
    kernel takes neither, and gets the output in their place.
    """
    if config.split_k == 1:
        return out, out
    numel = tiles * config.split_k * config.block_m * config.block_n
    partials = workspace(out, "partials", numel, dtype)
    return partials, workspace(out, "arrivals", 2 * tiles, torch.int32)


def workspace(beside: Any, purpose: str, numel: int, dtype: torch.dtype) -> Any:
    """Return memory of at least `numel` elements on the device of `beside`, zeroed when made.

    It is kept for each device, stream and purpose, and grows. While a CUDA graph is captured it
    comes from the graph's own pool, and in the interpreter each launch gets its own.
    """
    if isinstance(beside, StandIn):
        return StandIn(dtype, (numel,), (1,))
    device = beside.device
    if device.type == "cpu" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(numel, dtype=dtype, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream
    place = (device.index, stream, purpose, dtype)
    with _kept_lock:
        kept = _kept.get(place)
        if kept is None or kept.numel() < numel:
            kept = _kept[place] = torch.zeros(numel, dtype=dtype, device=device)
        return kept
