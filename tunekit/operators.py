"""`tunekit::matmul`, the operator that `torch.compile` and `torch.export` put into their graphs.

It is opaque to them: what runs is chosen when it runs, for the sizes it then has, so one graph
serves every size and no config is frozen in it.
"""

# torch.library has no types.
# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction

from tunekit.gradients import Form, gradients, mapped, tangent
from tunekit.policies import current
from tunekit.products import product

LIBRARY = torch.library.Library("tunekit", "FRAGMENT")
LIBRARY.define(
    "matmul(Tensor a, Tensor b, str backend, str on_miss) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)


def traced(
    a: torch.Tensor, b: torch.Tensor, backend: str | None, on_miss: str | None
) -> torch.Tensor:
    """Put a product into the graph that is being traced. What is not said is left to run time."""
    result = torch.ops.tunekit.matmul(a, b, backend or "", on_miss or "")
    assert isinstance(result, torch.Tensor)
    return result


def _run(a: torch.Tensor, b: torch.Tensor, backend: str, on_miss: str) -> torch.Tensor:
    return product(a, b, current(), backend or None, on_miss or None).contiguous()


def _fake(a: torch.Tensor, b: torch.Tensor, backend: str, on_miss: str) -> torch.Tensor:
    return a.new_empty(torch.matmul(a, b).shape)


class _Recorded(_SingleLevelFunction):
    """The operator's derivative, from the operator. `register_autograd` knows no `torch.func`."""

    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, backend: str, on_miss: str, dual: bool
    ) -> torch.Tensor:
        needs_a, needs_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        if dual:  # else it would hold operands that the backward pass has no use for
            ctx.save_for_forward(a, b)
        ctx.set_materialize_grads(False)
        ctx.forms = Form.of(a), Form.of(b)
        ctx.how = backend, on_miss
        # What transforms lie around this one records and differentiates the product as well, and
        # would not, as nothing inside of a function is recorded.
        with torch.enable_grad(), _set_fwd_grad_enabled(True), _below():
            return traced(a, b, backend, on_miss)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 5
        a, b = ctx.saved_tensors

        def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return traced(x, y, *ctx.how)

        return (*gradients(a, b, grad, ctx.forms, multiply), None, None, None)

    @staticmethod
    def jvp(ctx: Any, a_tangent: Any, b_tangent: Any, *_: None) -> torch.Tensor | None:
        a, b = (_unpack_dual(one, 0)[0] for one in ctx.saved_tensors)
        with _set_fwd_grad_enabled(True):
            return tangent(a, b, a_tangent, b_tangent, lambda x, y: traced(x, y, *ctx.how))


def _is_dual(operand: torch.Tensor) -> bool:
    """Say whether forward-mode differentiation is to go through an operand."""
    # There is one level, and a graph may open it without the module that counts levels in Python.
    return _unpack_dual(operand, 0)[1] is not None


_unpack_dual = torch._VF._unpack_dual
_below = torch._C._AutoDispatchBelowAutograd


def _autograd(a: torch.Tensor, b: torch.Tensor, backend: str, on_miss: str) -> Any:
    recording = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    dual = _is_dual(a) or _is_dual(b)
    if recording or dual:
        # As torch's own operators do it: a transform comes here for each of its levels.
        with enable_single_level_autograd_function():
            return _Recorded.apply(a, b, backend, on_miss, dual)  # type: ignore[attr-defined]
    with _below():
        return traced(a, b, backend, on_miss)


def _vmap(
    info: Any,
    in_dims: tuple[int | None, ...],
    a: torch.Tensor,
    b: torch.Tensor,
    backend: str,
    on_miss: str,
) -> tuple[torch.Tensor, int]:
    def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return traced(x, y, backend, on_miss)

    return mapped(a, b, in_dims[0], in_dims[1], multiply), 0


LIBRARY.impl("matmul", _run, "CompositeExplicitAutograd")
torch.library.register_fake("tunekit::matmul", _fake, lib=LIBRARY)
LIBRARY.impl("matmul", _autograd, "Autograd")
torch.library.register_vmap("tunekit::matmul", _vmap, lib=LIBRARY)
