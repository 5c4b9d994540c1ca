"""One product of plain tensors: what to run for operands of a kind, found once and remembered.

Nothing here records gradients or looks at who watches the call; `dispatch` does that before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tunekit.allocation import allocating
from tunekit.errors import ProblemError
from tunekit.folding import Fold, fold, multiplies, pairs, result_shape
from tunekit.key import MAX_SIZE
from tunekit.policies import Policy, Scope, remember
from tunekit.serving import Calls, Served, State, kind_of, on_device_of

Run = Callable[..., torch.Tensor]

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The types whose memory is what it seems; a subclass may mean anything."""
SUPPORTED = (torch.float16, torch.bfloat16, torch.float32)

STATE = State()


def product(
    a: torch.Tensor, b: torch.Tensor, scope: Scope, backend: str | None, on_miss: str | None
) -> torch.Tensor:
    """Multiply two tensors without recording gradients.

    Raises:
        MissError, ProblemError, DeviceError: as `tunekit.matmul`.
    """
    try:
        run = scope.prepared.get(kind_of(a, b, backend, on_miss))
    except RuntimeError:  # without memory of its own: sparse, nested, or wrapped
        run = None
    if run is None or is_lazy(a) or is_lazy(b):
        run = prepare(a, b, scope, backend, on_miss)
    return run(a, b)


def prepare(
    a: torch.Tensor, b: torch.Tensor, scope: Scope, backend: str | None, on_miss: str | None
) -> Run:
    """Return what multiplies operands of this kind, and remember it. Nothing is launched.

    Raises:
        MissError, ProblemError, DeviceError: as `tunekit.matmul`.
    """
    policy, prepared = scope.policy.overridden(backend, on_miss), scope.prepared
    reason = left_to_torch(a, b, policy)
    if reason is None:
        run = _run_of(a, b, policy)
    elif policy.backend == "triton" or reason == UNSTORED:
        return partial(_without_kernel, policy)
    else:
        run = torch.matmul
    remember(prepared, kind_of(a, b, backend, on_miss), run)
    return run


def product_into(
    out: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    scope: Scope,
    backend: str | None,
    on_miss: str | None,
) -> bool:
    """Multiply into a tensor that is as a kernel wants it; says whether it was done."""
    policy = scope.policy.overridden(backend, on_miss)
    if not takes_kernel(a, b, policy) or not _takes_result(out, a, b):
        return False
    kind = kind_of(a, b, backend, on_miss, out.shape, out.stride(), out.data_ptr() % 16)
    prepared = scope.prepared
    run = prepared.get(kind)
    if run is None:
        one = fold(a, b)
        if one is None or not (served := _serve(a, b, one, out, policy)).launch:
            return False
        run = _writing(counted(served, guarded(served.launch), a))
        remember(prepared, kind, run)
    run(a, b, out)
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return True


def met(a: torch.Tensor, b: torch.Tensor, policy: Policy) -> Served | None:
    """Return what runs for operands of this kind, or None if they were not met or take many."""
    one = fold(a, b)
    if one is None:
        return None
    left, right = one.a.of(a), one.b.of(b)
    rows, columns = left.shape[-2], right.shape[-1]
    strides = (columns, 1) if left.dim() == 2 else (rows * columns, columns, 1)
    return STATE.served.get(STATE.kind(left, right, strides, 0, policy))


def takes_kernel(a: torch.Tensor, b: torch.Tensor, policy: Policy) -> bool:
    """Say whether a policy may run a kernel for these operands; if not, torch multiplies them."""
    return left_to_torch(a, b, policy) is None


