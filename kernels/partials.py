"""Deterministic split-K: partial sums to a workspace, added up by the last part to arrive.

No output needs zeroing and no float is added atomically: which part arrives last is a matter of
timing, the order of the additions is not. The sums are latency-bound, so several partials are
loaded before the first is used.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from tunekit.config import Config
from tunekit.device import DeviceInfo

REGISTERS_FOR_PARTIALS = 64
"""Registers of a thread that loaded partials may take, in elements of float32."""

MOST_AT_ONCE = 8


@triton.jit
def store_or_sum(
    c_ptrs,
    c_mask,
    acc,
    inner,
    pid,
    part,
    workspace_ptr,
    arrivals_ptr,
    SPLIT_K,
    TILE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Store a finished tile, or hand in one part of it; the last part to arrive stores the sum.

    `inner` numbers the TILE elements of `acc`, whatever its shape. AT_ONCE partials are loaded
    together.
    """
    if SPLIT:
        parts = workspace_ptr + pid.to(tl.int64) * SPLIT_K * TILE + inner
        tl.store(parts + part.to(tl.int64) * TILE, acc)
        # Every thread's partial must be visible before the one that counts it.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals_ptr + pid, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLIT_K - 1:
            total = tl.zeros_like(acc)
            for first in range(0, SPLIT_K, AT_ONCE):
                for ahead in tl.static_range(AT_ONCE):
                    # .cg: the other parts' stores are in L2, this SM's L1 may hold older lines.
                    there = tl.full(inner.shape, first + ahead, tl.int32) < SPLIT_K
                    total += tl.load(
                        parts + ahead * TILE, mask=there, other=0.0, cache_modifier=".cg"
                    )
                parts += AT_ONCE * TILE
            tl.store(c_ptrs, total.to(c_ptrs.dtype.element_ty), mask=c_mask)
            tl.store(arrivals_ptr + pid, 0)  # ready for the next launch on this stream
    else:
        tl.store(c_ptrs, acc.to(c_ptrs.dtype.element_ty), mask=c_mask)


def partials_at_once(config: Config, device: DeviceInfo) -> int:
    """Return how many partials of a tile a program can hold in flight: a power of two."""
    threads = config.num_warps * device.warp_size
    per_thread = max(1, config.block_m * config.block_n // threads)
    most = max(1, min(MOST_AT_ONCE, REGISTERS_FOR_PARTIALS // per_thread))
    return min(most, config.split_k)
