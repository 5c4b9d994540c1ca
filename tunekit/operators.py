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
from torch.autograd.function import _SingleLevelFunction

from tunekit.gradients import Form, gradients, mapped
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
        ctx: Any, a: torch.Tensor, b: torch.Tensor, backend: str, on_miss: str
    ) -> torch.Tensor:
        needs_a, needs_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        ctx.forms = Form.of(a), Form.of(b)
        ctx.how = backend, on_miss
        with torch._C._AutoDispatchBelowAutograd():
            return traced(a, b, backend, on_miss)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors

        def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return traced(x, y, *ctx.how)

        return (*gradients(a, b, grad, ctx.forms, multiply), None, None)


def _autograd(a: torch.Tensor, b: torch.Tensor, backend: str, on_miss: str) -> Any:
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        # As torch's own operators do it: a transform comes here for each of its levels.
        with enable_single_level_autograd_function():
            return _Recorded.apply(a, b, backend, on_miss)  # type: ignore[attr-defined]
    with torch._C._AutoDispatchBelowAutograd():
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
