"""Operands to try a config on, and what counts as a right result.

Inputs are random, A with unit variance and B with variance 1 / K, so results have unit variance
and no dtype overflows. Operands of 8 bits are both of unit variance (int8: any whole number but
-128), for smaller ones would be rounded to nothing; float8 has scales that bring the result back.
NaN surrounds every operand in memory: a load past an edge that is not masked shows in the result.
Integers have no NaN; there it is their largest number. The reference is computed in float64.

Sums of int8 are exact, and so must the result be. For floats the tolerance follows from rounding,
elementwise, for c = sum of K products a * b:

    2 u_out |c|  +  s_out  +  8 (u_in + sqrt(K) u_acc) |a_row| |b_col| / sqrt(K)

`s_out` is the smallest number above zero of the output dtype: below its normal range, which for
float16 a product may well be, rounding errors no longer shrink with c. `u` are unit roundoffs: of
the output dtype, of the operands as the hardware reads them (only tf32 shortens them), and of
accumulation in float32. Rounding errors of a sum of K random terms grow as sqrt(K) (Higham and
Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019); the norms divided by sqrt(K)
are the standard deviation of c. The factor 8 covers the largest of 10^9 elements.

Scales multiply all of it, and each costs a rounding in float32. Tensor cores add up float8 in about
14 bits, and after 128 products in float32: four instructions that each cut 2^-14 of a sum of up to
128 products. Over K products these errors add up as the partial sums themselves do, so they are
2^-12 of the standard deviation of c at most, whatever K is, and stand in for u_in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tunekit.device import DeviceInfo
from tunekit.kernels.operands import torch_dtype
from tunekit.kernels.protocol import Prepared
from tunekit.kernels.stand_ins import operand_shapes, operand_strides, scale_shapes
from tunekit.kernels.sums import is_float8
from tunekit.key import Problem

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
"""Half the distance from 1 to the next number, by output dtype."""

SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}
"""The least number above zero, by output dtype; the distance of its neighbours near zero."""

TF32_ROUNDOFF = 2.0**-10
"""Relative error of reading a float32 operand as tf32, which drops bits rather than rounding."""

FLOAT8_ROUNDOFF = 2.0**-12
"""Error of a float8 sum that is brought to float32 every 128 products, over its deviation."""

ACCUMULATION_ROUNDOFF = 2.0**-23
"""Of one addition on tensor cores, which truncate."""

GUARD = 256
"""Elements of NaN before and after each operand."""

CHUNK_ELEMENTS = 1 << 26
"""Elements of the result that are compared at a time, to bound memory."""

LARGEST_INT8 = 127


def prepare(problem: Problem, device: DeviceInfo, *, place: torch.device, seed: int) -> Prepared:
    """Make random operands of a problem on `place`, with reference and tolerance."""
    generator = torch.Generator(device=place).manual_seed(seed)
    strides_a, strides_b, strides_c = operand_strides(problem)
    shape_a, shape_b, shape_c = operand_shapes(problem)
    offset = 0 if problem.aligned or not problem.naturally_aligned() else 1
    dtype = torch_dtype(problem.dtype)
    a = guarded(shape_a, strides_a, offset, dtype, place)
    b = guarded(shape_b, strides_b, offset, dtype, place)
    _fill(a, 1.0, generator)
    _fill(b, problem.k**-0.5, generator)
    scales = _scales(problem, generator, place)
    out = guarded(shape_c, strides_c, 0, torch_dtype(problem.out_dtype), place)
    reference, tolerance = expected(problem, a, b, scales)
    return Prepared(problem, device, a, b, out, reference, tolerance, scales)


def _fill(operand: torch.Tensor, deviation: float, generator: torch.Generator) -> None:
    """Fill an operand with random numbers of its dtype."""
    if operand.dtype is torch.int8:
        operand.random_(-LARGEST_INT8, LARGEST_INT8 + 1, generator=generator)
    elif operand.element_size() == 1:
        wide = torch.empty(operand.shape, dtype=torch.float32, device=operand.device)
        operand.copy_(wide.normal_(generator=generator))
    elif deviation == 1.0:
        operand.normal_(generator=generator)
    else:
        operand.normal_(std=deviation, generator=generator)


def _scales(
    problem: Problem, generator: torch.Generator, place: torch.device
) -> tuple[torch.Tensor, ...]:
    """Return random scales around 1 for A and around 1 / sqrt(K) for B, if it has any."""
    made = []
    for shape, size in zip(scale_shapes(problem), (1.0, problem.k**-0.5), strict=False):
        scale = torch.empty(shape, dtype=torch.float32, device=place)
        made.append(scale.uniform_(0.5 * size, 1.5 * size, generator=generator))
    return tuple(made)


def guarded(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    place: torch.device,
) -> torch.Tensor:
    """Return a tensor of this shape in memory that is poison all around it, and in it."""
    extent = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    memory = torch.empty(extent + offset + 2 * GUARD, dtype=dtype, device=place)
    fill_with_poison(memory)
    return memory.as_strided(shape, strides, GUARD + offset)


def fill_with_poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with NaN, or an integer one with a number that no result is."""
    tensor.fill_(_poison(tensor.dtype))


