"""The rule by which one trial is better than another."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.config import Config
from tunekit.ranking import contenders, cost, most_common_error, pick, ranked, score, sound
from tunekit.trial import Measurement, Status, Trial, choose

CHEAP = Config("pointer", 32, 32, 32, num_warps=4, num_stages=2)
DEAR = Config("pointer", 128, 128, 64, num_warps=8, num_stages=4)


def timed(config, low, median, high):
    found = Measurement(median, low, high, low, high, low, 20, "fake-1", 0.1, final=True)
    return Trial(config, Status.OK, found)


@pytest.mark.parametrize("median", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_time_that_is_no_positive_number_has_no_score(median):
    assert score(timed(CHEAP, 1.0, median, 2.0)) is None


def test_a_failure_has_no_score_and_a_time_its_logarithm():
    assert score(Trial(CHEAP, Status.TIMEOUT, error="slow")) is None
    assert score(timed(CHEAP, 1.0, 2.0, 3.0)) == math.log(2.0)


def test_ranked_leaves_failures_out_and_orders_equal_times_by_config():
    failed = Trial(replace(CHEAP, block_k=64), Status.WRONG_RESULT, error="off")
    trials = [timed(DEAR, 1, 2, 3), failed, timed(CHEAP, 1, 2, 3), timed(CHEAP, 0, 1, 2)]
    assert ranked(trials) == [trials[3], trials[2], trials[0]]


def test_an_overlap_is_a_tie_and_the_cheaper_config_wins_it():
    assert cost(CHEAP) < cost(DEAR)
    fast, near = timed(DEAR, 9.8, 10.0, 10.06), timed(CHEAP, 10.0, 10.08, 10.5)
    assert pick([fast, near], None) is near
    apart = timed(CHEAP, 10.07, 10.08, 10.6)
    assert pick([fast, apart], None) is fast


def test_wide_intervals_do_not_make_a_tie_of_two_percent():
    fast, slow = timed(DEAR, 9.0, 10.0, 11.0), timed(CHEAP, 9.1, 10.2, 11.1)
    assert pick([fast, slow], None) is fast


def test_the_more_configs_are_near_the_more_are_measured_again():
    def order(*medians):
        return [timed(replace(CHEAP, group_size=i + 1), m, m, m) for i, m in enumerate(medians)]

    assert contenders([]) == 0
    assert contenders(order(10, 11, 12)) == 3
    assert contenders(order(10, 13, 14, 15, 16, 17, 18)) == 5
    assert contenders(order(10, 10.1, 10.2, 10.3, 11.3, 12.4, 12.6)) == 6
    assert contenders(order(*[10.0] * 70)) == 64


def test_a_tie_is_not_given_away_to_the_vendor():
    vendor = timed(CHEAP, 10.4, 10.6, 10.8).measurement
    fast, near = timed(DEAR, 9.8, 10.0, 10.2), timed(CHEAP, 10.0, 10.08, 10.5)
    assert choose(near.measurement, vendor) is not choose(fast.measurement, vendor)
    assert pick([fast, near], vendor) is fast


def in_rounds(trial, rounds):
    return replace(trial, measurement=replace(trial.measurement, repetitions=rounds))


def test_who_left_before_the_vendor_is_no_pick_however_fast_it_was_then():
    vendor = in_rounds(timed(CHEAP, 20.0, 20.0, 20.0), 64).measurement
    beaten, stayed = timed(CHEAP, 8.9, 9.0, 9.1), in_rounds(timed(DEAR, 9.9, 10.0, 10.1), 64)
    assert pick([beaten, stayed], vendor) is stayed
    other = in_rounds(timed(replace(DEAR, block_k=16), 11.0, 11.0, 11.0), 17)
    assert pick([beaten, other], vendor) is beaten  # screenings, in a replay


def test_nothing_that_worked_is_no_pick():
    assert pick([], None) is None
    assert pick([Trial(CHEAP, Status.TIMEOUT, error="slow")], None) is None


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(0, 5)), min_size=1, max_size=8))
def test_what_is_picked_overlaps_the_fastest_whatever_the_order(times):
    trials = [
        timed(replace(CHEAP, group_size=i + 1), m - w, m, m + w) for i, (m, w) in enumerate(times)
    ]
    found = pick(trials, None)
    assert found == pick(trials[::-1], None)
    fastest = ranked(trials)[0].measurement
    assert found.measurement.low_us <= fastest.high_us
    assert found.measurement.median_us <= 1.01 * fastest.median_us


def test_the_most_common_error_is_counted_and_one_line():
    failures = [
        Trial(CHEAP, Status.COMPILE_ERROR, error="boom\nmore"),
        Trial(CHEAP, Status.COMPILE_ERROR, error="boom\nother"),
        Trial(CHEAP, Status.TIMEOUT),
        timed(CHEAP, 1, 2, 3),
    ]
    assert most_common_error(failures) == "compile-error: boom (2 of 3)"
    assert most_common_error(failures[2:3]) == "timeout (1 of 1)"
    assert most_common_error([]) == "nothing was tried"


@pytest.mark.parametrize("median", [math.nan, math.inf, 0.0])
def test_a_time_that_is_none_is_a_failure_with_its_reason(median):
    trial = sound(timed(CHEAP, 1.0, median, 2.0))
    assert trial.status is Status.LAUNCH_ERROR
    assert trial.error == f"a time of {median} us was measured"
    good = timed(CHEAP, 1.0, 1.5, 2.0)
    assert sound(good) is good
