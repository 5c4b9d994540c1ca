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
HEATS = ((5, 24), (8, HEAT_PLACES))
"""Rounds of each heat, and how many go on from it: many take part in few rounds, few in more."""

HEAT_MS = 100.0
"""A heat lets fewer launches take part rather than last longer."""


def heat(timer: Timer, launches: Sequence[Launch], *, seed: int = 0) -> list[int]:
    """Return which launches go on to the finals: all if they are few, else the fastest of them.

    The launches come in the order of what is known of them, best first. They are timed in a few
    interleaved rounds, so that what the card does at the moment falls on all alike: screening,
    which times one after the other, cannot tell near ones apart.
    """
    going = list(range(len(launches)))
    if len(going) <= HEAT_PLACES:
        return going
    one_us = timer.rounds(launches[:1], 1)[0][0] + FLUSH_US
    times: list[list[float]] = [[] for _ in launches]
    for number, (rounds, places) in enumerate(HEATS):
        going = going[: max(HEAT_PLACES, int(HEAT_MS * 1000 / (rounds * one_us)))]
        if len(going) <= places:
            continue
        rows = timer.rounds([launches[which] for which in going], rounds, seed=seed + number)
        for which, row in zip(going, rows, strict=True):
            times[which] += row
        medians = {which: quantile(sorted(times[which]), 0.5) for which in going}
        going = sorted(going, key=lambda which: (medians[which], which))[:places]
    return sorted(going)


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
