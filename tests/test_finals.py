"""Who goes on from a heat to the finals."""

from __future__ import annotations

import random

import pytest

from tunekit.finals import HEAT_MS, HEAT_PLACES, HEATS, heat
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


def test_many_take_part_in_few_rounds_and_few_in_more():
    timer = FakeTimer()
    heat(timer, [20.0] * 64)
    (first, go_on), (second, _) = HEATS
    assert timer.timed == [(1, 1), (64, first), (go_on, second)]
    assert timer.spent_us / 1000 <= 2 * HEAT_MS


def test_a_first_heat_that_leaves_nobody_out_is_not_run():
    timer = FakeTimer()
    heat(timer, [20.0] * HEATS[0][1])
    assert timer.timed == [(1, 1), (HEATS[0][1], HEATS[1][0])]


def test_both_heats_count():
    """One that was unlucky in the first heat, though not too much, may still go on."""

    class Unlucky(FakeTimer):
        def rounds(self, launches, rounds, *, seed=0):
            times = super().rounds(launches, rounds, seed=seed)
            if rounds == HEATS[0][0]:
                times[0] = [launches[0] * 1.2] * 2 + times[0][2:]
            return times

    assert 0 in heat(Unlucky(), [20.0] + [21.0 + i / 100 for i in range(40)])


@pytest.mark.parametrize("us", [1000.0, 2000.0, 100_000.0])
def test_slow_launches_make_a_heat_of_fewer_entrants(us):
    timer = FakeTimer()
    places = heat(timer, [us + i for i in range(64)])
    assert places == list(range(HEAT_PLACES))
    assert max(entrants for entrants, _ in timer.timed) < 64
    assert timer.spent_us / 1000 <= max(2.1 * HEAT_MS, us / 1000 + FLUSH_US)
