"""Several runs on one store: real processes that replay, one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from tunekit.cache import Claims, Store
from tunekit.key import Problem, TuningKey
from tunekit.recording import Recording
from tunekit.search import Budget
from tunekit.tuner import KeyLeft, KeysAwaited, KeySkipped, run

PROBLEMS = [Problem("matmul", m, 512, 512, "bfloat16") for m in (256, 512, 1024, 2048)]
TRIALS = 16

CHILD = """
import os, sys, time
from tunekit.cache import Store
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner
from tunekit.search import Budget
from tunekit.tuner import Task, TrialDone, run

cache, file, trials, first, pause = sys.argv[1:]
recording = Recording.load(file)

def tell(event):
    name = type(event).__name__
    key = event.key.m if hasattr(event, "key") else event.best.key.m if name != "RunStarted" \\
        and hasattr(event, "best") else 0
    print(name, key, flush=True)
    if isinstance(event, TrialDone):
        time.sleep(float(pause))

with Store.open(cache) as store:
    tasks = [Task(problem) for problem in recording.problems]
    tasks = tasks[int(first):] + tasks[:int(first)]
    report = run(tasks, runner=ReplayRunner(recording), store=store, on_event=tell,
                 budget=Budget(trials=int(trials)))
    print("bests", len(report.bests), flush=True)
"""


@pytest.fixture
def recording(make_runner, tmp_path):
    runner = make_runner()
    made = Recording(runner.device)
    configs = runner.space(PROBLEMS[0]).configs
    made.admit(configs[0], runner.provenance(PROBLEMS[0], configs[0]))
    for problem in PROBLEMS:
        screened = runner.screen([(problem, config) for config in configs])
        made.put(problem, [trial for _, trial in screened], space_size=len(configs))
    made.save(tmp_path / "r.json.gz")
    return tmp_path / "r.json.gz"


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Where the runs keep what they find: a path or a URL."""
    if request.param == "postgresql":
        return request.getfixturevalue("server_url")
    return str(tmp_path / "shared.db")


@pytest.fixture
def start(recording, place):
    """Start a run in a process of its own; it prints its events."""
    children = []

    def run_child(first=0, pause=0.01):
        command = [sys.executable, "-c", CHILD, place, str(recording)]
        child = subprocess.Popen(
            [*command, str(TRIALS), str(first), str(pause)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        children.append(child)
        return child

    yield run_child
    for child in children:
        child.kill()
        child.communicate()


def finished(child):
    """Wait for a run and return its events, each a name and the M of its key."""
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    return [tuple(line.split()) for line in out.splitlines()]


def tried(events):
    return Counter(key for name, key in events if name == "TrialDone")


def test_runs_that_start_together_never_tune_the_same_key(start, place):
    runs = [finished(child) for child in [start(first) for first in range(3)]]
    keys = [set(tried(events)) for events in runs]
    assert sum(map(len, keys)) == len(set.union(*keys)) == len(PROBLEMS)
    total = sum((tried(events) for events in runs), Counter())
    assert total.total() == TRIALS * len(PROBLEMS)
    assert min(total.values()) >= TRIALS // 2
    assert [events[-1] for events in runs] == [("bests", str(len(PROBLEMS)))] * 3
    with Store.open(place) as store:
        assert len(store.bests()) == len(PROBLEMS)
        assert store.leases() == {}


def test_a_run_takes_over_from_one_that_is_killed_and_does_only_the_rest(start, tmp_path):
    first = start(pause=0.3)
    done = Counter()
    for line in first.stdout:
        name, key = line.split()
        done[key] += name == "TrialDone"
        if done.total() == 10:
            break
    second = start()
    lines = iter(second.stdout.readline, "")
    assert any(line.startswith("KeysAwaited") for line in lines)
    os.kill(first.pid, signal.SIGKILL)
    killed = time.monotonic()
    rest, _ = first.communicate()
    done += Counter(line.split()[1] for line in rest.splitlines() if line.startswith("TrialDone"))
    resumed = next(line for line in lines if line.startswith("TrialDone"))
    assert time.monotonic() - killed < 60  # not the two minutes of a lease
    done[resumed.split()[1]] += 1
    events = finished(second)
    had = tried(events) + done
    untold = 1  # stored when the run was killed, before it could say so
    assert TRIALS * len(PROBLEMS) - untold <= had.total() <= TRIALS * len(PROBLEMS)
    assert min(had[str(p.m)] for p in PROBLEMS) >= TRIALS // 2
    assert events[-1] == ("bests", str(len(PROBLEMS)))


def key_of(runner, problem):
    return TuningKey.of(problem, runner.device.slug)


def test_keys_held_by_others_come_last_and_their_results_are_used(
    make_runner, store, tasks, events
):
    runner = make_runner()
    store.put_device(runner.device)
    with Claims(store) as other:
        other.take([key_of(runner, tasks[0].problem)])

        def finish_the_other(seconds):
            assert len(runner.screened) == 6
            other.__exit__(None, None, None)
            run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=6))

        report = run(
            tasks, runner=runner, store=store, budget=Budget(trials=6), on_event=events.append,
            sleep=finish_the_other,
        )  # fmt: skip
    assert {problem for problem, _ in runner.screened} == {tasks[1].problem}
    assert len(report.bests) == 2
    assert report.skipped == 1
    (awaited,) = (event for event in events if isinstance(event, KeysAwaited))
    assert awaited.keys == (key_of(runner, tasks[0].problem),)
    assert awaited.holders == (str(other.holder),)
    assert isinstance(events[-1], KeySkipped)


