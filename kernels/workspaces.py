"""Memory that kernels use beside their operands: parts of sums, counters, copies."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from tunekit.config import Config
from tunekit.kernels.stand_ins import StandIn, StandInDtype

if TYPE_CHECKING:
    import torch

_kept: dict[tuple[object, ...], torch.Tensor] = {}
_kept_lock = threading.RLock()


def _after_fork() -> None:
    global _kept_lock
    _kept_lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def split_workspace(
    config: Config, out: Any, tiles: int, dtype: str = "float32"
) -> tuple[Any, Any]:
    """Return the workspace for partial tiles of a dtype and the zeroed arrival counters.

    There are two counters for each tile. Launches on one stream run one after the other, and each
    leaves the first at zero and the second at a multiple of `partials.COUNTED`. Without split-K the
    kernel takes neither, and gets the output in their place.
    """
    if config.split_k == 1:
        return out, out
    numel = tiles * config.split_k * config.block_m * config.block_n
    partials = workspace(out, "partials", numel, dtype)
    return partials, workspace(out, "arrivals", 2 * tiles, "int32")


def workspace(beside: Any, purpose: str, numel: int, dtype: str) -> Any:
    """Return memory of at least `numel` elements on the device of `beside`, zeroed when made.

    It is kept for each device, stream and purpose, and grows. While a CUDA graph is captured it
    comes from the graph's own pool, and in the interpreter each launch gets its own.
    """
    if isinstance(beside, StandIn):
        return StandIn(StandInDtype(dtype), (numel,), (1,))
    import torch

    from tunekit.kernels.operands import torch_dtype

    device = beside.device
    if device.type == "cpu" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(numel, dtype=torch_dtype(dtype), device=device)
    stream = torch.cuda.current_stream(device).cuda_stream
    place = (device.index, stream, purpose, dtype)
    with _kept_lock:
        kept = _kept.get(place)
        if kept is None or kept.numel() < numel:
            kept = _kept[place] = torch.zeros(numel, dtype=torch_dtype(dtype), device=device)
        return kept
