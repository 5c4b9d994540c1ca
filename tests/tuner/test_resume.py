"""Interrupted runs: what was finished is kept, and the next run does only the rest."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.key import TuningKey
from tunekit.recording import Recording
from tunekit.search import Budget
from tunekit.trial import Origin
from tunekit.tuner import RunStarted, Task, TrialDone, run


def interrupted(runner, store, tasks, after, **settings):
    runner.interrupt_after = after
    with pytest.raises(KeyboardInterrupt):
        run(tasks, runner=runner, store=store, **settings)
    return runner.screened


def stored(store, runner, task):
    key = TuningKey.of(task.problem, runner.device.slug)
    return [trial.config for trial, _ in store.trials(key)]


def test_ctrl_c_keeps_what_is_finished_and_the_next_run_does_the_rest(
    make_runner, store, tasks, events
):
    budget = Budget(trials=20)
    first = interrupted(make_runner(), store, tasks, 13, budget=budget)
    assert stored(store, make_runner(), tasks[0]) == [c for _, c in first[:8]]
    assert stored(store, make_runner(), tasks[1]) == [c for _, c in first[8:]]
    assert not store.bests()
    second = make_runner()
    report = run(tasks, runner=second, store=store, budget=budget, on_event=events.append)
    assert report.trials_run == 40 - 13 == len(second.screened)
    assert not set(first) & set(second.screened)
    assert isinstance(events[0], RunStarted)
    assert events[0].resumed == 13
    assert events[1].done == 9
    assert sum(best.trials for best in report.bests) == 40


def test_what_had_ended_when_the_run_was_interrupted_is_kept_too(make_runner, store, tasks):
    runner = make_runner()
    runner.ended_unseen = 3
    seen = interrupted(runner, store, tasks, 9, budget=Budget(trials=20))
    kept = [config for task in tasks for config in stored(store, runner, task)]
    assert len(kept) == len(seen) + 3 == 12


def test_an_interrupt_in_the_finals_needs_no_more_screening(make_runner, store, tasks):
    runner = make_runner()

    def stop(problem, configs):
        raise KeyboardInterrupt

    runner.finals = stop
    with pytest.raises(KeyboardInterrupt):
        run(tasks[:1], runner=runner, store=store, budget=Budget(trials=10))
    again = make_runner()
    report = run(tasks[:1], runner=again, store=store, budget=Budget(trials=10))
    assert not again.screened
    assert len(report.bests) == 1


def test_more_trials_go_on_from_the_old_ones(make_runner, store, tasks):
    first = make_runner()
    run(tasks[:1], runner=first, store=store, budget=Budget(trials=10))
    second = make_runner()
    report = run(tasks[:1], runner=second, store=store, budget=Budget(trials=15))
    assert len(second.screened) == 5
    assert not set(first.screened) & set(second.screened)
    assert report.bests[0].trials == 15


@pytest.mark.parametrize(
    "change",
    [
        lambda runner: runner.sources.update(pointer="source-2"),
        lambda runner: setattr(runner, "compiler", "compiler-2"),
        lambda runner: setattr(runner, "origin", Origin.REPLAYED),
    ],
    ids=["source", "compiler", "origin"],
)
def test_trials_of_another_environment_do_not_count(make_runner, store, tasks, change):
    interrupted(make_runner(), store, tasks[:1], 6, budget=Budget(trials=10))
    other = make_runner()
    change(other)
    report = run(tasks[:1], runner=other, store=store, budget=Budget(trials=10))
    assert report.trials_run == 10


def test_a_changed_kernel_is_tuned_again_and_its_row_replaced(make_runner, store, tasks):
    run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=36))
    changed = make_runner(time_us=lambda problem, config: 300.0)
    changed.sources["pointer"] = "source-2"
    report = run(tasks[:1], runner=changed, store=store, budget=Budget(trials=36))
    assert report.trials_run == 36
    assert [b.provenance.fingerprint.source for b in store.bests()] == ["source-2"]


def test_stored_trials_of_configs_no_longer_legal_are_left_out(make_runner, store, tasks):
    runner = make_runner()
    gone = Config("pointer", 256, 256, 32)
    space = runner.space

    def wider(problem):
        found = space(problem)
        return type(found)(problem, runner.device, (gone, *found.configs[:3]))

    runner.space = wider
    run(tasks[:1], runner=runner, store=store, budget=Budget(trials=4))
    again = make_runner()
    report = run(tasks[:1], runner=again, store=store, budget=Budget(trials=36))
    assert report.trials_run == 33
    assert report.bests[0].trials == 36


CHILD = """
import os, signal, sys
from tunekit.cache import Store
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner
from tunekit.search import Budget
from tunekit.tuner import Task, TrialDone, run

cache, file = sys.argv[1:]
recording = Recording.load(file)
done = 0

def kill_at_the_ninth(event):
    global done
    if isinstance(event, TrialDone):
        done += 1
        print(event.trial.config, flush=True)
        if done == 9:
            os.kill(os.getpid(), signal.SIGKILL)

with Store.open(cache) as store:
    tasks = [Task(problem) for problem in recording.problems]
    run(tasks, runner=ReplayRunner(recording), store=store, budget=Budget(trials=20),
        on_event=kill_at_the_ninth)
"""


def test_a_killed_process_keeps_every_finished_trial(make_runner, tasks, tmp_path):
    runner = make_runner()
    problem = tasks[0].problem
    recording = Recording(runner.device)
    configs = runner.space(problem).configs
    recording.admit(configs[0], runner.provenance(problem, configs[0]))
    screening = [trial for _, trial in runner.screen([(problem, c) for c in configs])]
    recording.put(problem, screening, space_size=len(configs))
    recording.save(tmp_path / "r.json.gz")
    cache = tmp_path / "killed.db"
    command = [sys.executable, "-c", CHILD, str(cache), str(tmp_path / "r.json.gz")]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    with Store.open(cache) as store:
        kept = stored(store, runner, Task(problem))
    assert [str(config) for config in kept] == child.stdout.splitlines()
    assert len(kept) == 9


def test_an_interrupt_leaves_finished_keys_in_the_recording(make_runner, store, tasks, tmp_path):
    file = tmp_path / "sweep.json.gz"
    budget = Budget(trials=8)
    run(tasks[:1], runner=make_runner(), store=store, budget=budget, record=file)
    runner = make_runner()
    interrupted(runner, store, tasks, 5, budget=budget, record=file)
    kept = Recording.load(file)
    assert list(kept.problems) == [tasks[0].problem]
    assert len(kept.problems[tasks[0].problem].screening) == 8
    assert len(kept.problems[tasks[0].problem].finals) >= 5
    run(tasks, runner=make_runner(), store=store, budget=budget, record=file)
    whole = Recording.load(file)
    assert {len(p.screening) for p in whole.problems.values()} == {8}
    assert len(whole.problems) == 2


def test_trial_events_are_told_after_the_trial_is_stored(make_runner, store, tasks):
    runner = make_runner()

    def check(event):
        if isinstance(event, TrialDone):
            assert event.trial.config in stored(store, runner, tasks[0])

    run(tasks[:1], runner=runner, store=store, budget=Budget(trials=5), on_event=check)
