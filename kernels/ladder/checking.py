"""What the steps written in Triton refuse, and the constants that they share."""

from __future__ import annotations

from typing import Any

import torch

from tunekit.errors import ConfigError
from tunekit.kernels.stand_ins import interpreting

LEAST_BLOCK = 16
"""The tensor cores' smallest operand: `tl.dot` takes nothing smaller."""


def check_blocks(**blocks: int) -> None:
    """Refuse a block that the compiler would refuse, in words that say what to do.

    Raises:
        ConfigError: a block is below 16, or no power of two.
    """
    for name, size in blocks.items():
        if size < LEAST_BLOCK:
            raise ConfigError(f"{name}={size}: tl.dot needs blocks of at least {LEAST_BLOCK}")
        if size & (size - 1):
            raise ConfigError(f"{name}={size} is no power of two, as Triton's blocks are")


def constants(a: torch.Tensor, precision: str) -> dict[str, Any]:
    """Return the compile-time constants of the arithmetic."""
    return {
        "PRECISION": precision,
        "UPCAST": interpreting() and a.dtype is torch.bfloat16,
    }
