"""The finals as a race: who leaves it, when it ends, and that its verdicts are right."""

from __future__ import annotations

import math
import random

import pytest

from tunekit.config import Config
from tunekit.finals import (
    CHANCE,
    FINAL_MS,
    FINAL_ROUNDS,
    LOOK_ROUNDS,
    calm_rounds,
    is_faster,
    is_settled,
    still_racing,
)
from tunekit.gpu_watch import GpuWatch
from tunekit.ranking import pick
from tunekit.timing import FLUSH_US, summarize
from tunekit.trial import Status, Trial

FIRST_END = 2 * LOOK_ROUNDS
"""Rounds of a race that is settled as soon as it may be."""


class NoisyTimer:
    """Times launches that are numbers of microseconds, off by noise and by a drift of the card."""

    def __init__(self, noise=0.0, *, drift=lambda done: 1.0, seed=0):
        self.noise, self.drift = noise, drift
        self.chance = random.Random(seed)
        self.done = 0
        self.spent_us = 0.0

    def rounds(self, launches, rounds, *, seed=0):
        times = [[] for _ in launches]
        for _ in range(rounds):
            for row, us in zip(times, launches, strict=True):
                off = math.exp(self.chance.gauss(0, self.noise)) if self.noise else 1.0
                row.append(us * off * self.drift(self.done))
                self.spent_us += row[-1] + FLUSH_US
            self.done += 1
        return times

    def warm_up(self, launch, milliseconds):
        pass


def race(launches, timer=None):
    rows, seen = calm_rounds(timer or NoisyTimer(), GpuWatch(""), launches)
    assert not seen
    return rows


def test_the_sign_test_is_that_of_the_binomial():
    def wins_needed(rounds):
        for wins in range(rounds + 1):
            rare = sum(math.comb(rounds, k) for k in range(wins, rounds + 1)) / 2.0**rounds
            if rare <= CHANCE:
                return wins
        return rounds + 1

    for rounds in (5, 10, 11, 12, 16, 32, 80, 201):
        wins = wins_needed(rounds)
        for won in (wins - 1, wins):
            times = [1.0] * min(won, rounds) + [3.0] * (rounds - won)
            assert is_faster(times, [2.0] * rounds) is (won == wins <= rounds)


def test_ties_say_nothing():
    assert not is_faster([1.0] * 50, [1.0] * 50)
    assert is_faster([1.0] * 50, [1.0] * 50, head_start=0.01)
    assert not is_faster([1.0] * 45 + [0.9] * 5, [1.0] * 50)


def test_who_is_beaten_leaves_and_the_vendor_never_does():
    rows = race([10.0, 14.0, 30.0, 20.0, 100.0])
    assert [len(row) for row in rows] == [FIRST_END, *[LOOK_ROUNDS] * 3, FIRST_END]


def test_it_ends_as_soon_as_the_fastest_is_known_and_its_part_against_the_vendor():
    assert len(race([10.0, 11.0, 20.0], NoisyTimer(0.005))[0]) == FIRST_END
    assert len(race([20.0, 21.0, 10.0], NoisyTimer(0.005))[0]) == FIRST_END


def test_launches_that_differ_by_nothing_that_matters_need_no_decision():
    rows = race([10.0, 10.01, 10.02, 20.0], NoisyTimer(0.002))
    assert {len(row) for row in rows} == {FIRST_END}


def test_what_cannot_be_settled_ends_with_the_rounds_or_the_time():
    assert len(race([10.0, 10.2], NoisyTimer(0.05))[0]) == FINAL_ROUNDS[1]
    slow = NoisyTimer(0.05)
    rows = race([400.0, 405.0, 406.0, 407.0], slow)
    assert FINAL_ROUNDS[0] <= len(rows[0]) < FINAL_ROUNDS[1]
    assert slow.spent_us / 1000 <= FINAL_MS + 2.0  # the round that is measured first


def test_one_launch_alone_is_timed_beside_the_vendor():
    assert [len(row) for row in race([10.0, 12.0])] == [FIRST_END] * 2


def test_one_that_left_while_the_card_was_cool_is_not_chosen_for_its_low_times():
    timer = NoisyTimer(0.01, drift=lambda done: 0.85 if done <= LOOK_ROUNDS else 1.0)
    rows = race([10.0, 10.5, 12.0], timer)
    *ours, vendor = rows
    trials = [
        Trial(Config("pointer", size, 16, 32), Status.OK, summarize(row, error_ratio=0.1))
        for size, row in zip((16, 32), ours, strict=True)
    ]
    best, other = (trial.measurement.median_us for trial in trials)
    assert other < best  # as it was timed
    assert pick(trials, summarize(vendor, error_ratio=None)) is trials[0]


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_hardly_ever_does_the_fastest_leave(noise):
    """In 300 races of eight that are 0.5 % apart, looked at as often as there are rounds for."""
    lost = 0
    for seed in range(300):
        timer = NoisyTimer(noise, seed=seed)
        launches = [10.0 * 1.005**i for i in range(8)]
        rows = [[] for _ in [*launches, 20.0]]
        going = list(range(9))
        for _ in range(6):
            times = timer.rounds([[*launches, 20.0][which] for which in going], LOOK_ROUNDS)
            for which, row in zip(going, times, strict=True):
                rows[which] += row
            going = still_racing(rows, going)
        lost += 0 not in going
    assert lost <= 0.05 * 300


def test_a_verdict_against_the_vendor_has_intervals_apart():
    for seed in range(60):
        timer = NoisyTimer(0.03, seed=seed)
        rows = timer.rounds([10.0, 10.3], 48)
        if is_settled(rows, [0, 1]):
            ours, vendor = (summarize(row, error_ratio=None) for row in rows)
            assert ours.high_us < vendor.low_us or vendor.median_us <= ours.median_us * 1.01
