"""Budgets."""

from __future__ import annotations

import math

import pytest

from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.replay import shipped_recordings
from tunekit.search import DEFAULT_TRIALS, Budget, least_us


@pytest.mark.parametrize("field", ["trials", "seconds", "patience", "reach", "least"])
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_a_limit_is_above_0(field, value):
    with pytest.raises(ValueError, match=field):
        Budget(**{field: value})


def test_no_limit_is_never_reached():
    assert not Budget().spent(10**6, 10**6)
    assert not Budget().late(1e9)
    assert Budget().target(36) == 36


def test_each_limit_is_reached():
    budget = Budget(trials=10, seconds=2.5, patience=4)
    assert not budget.spent(9, 3)
    assert budget.spent(10, 0)
    assert budget.spent(5, 4)
    assert not budget.late(2.4)
    assert budget.late(2.5)
    assert budget.target(36) == 10
    assert budget.target(7) == 7


def test_only_a_sweep_is_unlimited_by_default():
    assert Budget.for_sampler("tpe", None, None) == Budget(trials=DEFAULT_TRIALS)
    assert Budget.for_sampler("exhaustive", None, None) == Budget()
    assert Budget.for_sampler("exhaustive", 5, None) == Budget(trials=5)
    assert Budget.for_sampler("tpe", None, 3.0) == Budget(seconds=3.0)


def test_a_floor_is_half_of_the_trials_a_key_brings_or_what_is_asked_for():
    assert [Budget(trials=80).floor(n) for n in (1, 2, 7, 80)] == [1, 1, 4, 40]
    assert [Budget(trials=24, least=20).floor(n) for n in (7, 24)] == [7, 20]
    for wrong in ({"trials": 10, "least": 11}, {"least": 11}):
        with pytest.raises(ValueError, match="least"):
            Budget(**wrong)


def test_a_time_is_within_reach_of_the_least_there_can_be():
    budget = Budget(reach=0.1)
    assert budget.is_near(109.0, 100.0)
    assert not budget.is_near(111.0, 100.0)
    assert not budget.is_near(1.0, None)
    assert not Budget().is_near(1.0, 100.0)


def test_the_least_time_is_that_of_memory_or_of_the_tensor_cores():
    h200 = KNOWN_DEVICES["sm_90"]
    large = Problem("matmul", 8192, 8192, 8192, "bfloat16")
    assert least_us(large, h200) == pytest.approx(2 * 8192**3 / 989.4e12 * 1e6)
    thin = Problem("matmul", 1, 8192, 8192, "bfloat16")
    assert least_us(thin, h200) == pytest.approx(thin.min_bytes / 4.8e12 * 1e6)
    double = Problem("matmul", 8192, 8192, 8192, "float32", precision="tf32")
    assert least_us(double, h200) == pytest.approx(2 * least_us(large, h200))


def test_of_a_gpu_whose_rates_nobody_stated_none_is_known():
    assert least_us(Problem("matmul", 512, 512, 512, "bfloat16"), KNOWN_DEVICES["sm_80"]) is None


def test_no_recorded_time_is_below_the_least():
    recording = Recording.load(shipped_recordings()[0])
    for problem, found in recording.problems.items():
        times = [t.measurement.median_us for t in found.screening.values() if t.measurement]
        assert min(times) > least_us(problem, recording.device)
