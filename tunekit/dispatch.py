"""Two tensors through a tuned kernel: `tunekit.matmul`.

At run time nothing is ever benchmarked. The first call with operands of one kind (shapes, strides,
dtype, alignment, device) looks for the row to serve and prepares its launch; every later one finds
that launch in a dictionary. The store is read once for each device; a running process changes its
choices only when `reload` is called, so the ranks of a job cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import is_grad_enabled
from torch._C import _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from tunekit import products
from tunekit.device import DeviceInfo
from tunekit.errors import ProblemError
from tunekit.folding import fold
from tunekit.forecast import Forecast, forecast
from tunekit.gradients import is_recording, recorded
from tunekit.kernels.operands import dense_operands, describe, float32_precision
from tunekit.key import Problem, TuningKey
from tunekit.operators import traced
from tunekit.policies import (
    HERE,
    PROCESS,
    Backend,
    Kind,
    OnMiss,
    Policy,
    current,
    policy,
    set_policy,
)
from tunekit.products import (
    PLAIN,
    STATE,
    SUPPORTED,
    met,
    product,
    product_into,
    refuse,
    takes_kernel,
    why_not,
)
from tunekit.reading import read_table
from tunekit.serving import MissWarning, Served
from tunekit.trial import Choice
from tunekit.widening import widened

__all__ = [
    "Forecast",
    "MissWarning",
    "Policy",
    "Served",
    "explain",
    "matmul",
    "miss_counts",
    "policy",
    "reload",
    "served_for",
    "set_policy",
    "warmup",
]


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    backend: Backend | None = None,
    on_miss: OnMiss | None = None,
) -> torch.Tensor:
    """Multiply as `torch.matmul(a, b)` does, with tuned kernels where there are any.

    Every input that torch takes means what it means there: ranks and broadcasting, strides, sizes
    of zero, gradients, autocast, `torch.func`, `torch.compile`, CUDA graphs, subclasses, errors.

    Args:
        a: left operand, (..., m, k) or (k,). Kernels serve float16, bfloat16 and float32 on a GPU,
            in any strides; every other input goes to torch, and so do many matrices on the right.
        b: right operand, (..., k, n) or (k,), of the same dtype on the same device.
        out: where to put the result, by torch's rules.
        out_dtype: another dtype for the result: float32 for float16 and bfloat16, int32 for int8.
        backend: `auto` runs what was measured to be the fastest; `triton` runs a Triton kernel
            whatever the vendor's time, and says why if it cannot; `vendor` runs torch. Without it
            the policy in force decides, which is `auto` unless somebody said otherwise.
        on_miss: for a problem without a tuned row, `warn` once and go on, go on silently
            (`fallback`), or raise (`error`). Without it the policy decides: `warn`.

    Returns:
        The product, in the operands' dtype or `out_dtype`.

    Raises:
        MissError: the problem is not tuned and `on_miss` is `error`.
        ProblemError, DeviceError: `backend="triton"` and no kernel takes these operands.
        RuntimeError, TypeError: as `torch.matmul` raises.
    """
    if (
        is_dynamo_compiling()
        or out is not None
        or out_dtype is not None
        or type(a) not in PLAIN
        or type(b) not in PLAIN
        or _is_any_autocast_enabled()
        or peek_interpreter_stack() is not None
        or _len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or (is_grad_enabled() and (a.requires_grad or b.requires_grad))
    ):
        return _unusual(a, b, out, out_dtype, backend, on_miss)
    scope = HERE.get() or PROCESS.scope
    try:  # what `kind_of` returns, without the call
        at_a, at_b, dtype = a.data_ptr(), b.data_ptr(), a.dtype
        kind: Kind = (
            a.shape, b.shape, a.stride(), b.stride(), dtype, b.dtype, a.device, b.device,
            at_a % 16, at_b % 16, backend, on_miss,
        )  # fmt: skip
    except RuntimeError:  # sparse or nested: without memory of its own
        return product(a, b, scope, backend, on_miss)
    if dtype is torch.float32:
        kind = (*kind, float32_precision())
    run = scope.prepared.get(kind)
    if run is None or a.is_neg() or b.is_neg() or not (at_a and at_b):
        return product(a, b, scope, backend, on_miss)
    return run(a, b)  # type: ignore[no-any-return]


def reload() -> None:
    """Forget what was read from the cache, so that the next call of each problem reads it anew."""
    STATE.clear()


def served_for(a: torch.Tensor, b: torch.Tensor) -> Served | None:
    """Return what this process runs for matrices like these, or None if it has not met any."""
    return met(a, b, current().policy)


def explain(
    a: torch.Tensor | Problem,
    b: torch.Tensor | None = None,
    *,
    backend: Backend | None = None,
    device: DeviceInfo | None = None,
) -> Forecast:
    """Say what would run for two tensors, or for a problem, and why.

    Nothing is launched, and no miss is counted. The answer is by the rows this process has read;
    those of a GPU that is not here (`device`) are read for this answer alone.

    Raises:
        DeviceError: there is no GPU here, and none was named.
    """
    how = current().policy.overridden(backend, None)
    if not isinstance(a, Problem):
        reason = products.left_to_torch(a, b, how)
        one = None if reason is not None or b is None else fold(a, b)
        if b is None or one is None:
            return Forecast(Choice.VENDOR, reason or "many matrices are multiplied one by one")
        problem, place = describe(one.a.of(a), one.b.of(b)), a.device
    else:
        problem, place = a, torch.device("cuda", 0)
        if device is None and torch.cuda.is_available():
            place = torch.device("cuda", torch.cuda.current_device())
    read = STATE.read_for(place, how.backend) if device is None else read_table(device, 0.0)
    return forecast(read.table, problem, read.device.slug, location=read.location, policy=how)


def warmup(
    problems: Iterable[Problem | tuple[torch.Tensor, torch.Tensor]],
    *,
    device: torch.device | str = "cuda",
    backend: Backend | None = None,
    on_miss: OnMiss | None = None,
) -> list[Forecast]:
    """Prepare products before they are asked for: read the cache, build and load the kernels.

    A problem stands for dense operands on `device`, in torch's present precision for float32; a
    pair of tensors for operands like them. Nothing is launched. Misses are told as by `matmul`.

    Returns:
        What runs for each, in order.

    Raises:
        MissError, ProblemError, DeviceError: as `matmul`.
    """
    found = []
    for one in problems:
        a, b = dense_operands(one, torch.device(device)) if isinstance(one, Problem) else one
        products.prepare(a, b, current(), backend, on_miss)
        found.append(explain(a, b, backend=backend))
    return found


def miss_counts() -> dict[TuningKey, int]:
    """Return how often this process has multiplied each problem that is not tuned."""
    return {key: calls.count for key, calls in STATE.misses.items()}


def _unusual(
    a: Any, b: Any, out: Any, out_dtype: Any, backend: str | None, on_miss: str | None
) -> torch.Tensor:
    """Multiply where gradients, autocast, a trace, a transform, `out` or a subclass has a say."""
    if torch.compiler.is_compiling():
        return _compiled(a, b, out, out_dtype, backend, on_miss)
    scope = current()
    how = scope.policy.overridden(backend, on_miss)
    if type(a) not in PLAIN or type(b) not in PLAIN or a.is_nested or b.is_nested:
        return _by_torch(a, b, out, out_dtype, how)
    if out_dtype is not None and out_dtype != a.dtype:
        return widened(a, b, out, out_dtype, how)
    kernels = how.backend == "triton" or (how.backend == "auto" and products.on_gpu(a))
    if kernels and out is None and torch.is_autocast_enabled(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        with torch.autocast(a.device.type, enabled=False):
            return _unusual(_cast(a, dtype), _cast(b, dtype), None, None, backend, on_miss)
    if out is not None:
        return _into(out, a, b, backend, on_miss)
    if _len_torch_dispatch_stack():
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
        raise ProblemError("backend='triton' cannot multiply while the call is watched or traced")
    options = {} if out_dtype is None else {"out_dtype": out_dtype}
    return torch.matmul(a, b, **options) if out is None else torch.matmul(a, b, out=out, **options)


def _into(
    out: Any, a: torch.Tensor, b: torch.Tensor, backend: str | None, on_miss: str | None
) -> torch.Tensor:
    """Multiply into `out`: as a kernel writes it, or by torch, whose rules decide all the rest."""
    scope = current()
    how = scope.policy.overridden(backend, on_miss)
    plain = type(out) in PLAIN and out.layout is torch.strided
    if not plain or is_recording(a, b, out):
        return torch.matmul(a, b, out=out)
    if _len_torch_dispatch_stack():
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
    if out_dtype is not None and out_dtype != a.dtype:
        return widened(a, b, out, out_dtype, Policy())
    kernels = backend == "triton" or (products.on_gpu(a) and backend != "vendor")
    if kernels and torch.is_autocast_enabled(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        a, b = _cast(a, dtype), _cast(b, dtype)
    alike = a.dtype == b.dtype and a.device == b.device and a.dtype in SUPPORTED
    if out is None and kernels and alike and a.dim() and b.dim():
        return traced(a, b, backend, on_miss)
    return torch.matmul(a, b) if out is None else torch.matmul(a, b, out=out)


def _cast(operand: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an operand as autocast hands it to a product."""
    if operand.is_floating_point() and operand.dtype != torch.float64:
        return operand.to(dtype)
    return operand
