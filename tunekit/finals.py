"""How the fastest configs of a screening are told apart: a heat, then rounds beside the vendor.

Screening times one config after the other, each on a card that is a little cooler or hotter than
the last. Here they take turns, in rounds of shuffled order, so that what the card does at a moment
falls on all alike and only the noise of single launches is left. Many take part in a heat of few
rounds; the fastest of it go on.

The finals are a race: who is beaten leaves it, and it ends when the fastest is known, and whether
it beats the vendor's call. That is successive elimination (Even-Dar, Mannor and Mansour, "Action
elimination and stopping conditions for the multi-armed bandit and reinforcement learning problems",
JMLR 7, 2006; before them Maron and Moore, "Hoeffding races", NIPS 6, 1993), with a sign test in
place of their bounds, which would have to know how far times scatter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tunekit.gpu_watch import CALM, Disturbance, GpuWatch
from tunekit.kernels import Launch
from tunekit.timing import FLUSH_US, MOST_MS, Timer, is_wide, quantile, summarize

FINAL_MS = 100.0
FINAL_ROUNDS = (31, 201)
"""The interval of 21 launches is as wide as their middle half; that of 81 a third of it."""

LOOK_ROUNDS = 16
"""Rounds between two looks at who is beaten."""

CHANCE = 0.05 / (8 * 13)
"""Of a wrong verdict. There are up to 13 looks at 8 pairs, and all of them together are to be right
in 95 of 100 finals."""

NEGLIGIBLE = 0.01
"""No more rounds are spent on finding out by which part less than this one is the faster."""

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
    """Race launches against each other, the last being the vendor's; if disturbed, once more.

    Returns:
        For each launch its times in microseconds, one for each round it was in, and what disturbed
        them. Those that were in all rounds have the most times.
    """
    timer.warm_up(launches[-1], WARM_UP_MS)
    first = timer.rounds(launches, 1)
    for _ in range(2):
        rows, seen = _race(timer, watch, launches, [times[0] for times in first], seed)
        seen |= Disturbance(contended=any(map(is_wide, rows)))
        if not seen:
            break
    return rows, seen


def _race(
    timer: Timer, watch: GpuWatch, launches: Sequence[Launch], once_us: Sequence[float], seed: int
) -> tuple[list[list[float]], Disturbance]:
    """Time launches in rounds until it is settled which is the fastest, or time is over."""
    watch.begin()
    seen = CALM
    rows: list[list[float]] = [[] for _ in launches]
    going = list(range(len(launches)))
    done, spent_us = 0, 0.0
    while True:
        round_us = sum(once_us[which] + FLUSH_US for which in going)
        step = _next_rounds(done, round_us, spent_us)
        if not step:
            break
        times = timer.rounds([launches[which] for which in going], step, seed=seed + done)
        for which, row in zip(going, times, strict=True):
            rows[which] += row
            spent_us += sum(row) + FLUSH_US * step
        if not done:
            seen = watch.seen()
        done += step
        going = still_racing(rows, going)
        if done >= FINAL_ROUNDS[0] and is_settled(rows, going):
            break
    return rows, seen | watch.seen()


def _next_rounds(done: int, round_us: float, spent_us: float) -> int:
    """Return how many rounds to time before the next look, 0 if there is no more time."""
    least, most = FINAL_ROUNDS
    budget_us = 1000 * (MOST_MS[1] if done < least else FINAL_MS)
    step = min(LOOK_ROUNDS, most - done, int((budget_us - spent_us) / round_us))
    return max(step, 0 if done else 1)


def still_racing(rows: Sequence[Sequence[float]], going: Sequence[int]) -> list[int]:
    """Return which go on: not those that the fastest has beaten. The last of all always does."""
    vendor = len(rows) - 1
    fastest = _fastest(rows, going)
    return [
        which
        for which in going
        if which in (fastest, vendor) or not is_faster(rows[fastest], rows[which])
    ]


def is_settled(rows: Sequence[Sequence[float]], going: Sequence[int]) -> bool:
    """Say whether more rounds would change neither the choice among launches nor the vendor's part.

    None that is left may be faster than the fastest by more than a negligible part. The fastest
    beats the vendor's call, and so clearly that their intervals are apart, or is not faster.
    """
    *ours, vendor = rows
    fastest = _fastest(rows, going)
    rivals = [which for which in going if which not in (fastest, len(ours))]
    if not all(is_faster(rows[fastest], rows[w], head_start=NEGLIGIBLE) for w in rivals):
        return False
    best = ours[fastest]
    if is_faster(best, vendor):
        return (
            summarize(best, error_ratio=None).high_us < summarize(vendor, error_ratio=None).low_us
        )
    return is_faster(vendor, best, head_start=NEGLIGIBLE)


def is_faster(times: Sequence[float], others: Sequence[float], *, head_start: float = 0.0) -> bool:
    """Say whether one launch is faster than another, from times of the same rounds.

    It is if it won so many rounds as chance would let it in one case of some thousands, were they
    alike: the sign test, which assumes nothing of the noise and nothing of what the card did from
    round to round. `head_start` is the part that the other's times are taken to be longer by.
    """
    wins = sum(a < b * (1 + head_start) for a, b in zip(times, others, strict=True))
    ties = sum(a == b * (1 + head_start) for a, b in zip(times, others, strict=True))
    return wins >= _wins_needed(len(times) - ties)


@functools.cache
def _wins_needed(rounds: int) -> int:
    """Return the least number of wins of so many rounds that is no chance; more than there are."""
    tail, ways = 0.0, 1.0
    for losses in range(rounds + 1):
        tail += ways / 2.0**rounds
        if tail > CHANCE:
            return rounds - losses + 1
        ways *= (rounds - losses) / (losses + 1)
    return rounds + 1


def _fastest(rows: Sequence[Sequence[float]], going: Sequence[int]) -> int:
    """Return the launch with the lowest median of those going on, the vendor's aside."""
    ours = [which for which in going if which != len(rows) - 1]
    return min(ours, key=lambda which: (quantile(sorted(rows[which]), 0.5), which))