def test_a_result_that_is_not_enough_is_tuned_further(make_runner, store, tasks):
    runner = make_runner()
    store.put_device(runner.device)
    with Claims(store) as other:
        other.take([key_of(runner, tasks[0].problem)])

        def finish_the_other(seconds):
            other.__exit__(None, None, None)
            run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=6))

        report = run(
            tasks[:1], runner=runner, store=store, budget=Budget(trials=10), sleep=finish_the_other
        )
    assert len(runner.screened) == 4
    assert [best.trials for best in report.bests] == [10]


def test_when_the_time_is_over_a_key_is_left_to_the_run_that_has_it(
    make_runner, store, tasks, events
):
    runner = make_runner()
    store.put_device(runner.device)
    now = 0.0

    def pass_time(seconds):
        nonlocal now
        now += seconds

    with Claims(store) as other:
        other.take([key_of(runner, tasks[0].problem)])
        report = run(
            tasks, runner=runner, store=store, budget=Budget(trials=6, seconds=30.0),
            on_event=events.append, clock=lambda: now, sleep=pass_time,
        )  # fmt: skip
    assert report.left == [key_of(runner, tasks[0].problem)]
    assert events[-1] == KeyLeft(report.left[0])
    assert [best.key.problem for best in report.bests] == [tasks[1].problem]
    report.raise_failures()


def test_a_key_whose_lease_was_lost_is_not_finished_beside_its_new_holder(
    make_runner, store, tasks, monkeypatch
):
    runner = make_runner()
    lost = key_of(runner, tasks[0].problem)
    rivals = []

    def lose_it():
        if len(runner.screened) == 10 and not rivals:  # in the second round
            store.release(next(iter(store.leases().values())).holder, [lost])
            rivals.append(Claims(store))
            assert rivals[0].take([lost])
            monkeypatch.setattr("tunekit.cache.claims._clock", lambda: 1e12)

    def rival_ends(seconds):
        monkeypatch.undo()
        assert lost not in {best.key for best in store.bests()}
        rivals[0].__exit__(None, None, None)

    runner.on_screen = lose_it
    report = run(tasks[:1], runner=runner, store=store, budget=Budget(trials=24), sleep=rival_ends)
    assert [best.trials for best in report.bests] == [24]
    assert report.trials_run == 24
    assert store.leases() == {}


def test_an_interrupted_run_gives_its_keys_back(make_runner, store, tasks):
    runner = make_runner()
    runner.interrupt_after = 5
    with pytest.raises(KeyboardInterrupt):
        run(tasks, runner=runner, store=store, budget=Budget(trials=20))
    assert store.leases() == {}


def test_a_tuned_key_is_not_waited_for(make_runner, store, tasks):
    run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=6))
    with Claims(store) as other:
        other.take([key_of(make_runner(), tasks[0].problem)])
        report = run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=6))
    assert report.skipped == 1
