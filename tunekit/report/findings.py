"""What the trials of one key say: how the search got there, what mattered, what failed.

Everything is reduced to what is shown, so that a page has the same size for 80 trials of a key as
for 8,000. Times are in microseconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tunekit.config import Config
from tunekit.history import History, history_of
from tunekit.key import TuningKey
from tunekit.trial import Outcome

PARAMETERS = (
    "variant",
    "block_m",
    "block_n",
    "block_k",
    "group_size",
    "split_k",
    "num_warps",
    "num_stages",
)
"""The fields of a config that every variant has."""

_parameters = attrgetter(*PARAMETERS)
_tile, _pipeline = attrgetter("block_n", "block_m"), attrgetter("block_k", "num_stages")

MAX_REASON = 160
"""Characters of an error's text by which failures are told apart."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The fastest trial with these two values, out of so many that ran."""

    x: int
    y: int
    us: float
    trials: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What the trials of a key say."""

    history: History
    """The configs tried, the best so far, and the failures."""
    tiles: tuple[Cell, ...]
    """By block_n (x) and block_m (y)."""
    pipeline: tuple[Cell, ...]
    """By block_k (x) and num_stages (y)."""
    importance: tuple[tuple[str, float], ...]
    variants: tuple[tuple[str, float, int], ...]
    """Each variant's name, fastest time and number of trials that ran, the fastest first."""

    @property
    def best_us(self) -> float | None:
        """The fastest of all trials, or None if every one failed."""
        curve = self.history.curve
        return curve[-1].median_us if curve else None

    @property
    def failures(self) -> list[tuple[str, int]]:
        """Statuses and how many trials failed so, the most frequent first."""
        counts = self.history.by_status().items()
        return sorted(((s.value, n) for s, n in counts), key=lambda pair: (-pair[1], pair[0]))


def find(key: TuningKey, trials: Sequence[Outcome]) -> Findings:
    """Reduce the trials of a key, in the order they were tried, to what is shown of them."""
    ran = [(t.config, t.median_us) for t in trials if t.median_us is not None]
    return Findings(
        history=history_of(key, trials),
        tiles=_cells(ran, _tile),
        pipeline=_cells(ran, _pipeline),
        importance=importance(ran),
        variants=_variants(ran),
    )


def importance(ran: Sequence[tuple[Config, float]]) -> tuple[tuple[str, float], ...]:
    """Return how much of the spread of log(time) the value of each parameter alone explains.

    The share is that of a one-way analysis of variance, less what as many random groups would
    explain by chance (epsilon squared). Parameters act together and are not tried evenly, so
    the shares overlap and do not add up to 1. Fewer than three trials say nothing.
    """
    if len(ran) < 3:
        return ()
    logs = [math.log(us) for _, us in ran]
    mean = math.fsum(logs) / len(logs)
    off = [value - mean for value in logs]
    total = math.fsum([value * value for value in off])
    if total <= 0:
        return ()
    columns = zip(*[_parameters(config) for config, _ in ran], strict=True)
    shares = []
    for name, column in zip(PARAMETERS, columns, strict=True):
        if 1 < len(set(column)) < len(logs):
            shares.append((name, _explained(column, off, total)))
    return tuple(sorted(shares, key=lambda pair: (-pair[1], pair[0])))


def _explained(column: Sequence[object], off: Sequence[float], total: float) -> float:
    """Return the part of the squares that the values of one parameter explain; `off` has mean 0."""
    groups: dict[object, list[float]] = {}
    for value, distance in zip(column, off, strict=True):
        if value in groups:
            groups[value].append(distance)
        else:
            groups[value] = [distance]
    between = math.fsum([sum(group) ** 2 / len(group) for group in groups.values()])
    within = max(0.0, total - between)
    adjusted = 1 - within / total * (len(off) - 1) / (len(off) - len(groups))
    return max(0.0, adjusted)


def shortened(text: str) -> str:
    """Return an error's text on one line, and no longer than what tells reasons apart."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


def _cells(
    ran: Iterable[tuple[Config, float]], place: Callable[[Config], tuple[int, int]]
) -> tuple[Cell, ...]:
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for config, us in ran:
        found[place(config)].append(us)
    return tuple(Cell(x, y, min(times), len(times)) for (x, y), times in sorted(found.items()))


def _variants(ran: Iterable[tuple[Config, float]]) -> tuple[tuple[str, float, int], ...]:
    found: dict[str, list[float]] = defaultdict(list)
    for config, us in ran:
        found[config.variant].append(us)
    rows = [(name, min(times), len(times)) for name, times in found.items()]
    return tuple(sorted(rows, key=lambda row: (row[1], row[0])))
