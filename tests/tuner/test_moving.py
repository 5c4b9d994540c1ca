"""Trials that move between the keys of a run, on GPUs simulated from a made-up recording."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

pytest.importorskip("torch", reason="the simulated GPU computes with torch")

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.search import Budget
from tunekit.simulation import SimulatedRunner
from tunekit.trial import Fingerprint, Measurement, Provenance, Status, Trial
from tunekit.tuner import KeyDone, Task, TrialDone, run

PROBLEMS = tuple(Problem("matmul", size, 256, 256, "bfloat16") for size in (128, 256, 512))
CONFIGS = tuple(
    Config("pointer", m, n, k, num_warps=w, num_stages=s)
    for m in (32, 64, 128, 256)
    for n in (32, 64, 128, 256)
    for k in (32, 64)
    for w in (4, 8)
    for s in (2, 3)
)
TRIALS = 16


def made_up():
    """Every problem has the same times, so that only counts make one worth more than another."""
    made = Recording(KNOWN_DEVICES["sm_90"])
    mark = Fingerprint("made-up", "made-up")
    made.admit(CONFIGS[0], Provenance(mark, "made-up", "0", "0", "0", "0", "made-up", "2020"))
    for problem in PROBLEMS:
        chance = random.Random(7)
        trials = []
        for config in CONFIGS:
            us = 20 * math.exp(abs(chance.gauss(0, 0.4)))
            found = Measurement(us, us, us, us, us, us, 5, "made-up", 0.1)
            trials.append(Trial(config, Status.OK, found))
        made.put(problem, trials, space_size=len(trials))
    return made


@pytest.fixture(scope="module")
def recording():
    return made_up()


@pytest.fixture
def tune(recording, tmp_path):
    """Return a function that tunes the problems, run this often, in a cache of this name."""

    def tuned(counts, cache="cache.db", *, trials=TRIALS, stop_after=None, shuffled=False, **rest):
        runner = SimulatedRunner(recording, seed=3)
        done, screen = [], runner.screen
        chance = random.Random(11)

        def watched(work):
            for problem, trial in screen(chance.sample(work, len(work)) if shuffled else work):
                if stop_after is not None and len(done) >= stop_after:
                    raise KeyboardInterrupt
                done.append((problem, trial.config))
                yield problem, trial

        runner.screen = watched
        tasks = [Task(p, count) for p, count in zip(PROBLEMS, counts, strict=False)]
        with Store.open(tmp_path / cache) as store:
            budget = rest.pop("budget", None) or Budget(trials=trials)
            try:
                report = run(tasks, runner=runner, store=store, budget=budget, **rest)
            except KeyboardInterrupt:
                report = None
        return report, done

    return tuned


def by_problem(done):
    counts = Counter(problem for problem, _ in done)
    return [counts[problem] for problem in PROBLEMS]


def test_trials_go_to_the_key_that_is_run_most(tune):
    report, done = tune([1, 1000, 1])
    half = TRIALS // 2
    assert by_problem(done) == [half, 3 * TRIALS - 2 * half, half]
    assert [best.trials for best in report.bests] == by_problem(done)


def test_keys_that_are_worth_as_much_have_about_as_many(tune):
    _, done = tune([5, 5, 5], trials=32)
    assert sum(by_problem(done)) == 3 * 32
    assert max(by_problem(done)) <= 2 * min(by_problem(done))


def test_every_key_has_half_of_its_trials_and_its_finals(tune):
    report, done = tune([1, 10**6, 0])
    assert min(by_problem(done)) == TRIALS // 2
    assert all(best.measurement.final for best in report.bests)
    assert len(report.bests) == 3


def test_a_key_that_gives_its_trials_away_ends_before_the_one_that_takes_them(tune):
    events = []
    tune([1, 1000, 1], trials=32, on_event=events.append)
    ends = [event.best.key.problem for event in events if isinstance(event, KeyDone)]
    assert ends[-1] == PROBLEMS[1]
    last = {event.key.problem: event for event in events if isinstance(event, TrialDone)}
    assert all(event.done == event.total for event in last.values())


@pytest.mark.parametrize("counts", [[1, 50, 1], [3, 4, 5]])
def test_a_seed_gives_the_same_trials_whatever_is_ready_first(tune, counts):
    _, done = tune(counts, "one.db", seed=4)
    _, again = tune(counts, "two.db", seed=4)
    assert done == again
    _, mixed = tune(counts, "three.db", seed=4, shuffled=True)
    assert set(mixed) == set(done)
    _, other = tune(counts, "four.db", seed=5)
    assert set(other) != set(done)


@pytest.mark.parametrize("stop_after", [3, 20, 30, 47])
def test_a_run_that_was_killed_ends_with_as_many_trials(tune, stop_after):
    report, before = tune([1, 1000, 1], "killed.db", stop_after=stop_after)
    assert report is None
    report, after = tune([1, 1000, 1], "killed.db")
    assert len(set(before) | set(after)) == len(before) + len(after)
    assert len(before) + len(after) == 3 * TRIALS
    assert min(by_problem([*before, *after])) >= TRIALS // 2
    assert sum(best.trials for best in report.bests) == 3 * TRIALS


def test_a_run_that_was_done_needs_no_more(tune):
    first, _ = tune([1, 1000, 1])
    again, done = tune([1, 1000, 1])
    assert done == []
    assert again.skipped == 3
    assert again.bests == first.bests


def test_more_trials_and_another_key_are_what_is_missing(tune):
    tune([1, 1000])
    _, done = tune([1, 1000, 1])
    assert by_problem(done) == [0, 0, TRIALS]
    _, done = tune([1, 1000, 1], trials=2 * TRIALS)
    assert len(done) == 3 * 2 * TRIALS - 3 * TRIALS


def test_a_key_that_gave_trials_away_has_them_when_it_is_tuned_alone(tune):
    tune([1, 1000])
    _, done = tune([1])
    assert by_problem(done) == [TRIALS - TRIALS // 2, 0, 0]


def test_a_sweep_moves_nothing(tune):
    _, done = tune([1, 1000, 1], sampler="exhaustive", budget=Budget(trials=10))
    assert by_problem(done) == [10, 10, 10]


def test_seconds_are_split_evenly(recording, tmp_path):
    runner = SimulatedRunner(recording, trial_s=1.0)
    tasks = [Task(problem, count) for problem, count in zip(PROBLEMS, (1, 1000, 1), strict=True)]
    with Store.open(tmp_path / "cache.db") as store:
        report = run(
            tasks, runner=runner, store=store, budget=Budget(seconds=60.0), clock=runner.clock
        )
    trials = [best.trials for best in report.bests]
    assert 55 <= sum(trials) <= 60
    assert max(trials) - min(trials) <= 8


@pytest.mark.parametrize(("how", "most"), [({}, 16), ({"patience": 30}, 8), ({"seconds": 1e9}, 8)])
def test_batches_are_larger_where_nothing_but_the_count_of_trials_ends_a_run(
    recording, tmp_path, how, most
):
    sizes = []
    runner = SimulatedRunner(recording, trial_s=0.0)
    announce = runner.announce
    runner.announce = lambda work: (sizes.append(len(work)), announce(work))[1]
    with Store.open(tmp_path / "cache.db") as store:
        budget = Budget(trials=80, least=80, **how)
        run([Task(p) for p in PROBLEMS], runner=runner, store=store, budget=budget)
    assert max(sizes) == most
