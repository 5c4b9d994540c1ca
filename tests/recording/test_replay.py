"""Replay: answers come from the recording, and say so."""

from __future__ import annotations

import time

import pytest

from tunekit.cache import Store
from tunekit.errors import RecordingError
from tunekit.key import Problem
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.search import Budget
from tunekit.trial import Origin, Status
from tunekit.tuner import Task, open_runner, run


@pytest.fixture
def runner(recording):
    return ReplayRunner(recording)


def screened(runner, problem, configs):
    return [trial for _, trial in runner.screen([(problem, config) for config in configs])]


def test_the_space_is_what_was_recorded_failures_too(runner, problems, configs):
    space = runner.space(problems[0])
    assert set(space.configs) == set(configs)
    assert space.device == runner.device


def test_screening_gives_the_recorded_trials(runner, recording, problems, configs):
    found = screened(runner, problems[1], configs[::-1])
    assert found == [recording.problems[problems[1]].screening[c] for c in configs[::-1]]
    assert found[0].status is Status.COMPILE_ERROR


def test_finals_answer_for_those_that_were_recorded_in_them(runner, problems, configs):
    finals = runner.finals(problems[0], configs)
    assert [trial.config for trial in finals.trials] == configs[:2]
    assert finals.trials[0].measurement.median_us == 12.0
    assert finals.trials[0].measurement.final
    assert finals.trials[1].status is Status.NOT_REPEATABLE
    assert finals.vendor == runner.vendor(problems[0])
    assert finals.vendor.median_us == 11.0


def test_where_none_was_in_the_finals_all_answer_with_their_screening(
    runner, recording, problems, configs
):
    recording.problems[problems[0]].finals.clear()
    finals = runner.finals(problems[0], configs)
    assert [trial.config for trial in finals.trials] == configs
    assert [t.measurement.median_us for t in finals.trials[:2]] == [12.346, 9.5]
    assert all(t.measurement.final for t in finals.trials[:2])
    assert finals.trials[2].status is Status.COMPILE_ERROR


def test_a_recorded_final_failure_is_given(runner, problems, configs):
    (trial,) = runner.finals(problems[0], [configs[1]]).trials
    assert trial.status is Status.NOT_REPEATABLE


def test_a_problem_not_recorded_lists_those_that_were(runner, recording, problems):
    for size in (16, 32, 256, 512):
        other = Problem("matmul", size, 64, 64, "float16")
        recording.problems[other] = recording.problems[problems[0]]
    with pytest.raises(RecordingError) as raised:
        runner.space(Problem("matmul", 100, 128, 64, "float16"))
    text = str(raised.value)
    assert text.startswith("100x128x64 float16 nt is not in the recording made on Made-up GPU")
    assert "holds 128x128x64 float16 nt, " in text
    assert " and 2 more: tune one of those, or this with --device cuda" in text


def test_a_config_not_recorded_is_an_error(runner, recording, problems, configs):
    recording.problems[problems[0]].screening.pop(configs[0])
    with pytest.raises(RecordingError, match="was not recorded for"):
        screened(runner, problems[0], configs)


def test_kernels_that_changed_are_named(recording):
    def as_recorded(family, variant):
        return f"source-of-{variant}"

    assert ReplayRunner(recording, source=as_recorded).stale == ()
    assert ReplayRunner(recording, source=lambda f, v: None).stale == ("pointer", "tma")
    changed = {"pointer": "new", "tma": "source-of-tma"}
    assert ReplayRunner(recording, source=lambda f, v: changed[v]).stale == ("pointer",)


def test_nothing_waits(runner, problems, configs, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("replay slept"))
    runner.announce([(problems[0], configs[0])])
    screened(runner, problems[0], configs)
    runner.close()


def test_rows_of_a_replayed_run_say_where_they_come_from(recording, problems, tmp_path):
    recording.save(tmp_path / "r.json.gz")
    runner = open_runner(f"replay:{tmp_path / 'r.json.gz'}")
    with Store.open(tmp_path / "cache.db") as store:
        tasks = [Task(problem) for problem in problems]
        report = run(tasks, runner=runner, store=store, budget=Budget(trials=80))
        assert store.bests() == sorted(report.bests, key=lambda best: best.key)
    for best in report.bests:
        assert best.provenance.origin is Origin.REPLAYED
        assert best.provenance.device_name == "Made-up GPU"
        assert best.key.gpu == "made-up-gpu-sm90-10"
        assert best.space_size == best.trials == 3
        assert best.measurement.median_us == 12.0
        assert best.vendor.median_us == 11.0


def test_every_shipped_recording_can_be_replayed():
    for path in shipped_recordings():
        runner = open_runner(f"replay:{path}")
        assert runner.origin is Origin.REPLAYED
