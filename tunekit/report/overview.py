"""What all keys say together: each is compared with its own fastest trial, and then averaged."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunekit.report.contents import Entry
from tunekit.report.findings import Cell


@dataclass(frozen=True, slots=True)
class Learned:
    """How far from their fastest trial the keys were after so many trials."""

    trial: int
    slowdown: float
    """Geometric mean over the keys of the best so far, over the fastest of all."""
    keys: int
    """Keys that had a working config by then."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How far from the fastest trial of its key the best of some trials is, on average."""

    x: int
    y: int
    slowdown: float
    keys: int


def learning(entries: Iterable[Entry]) -> list[Learned]:
    """Return the best-so-far curve of all keys together, at 1, 2, 4, ... trials and at the end."""
    keys = [e.findings for e in entries if e.findings.history.curve]
    longest = max((found.history.attempts for found in keys), default=0)
    points = []
    for trial in _doublings(longest):
        logs = []
        for found in keys:
            curve = found.history.curve
            reached = [step.median_us for step in curve if step.attempt <= trial]
            if reached and found.best_us is not None:
                logs.append(math.log(reached[-1] / found.best_us))
        if logs:
            points.append(Learned(trial, math.exp(math.fsum(logs) / len(logs)), len(logs)))
    return points


def _doublings(most: int) -> list[int]:
    counts = [1 << power for power in range(most.bit_length())] if most else []
    return counts if not counts or counts[-1] == most else [*counts, most]


def tiles(entries: Iterable[Entry]) -> list[Tile]:
    """Return the average slowdown of each block_n (x) and block_m (y)."""
    return _averaged((e.findings.best_us, e.findings.tiles) for e in entries)


def pipelines(entries: Iterable[Entry]) -> list[Tile]:
    """Return the average slowdown of each block_k (x) and num_stages (y)."""
    return _averaged((e.findings.best_us, e.findings.pipeline) for e in entries)


def _averaged(keys: Iterable[tuple[float | None, Sequence[Cell]]]) -> list[Tile]:
    logs: dict[tuple[int, int], list[float]] = defaultdict(list)
    for best_us, cells in keys:
        for cell in cells:
            if best_us is not None:
                logs[cell.x, cell.y].append(math.log(cell.us / best_us))
    return [
        Tile(x, y, math.exp(math.fsum(found) / len(found)), len(found))
        for (x, y), found in sorted(logs.items())
    ]


def importance(entries: Iterable[Entry]) -> list[tuple[str, float, int]]:
    """Return each parameter's mean share and of how many keys it is, the largest first."""
    shares: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for name, share in entry.findings.importance:
            shares[name].append(share)
    rows = [(name, math.fsum(found) / len(found), len(found)) for name, found in shares.items()]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def geometric_mean(entries: Iterable[Entry]) -> float | None:
    """Return the geometric mean of the ratios, or None if no vendor was measured."""
    ratios = [e.best.ratio for e in entries if e.best is not None and e.best.ratio is not None]
    if not ratios:
        return None
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
