"""How products are summed, and what is done to a sum at its end: what kernels are told of it."""

from __future__ import annotations

from typing import Any

from tunekit.config import Config
from tunekit.key import SCALINGS, Problem


def is_float8(dtype: str) -> bool:
    """Say whether a dtype is one of the two 8-bit floats."""
    return dtype.startswith("float8")


PROMOTE_EVERY = 128
"""Products of float8 that Hopper's tensor cores may add up by themselves.

They keep about 14 bits of such a sum. After that many it is added to one in float32, which is what
`torch._scaled_mm` does unless it is told to be fast.
"""


def sum_settings(config: Config, problem: Problem) -> dict[str, Any]:
    """Return the compile-time constants of the sum and of what is done to it at the end.

    SCALING: none (0), one number for each operand (1), one for each row of A and column of B (2).
    """
    promoted = min(PROMOTE_EVERY, config.block_k) if is_float8(problem.dtype) else None
    return {
        "INTEGER": problem.dtype == "int8",
        "IMPRECISE": promoted,
        "SCALING": SCALINGS.index(problem.scaling),
        "BATCHED": problem.batch > 1,
    }


def scale_pointers(scales: tuple[Any, ...], out: Any) -> tuple[Any, Any]:
    """Return the scales as a kernel takes them: where there are none, the output in their place."""
    return scales if len(scales) == 2 else (out, out)


def accumulator_dtype(problem: Problem) -> str:
    """Return the name of the dtype in which products are summed."""
    return "int32" if problem.dtype == "int8" else "float32"
