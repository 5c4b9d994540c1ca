"""`tunekit.tune` and the names of devices."""

from __future__ import annotations

import pytest

import tunekit
from tunekit.cache import Store
from tunekit.errors import ProblemError, RecordingError, ShapesError, TuneError
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.tuner import Task, api


@pytest.fixture
def file(make_runner, tasks, tmp_path):
    runner = make_runner()
    recording = Recording(runner.device)
    for task in tasks:
        configs = runner.space(task.problem).configs
        recording.admit(configs[0], runner.provenance(task.problem, configs[0]))
        screening = [t for _, t in runner.screen([(task.problem, c) for c in configs])]
        recording.put(task.problem, screening, space_size=len(configs))
    path = tmp_path / "made-up.json.gz"
    recording.save(path)
    return path


def test_tune_takes_a_shapes_file_and_problems(file, tasks, tmp_path, own_cache):
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text("shapes:\n  - {m: 512, n: 512, k: 512, count: 2}\n")
    device = f"replay:{file}"
    report = tunekit.tune(shapes, device=device, trials=6)
    assert report.bests[0].count == 2
    assert report.trials_run == 6
    with Store.open(own_cache) as store:
        assert store.bests() == report.bests
    mixed = [(512, 512, 512), tasks[1].problem, Task(tasks[1].problem, 4)]
    cache = tmp_path / "other.db"
    report = tunekit.tune(mixed, device=device, cache=cache, sampler="random", trials=4, seed=2)
    assert [best.count for best in report.bests] == [1, 5]
    assert report.trials_run == 8


def test_a_problem_not_recorded_leaves_no_cache(file, own_cache):
    with pytest.raises(RecordingError, match="is not in the recording"):
        tunekit.tune([(512, 512, 512), (3, 3, 3)], device=f"replay:{file}")
    assert not own_cache.exists()


def test_a_malformed_problem_is_an_error(file):
    with pytest.raises(ShapesError, match="is not of the form"):
        tunekit.tune([(512, 512)], device=f"replay:{file}")


def test_a_key_without_a_result_raises_after_the_rest_is_stored(
    make_runner, tasks, monkeypatch, tmp_path
):
    runner = make_runner()
    other = Problem("matmul", 64, 64, 64, "bfloat16")
    screen = runner.screen

    def some(work):
        for problem, config in work:
            runner.broken = (lambda c: "boom") if problem == other else (lambda c: None)
            yield from screen([(problem, config)])

    runner.screen = some
    monkeypatch.setattr(api, "open_runner", lambda device, seed: runner)
    with pytest.raises(TuneError, match="no config works for 64x64x64"):
        tunekit.tune([other, tasks[0]], cache=tmp_path / "c.db", trials=6)
    assert runner.closed
    with Store.open(tmp_path / "c.db") as store:
        assert [best.key.problem for best in store.bests()] == [tasks[0].problem]


def test_what_is_replayed_cannot_be_recorded(file, tmp_path):
    with pytest.raises(RecordingError, match="only what is measured can be recorded"):
        tunekit.tune([(512, 512, 512)], device=f"replay:{file}", record=tmp_path / "x.json.gz")
    assert not (tmp_path / "x.json.gz").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trials": "3"}, "trials must be a whole number above 0, not '3'"),
        ({"trials": 1.5}, "trials must be"),
        ({"trials": 0}, "trials must be"),
        ({"trials": True}, "trials must be"),
        ({"seconds": "1"}, "seconds must be"),
        ({"seconds": float("nan")}, "seconds must be"),
        ({"seed": -1}, "seed must be"),
        ({"seed": None}, "seed must be"),
        ({"sampler": "simplex"}, "unknown sampler 'simplex'"),
    ],
)
def test_a_setting_that_cannot_be_is_named(file, own_cache, settings, words):
    with pytest.raises(ProblemError, match=words):
        tunekit.tune([(512, 512, 512)], device=f"replay:{file}", **settings)
    assert not own_cache.exists()


@pytest.mark.parametrize("shapes", [None, 5, (512, 512, 512), [None], [b"1,2,3"], [{512, 256}]])
def test_shapes_that_are_none_are_named(file, own_cache, shapes):
    with pytest.raises(ShapesError, match=r"a list of problems, each \(m, n, k\)"):
        tunekit.tune(shapes, device=f"replay:{file}")
    assert not own_cache.exists()


def test_a_problem_may_be_text_as_on_the_command_line(file):
    report = tunekit.tune(["512,512,512"], device=f"replay:{file}", trials=2)
    assert report.bests[0].key.m == 512
    with pytest.raises(ShapesError, match="m must be"):
        tunekit.tune(["0,512,512"], device=f"replay:{file}")