def _poison(dtype: torch.dtype) -> float:
    if dtype is torch.int8:
        return LARGEST_INT8
    return math.nan if dtype.is_floating_point else torch.iinfo(dtype).min


def row_chunks(rows: int, columns: int) -> Iterator[slice]:
    """Cut a result into slices of rows of bounded size."""
    step = max(1, CHUNK_ELEMENTS // columns)
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


def expected(
    problem: Problem, a: torch.Tensor, b: torch.Tensor, scales: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the reference and the elementwise tolerance of a @ b, each as rows of C."""
    kept = torch.float64 if problem.out_dtype in ("float32", "int32") else torch.float32
    shape = (problem.batch * problem.m, problem.n)
    reference = torch.empty(shape, dtype=kept, device=a.device)
    tolerance = torch.empty(shape, dtype=torch.float32, device=a.device)
    for number in range(problem.batch):
        of_a, of_b = (a, b) if problem.batch == 1 else (a[number], b[number])
        first = number * problem.m
        for rows in row_chunks(problem.m, max(problem.n, problem.k)):
            place = slice(first + rows.start, first + rows.stop)
            _expect_rows(problem, of_a, of_b, scales, rows, reference[place], tolerance[place])
    return reference, tolerance


def _expect_rows(
    problem: Problem,
    a: torch.Tensor,
    b: torch.Tensor,
    scales: tuple[torch.Tensor, ...],
    rows: slice,
    reference: torch.Tensor,
    tolerance: torch.Tensor,
) -> None:
    """Fill in the reference and the tolerance of some rows of one product."""
    wide_a, wide_b = a[rows].double(), b.double()
    if scales:
        of_a = scales[0][rows] if problem.scaling == "row" else scales[0]
        wide_a, wide_b = wide_a * of_a.double(), wide_b * scales[1].double()
    exact = wide_a @ wide_b
    reference.copy_(exact)
    if problem.out_dtype == "int32":
        tolerance.fill_(0.5)
        return
    norms = wide_a.norm(dim=1)[:, None] * wide_b.norm(dim=0)[None, :]
    tolerance.copy_(_error_factor(problem) * norms)
    relative = 2 * UNIT_ROUNDOFF[problem.out_dtype] + (2 * UNIT_ROUNDOFF["float32"]) * len(scales)
    tolerance += relative * reference.abs()
    tolerance += SMALLEST[problem.out_dtype]


def _error_factor(problem: Problem) -> float:
    read = TF32_ROUNDOFF if problem.precision == "tf32" else 0.0
    if is_float8(problem.dtype):
        read = FLOAT8_ROUNDOFF
    root = math.sqrt(problem.k)
    return 8 * (read + root * ACCUMULATION_ROUNDOFF) / root


def error_ratio(prepared: Prepared) -> float:
    """Return the largest error over its tolerance; infinite if an element is not finite."""
    worst = torch.zeros((), dtype=prepared.reference.dtype, device=prepared.out.device)
    out = prepared.out.flatten(0, -2)
    for rows in row_chunks(out.shape[0], prepared.problem.n):
        reference = prepared.reference[rows]
        error = (out[rows].to(reference.dtype) - reference).abs_()
        worst = torch.maximum(worst, error.div_(prepared.tolerance[rows]).max())
    ratio = worst.item()
    return ratio if math.isfinite(ratio) else math.inf


def guard_is_intact(prepared: Prepared) -> bool:
    """Say whether the memory around the output is as it was: nothing was written outside it."""
    elements = prepared.out.untyped_storage().size() // prepared.out.element_size()
    memory = prepared.out.as_strided((elements,), (1,), 0)
    poison = torch.empty_like(memory[:GUARD])
    fill_with_poison(poison)
    return all(
        torch.equal(edge.nan_to_num(-1.0), poison.nan_to_num(-1.0))
        for edge in (memory[:GUARD], memory[-GUARD:])
    )
