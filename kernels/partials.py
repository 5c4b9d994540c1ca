"""Deterministic split-K: partial sums to a workspace, added up by the last part to arrive.

No output needs zeroing and no float is added atomically: which part arrives last is a matter of
timing, the order of the additions is not. The sums are latency-bound, so several partials are
loaded before the first is used.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels.stand_ins import interpreting

REGISTERS_FOR_PARTIALS = 64
"""Registers of a thread that loaded partials may take, in elements of float32."""

MOST_AT_ONCE = 8

COUNTED: tl.constexpr = tl.constexpr(128)
"""What all parts of a tile together add to its counter: as many as there are parts at most."""


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
        arrived = tl.atomic_add(arrivals_ptr + 2 * pid, 1, sem="acq_rel", scope="gpu")
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
            tl.store(arrivals_ptr + 2 * pid, 0)  # ready for the next launch on this stream
    else:
        tl.store(c_ptrs, acc.to(c_ptrs.dtype.element_ty), mask=c_mask)


@triton.jit
def exchange_and_sum(
    c_ptr, acc, first_row, first_column, rows, columns, stride_row, stride_column,
    pid, part, workspace_ptr, counters_ptr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    ALONG_ROWS: tl.constexpr,
    ALONE: tl.constexpr,
):  # fmt: skip
    """Hand in one part of a tile, wait for the others, and store the sum of one slice of it.

    All parts are resident at once, so waiting is safe. The counter of a tile, beside that of
    `store_or_sum`, is never put back, for whoever did that would have to know that nobody reads it
    any more: each launch adds COUNTED to it, however many parts it has, until it wraps. ALONG_ROWS
    says that a column of the tile lies together in the workspace, and in C. ALONE (the interpreter,
    which runs one program at a time): the last part to arrive sums every slice.
    """
    tl.static_assert(COUNTED % PARTS == 0)
    ONE: tl.constexpr = COUNTED // PARTS
    TILE: tl.constexpr = ROWS * COLUMNS
    SLICE: tl.constexpr = TILE // PARTS
    parts_ptr = workspace_ptr + pid.to(tl.int64) * PARTS * TILE
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inner = column * ROWS + row if ALONG_ROWS else row * COLUMNS + column
    tl.store(parts_ptr + part * TILE + inner, acc)
    # Every thread's partial must be visible before the one that counts it.
    tl.debug_barrier()
    arrivals_ptr = counters_ptr + 2 * pid + 1
    arrived = tl.atomic_add(arrivals_ptr, ONE, sem="acq_rel", scope="gpu")
    before = arrived & (COUNTED - 1)  # what other parts of this launch added
    if ALONE:
        begin = 0
        end = PARTS if before + ONE == COUNTED else 0
    else:
        begun = arrived - before
        while arrived - begun < COUNTED:
            arrived = tl.atomic_add(arrivals_ptr, 0, sem="acquire", scope="gpu")
        begin = part
        end = part + 1
    for which in range(begin, end):
        at = which * SLICE + tl.arange(0, SLICE)
        each = tl.arange(0, PARTS)[:, None] * TILE + at[None, :]
        # .cg: the other parts' stores are in L2, this SM's L1 may hold older lines.
        total = tl.sum(tl.load(parts_ptr + each, cache_modifier=".cg"), axis=0)
        row_at = first_row + (at % ROWS if ALONG_ROWS else at // COLUMNS)
        column_at = first_column + (at // ROWS if ALONG_ROWS else at % COLUMNS)
        place = row_at.to(tl.int64) * stride_row + column_at.to(tl.int64) * stride_column
        inside = (row_at < rows) & (column_at < columns)
        tl.store(c_ptr + place, total.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def finish_tile(
    c_ptr, acc, first_row, first_column, rows, columns, stride_row, stride_column,
    pid, part, workspace_ptr, counters_ptr, SPLIT_K,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PARTS: tl.constexpr,
    ALONG_ROWS: tl.constexpr,
    ALONE: tl.constexpr,
):  # fmt: skip
    """Store a tile through masked pointers, or do with one part of it what the config says."""
    if PARTS:
        exchange_and_sum(
            c_ptr, acc, first_row, first_column, rows, columns, stride_row, stride_column,
            pid, part, workspace_ptr, counters_ptr, ROWS, COLUMNS, PARTS, ALONG_ROWS, ALONE,
        )  # fmt: skip
    else:
        row = first_row + tl.arange(0, ROWS)[:, None]
        column = first_column + tl.arange(0, COLUMNS)[None, :]
        # Offsets are 64-bit: a row times its stride passes 2^31 long before memory runs out.
        place = row.to(tl.int64) * stride_row + column.to(tl.int64) * stride_column
        inner = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        store_or_sum(
            c_ptr + place, (row < rows) & (column < columns), acc, inner, pid, part,
            workspace_ptr, counters_ptr, SPLIT_K, ROWS * COLUMNS, AT_ONCE, SPLIT,
        )  # fmt: skip


def split_settings(config: Config, device: DeviceInfo) -> dict[str, Any]:
    """Return the compile-time constants and launch options of `finish_tile`."""
    shared = config.switch("shared") == 1
    settings: dict[str, Any] = {
        "SPLIT": config.split_k > 1,
        "AT_ONCE": 1 if shared else partials_at_once(config, device),
        "PARTS": config.split_k if shared else 0,
        "ALONE": interpreting(),
    }
    if shared and not interpreting():
        settings["launch_cooperative_grid"] = True  # all parts at once, or none yet
    return settings


def partials_at_once(config: Config, device: DeviceInfo) -> int:
    """Return how many partials of a tile a program can hold in flight: a power of two."""
    threads = config.num_warps * device.warp_size
    per_thread = max(1, config.block_m * config.block_n // threads)
    most = max(1, min(MOST_AT_ONCE, REGISTERS_FOR_PARTIALS // per_thread))
    return min(most, config.split_k)
