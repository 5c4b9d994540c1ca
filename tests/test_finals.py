"""Who goes on from a heat to the finals."""

from __future__ import annotations

import random

import pytest

from tunekit.finals import HEAT_MOST_MS, HEAT_PLACES, HEAT_ROUNDS, heat
from tunekit.timing import FLUSH_US


class FakeTimer:
    """Times launches that are numbers of microseconds, with noise that all of a round share."""

    def __init__(self, drift=0.0):
        self.chance = random.Random(0)
        self.drift = drift
        self.spent_us = 0.0
        self.timed = []

    def rounds(self, launches, rounds, *, seed=0):
        times = [[] for _ in launches]
        for _ in range(rounds):
            heat_of_card = 1 + self.drift * self.chance.random()
            for row, us in zip(times, launches, strict=True):
                row.append(us * heat_of_card)
                self.spent_us += us * heat_of_card + FLUSH_US
        self.timed.append((len(launches), rounds))
        return times


@pytest.mark.parametrize("count", [0, 1, HEAT_PLACES])
def test_a_few_need_no_heat(count):
    timer = FakeTimer()
    assert heat(timer, [10.0] * count) == list(range(count))
    assert timer.timed == []


def test_the_fastest_go_on_in_the_order_they_came_in():
    times = [20.0 + i % 7 for i in range(40)]
    fastest = sorted(range(40), key=lambda i: (times[i], i))[:HEAT_PLACES]
    assert heat(FakeTimer(drift=0.5), times) == sorted(fastest)


def test_every_entrant_of_a_heat_runs_equally_often_and_not_for_long():
    timer = FakeTimer()
    heat(timer, [20.0] * 40)
    (one, once), (entrants, rounds) = timer.timed
    assert (one, once, entrants) == (1, 1, 40)
    assert HEAT_ROUNDS[0] <= rounds <= HEAT_ROUNDS[1]
    assert timer.spent_us / 1000 <= HEAT_MOST_MS


@pytest.mark.parametrize("us", [1000.0, 2000.0, 100_000.0])
def test_slow_launches_make_a_heat_of_fewer_entrants(us):
    timer = FakeTimer()
    places = heat(timer, [us + i for i in range(40)])
    assert places == list(range(HEAT_PLACES))
    assert max(entrants for entrants, _ in timer.timed) < 40
    assert timer.spent_us / 1000 <= max(1.05 * HEAT_MOST_MS, us / 1000 + FLUSH_US)
