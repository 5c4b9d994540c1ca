"""`--stale`: after an upgrade the stored few are verified again, and nothing is searched."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="a kernel module says what is legal, and needs torch")

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.errors import ConfigError, ProblemError, TuneError
from tunekit.key import Problem
from tunekit.search import Budget
from tunekit.space import Violation
from tunekit.trial import Origin
from tunekit.tuner import (
    KeyDone,
    KeyFailed,
    RunStarted,
    StaleFound,
    Task,
    TrialDone,
    run,
    stale,
    tune,
    verify_again,
)

TRIALS = 20


def upgraded(make_runner, **change):
    """Return a runner after an upgrade of the compiler or of what `change` names."""
    versions = {name: change.pop(name) for name in ("torch", "driver") if name in change}
    runner = make_runner(**change)
    if not versions:
        runner.compiler = "compiler-2"
    made = runner.provenance
    runner.provenance = lambda problem, config: replace(made(problem, config), **versions)
    return runner


@pytest.fixture
def tuned(make_runner, store, tasks):
    """The bests of two keys, tuned before the upgrade."""
    run(tasks, runner=make_runner(), store=store, budget=Budget(trials=TRIALS))
    return {best.key: best for best in store.bests()}


def fastest(store, key, count):
    trials = [trial for trial, _ in store.trials(key)]
    trials.sort(key=lambda trial: (trial.measurement.median_us, trial.config))
    return {trial.config for trial in trials[:count]}


def test_only_the_best_few_of_each_key_are_tried_again(make_runner, store, tuned, events):
    wanted = {key: fastest(store, key, 5) | {best.config} for key, best in tuned.items()}
    runner = upgraded(make_runner)
    report = verify_again(runner=runner, store=store, on_event=events.append)
    for key, configs in wanted.items():
        assert {c for p, c in runner.screened if p == key.problem} == configs
    assert all(set(f) in wanted.values() for f in runner.finalists)
    assert [b.provenance.fingerprint.compiler for b in report.bests] == ["compiler-2"] * 2
    assert {b.key for b in report.bests} == set(tuned)
    rows = store.bests()
    assert len(rows) == 4
    assert [b for b in rows if b.provenance.fingerprint.compiler == "compiler-1"] == [
        tuned[key] for key in sorted(tuned)
    ]
    assert {b.count for b in report.bests} == {b.count for b in tuned.values()} == {1, 3}


def test_the_cost_is_told_before_anything_is_tried(make_runner, store, tuned, events):
    runner = upgraded(make_runner)
    verify_again(runner=runner, store=store, on_event=events.append)
    first = events[0]
    assert isinstance(first, StaleFound)
    assert (first.stale, first.current, first.configs) == (2, 0, len(runner.screened))
    assert first.reasons == {"compiler 1 -> 2": 2}
    assert isinstance(events[1], RunStarted)
    assert events[1].keys == 2
    assert sum(isinstance(event, TrialDone) for event in events) == first.configs


def test_a_second_run_finds_nothing_stale_and_tries_nothing(make_runner, store, tuned, events):
    verify_again(runner=upgraded(make_runner), store=store)
    runner = upgraded(make_runner)
    report = verify_again(runner=runner, store=store, on_event=events.append)
    assert (runner.screened, runner.finalists) == ([], [])
    assert (events[0].stale, events[0].current) == (0, 2)
    assert report.skipped == 2
    assert report.trials_run == 0
    assert {best.key for best in report.bests} == set(tuned)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"torch": "2.13"}, "torch 2 -> 2.13"), ({"driver": "580.1"}, "driver d -> 580.1")],
)
def test_another_torch_or_driver_corrects_the_row_even_if_it_is_slower(
    change, reason, make_runner, store, tuned, events
):
    slower = upgraded(make_runner, time_us=lambda problem, config: 50.0, **change)
    report = verify_again(runner=slower, store=store, on_event=events.append)
    assert events[0].reasons == {reason: 2}
    rows = store.bests()
    assert rows == sorted(report.bests, key=lambda best: best.key)
    assert [best.measurement.median_us for best in rows] == [50.0, 50.0]


def test_a_version_that_cannot_be_found_out_makes_nothing_stale(make_runner, store, tuned, events):
    runner = upgraded(make_runner, driver="unknown")
    verify_again(runner=runner, store=store, on_event=events.append)
    assert (events[0].stale, runner.finalists) == (0, [])


def test_a_row_that_was_never_verified_is_stale(make_runner, store, tuned, events):
    best = next(iter(tuned.values()))
    doubtful = replace(best, measurement=replace(best.measurement, error_ratio=None))
    store.put_best(doubtful, force=True)
    verify_again(runner=make_runner(), store=store, on_event=events.append)
    assert events[0].reasons == {"its result was never verified": 1}
    assert store.best(best.key) == [replace(best, trials=5, distance=None)]


def test_a_changed_kernel_is_verified_again_and_replaces_its_row(make_runner, store, tuned, events):
    runner = make_runner(time_us=lambda problem, config: 300.0)
    runner.sources["pointer"] = "source-2"
    verify_again(runner=runner, store=store, on_event=events.append)
    assert events[0].reasons == {"kernel pointer source-1 -> source-2": 2}
    assert {b.provenance.fingerprint.source for b in store.bests()} == {"source-2"}


def test_the_winner_may_be_another_of_the_few(make_runner, store, tuned):
    def reversed_landscape(problem, config):
        return 10.0 if config not in {best.config for best in tuned.values()} else 20.0

    report = verify_again(runner=upgraded(make_runner, time_us=reversed_landscape), store=store)
    assert all(best.config != tuned[best.key].config for best in report.bests)
    assert all(best.measurement.median_us == 10.0 for best in report.bests)


def test_shapes_limit_it_and_one_without_a_row_is_told_with_its_command(
    make_runner, store, tuned, tasks, events
):
    untuned = Task(Problem("matmul", 7, 8, 16, "float16"))
    runner = upgraded(make_runner)
    report = verify_again(
        runner=runner, store=store, tasks=[tasks[1], untuned], on_event=events.append
    )
    assert {problem for problem, _ in runner.screened} == {tasks[1].problem}
    (failed,) = report.failed
    assert failed.key.m == 7
    assert failed.cure.startswith("to tune it: tunekit tune --shape 7,8,16,float16,nt --cache ")
    with pytest.raises(TuneError, match="no row of it to verify again; to tune it: tunekit tune"):
        report.raise_failures()


def test_a_key_none_of_whose_configs_runs_any_more_says_how_to_tune_it(
    make_runner, store, tuned, tasks, events
):
    runner = upgraded(make_runner, broken=lambda config: "no such instruction")
    report = verify_again(runner=runner, store=store, tasks=tasks[:1], on_event=events.append)
    (failed,) = [event for event in events if isinstance(event, KeyFailed)]
    assert (
        "none of its stored configs runs here: launch-error: no such instruction" in failed.reason
    )
    assert failed.cure == (
        f"to tune it: tunekit tune --shape 512,512,512,bfloat16,nt --cache {store.location}"
    )
    assert report.bests == []
    assert store.bests() == sorted(tuned.values(), key=lambda best: best.key)


def test_what_is_no_longer_legal_is_not_even_tried(make_runner, store, tuned, tasks, monkeypatch):
    runner = upgraded(make_runner)
    gone = tuned[next(iter(tuned))].config
    space = runner.space
    runner.space = lambda problem: replace(
        space(problem), configs=tuple(c for c in space(problem).configs if c != gone)
    )

    class Strict:
        def violation(self, config, problem, device):
            return Violation("changed", "") if config == gone else None

    monkeypatch.setattr(stale, "family", lambda name: Strict())
    report = verify_again(runner=runner, store=store)
    assert gone not in {config for _, config in runner.screened}
    assert len(report.bests) == 2


def test_a_key_with_nothing_legal_left_is_told_and_stops_no_other(
    make_runner, store, tuned, tasks, monkeypatch
):
    runner = upgraded(make_runner)
    space = runner.space

    def shrunk(problem):
        if problem == tasks[0].problem:
            return replace(space(problem), configs=(Config("pointer", 16, 16, 16),))
        return space(problem)

    class Strict:
        def violation(self, config, problem, device):
            return Violation("changed", "")

    runner.space = shrunk
    monkeypatch.setattr(stale, "family", lambda name: Strict())
    report = verify_again(runner=runner, store=store)
    assert [failed.reason for failed in report.failed] == [
        "none of its stored configs is legal here"
    ]
    assert [best.key.problem for best in report.bests] == [tasks[1].problem]


def test_a_variant_or_problem_that_is_gone_stops_no_other_key(make_runner, store, tuned, tasks):
    runner = upgraded(make_runner)
    space = runner.space

    def refusing(problem):
        if problem == tasks[0].problem:
            raise ConfigError("such products are not supported")
        return space(problem)

    runner.space = refusing
    report = verify_again(runner=runner, store=store)
    assert [failed.reason for failed in report.failed] == ["such products are not supported"]
    assert len(report.bests) == 1


def test_an_interrupted_run_keeps_the_keys_it_finished(make_runner, store, tuned, events):
    runner = upgraded(make_runner)
    finals = runner.finals

    def stop_at_the_second(problem, configs):
        if runner.finalists:
            raise KeyboardInterrupt
        return finals(problem, configs)

    runner.finals = stop_at_the_second
    with pytest.raises(KeyboardInterrupt):
        verify_again(runner=runner, store=store)
    assert len(store.bests()) == 3
    rest = upgraded(make_runner)
    verify_again(runner=rest, store=store, on_event=events.append)
    assert (events[0].stale, events[0].current) == (1, 1)
    assert len({problem for problem, _ in rest.screened}) == 1
    assert len(rest.finalists) == 1
    assert len(store.bests()) == 4


def test_seconds_end_it_after_a_whole_key(make_runner, store, tuned):
    ticks = iter(range(0, 10_000, 100))
    runner = upgraded(make_runner)
    report = verify_again(runner=runner, store=store, seconds=1.0, clock=lambda: next(ticks))
    assert len(report.bests) == 1
    assert len(store.bests()) == 3


def test_a_replay_writes_rows_of_its_own_and_replaces_none_that_was_measured(
    make_runner, store, tuned, events
):
    replay = upgraded(make_runner, origin=Origin.REPLAYED, driver="580.1")
    report = verify_again(runner=replay, store=store, on_event=events.append)
    assert [event.stored for event in events if isinstance(event, KeyDone)] == [False, False]
    assert {best.provenance.origin for best in report.bests} == {Origin.MEASURED}
    other = upgraded(make_runner, origin=Origin.REPLAYED)
    report = verify_again(runner=other, store=store)
    assert {best.provenance.origin for best in report.bests} == {Origin.REPLAYED}
    assert len(store.bests()) == 4


@pytest.mark.parametrize("other", [{"retune": True}, {"record": "r.json.gz"}, {"trials": 5}])
def test_it_excludes_what_searches(other, tmp_path):
    with pytest.raises(ProblemError, match="excludes"):
        tune(stale=True, cache=tmp_path / "c.db", device="replay", **other)
    assert not (tmp_path / "c.db").exists()


def test_an_empty_cache_of_this_gpu_has_nothing_stale(make_runner, tmp_path, events):
    with Store.open(tmp_path / "empty.db") as store:
        report = verify_again(runner=make_runner(), store=store, on_event=events.append)
    assert (events[0].stale, events[0].current) == (0, 0)
    assert report.bests == []
