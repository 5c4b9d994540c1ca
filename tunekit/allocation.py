"""Making the tensor that a product is written to, a tenth of what a call costs the host."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _allocators() -> dict[str, Callable[..., torch.Tensor]]:
    """Return what makes a tensor on the current device of a type without torch's dispatcher.

    It is what Inductor's code allocates by, at half the price; a torch without it has none.
    """
    known = torch._C._dynamo.guards
    found = {kind: getattr(known, f"_empty_strided_{kind}", None) for kind in ("cuda", "cpu")}
    return {kind: allocate for kind, allocate in found.items() if allocate is not None}


ALLOCATORS = _allocators()


def allocating(
    launch: Callable[..., None], shape: tuple[int, ...], like: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return what multiplies two operands into a new tensor.

    It is dense, has this shape, and is in the dtype and on the device of the operand `like`.
    """
    strides = torch.empty(shape, device="meta").stride()  # saves torch half of its time to say so
    dtype = like.dtype
    allocate = ALLOCATORS.get(like.device.type)
    if allocate is None or (like.is_cuda and torch.cuda.device_count() > 1):

        def by_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            out = a.new_empty_strided(shape, strides)
            launch(a, b, out)
            return out

        return by_torch

    def directly(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = allocate(shape, strides, dtype)
        launch(a, b, out)
        return out

    return directly
