"""Calls in which somebody has a say: gradients, autocast, a trace, a transform, a mode, `out`."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _is_tracing, _len_torch_dispatch_stack, _len_torch_function_stack

from tunekit import products
from tunekit.errors import ProblemError
from tunekit.gradients import is_recording, recorded
from tunekit.operators import traced
from tunekit.policies import Policy, current
from tunekit.products import (
    PLAIN,
    SUPPORTED,
    autocast_dtype,
    is_lazy,
    product,
    product_into,
    refuse,
    takes_kernel,
    why_not,
)
from tunekit.widening import widened


def unusual(
    a: Any, b: Any, out: Any, out_dtype: Any, backend: str | None, on_miss: str | None
) -> torch.Tensor:
    """Multiply where gradients, autocast, a trace, a transform, `out` or a subclass has a say."""
    if torch.compiler.is_compiling():
        return _compiled(a, b, out, out_dtype, backend, on_miss)
    plain = type(a) in PLAIN and type(b) in PLAIN and (out is None or type(out) in PLAIN)
    if not (plain and _len_torch_function_stack()):
        return _settled(a, b, out, out_dtype, backend, on_miss)
    how = current().policy.overridden(backend, on_miss)
    if how.backend == "auto" and not only_a_default_device():
        return _by_torch(a, b, out, out_dtype, how)
    # A default device is a function mode too: each look at a tensor would go through it.
    with torch._C.DisableTorchFunction():
        return _settled(a, b, out, out_dtype, backend, on_miss)


def _settled(
    a: Any, b: Any, out: Any, out_dtype: Any, backend: str | None, on_miss: str | None
) -> torch.Tensor:
    scope = current()
    how = scope.policy.overridden(backend, on_miss)
    if type(a) not in PLAIN or type(b) not in PLAIN or a.is_nested or b.is_nested:
        return _by_torch(a, b, out, out_dtype, how)
    kernels = how.backend == "triton" or (how.backend == "auto" and products.on_gpu(a))
    casts = (kernels or out_dtype is not None) and out is None
    if casts and (dtype := autocast_dtype(a)) is not None:
        with torch.autocast(a.device.type, enabled=False):
            return unusual(_cast(a, dtype), _cast(b, dtype), None, out_dtype, backend, on_miss)
    if out_dtype is not None and out_dtype != a.dtype:
        watched = is_recording(a, b) or is_traced()
        return widened(a, b, out, out_dtype, how, watched=watched)
    if out is not None:
        return _into(out, a, b, backend, on_miss)
    if is_traced():
        return _by_torch(a, b, None, None, how)  # who watches wants to see torch's own product
    if not is_recording(a, b):
        return product(a, b, scope, backend, on_miss)
    if kernels and why_not(a, b) is None:
        return recorded(a, b, scope, backend, on_miss)
    return _by_torch(a, b, None, None, how)


def _by_torch(a: Any, b: Any, out: Any, out_dtype: Any, how: Policy) -> torch.Tensor:
    """Multiply by torch what kernels have no part in; `backend="triton"` says why they have none.

    Raises:
        ProblemError: the backend is `triton`.
    """
    if how.backend == "triton":
        refuse(a, b)
        raise ProblemError(WATCHED)
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if tensors and out_dtype is not None and out_dtype != a.dtype:
        return widened(a, b, out, out_dtype, how, watched=True)
    return torch.matmul(a, b) if out is None else torch.matmul(a, b, out=out)


def _into(
    out: Any, a: torch.Tensor, b: torch.Tensor, backend: str | None, on_miss: str | None
) -> torch.Tensor:
    """Multiply into `out`: as a kernel writes it, or by torch, whose rules decide all the rest."""
    scope = current()
    how = scope.policy.overridden(backend, on_miss)
    plain = type(out) in PLAIN and out.layout is torch.strided
    fixed = plain and out.is_inference() and not torch.is_inference_mode_enabled()
    if not plain or fixed or is_recording(a, b, out):
        return torch.matmul(a, b, out=out)
    if is_traced():
        return _by_torch(a, b, out, None, how)
    if product_into(out, a, b, scope, backend, on_miss):
        return out  # type: ignore[no-any-return]
    if how.backend == "triton":
        refuse(a, b)
    if how.backend != "triton" or not takes_kernel(a, b, how):
        return torch.matmul(a, b, out=out)
    memory = [one.untyped_storage().data_ptr() for one in (a, b)]
    alike = out.dtype == a.dtype and out.device == a.device
    if not alike or out.untyped_storage().data_ptr() in memory:
        return torch.matmul(a, b, out=out)  # which knows what is wrong with it
    return torch.mul(product(a, b, scope, backend, on_miss), 1, out=out)


def _compiled(
    a: Any, b: Any, out: Any, out_dtype: Any, backend: str | None, on_miss: str | None
) -> torch.Tensor:
    """Multiply while `torch.compile` or `torch.export` traces: the operator decides at run time."""
    if not (products.is_ordinary(a) and products.is_ordinary(b)):
        return _by_torch(a, b, out, out_dtype, Policy())  # a subclass may not know the operator
    kernels = backend == "triton" or (products.on_gpu(a) and backend != "vendor")
    casts = kernels or (out_dtype is not None and out is None)
    if casts and (dtype := autocast_dtype(a)) is not None:
        a, b = _cast(a, dtype), _cast(b, dtype)
    if out_dtype is not None and out_dtype != a.dtype:
        recording = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
        return widened(a, b, out, out_dtype, Policy(), watched=recording)
    alike = a.dtype == b.dtype and a.device == b.device and a.dtype in SUPPORTED
    if out is None and kernels and alike and a.dim() and b.dim():
        return traced(a, b, backend, on_miss)
    return torch.matmul(a, b) if out is None else torch.matmul(a, b, out=out)


def as_met(a: torch.Tensor, b: torch.Tensor, how: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """Return operands as kernels would meet them: cast as autocast does it, in memory of their own.

    In those that had to be made there is nothing; nothing is launched.
    """
    if type(a) not in PLAIN or type(b) not in PLAIN or a.is_nested or b.is_nested:
        return a, b
    kernels = how.backend == "triton" or (how.backend == "auto" and products.on_gpu(a))
    if not kernels or not a.layout is b.layout is torch.strided:
        return a, b
    dtype = autocast_dtype(a)
    return _form_met(a, dtype, how), _form_met(b, dtype, how)


def _form_met(operand: torch.Tensor, autocast: torch.dtype | None, how: Policy) -> torch.Tensor:
    casts = operand.is_floating_point() and operand.dtype != torch.float64
    dtype = autocast if autocast is not None and casts else operand.dtype
    owned = how.backend == "triton" and is_lazy(operand)  # then matmul makes a copy
    if dtype == operand.dtype and not owned:
        return operand
    return torch.empty_like(operand, dtype=dtype, requires_grad=False)


def is_left_to_watchers(how: Policy) -> bool:
    """Say whether a call made here and now is torch's, because somebody watches or traces it.

    Raises:
        ProblemError: it is, and the backend is `triton`.
    """
    if how.backend == "triton" and is_traced():
        raise ProblemError(WATCHED)
    return how.backend == "auto" and (is_traced() or not only_a_default_device())


WATCHED = "backend='triton' cannot multiply while the call is watched or traced"


def _cast(operand: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an operand as autocast hands it to a product."""
    if operand.is_floating_point() and operand.dtype != torch.float64:
        return operand.to(dtype)
    return operand


def is_traced() -> bool:
    """Say whether torch's own operations are to be seen by a mode, held by a trace or rewritten."""
    return _len_torch_dispatch_stack() > 0 or bool(_is_tracing()) or _is_functionalized()


def _is_functionalized() -> bool:
    """Say whether `torch.func.functionalize`, which knows no functions of ours, is under way."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    kind = torch._C._functorch.TransformType.Functionalize
    return any(one.key() == kind for one in stack)


def only_a_default_device() -> bool:
    """Say whether the function modes in force do no more than name a default device."""
    count = torch._C._len_torch_function_stack()
    modes = (torch._C._get_function_stack_at(place) for place in range(count))
    return all(type(mode).__name__ == "DeviceContext" for mode in modes)
