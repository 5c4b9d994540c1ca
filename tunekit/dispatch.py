"""Two tensors through a tuned kernel: `tunekit.matmul`.

At run time nothing is ever benchmarked. The first call with operands of one kind (shapes, strides,
dtype, alignment, device) looks for the row to serve and prepares its launch; every later one finds
that launch in a dictionary. The store is read once for each device; a running process changes its
choices only when `reload` is called, so the ranks of a job cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import is_grad_enabled
from torch._C import (
    _is_any_autocast_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from tunekit import products
from tunekit.calls import as_met, is_left_to_watchers, unusual
from tunekit.device import DeviceInfo
from tunekit.errors import ConfigError, DeviceError
from tunekit.folding import fold, pairs, result_shape
from tunekit.forecast import Forecast, forecast
from tunekit.gradients import is_transformed, underneath
from tunekit.kernels import family
from tunekit.kernels.operands import dense_operands, describe, float32_precision
from tunekit.key import Problem, TuningKey
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
    met,
    product,
)
from tunekit.reading import read_table
from tunekit.serving import MissWarning, Served
from tunekit.trial import Choice
from tunekit.widening import prepare_widened

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
        or _len_torch_function_stack()
        or _len_torch_dispatch_stack()
        or _is_tracing()
        or forward_ad._current_level >= 0
        or (is_grad_enabled() and (a.requires_grad or b.requires_grad))
    ):
        return unusual(a, b, out, out_dtype, backend, on_miss)
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
    """Say what `matmul` would run for two tensors here and now, or for a problem, and why.

    Nothing is launched, and no miss is counted. The answer is by the rows this process has read;
    those of a GPU that is not here (`device`) are read for this answer alone. Under autocast it is
    about what operands are cast to; of matrices that `backend="triton"` multiplies one after the
    other it is about the first two.

    Raises:
        ConfigError, StoreError: the policy's config is not legal here, or it is deterministic and
            the cache cannot be read.
        DeviceError: there is no GPU here, and none was named.
        ProblemError: `backend="triton"` and no kernel takes these tensors.
        TypeError: these are neither two tensors nor a problem, or `device` is no `DeviceInfo`.
    """
    how = current().policy.overridden(backend, None)
    if device is not None and not isinstance(device, DeviceInfo):
        raise TypeError(f"explain() takes a DeviceInfo as device, not {_named(device)}")
    if isinstance(a, Problem) and b is None:
        place = torch.device("cuda", torch.cuda.current_device() if _sees_a_gpu() else 0)
        return _forecast(a, place, how, device)
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        kinds = f"{_named(a)} and {_named(b)}"
        raise TypeError(f"explain() takes two tensors or one Problem, not {kinds}")
    if is_left_to_watchers(how):
        return Forecast(Choice.VENDOR, "who watches or traces the call wants torch's own")
    with torch._C.DisableTorchFunction():  # a default device is a mode that sees each look, too
        if is_transformed() and type(a) in PLAIN and type(b) in PLAIN:
            a, b = underneath(a, b) or (a, b)
            with torch._C._DisableFuncTorch():
                return _explained(*as_met(a, b, how), how, device)
        return _explained(*as_met(a, b, how), how, device)


def _explained(
    a: torch.Tensor, b: torch.Tensor, how: Policy, device: DeviceInfo | None
) -> Forecast:
    """Say what runs for two tensors as kernels would meet them."""
    if how.backend == "triton":
        products.refuse(a, b)
    reason = products.left_to_torch(a, b, how)
    if reason is not None:
        return Forecast(Choice.VENDOR, reason)
    one = fold(a, b)
    if one is not None:
        return _forecast(describe(one.a.of(a), one.b.of(b)), a.device, how, device)
    results = torch.empty(result_shape(tuple(a.shape), tuple(b.shape)), device="meta")
    left, right, _ = next(pairs(a, b, results))
    first = _forecast(describe(left, right), a.device, how, device)
    why = f"not evenly spaced, so matrices are multiplied one by one; of the first two: {first.why}"
    return replace(first, why=why)


def _forecast(
    problem: Problem, place: torch.device, how: Policy, device: DeviceInfo | None
) -> Forecast:
    read = STATE.read_for(place, how.backend) if device is None else read_table(device, 0.0)
    if how.config is not None and how.backend != "vendor":
        broken = family(problem.family).violation(how.config, problem, read.device)
        if broken is not None:
            raise ConfigError(f"{how.config} is not legal for {problem}: {broken}")
    elif how.deterministic:
        read.require()
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
    pair of tensors for operands like them, under autocast for what they are cast to. Nothing is
    launched. Misses are told as by `matmul`.

    Returns:
        What runs for each, in order.

    Raises:
        MissError, ProblemError, DeviceError: as `matmul`.
        TypeError: something is neither a problem nor a pair of tensors.
    """
    found, place = [], torch.device(device)
    scope = current()
    how = scope.policy.overridden(backend, on_miss)
    for one in _each(problems):
        if not isinstance(one, Problem):
            operands = as_met(one[0], one[1], how)
        elif place.type == "cuda" and not _sees_a_gpu():
            raise DeviceError(f"torch sees no GPU here to prepare {one} on: pass device='cpu'")
        elif one.out_dtype != one.dtype or one.scaling != "none":
            reason = prepare_widened(one, place, how)
            answer = None if reason is None else Forecast(Choice.VENDOR, reason)
            found.append(answer or _forecast(one, place, how, None))
            continue
        else:
            operands = dense_operands(one, place)
        products.prepare(*operands, scope, backend, on_miss)
        found.append(_explained(*operands, how, None))
    return found


def _each(problems: Any) -> Iterator[Any]:
    """Yield what is to be prepared: problems, and pairs of tensors.

    Raises:
        TypeError: something else is among them, or they are no iterable.
    """
    if isinstance(problems, (Problem, torch.Tensor, str)) or not isinstance(problems, Iterable):
        raise TypeError(f"warmup() takes a list of problems or pairs, not {_named(problems)}")
    for one in problems:
        pair = isinstance(one, (tuple, list)) and len(one) == 2
        if not (isinstance(one, Problem) or (pair and _are_tensors(one))):
            what = _named(one)
            if isinstance(one, (tuple, list)):
                what += f" of {', '.join(map(_named, one)) or 'nothing'}"
            raise TypeError(f"warmup() takes problems and pairs of tensors, not {what}")
        yield one


def _are_tensors(pair: Any) -> bool:
    return all(isinstance(one, torch.Tensor) for one in pair)


def _named(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _sees_a_gpu() -> bool:
    return torch.cuda.is_available()


def miss_counts() -> dict[TuningKey, int]:
    """Return how often this process has multiplied each problem that is not tuned."""
    return {key: calls.count for key, calls in STATE.misses.items()}
