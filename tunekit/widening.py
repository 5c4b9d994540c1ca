"""Products whose result has another dtype than their operands."""

from __future__ import annotations

from typing import Any

import torch

from tunekit.errors import ProblemError
from tunekit.policies import Policy

WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int8: torch.int32,
}
"""What operands of a dtype may give beside their own: the sums as they are before rounding."""


def widened(
    a: torch.Tensor, b: torch.Tensor, out: Any, out_dtype: torch.dtype, how: Policy
) -> torch.Tensor:
    """Multiply with the result in another dtype, by torch.

    Raises:
        ProblemError: operands of this dtype do not give that one, or `backend="triton"`.
    """
    if a.dtype != b.dtype or WIDER.get(a.dtype) != out_dtype:
        allowed = ", ".join(f"{wide} from {narrow}" for narrow, wide in WIDER.items())
        raise ProblemError(f"out_dtype={out_dtype} from {a.dtype} and {b.dtype}: use {allowed}")
    if how.backend == "triton":
        raise ProblemError(f"backend='triton' has no kernel that gives {out_dtype} from {a.dtype}")
    result = _product(a, b, out_dtype)
    return result if out is None else _put(result, out)


def _product(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    if not out_dtype.is_floating_point:
        # Sums of products of 8-bit numbers are exact in float64, which every device multiplies.
        return torch.matmul(a.double(), b.double()).to(out_dtype)
    recording = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if a.is_cuda and a.dim() == b.dim() == 2 and not recording:
        return torch.mm(a, b, out_dtype=out_dtype)
    return torch.matmul(a.to(out_dtype), b.to(out_dtype))


def _put(result: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if out.dtype != result.dtype:
        raise RuntimeError(f"Expected out tensor to have dtype {result.dtype}, but got {out.dtype}")
    return torch.mul(result, 1, out=out)
