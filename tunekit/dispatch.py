"""Two tensors through a tuned kernel: `tunekit.matmul`.

At run time nothing is ever benchmarked. The first call with operands of one kind (shapes, strides,
dtype, alignment, device) looks for the row to serve and prepares its launch; every later one finds
that launch in a dictionary. The store is read once for each device; a running process changes its
choices only when `reload` is called, so the ranks of a job cannot drift apart.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from tunekit.errors import ProblemError
from tunekit.kernels.operands import float32_precision
from tunekit.key import TuningKey
from tunekit.serving import MissWarning, Served, State, is_miss, on_device_of

__all__ = ["MissWarning", "Served", "matmul", "miss_counts", "reload", "served_for"]

Backend = Literal["auto", "triton", "vendor"]
OnMiss = Literal["warn", "fallback", "error"]

SUPPORTED = (torch.float16, torch.bfloat16, torch.float32)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, backend: Backend = "auto", on_miss: OnMiss = "warn"
) -> torch.Tensor:
    """Multiply as `torch.matmul(a, b)` does, with tuned kernels where there are any.

    Args:
        a: left operand. Kernels serve (m, k) in float16, bfloat16 or float32, in any strides; every
            other input goes to torch.
        b: right operand, (k, n), of the same dtype on the same device.
        backend: `auto` runs what was measured to be the fastest; `triton` runs a Triton kernel
            whatever the vendor's time, and says why if it cannot; `vendor` runs torch.
        on_miss: for a problem without a tuned row, `warn` once and go on, go on silently
            (`fallback`), or raise (`error`).

    Returns:
        The product, (m, n) in the operands' dtype.

    Raises:
        MissError: the problem is not tuned and `on_miss` is `error`.
        ProblemError, DeviceError: `backend="triton"` and no kernel takes these operands.
        RuntimeError: as `torch.matmul` raises for operands that cannot be multiplied.
    """
    _check(backend, on_miss)
    if torch.compiler.is_compiling() or not _ours(a, b):
        if backend == "triton":
            return _without_kernel(a, b)
        return torch.matmul(a, b)
    if backend == "vendor" or (backend == "auto" and not _on_gpu(a)):
        return torch.matmul(a, b)
    kind = _kind(a, b, backend)
    served = _state.served.get(kind)
    if served is None or (is_miss(served) and _state.owes(served.key, on_miss)):
        served = _state.serve(kind, a, b, backend, on_miss)
    if served.launch is None:
        return torch.matmul(a, b)
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    with on_device_of(a):
        served.launch(a, b, out)
    return out


def reload() -> None:
    """Forget what was read from the cache, so that the next call of each problem reads it anew."""
    _state.clear()


def served_for(a: torch.Tensor, b: torch.Tensor) -> Served | None:
    """Return what this process runs for operands like these, or None if it has not met any."""
    return _state.served.get(_kind(a, b, "auto"))


def miss_counts() -> dict[TuningKey, int]:
    """Return how many kinds of operands of each untuned problem this process has met."""
    return dict(_state.misses)


def _check(backend: str, on_miss: str) -> None:
    if backend not in ("auto", "triton", "vendor"):
        raise ProblemError(f"unknown backend {backend!r}: use auto, triton or vendor")
    if on_miss not in ("warn", "fallback", "error"):
        raise ProblemError(f"unknown on_miss {on_miss!r}: use warn, fallback or error")


def _ours(a: Any, b: Any) -> bool:
    """Say whether kernels may take these operands; every other input goes to torch."""
    return (
        type(a) in _TENSORS
        and type(b) in _TENSORS
        and a.dtype is b.dtype
        and a.dtype in SUPPORTED
        and a.layout is b.layout is torch.strided
        and a.dim() == 2
        and b.dim() == 2
        and a.device == b.device
        and a.device.type in ("cuda", "cpu")
        and a.shape[1] == b.shape[0]
        and bool(a.shape[0] and a.shape[1] and b.shape[1])
        and not (a.is_neg() or b.is_neg())
        and not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))
        and not torch.is_autocast_enabled(a.device.type)
        and not _is_transformed()
    )


def _without_kernel(a: Any, b: Any) -> torch.Tensor:
    """Answer `backend="triton"` for what no kernel takes: an empty product, or why not.

    Raises:
        ProblemError: the operands are none that a kernel takes; the text says why.
    """
    if torch.compiler.is_compiling():
        raise ProblemError("backend='triton' cannot be traced: compile around the call")
    reason = _why_not(a, b)
    if reason is None:
        return torch.matmul(a, b)  # nothing to launch: empty, or zeros
    raise ProblemError(f"backend='triton' cannot multiply these operands: {reason}")


def _why_not(a: Any, b: Any) -> str | None:
    if type(a) not in _TENSORS or type(b) not in _TENSORS:
        return "an operand is not a plain torch.Tensor"
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return "an operand is not strided"
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        return f"shapes {tuple(a.shape)} and {tuple(b.shape)} are not (m, k) and (k, n)"
    if a.dtype != b.dtype or a.dtype not in SUPPORTED:
        return f"dtypes {a.dtype} and {b.dtype} are not one of float16, bfloat16, float32"
    if a.device != b.device:
        return f"a is on {a.device}, b is on {b.device}"
    if a.device.type not in ("cuda", "cpu"):
        return f"the operands are on {a.device}"
    if a.is_neg() or b.is_neg():
        return "an operand is a lazily negated view"
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return "gradients are recorded"
    if torch.is_autocast_enabled(a.device.type):
        return "autocast is on"
    if _is_transformed():
        return "the call is being traced or transformed"
    return None


def _on_gpu(a: torch.Tensor) -> bool:
    return a.is_cuda


def _is_transformed() -> bool:
    """Say whether the call is transformed or watched, so that torch must see it."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
    )


_TENSORS = (torch.Tensor, torch.nn.Parameter)
_state = State()


def _kind(a: torch.Tensor, b: torch.Tensor, backend: str) -> tuple[object, ...]:
    """Return everything a prepared launch depends on, as a plain tuple."""
    return (
        a.shape, b.shape, a.stride(), b.stride(), a.dtype, a.device,
        a.data_ptr() % 16 == 0, b.data_ptr() % 16 == 0,
        backend, float32_precision() if a.dtype is torch.float32 else "ieee",
    )  # fmt: skip