def left_to_torch(a: Any, b: Any, policy: Policy) -> str | None:
    """Say why torch multiplies these operands under a policy, or None if a kernel may."""
    if policy.backend == "vendor":
        return "the policy says backend=vendor"
    reason = why_not(a, b) if is_stored(a) and is_stored(b) else UNSTORED
    if reason is not None:
        return reason
    if policy.backend == "auto" and not on_gpu(a):
        return "the operands are on the CPU"
    if not (a.numel() and b.numel()):
        return "the product is empty or zero"
    if max(a.numel() // a.shape[-1], *a.shape, *b.shape) >= MAX_SIZE:
        return "a size passes 32 bits"
    if policy.backend == "auto" and a.dim() + b.dim() == 2:
        return "a dot product of vectors is no matrix product"
    if policy.backend == "auto" and fold(a, b) is None:
        return "matrices that are not evenly spaced have no kernel"
    return None


UNSTORED = "an operand's memory is not what the operand is"


def on_gpu(a: torch.Tensor) -> bool:
    """Say whether an operand is where kernels run."""
    return a.is_cuda


def why_not(a: Any, b: Any) -> str | None:
    """Say why no kernel takes these operands, or None if one may."""
    if type(a) not in PLAIN or type(b) not in PLAIN:
        return "an operand is not a plain torch.Tensor"
    if a.is_nested or b.is_nested or not a.layout is b.layout is torch.strided:
        return "an operand is not strided"
    if a.dtype != b.dtype or a.dtype not in SUPPORTED:
        return f"dtypes {a.dtype} and {b.dtype} are not one of float16, bfloat16, float32"
    if a.device != b.device:
        return f"a is on {a.device}, b is on {b.device}"
    if a.device.type not in ("cuda", "cpu"):
        return f"the operands are on {a.device}"
    if not multiplies(a.shape, b.shape):
        return f"shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied"
    return UNSTORED if is_lazy(a) or is_lazy(b) else None


def refuse(a: Any, b: Any) -> None:
    """Raise for operands that `backend="triton"` has no kernel for.

    Raises:
        ProblemError: the text says why.
    """
    reason = why_not(a, b)
    if reason not in (None, UNSTORED):
        raise ProblemError(f"backend='triton' cannot multiply these operands: {reason}")


def is_ordinary(tensor: Any) -> bool:
    """Say whether a tensor is of torch's own kinds, or stands for one while an export traces."""
    exporting = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    return type(tensor) in PLAIN or exporting


def autocast_dtype(operand: torch.Tensor) -> torch.dtype | None:
    """Return what autocast makes of an operand where it is, or None if it is off there."""
    kind = operand.device.type
    return torch.get_autocast_dtype(kind) if _autocasts(kind) else None


def _autocasts(kind: str) -> bool:
    """Say whether autocast is on. Of a device that has none, as `meta`, torch does not answer."""
    if torch.compiler.is_compiling():  # torch 2.11 cannot trace the question which devices have one
        return kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def is_lazy(tensor: torch.Tensor) -> bool:
    """Say whether memory holds something else than the tensor: its negative, or nothing."""
    return tensor.is_neg() or tensor._is_zerotensor()


def is_stored(tensor: Any) -> bool:
    """Say whether a tensor is what its memory holds, so that a kernel may read it.

    Of any other, what is remembered by strides and addresses would be wrong.
    """
    if type(tensor) not in PLAIN or tensor.is_nested or tensor.layout is not torch.strided:
        return False
    if is_lazy(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    # Others that wrap without being a subclass: a gradient that is mapped over, functionalization.
    many = torch._C._functorch.is_legacy_batchedtensor(tensor)
    return not (many or torch._is_functional_tensor(tensor))


def _without_kernel(policy: Policy, a: Any, b: Any) -> torch.Tensor:
    """Multiply by torch what no kernel takes; `backend="triton"` says why it does not."""
    if policy.backend == "triton":
        refuse(a, b)
        if a.numel() and b.numel() and (is_lazy(a) or is_lazy(b)):
            return product(_own(a), _own(b), Scope(policy), None, None)
    return torch.matmul(a, b)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_neg() if tensor.is_neg() else tensor.clone()


def _run_of(a: torch.Tensor, b: torch.Tensor, policy: Policy) -> Run:
    """Return what multiplies operands of this kind."""
    shape = result_shape(tuple(a.shape), tuple(b.shape))
    one = fold(a, b)
    if one is None:
        return _one_by_one(shape, policy)
    served = _serve(a, b, one, a.new_empty(shape), policy)
    if served.launch is None:
        return counted(served, torch.matmul, a)
    return counted(served, guarded(allocating(served.launch, shape, a)), a)


def _serve(
    a: torch.Tensor, b: torch.Tensor, one: Fold, out: torch.Tensor, policy: Policy
) -> Served:
    left, right = one.a.of(a), one.b.of(b)
    shape = (*left.shape[:-1], right.shape[-1])
    if out.shape != shape:
        out = out.view(shape)
    return STATE.serve(left, right, out, policy)


def _writing(launch: Callable[..., Any]) -> Run:
    def run(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        launch(a, b, out)
        return out

    return run


def guarded(run: Callable[..., Any]) -> Callable[..., Any]:
    """Make the operands' GPU the current one for a run, where there is more than one."""
    if torch.cuda.is_available() and torch.cuda.device_count() > 1:

        def on_its_device(*operands: torch.Tensor) -> Any:
            with on_device_of(operands[0]):
                return run(*operands)

        return on_its_device
    return run


def counted(served: Served, run: Callable[..., Any], a: torch.Tensor) -> Callable[..., Any]:
    """Count the calls of a problem that is not tuned. The cache is told of those on a GPU."""
    if not served.is_miss:
        return run
    calls: Calls = STATE.calls_of(served.key, told=on_gpu(a))

    def counting(*operands: torch.Tensor) -> Any:
        calls.count += 1
        return run(*operands)

    return counting


def _one_by_one(shape: tuple[int, ...], policy: Policy) -> Run:
    """Multiply many matrices one after the other, for `backend="triton"`."""

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = a.new_empty(shape)
        for left, right, result in pairs(a, b, out):
            launch = STATE.serve(left, right, result, policy).launch
            assert launch is not None  # `triton` always has one
            with on_device_of(left):
                launch(left, right, result)
        return out

    return run


def _takes_result(out: Any, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Say whether a kernel may write its result to a tensor as it is."""
    if type(out) not in PLAIN or out.dtype != a.dtype or out.device != a.device:
        return False
    if out.layout is not torch.strided or out.shape != result_shape(tuple(a.shape), tuple(b.shape)):
        return False
    rows = out.dim() == 2 and out.stride(1) == 1 and out.stride(0) >= out.shape[1]
    memory = out.untyped_storage().data_ptr()
    apart = memory not in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr())
    return (rows or out.is_contiguous()) and apart and not is_lazy(out)
