"""Products whose result has another dtype than their operands, or is scaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tunekit.errors import ProblemError
from tunekit.kernels.operands import dense_operands, torch_dtype
from tunekit.kernels.stand_ins import scale_shapes
from tunekit.key import Problem
from tunekit.policies import Policy, Scope, remember, scope_of
from tunekit.products import STATE, autocast_dtype, counted, guarded, is_stored, on_gpu
from tunekit.serving import Launch, kind_of, scaling_of

WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int8: torch.int32,
}
"""What operands of a dtype may give beside their own: the sums as they are before rounding."""


def widened(
    a: torch.Tensor,
    b: torch.Tensor,
    out: Any,
    out_dtype: torch.dtype,
    how: Policy,
    *,
    watched: bool,
) -> torch.Tensor:
    """Multiply with the result in another dtype: by a kernel, or by torch.

    `watched` says that gradients are recorded or that somebody has a say in what torch runs: then
    it is made of operations of torch's that every one of them knows.

    Raises:
        ProblemError: operands of this dtype do not give that one, or `backend="triton"` and no
            kernel takes them.
        MissError: the problem is not tuned, and the policy says that this is an error.
    """
    if a.dtype != b.dtype or WIDER.get(a.dtype) != out_dtype:
        allowed = ", ".join(f"{wide} from {narrow}" for narrow, wide in WIDER.items())
        raise ProblemError(f"out_dtype={out_dtype} from {a.dtype} and {b.dtype}: use {allowed}")
    result = _product(a, b, out_dtype, how, watched)
    return result if out is None else _put(result, out)


def computed(
    out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scope: Scope, policy: Policy, *scales: Any
) -> bool:
    """Multiply two plain matrices into a result of another dtype, or scaled; says if it was done.

    Where it was not, torch's call is to be made.

    Raises:
        MissError: the problem is not tuned, and the policy says that this is an error.
    """
    return bool(_prepared(out, a, b, scope, policy, *scales)(a, b, out, *scales))


def _prepared(
    out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scope: Scope, policy: Policy, *scales: Any
) -> Callable[..., bool]:
    """Return what multiplies operands of this kind, and remember it. Nothing is launched."""
    kind = (*kind_of(a, b), policy, out.dtype, scaling_of(scales))
    prepared = scope.prepared
    run = prepared.get(kind)
    if run is None:
        served = STATE.serve(a, b, out, policy, *scales)
        launch = _left_out if served.launch is None else _launched(guarded(served.launch))
        run = counted(served, launch, a)
        remember(prepared, kind, run)
    return run


def prepare_widened(problem: Problem, place: torch.device, how: Policy) -> str | None:
    """Prepare a problem whose result has another dtype or is scaled; says why, if not.

    It stands for dense operands on `place`. Nothing is launched.

    Raises:
        MissError: the problem is not tuned, and the policy says that this is an error.
    """
    if problem.batch != 1:
        return "batches are multiplied by kernels into their own dtype alone"
    if problem.scaling == "none" and problem.dtype.startswith("float8"):
        return "float8 is multiplied by tunekit.scaled_mm, which takes scales"
    a, b = dense_operands(problem, place)
    if how.backend == "vendor":
        return "the policy says backend=vendor"
    if not _takes_kernel(a, b, how):
        return "the operands are on the CPU"
    out = a.new_empty((problem.m, problem.n), dtype=torch_dtype(problem.out_dtype))
    scales = [torch.empty(shape, device=place) for shape in scale_shapes(problem)]
    _prepared(out, a, b, scope_of(how), how, *scales)
    return None


def _left_out(*operands: torch.Tensor) -> bool:
    return False


def _launched(launch: Launch) -> Callable[..., bool]:
    def run(*operands: torch.Tensor) -> bool:
        launch(*operands)
        return True

    return run


def _product(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype, how: Policy, watched: bool
) -> torch.Tensor:
    matrices = a.dim() == b.dim() == 2
    if matrices and not watched and _takes_kernel(a, b, how):
        result = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)
        if computed(result, a, b, scope_of(how), how):
            return result
    elif how.backend == "triton" and a.numel() and b.numel():  # else there is nothing to multiply
        raise ProblemError(
            f"backend='triton' gives {out_dtype} from {a.dtype} for two plain matrices, without"
            " gradients, and while nobody watches or traces the call"
        )
    if not out_dtype.is_floating_point:
        return _of_integers(a, b, matrices and not watched)
    if a.is_cuda and matrices and not watched:
        return torch.mm(a, b, out_dtype=out_dtype)
    if autocast_dtype(a) is None:
        return torch.matmul(a.to(out_dtype), b.to(out_dtype))
    with torch.autocast(a.device.type, enabled=False):  # which would make them narrow again
        return torch.matmul(a.to(out_dtype), b.to(out_dtype))


def _of_integers(a: torch.Tensor, b: torch.Tensor, matrices: bool) -> torch.Tensor:
    if matrices and a.is_cuda and a.shape[0] > 16 and not (a.shape[1] % 8 or b.shape[1] % 8):
        return torch._int_mm(a, b)
    # Sums of products of 8-bit numbers are exact in float64, which every device multiplies.
    return torch.matmul(a.double(), b.double()).to(torch.int32)


def _takes_kernel(a: torch.Tensor, b: torch.Tensor, how: Policy) -> bool:
    """Say whether a policy may run a kernel for two matrices."""
    if how.backend == "vendor" or (how.backend == "auto" and not on_gpu(a)):
        return False
    if torch.compiler.is_compiling() or a.device != b.device:
        return False
    if not (is_stored(a) and is_stored(b)):
        return False
    return a.shape[1] == b.shape[0] and bool(a.numel() and b.numel())


def _put(result: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if out.dtype != result.dtype:
        raise RuntimeError(f"Expected out tensor to have dtype {result.dtype}, but got {out.dtype}")
    return torch.mul(result, 1, out=out)
