"""Operands to try a config on, and what counts as a right result.

Inputs are random, A with unit variance and B with variance 1 / K, so results have unit variance
and no dtype overflows. NaN surrounds every operand in memory: a load past an edge that is not
masked shows in the result. The reference is computed in float64.

The tolerance follows from rounding, elementwise, for c = sum of K products a * b:

    2 u_out |c|  +  s_out  +  8 (u_in + sqrt(K) u_acc) |a_row| |b_col| / sqrt(K)

`s_out` is the smallest number above zero of the output dtype: below its normal range, which for
float16 a product may well be, rounding errors no longer shrink with c. `u` are unit roundoffs: of
the output dtype, of the operands as the hardware reads them (only tf32 shortens them), and of
accumulation in float32. Rounding errors of a sum of K random terms grow as sqrt(K) (Higham and
Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019); the norms divided by sqrt(K)
are the standard deviation of c. The factor 8 covers the largest of 10^9 elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tunekit.device import DeviceInfo
from tunekit.kernels.operands import operand_strides, torch_dtype
from tunekit.kernels.protocol import Prepared
from tunekit.key import Problem

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
"""Half the distance from 1 to the next number, by output dtype."""

SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}
"""The least number above zero, by output dtype; the distance of its neighbours near zero."""

TF32_ROUNDOFF = 2.0**-10
"""Relative error of reading a float32 operand as tf32, which drops bits rather than rounding."""

ACCUMULATION_ROUNDOFF = 2.0**-23
"""Of one addition on tensor cores, which truncate."""

GUARD = 256
"""Elements of NaN before and after each operand."""

CHUNK_ELEMENTS = 1 << 26
"""Elements of the result that are compared at a time, to bound memory."""


def prepare(problem: Problem, device: DeviceInfo, *, place: torch.device, seed: int) -> Prepared:
    """Make random operands of a problem on `place`, with reference and tolerance."""
    generator = torch.Generator(device=place).manual_seed(seed)
    strides_a, strides_b, strides_c = operand_strides(problem)
    offset = 0 if problem.aligned or not problem.naturally_aligned() else 1
    dtype = torch_dtype(problem.dtype)
    a = _guarded((problem.m, problem.k), strides_a, offset, dtype, place)
    b = _guarded((problem.k, problem.n), strides_b, offset, dtype, place)
    a.normal_(generator=generator)
    b.normal_(std=problem.k**-0.5, generator=generator)
    out = _guarded((problem.m, problem.n), strides_c, 0, torch_dtype(problem.out_dtype), place)
    reference, tolerance = _expected(problem, a, b)
    return Prepared(problem, device, a, b, out, reference, tolerance)


def _guarded(
    shape: tuple[int, int],
    strides: tuple[int, int],
    offset: int,
    dtype: torch.dtype,
    place: torch.device,
) -> torch.Tensor:
    extent = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    memory = torch.full((extent + offset + 2 * GUARD,), math.nan, dtype=dtype, device=place)
    return memory.as_strided(shape, strides, GUARD + offset)


def row_chunks(rows: int, columns: int) -> Iterator[slice]:
    """Cut a result into slices of rows of bounded size."""
    step = max(1, CHUNK_ELEMENTS // columns)
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


def _expected(
    problem: Problem, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the reference and the elementwise tolerance of a @ b."""
    kept = torch.float64 if problem.out_dtype == "float32" else torch.float32
    wide_b = b.double()
    reference = torch.empty(problem.m, problem.n, dtype=kept, device=a.device)
    tolerance = torch.empty(problem.m, problem.n, dtype=torch.float32, device=a.device)
    columns = wide_b.norm(dim=0)
    factor = _error_factor(problem)
    for rows in row_chunks(problem.m, max(problem.n, problem.k)):
        wide_a = a[rows].double()
        reference[rows] = wide_a @ wide_b
        tolerance[rows] = factor * wide_a.norm(dim=1)[:, None] * columns[None, :]
        tolerance[rows] += 2 * UNIT_ROUNDOFF[problem.out_dtype] * reference[rows].abs()
        tolerance[rows] += SMALLEST[problem.out_dtype]
    return reference, tolerance


def _error_factor(problem: Problem) -> float:
    read = TF32_ROUNDOFF if problem.precision == "tf32" else 0.0
    root = math.sqrt(problem.k)
    return 8 * (read + root * ACCUMULATION_ROUNDOFF) / root


def error_ratio(prepared: Prepared) -> float:
    """Return the largest error over its tolerance; infinite if an element is not finite."""
    worst = torch.zeros((), dtype=prepared.reference.dtype, device=prepared.out.device)
    for rows in row_chunks(prepared.problem.m, prepared.problem.n):
        reference = prepared.reference[rows]
        error = (prepared.out[rows].to(reference.dtype) - reference).abs_()
        worst = torch.maximum(worst, error.div_(prepared.tolerance[rows]).max())
    ratio = worst.item()
    return ratio if math.isfinite(ratio) else math.inf


def guard_is_intact(prepared: Prepared) -> bool:
    """Say whether the memory around the output is still NaN: nothing was written outside it."""
    elements = prepared.out.untyped_storage().size() // prepared.out.element_size()
    memory = prepared.out.as_strided((elements,), (1,), 0)
    return bool(torch.isnan(memory[:GUARD]).all() and torch.isnan(memory[-GUARD:]).all())
