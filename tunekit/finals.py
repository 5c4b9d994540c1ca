"""How the fastest configs of a screening are told apart: a heat, then rounds beside the vendor.

Screening times one config after the other, each on a card that is a little cooler or hotter than
the last. Here they take turns, in rounds of shuffled order, so that what the card does at a moment
falls on all alike and only the noise of single launches is left. Many take part in a heat of few
rounds; the fastest of it go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunekit.gpu_watch import Disturbance, GpuWatch
from tunekit.kernels import Launch
from tunekit.timing import FLUSH_US, MOST_MS, Timer, is_wide, quantile, rounds_for

FINAL_MS = 250.0
FINAL_ROUNDS = (31, 201)
"""The interval of 21 launches is as wide as their middle half; that of 81 a third of it."""

WARM_UP_MS = 30.0

HEAT_PLACES = 8
HEAT_ROUNDS = (7, 11)
HEAT_MS = 60.0
HEAT_MOST_MS = 150.0
"""A heat takes fewer launches into it rather than longer."""


def heat(timer: Timer, launches: Sequence[Launch], *, seed: int = 0) -> list[int]:
    """Return which launches go on to the finals: all if they are few, else the fastest of them.

    The launches come in the order of what is known of them, best first. They are timed in a few
    interleaved rounds, so that what the card does at the moment falls on all alike: screening,
    which times one after the other, cannot tell near ones apart.
    """
    if len(launches) <= HEAT_PLACES:
        return list(range(len(launches)))
    one_us = timer.rounds(launches[:1], 1)[0][0] + FLUSH_US
    fitting = int(HEAT_MOST_MS * 1000 / (HEAT_ROUNDS[0] * one_us))
    entrants = launches[: max(HEAT_PLACES, fitting)]
    if len(entrants) == HEAT_PLACES:
        return list(range(HEAT_PLACES))
    count = rounds_for(one_us * len(entrants), HEAT_MS, HEAT_ROUNDS, most_ms=HEAT_MOST_MS)
    rows = timer.rounds(entrants, count, seed=seed)
    medians = [quantile(sorted(row), 0.5) for row in rows]
    order = sorted(range(len(entrants)), key=lambda which: (medians[which], which))
    return sorted(order[:HEAT_PLACES])


def calm_rounds(
    timer: Timer, watch: GpuWatch, launches: Sequence[Launch], *, seed: int = 0
) -> tuple[list[list[float]], Disturbance]:
    """Time launches together; if something disturbed that, once more.

    Returns:
        For each launch its times in microseconds, one a round, and what disturbed them.
    """
    timer.warm_up(launches[-1], WARM_UP_MS)
    one_round = sum(times[0] for times in timer.rounds(launches, 1))
    one_round += FLUSH_US * len(launches)
    count = rounds_for(one_round, FINAL_MS, FINAL_ROUNDS, most_ms=MOST_MS[1])
    for _ in range(2):
        watch.begin()
        rows = timer.rounds(launches, -(-count // 2), seed=seed)
        seen = watch.seen()
        if count > 1:
            rest = timer.rounds(launches, count // 2, seed=seed + 1)
            rows = [row + more for row, more in zip(rows, rest, strict=True)]
        seen |= watch.seen() | Disturbance(contended=any(map(is_wide, rows)))
        if not seen:
            break
    return rows, seen
