"""The vendor library's call for a problem: torch's, in the same precision and into the same output.

Where torch has no call for a combination, or refuses its sizes or layout, there is no baseline, and
that is what is stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from tunekit.kernels.protocol import Launch, Prepared
from tunekit.kernels.sums import is_float8
from tunekit.key import Problem

INT8_LEAST_ROWS = 17
"""`torch._int_mm` takes more than 16 rows on CUDA."""


def vendor_call(prepared: Prepared) -> Launch | None:
    """Return torch's call on prepared operands, None where it has none."""
    problem = prepared.problem
    if why_none(problem) is not None:
        return None
    a, b, out = prepared.a, prepared.b, prepared.out
    multiply: Any = torch.mm if problem.batch == 1 else torch.bmm
    if problem.dtype == "int8":
        multiply = torch._int_mm
    if is_float8(problem.dtype):
        scaled: Any = torch._scaled_mm
        scales = prepared.scales or _ones(a)

        def launch() -> None:
            scaled(a, b, *scales, out_dtype=out.dtype, out=out)
    elif problem.dtype == "float32":

        def launch() -> None:
            with fp32_precision(problem.precision):
                multiply(a, b, out=out)
    elif problem.out_dtype != problem.dtype and problem.dtype != "int8":  # that has one result

        def launch() -> None:
            multiply(a, b, out.dtype, out=out)
    else:

        def launch() -> None:
            multiply(a, b, out=out)

    return launch


def why_none(problem: Problem) -> str | None:
    """Return why torch has no call for a problem, or None if it has one."""
    if problem.dtype == "int8":
        return _no_int8(problem)
    if is_float8(problem.dtype):
        return _no_float8(problem)
    return None


def _no_int8(problem: Problem) -> str | None:
    if problem.batch != 1:
        return "torch._int_mm multiplies one pair of matrices"
    if problem.m < INT8_LEAST_ROWS or problem.k % 8 or problem.n % 8:
        return "torch._int_mm takes more than 16 rows, and K and N of whole 8"
    return None


def _no_float8(problem: Problem) -> str | None:
    if problem.batch != 1 or problem.layout != "nt" or not problem.aligned:
        return "torch._scaled_mm multiplies one pair of aligned matrices, both stored along K"
    if problem.k % 16 or problem.n % 16:
        return "torch._scaled_mm takes K and N of whole 16"
    if problem.dtype == "float8_e5m2":
        return "torch._scaled_mm does not multiply two operands of float8_e5m2"
    if problem.scaling == "row" and problem.out_dtype != "bfloat16":
        return "torch._scaled_mm scales rows into bfloat16 only"
    return None


def _ones(beside: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales of a product that is not scaled."""
    one = torch.ones((), dtype=torch.float32, device=beside.device)
    return one, one


@contextlib.contextmanager
def fp32_precision(precision: str) -> Iterator[None]:
    """Make torch's own matmul use `ieee` or `tf32` arithmetic for float32 inside the block."""
    setting = torch.backends.cuda.matmul
    previous = setting.fp32_precision
    setting.fp32_precision = precision
    try:
        yield
    finally:
        setting.fp32_precision = previous
