"""Products whose gradients are recorded: the backward pass is made of tuned products as well.

The same formulas serve the eager function, its second derivative, and the operator that
`torch.compile` sees. Each gradient is a product of views, so its layout is a key of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tunekit.policies import Scope, under
from tunekit.products import product

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Gradients = tuple["torch.Tensor | None", "torch.Tensor | None"]


@dataclass(frozen=True, slots=True)
class Form:
    """What an operand's gradient must look like."""

    shape: tuple[int, ...]
    columns: bool
    """Whether it is a matrix stored column by column, as its gradient had better be too."""

    @staticmethod
    def of(operand: torch.Tensor) -> Form:
        """Return the form of an operand."""
        columns = operand.dim() == 2 and operand.stride(0) == 1 and operand.stride(1) != 1
        return Form(tuple(operand.shape), columns)

    @property
    def vector(self) -> bool:
        """Whether it is a vector."""
        return len(self.shape) == 1


def recorded(
    a: torch.Tensor, b: torch.Tensor, scope: Scope, backend: str | None, on_miss: str | None
) -> torch.Tensor:
    """Multiply two tensors so that whoever differentiates or maps over the call sees it."""
    result = _Product.apply(a, b, scope, backend, on_miss)  # type: ignore[no-untyped-call]
    assert isinstance(result, torch.Tensor)
    return result


def is_recording(*operands: torch.Tensor) -> bool:
    """Say whether a product of these has to be recorded."""
    recording = torch.is_grad_enabled() and any(one.requires_grad for one in operands)
    return recording or is_transformed()


