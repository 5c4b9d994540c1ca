"""`tunekit.scaled_mm`: products of float8 with scales, as `torch._scaled_mm` takes them."""

from __future__ import annotations

from typing import Any

import torch

from tunekit.calls import is_traced, only_a_default_device
from tunekit.errors import ProblemError
from tunekit.gradients import is_transformed
from tunekit.policies import Policy, current
from tunekit.products import is_stored, on_gpu
from tunekit.widening import computed

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)
NOTHING_TO_SUM = "the product is empty or zero"


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Multiply as `torch._scaled_mm` does: (a @ b) * scale_a * scale_b, summed in float32.

    Tuned kernels take two matrices of one float8 dtype, in any layout and sizes, into bfloat16,
    float16 or float32, with float32 scales: one number for each operand, or one for each row of A
    and each column of B. All else goes to torch, and means what it means there: a bias, a scale of
    the result, results in float8, operands of two different dtypes, finer scales. So does
    `use_fast_accum=True`, which lets the vendor's library add up in fewer bits than kernels do.

    Args:
        a: (m, k).
        b: (k, n).
        scale_a: one number, or (m, 1).
        scale_b: one number, or (1, n).
        bias: (n,), added by torch's call.
        scale_result: one number, for results in float8.
        out_dtype: of the result; without it that of `a`, as in torch.
        use_fast_accum: allow less exact sums.

    Raises:
        MissError: the problem is not tuned and the policy's `on_miss` is `error`.
        ProblemError: the policy's backend is `triton` and no kernel takes these operands. A product
            that has nothing to compute is torch's under any policy.
        RuntimeError, ValueError: as `torch._scaled_mm` raises.
    """
    scope = current()
    if scope.policy.backend == "auto" and not only_a_default_device():
        reason: str | None = "a mode is to see torch's call"
    else:
        reason = _why_not(a, b, scale_a, scale_b, out_dtype)
    if bias is not None or scale_result is not None or use_fast_accum:
        reason = "a bias, a scale of the result and fast sums are torch's"
    if reason is None and _may_run(a, scope.policy):
        out = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)
        if computed(out, a, b, scope, scope.policy, scale_a, scale_b):
            return out
    elif scope.policy.backend == "triton" and reason != NOTHING_TO_SUM:
        raise ProblemError(f"backend='triton' cannot multiply these operands: {reason}")
    by_torch: Any = torch._scaled_mm
    result = by_torch(
        a, b, scale_a, scale_b, bias=bias, scale_result=scale_result, out_dtype=out_dtype,
        use_fast_accum=use_fast_accum,
    )  # fmt: skip
    assert isinstance(result, torch.Tensor)
    return result


def _may_run(a: torch.Tensor, policy: Policy) -> bool:
    return policy.backend == "triton" or (policy.backend == "auto" and on_gpu(a))


def _why_not(a: Any, b: Any, scale_a: Any, scale_b: Any, out_dtype: Any) -> str | None:
    """Say why no kernel takes these operands, or None if one may."""
    every = (a, b, scale_a, scale_b)
    if torch.compiler.is_compiling() or is_traced() or is_transformed():
        return "the call is watched or traced"
    if not all(is_stored(one) for one in every):
        return "an operand or a scale is not what its memory holds"
    if torch.is_grad_enabled() and any(one.requires_grad for one in every):
        return "gradients are recorded"
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        return f"shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied"
    if a.dtype != b.dtype or a.dtype not in FLOAT8:
        return f"dtypes {a.dtype} and {b.dtype} are not one float8"
    if out_dtype not in OUTPUTS:
        return f"out_dtype={out_dtype} is not bfloat16, float16 or float32"
    if any(one.device != a.device for one in every):
        return "operands and scales are on different devices"
    if not (a.numel() and b.numel()):
        return NOTHING_TO_SUM
    return _why_not_scaled(a, b, scale_a, scale_b)


def _why_not_scaled(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> str | None:
    if scale_a.dtype is not torch.float32 or scale_b.dtype is not torch.float32:
        return "scales are float32"
    numbers = scale_a.numel() == scale_b.numel() == 1
    rows = scale_a.shape == (a.shape[0], 1) and scale_b.shape == (1, b.shape[1])
    if not numbers and not (rows and scale_a.is_contiguous() and scale_b.is_contiguous()):
        shapes = f"{tuple(scale_a.shape)} and {tuple(scale_b.shape)}"
        return f"scales {shapes} are neither two numbers nor one a row of A and column of B"
    return None
