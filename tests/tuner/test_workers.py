"""One seed and one recording give the same trials, on one worker or on two."""

from __future__ import annotations

import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tunekit.cache import Store
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.search import Budget, Experience
from tunekit.search.portfolio import add_recording, portfolio_of
from tunekit.tuner import Task, run

TRIALS = 16


class Workers(ReplayRunner):
    """Has the work of a replay done by threads, each of which takes what it is ready for."""

    def __init__(self, recording, count, seed):
        super().__init__(recording)
        self.count = count
        self.chance = random.Random(seed)

    def screen(self, work):
        mixed = self.chance.sample(work, len(work))
        taken, results = iter(mixed), queue.SimpleQueue()
        lock = threading.Lock()

        def worker():
            one = ReplayRunner(self._recording)
            while True:
                with lock:
                    item = next(taken, None)
                if item is None:
                    return
                for result in one.screen([item]):
                    results.put(result)

        with ThreadPoolExecutor(self.count) as threads:
            for _ in range(self.count):
                threads.submit(worker)
            for _ in mixed:
                yield results.get(timeout=60)


@pytest.fixture(scope="module")
def recording():
    return Recording.load(shipped_recordings()[0])


@pytest.fixture(autouse=True)
def little_known(recording, tasks, monkeypatch):
    """Let a run begin with two problems' portfolio, so that it soon has news of its own."""
    known = {p: recording.problems[p] for p in sorted(recording.problems)[1:3]}
    assert not known.keys() & {task.problem for task in tasks}
    thin = portfolio_of(replace(recording, problems=known))

    def experience(seed=0, *, grow=None):
        made = Experience(seed=seed, grow=grow)
        add_recording(made, thin)
        return made

    monkeypatch.setattr("tunekit.tuner.experience.shipped_experience", experience)


@pytest.fixture(scope="module")
def tasks(recording):
    problems = [p for p in sorted(recording.problems) if p.dtype == "bfloat16"]
    return [Task(problem, 1 + number) for number, problem in enumerate(problems[::11])]


def outcome(tasks, runner, place, *, seed=3):
    """Return the configs tried for each key, and its row without its date."""
    with Store.open(place) as store:
        report = run(tasks, runner=runner, store=store, budget=Budget(trials=TRIALS), seed=seed)
        tried = {b.key: {trial.config for trial, _ in store.trials(b.key)} for b in report.bests}
        rows = [(b.key, b.config, b.measurement, b.trials, b.distance) for b in report.bests]
    return tried, rows


def test_two_workers_try_what_one_tries(recording, tasks, tmp_path):
    alone = outcome(tasks, ReplayRunner(recording), tmp_path / "one.db")
    assert sum(map(len, alone[0].values())) == TRIALS * len(tasks)
    assert len({len(configs) for configs in alone[0].values()}) > 1  # some were moved
    assert outcome(tasks, Workers(recording, 2, seed=1), tmp_path / "two.db") == alone
    other = outcome(tasks, ReplayRunner(recording), tmp_path / "other.db", seed=4)
    assert other[0] != alone[0]


def test_keys_learn_from_each_other_between_rounds(recording, tasks, tmp_path, monkeypatch):
    """What one key found is seen by the others, and only after the round it was found in."""
    settled = []
    turn = Experience.turn

    def watched(known):
        turn(known)
        settled.append(len(list(known.times())))

    monkeypatch.setattr(Experience, "turn", watched)
    together, _ = outcome(tasks, ReplayRunner(recording), tmp_path / "together.db")
    assert len(set(settled)) >= 2
    monkeypatch.setattr(Experience, "turn", lambda known: settled or turn(known))
    apart, _ = outcome(tasks, ReplayRunner(recording), tmp_path / "apart.db")
    assert together.keys() == apart.keys()
    assert together != apart