def is_transformed() -> bool:
    """Say whether a transform, or forward-mode differentiation, is under way."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def gradients(
    a: torch.Tensor | None,
    b: torch.Tensor | None,
    grad: torch.Tensor,
    forms: tuple[Form, Form],
    multiply: Multiply,
) -> Gradients:
    """Return the gradients of a product with respect to its operands.

    Without `b` there is none for the left operand, without `a` none for the right one.
    """
    left, right = forms
    if left.vector:
        grad = grad.unsqueeze(-1 if right.vector else -2)
    if right.vector:
        grad = grad.unsqueeze(-1)
    if any(stride == 0 for stride in grad.stride()):
        grad = grad.contiguous()  # as that of a sum comes: one number, seen many times
    of_a = of_b = None
    if b is not None:
        of_a = _of_left(b.unsqueeze(1) if right.vector else b, grad, left, multiply)
        of_a = (of_a.squeeze(-2) if left.vector else of_a).sum_to_size(left.shape)
    if a is not None:
        of_b = _of_right(a.unsqueeze(0) if left.vector else a, grad, right, multiply)
        of_b = (of_b.squeeze(-1) if right.vector else of_b).sum_to_size(right.shape)
    return of_a, of_b


def _of_left(b: torch.Tensor, grad: torch.Tensor, form: Form, multiply: Multiply) -> torch.Tensor:
    if form.columns and grad.dim() == 2 and b.dim() == 2:
        return multiply(b, grad.mT).mT
    return multiply(grad, b.mT)


def _of_right(a: torch.Tensor, grad: torch.Tensor, form: Form, multiply: Multiply) -> torch.Tensor:
    if len(form.shape) > 2:
        return multiply(a.mT, grad)
    if a.dim() > 2:  # many gradients at once cannot be flattened, not even to what they are
        a, grad = a.flatten(0, -2), grad.flatten(0, -2)
    return multiply(grad.mT, a).mT if form.columns else multiply(a.mT, grad)


def tangent(
    a: torch.Tensor,
    b: torch.Tensor,
    a_tangent: torch.Tensor | None,
    b_tangent: torch.Tensor | None,
    multiply: Multiply,
) -> torch.Tensor | None:
    """Return how a product changes as its operands do, or None if they do not."""
    parts = []
    if a_tangent is not None:
        parts.append(multiply(a_tangent, b))
    if b_tangent is not None:
        parts.append(multiply(a, b_tangent))
    return sum(parts[1:], parts[0]) if parts else None


class _Product(torch.autograd.Function):
    """A product as autograd, forward-mode differentiation and `torch.func` want it."""

    @staticmethod
    def forward(
        a: torch.Tensor, b: torch.Tensor, scope: Scope, backend: str | None, on_miss: str | None
    ) -> torch.Tensor:
        return product(a, b, scope, backend, on_miss)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        a, b, *how = inputs
        ctx.how = how
        ctx.forms = Form.of(a), Form.of(b)
        needs_a, needs_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        if is_transformed():  # it would hold operands that the backward pass has no use for
            ctx.save_for_forward(a, b)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 5
        a, b = ctx.saved_tensors
        with under(ctx.how[0]):
            found = gradients(a, b, grad, ctx.forms, _multiplier(*ctx.how))
        return (*found, None, None, None)

    @staticmethod
    def jvp(ctx: Any, a_tangent: Any, b_tangent: Any, *_: None) -> torch.Tensor | None:
        a, b = ctx.saved_tensors
        return tangent(a, b, a_tangent, b_tangent, _multiplier(*ctx.how))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor, *how: Any
    ) -> tuple[torch.Tensor, int]:
        return mapped(a, b, in_dims[0], in_dims[1], _multiplier(*how)), 0


def mapped(
    a: torch.Tensor, b: torch.Tensor, a_at: int | None, b_at: int | None, multiply: Multiply
) -> torch.Tensor:
    """Multiply many operands at once: `a_at`, `b_at` is the dimension that counts them, if any.

    It becomes the first dimension of the result.
    """
    a_rank = a.dim() - (a_at is not None)
    b_rank = b.dim() - (b_at is not None)
    rank = max(a_rank, b_rank, 2)
    left = _spread(a, a_at, a_rank, rank, -2)
    right = _spread(b, b_at, b_rank, rank, -1)
    result = multiply(left, right)
    if a_rank == 1:
        result = result.squeeze(-2)
    return result.squeeze(-1) if b_rank == 1 else result


def _spread(
    operand: torch.Tensor, at: int | None, rank: int, wanted: int, vector_at: int
) -> torch.Tensor:
    """Return an operand as matrices, with its mapped dimension before all others'."""
    if at is not None:
        operand = operand.movedim(at, 0)
    if rank == 1:
        operand = operand.unsqueeze(vector_at)
    for _ in range(wanted - max(rank, 2) if at is not None else 0):
        operand = operand.unsqueeze(1)
    return operand


def underneath(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the operands of the plain product that transforms make of this one.

    None if it is mapped over by more than one of them.
    """
    with torch._C._DisableFuncTorch():
        (a, a_maps), (b, b_maps) = _unwrapped(a), _unwrapped(b)
        levels = {level for level, _ in (*a_maps, *b_maps)}
        if len(levels) > 1:
            return None
        if not levels:
            return a, b
        found = []

        def note(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            found.append((left, right))
            return torch.matmul(left.to("meta"), right.to("meta"))

        a_at, b_at = (maps[0][1] if maps else None for maps in (a_maps, b_maps))
        mapped(a, b, a_at, b_at, note)
        return found[0]


def _unwrapped(operand: torch.Tensor) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Return what transforms have wrapped, with the level and the dimension of each map."""
    functorch, maps = torch._C._functorch, []
    while functorch.is_functorch_wrapped_tensor(operand):
        if functorch.is_batchedtensor(operand):
            maps.append((functorch.maybe_get_level(operand), functorch.maybe_get_bdim(operand)))
        operand = functorch.get_unwrapped(operand)
    return operand, maps


def _multiplier(scope: Scope, backend: str | None, on_miss: str | None) -> Multiply:
    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        how = recorded if is_recording(a, b) else product
        return how(a, b, scope, backend, on_miss)

    return multiply
