"""Budgets that end a key before its trials are spent, in replays of the shipped recording."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tunekit.cache import Store
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.search import Budget, least_us
from tunekit.trial import Origin
from tunekit.tuner import Task, run

LARGE = Problem("matmul", 8192, 8192, 8192, "bfloat16")
MIDDLE = Problem("matmul", 2048, 2048, 2048, "bfloat16")
THIN = Problem("matmul", 1, 4096, 4096, "bfloat16")


@pytest.fixture(scope="module")
def recording():
    return Recording.load(shipped_recordings()[0])


def screened(found, best, config):
    return found.problems[best.key.problem].screening[config].measurement.median_us


@pytest.fixture
def tune(recording, tmp_path):
    """Return a function that tunes in one store; it gives the report and the times tried.

    The times are those of the screening, which the search goes by: finals replace them.
    """

    def tuned(problems, budget, *, sampler="random", elsewhere=False):
        found = recording
        if elsewhere:
            unknown = replace(recording.device, name="Another GPU")
            found = replace(recording, device=unknown)
        with Store.open(tmp_path / f"cache-{elsewhere}.db") as store:
            tasks = [Task(problem) for problem in problems]
            report = run(
                tasks, runner=ReplayRunner(found), store=store, budget=budget, sampler=sampler
            )
            times = [
                [screened(found, b, t.config) for t, _ in store.trials(b.key) if t.measurement]
                for b in report.bests
            ]
        return report, times

    return tuned


def test_patience_ends_a_key_that_gains_nothing_more(tune):
    report, (times,) = tune([MIDDLE], Budget(trials=150, patience=20))
    assert 20 < report.bests[0].trials < 150
    assert min(times) == min(times[: len(times) - 20])
    again, _ = tune([MIDDLE], Budget(trials=150, patience=20))
    assert (again.skipped, again.trials_run) == (1, 0)


def test_a_key_ends_where_the_roofline_is_within_reach(tune, recording):
    limit = least_us(LARGE, recording.device)
    report, (times,) = tune([LARGE], Budget(trials=150, reach=0.35))
    assert report.bests[0].trials < 150
    assert min(times) <= 1.35 * limit
    before = times[: (len(times) - 1) // 8 * 8]  # the batches before the last
    assert min(before, default=math.inf) > 1.35 * limit
    again, _ = tune([LARGE], Budget(trials=150, reach=0.35))
    assert (again.skipped, again.trials_run) == (1, 0)


def test_what_is_never_within_reach_has_all_of_its_trials(tune):
    report, _ = tune([LARGE, THIN], Budget(trials=24, reach=0.05))
    assert [best.trials for best in report.bests] != [0, 0]
    assert sum(best.trials for best in report.bests) == 48


def test_on_a_gpu_whose_rates_are_unknown_no_key_ends_early(tune):
    report, _ = tune([LARGE], Budget(trials=40, reach=50.0), elsewhere=True)
    assert report.bests[0].trials == 40
    assert report.bests[0].provenance.origin is Origin.REPLAYED


def test_what_a_key_that_ends_early_leaves_goes_to_the_others(tune):
    report, _ = tune([LARGE, THIN], Budget(trials=40, reach=0.6))
    large, thin = (best.trials for best in report.bests)
    assert large < 40 < thin
    assert large + thin <= 80


def test_every_key_has_the_least_that_is_asked_for(tune):
    report, _ = tune([LARGE, THIN], Budget(trials=24, least=24))
    assert [best.trials for best in report.bests] == [24, 24]
