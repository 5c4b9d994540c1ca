"""Runs: what is tried, chosen, stored and told."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from tunekit.errors import ConfigError, ProblemError, TuneError
from tunekit.key import Problem, TuningKey
from tunekit.search import Budget
from tunekit.trial import Choice, Origin, Status
from tunekit.tuner import KeyDone, KeyFailed, KeySkipped, RunStarted, Task, TrialDone, run


def test_a_run_stores_a_best_and_every_trial(make_runner, store, tasks):
    runner = make_runner()
    report = run(tasks, runner=runner, store=store, budget=Budget(trials=12))
    assert [best.key.problem for best in report.bests] == [task.problem for task in tasks]
    assert report.trials_run == 24
    assert report.counts == {Status.OK: 24}
    assert not report.failed
    assert not report.skipped
    for best, task in zip(report.bests, tasks, strict=True):
        assert store.best(best.key) == [best]
        assert best.trials == len(store.trials(best.key)) >= 6
        assert best.space_size == 36
        assert best.count == task.count
        assert best.measurement.final
        assert best.vendor.final
    assert len(set(runner.screened)) == 24


def test_an_exhaustive_run_finds_the_best(make_runner, store, tasks):
    runner = make_runner()
    report = run(tasks[:1], runner=runner, store=store, sampler="exhaustive", budget=Budget())
    (best,) = report.bests
    assert report.trials_run == 36
    assert (best.config.block_m, best.config.block_n) == (128, 128)
    assert best.choice is Choice.TRITON or best.measurement.high_us >= best.vendor.low_us


def test_an_exhaustive_run_can_be_capped(make_runner, store, tasks):
    budget = Budget(trials=9)
    report = run(tasks[:1], runner=make_runner(), store=store, sampler="exhaustive", budget=budget)
    assert report.trials_run == 9


def test_a_budget_above_the_space_sweeps_it(make_runner, store, tasks):
    report = run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=500))
    assert report.trials_run == 36
    assert report.bests[0].trials == 36


def test_events_come_in_order(make_runner, store, tasks, events):
    run(tasks, runner=make_runner(), store=store, budget=Budget(trials=9), on_event=events.append)
    assert events[0] == RunStarted(2, make_runner.device, Origin.MEASURED, 0)
    trials = [event for event in events if isinstance(event, TrialDone)]
    keys = [event.key if isinstance(event, TrialDone) else event.best.key for event in events[1:]]
    ends = [place for place, event in enumerate(events[1:]) if isinstance(event, KeyDone)]
    assert len(trials) + len(ends) + 1 == len(events)
    # a key ends with its own last trial, while others are still measured
    assert ends == [max(i for i, k in enumerate(keys) if k == keys[end]) for end in ends]
    assert ends[0] < len(keys) - 1
    first = [event for event in trials if event.key.problem == tasks[0].problem]
    assert [event.done for event in first] == list(range(1, len(first) + 1))
    assert first[0].total == 9
    assert first[-1].total == len(first)
    assert {event.vendor_us for event in first} == {11.0}
    lows = [event.best_us for event in first]
    assert lows == sorted(lows, reverse=True)
    assert math.isclose(lows[-1], min(e.trial.measurement.median_us for e in first))


def test_keys_take_turns_and_are_announced_a_round_ahead(make_runner, store, tasks):
    runner = make_runner()
    ahead = []
    runner.on_screen = lambda: ahead.append(sum(map(len, runner.announced)))
    run(tasks, runner=runner, store=store, budget=Budget(trials=32))
    assert [len(work) for work in runner.announced][:4] == [8, 8, 8, 8]
    assert [pair for work in runner.announced for pair in work] == runner.screened
    order = [task.problem for task in tasks] * 2
    assert [work[0][0] for work in runner.announced][:4] == order
    assert ahead[:8] == [16] * 8
    assert ahead[16:24] == [32] * 8


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_in_which_configs_get_ready_changes_no_proposal(make_runner, store, tasks, seed):
    proposed = []
    for shuffled in (False, True):
        runner = make_runner()
        if shuffled:
            mixed = random.Random(seed)
            runner.screen = lambda work, r=runner, mixed=mixed: type(r).screen(
                r, mixed.sample(work, len(work))
            )
        run(tasks, runner=runner, store=store, retune=True, budget=Budget(trials=24))
        proposed.append({frozenset(work) for work in runner.announced})
    assert proposed[0] == proposed[1]


def test_the_same_problem_twice_is_one_key(make_runner, store, tasks):
    again = [*tasks, Task(tasks[0].problem, 4)]
    report = run(again, runner=make_runner(), store=store, budget=Budget(trials=4))
    assert [best.count for best in report.bests] == [7, 1]
    assert report.trials_run == 8


def test_same_seed_same_trials(make_runner, store, tasks):
    runs = []
    for seed in (5, 5, 6):
        runner = make_runner()
        run(tasks, runner=runner, store=store, seed=seed, retune=True, budget=Budget(trials=20))
        runs.append(runner.screened)
    assert runs[0] == runs[1] != runs[2]


def test_nothing_is_written_if_a_problem_cannot_be_tried(make_runner, store, tasks, events):
    bad = Task(Problem("other", 8, 8, 8, "float16"))
    with pytest.raises(ProblemError, match="cannot be tried"):
        run([*tasks, bad], runner=make_runner(), store=store, on_event=events.append)
    assert not events
    assert not store.devices()


def test_no_problem_is_an_error(make_runner, store):
    with pytest.raises(TuneError, match="no problem"):
        run([], runner=make_runner(), store=store)


def test_an_unknown_sampler_is_refused(make_runner, store, tasks):
    with pytest.raises(ValueError, match="use one of transfer, tpe"):
        run(tasks, runner=make_runner(), store=store, sampler="luck")


def test_a_key_whose_configs_all_fail_has_no_row(make_runner, store, tasks, events):
    runner = make_runner(broken=lambda c: "boom" if c.block_m > 32 else f"odd {c.num_stages}")
    report = run(
        tasks, runner=runner, store=store, sampler="exhaustive", budget=Budget(),
        on_event=events.append,
    )  # fmt: skip
    key = TuningKey.of(tasks[0].problem, runner.device.slug)
    assert report.failed[0] == KeyFailed(key, "launch-error: boom (24 of 36)", 36)
    assert len(report.failed) == 2
    assert not report.bests
    assert not store.bests()
    assert report.counts == {Status.LAUNCH_ERROR: 72}
    assert [event for event in events if isinstance(event, KeyFailed)] == report.failed
    assert len(store.trials(key)) == 36
    with pytest.raises(TuneError, match=r"512x512x512.*1 more keys: launch-error: boom"):
        report.raise_failures()


def test_failing_configs_do_not_keep_the_rest_from_winning(make_runner, store, tasks):
    runner = make_runner(broken=lambda c: "boom" if c.block_m == 128 else None)
    report = run(tasks, runner=runner, store=store, sampler="exhaustive", budget=Budget())
    assert [best.config.block_m for best in report.bests] == [64, 64]
    assert report.counts == {Status.OK: 48, Status.LAUNCH_ERROR: 24}
    report.raise_failures()


def test_a_time_that_is_not_a_number_never_wins(make_runner, store, tasks):
    def time_us(problem, config):
        return math.nan if config.block_m == 128 else math.inf if config.block_n == 128 else 9.0

    runner = make_runner(time_us=time_us)
    report = run(tasks[:1], runner=runner, store=store, sampler="exhaustive", budget=Budget())
    assert report.bests[0].measurement.median_us == 9.0
    assert report.counts == {Status.OK: 16, Status.LAUNCH_ERROR: 20}


def test_times_that_are_all_infinite_give_no_row(make_runner, store, tasks):
    runner = make_runner(time_us=lambda problem, config: math.inf)
    report = run(tasks[:1], runner=runner, store=store, sampler="exhaustive", budget=Budget())
    assert not store.bests()
    assert "a time of inf us was measured (36 of 36)" in report.failed[0].reason


def test_a_vendor_without_a_time_is_no_vendor(make_runner, store, tasks):
    runner = make_runner(vendor_us=math.nan)
    (best,) = run(tasks[:1], runner=runner, store=store, budget=Budget(trials=6)).bests
    assert best.vendor is None
    assert best.choice is Choice.TRITON


def test_patience_ends_a_key(make_runner, store, tasks):
    runner = make_runner(time_us=lambda problem, config: 10.0)
    report = run(tasks[:1], runner=runner, store=store, budget=Budget(trials=30, patience=10))
    assert report.trials_run == 16  # the first is the only gain; patience ends whole rounds


def test_seconds_end_a_run_but_every_key_has_a_result(make_runner, store, tasks):
    now = [0.0]
    runner = make_runner()
    runner.on_screen = lambda: now.__setitem__(0, now[0] + 1.0)
    budget = Budget(trials=30, seconds=5.0)
    report = run(tasks, runner=runner, store=store, budget=budget, clock=lambda: now[0])
    assert [best.trials for best in report.bests] == [5, 1]
    assert report.seconds == 6.0


def test_out_of_time_a_key_is_tried_until_a_config_works(make_runner, store, tasks):
    now = [0.0]
    runner = make_runner(broken=lambda c: "boom" if len(runner.screened) % 8 < 6 else None)
    runner.on_screen = lambda: now.__setitem__(0, now[0] + 300.0)
    budget = Budget(seconds=1.0)
    report = run(tasks[:1], runner=runner, store=store, budget=budget, clock=lambda: now[0])
    assert report.counts == {Status.LAUNCH_ERROR: 5, Status.OK: 1}
    assert report.bests[0].trials == 6


def test_seconds_cut_a_later_round_short(make_runner, store, tasks):
    now = [0.0]
    runner = make_runner()
    runner.on_screen = lambda: now.__setitem__(0, now[0] + 1.0)
    budget = Budget(trials=30, seconds=18.5)
    report = run(tasks, runner=runner, store=store, budget=budget, clock=lambda: now[0])
    assert report.trials_run == 19


def test_a_tuned_key_is_skipped(make_runner, store, tasks, events):
    first = run(tasks, runner=make_runner(), store=store, budget=Budget(trials=10))
    runner = make_runner()
    again = run(tasks, runner=runner, store=store, budget=Budget(trials=10), on_event=events.append)
    assert not runner.screened
    assert not runner.finalists
    assert again.bests == first.bests
    assert again.skipped == 2
    assert again.trials_run == 0
    assert events[1:] == [KeySkipped(best) for best in first.bests]


def test_retune_tries_again_and_replaces(make_runner, store, tasks):
    run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=36))
    slower = make_runner(time_us=lambda p, c: 200.0 + c.block_m)
    report = run(tasks[:1], runner=slower, store=store, budget=Budget(trials=36), retune=True)
    assert report.trials_run == 36
    assert report.bests == store.bests()
    assert report.bests[0].measurement.median_us == 232.0


def test_a_row_of_a_variant_there_is_not_is_replaced(make_runner, store, tasks):
    """As in a cache that a newer tunekit has written to: it ends no run, nor does it stay."""

    class Knowing(make_runner):
        def provenance(self, problem, config):
            if config.variant not in self.sources:
                raise ConfigError(f"unknown variant {config.variant!r}")
            return super().provenance(problem, config)

    run(tasks, runner=Knowing(), store=store, budget=Budget(trials=6))
    best = store.best(TuningKey.of(tasks[0].problem, Knowing.device.slug))[0]
    newer = replace(best, config=replace(best.config, variant="newer"))
    assert store.put_best(newer, stale=lambda old: True)
    report = run(tasks, runner=Knowing(), store=store, budget=Budget(trials=12))
    assert {one.config.variant for one in report.bests} == {"pointer"}
    assert report.bests == sorted(store.bests(), key=lambda one: report.bests.index(one))


def test_a_slower_result_leaves_the_stored_row(make_runner, store, tasks, events):
    first = run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=12))
    slower = make_runner(time_us=lambda p, c: 200.0 + c.block_m)
    report = run(
        tasks[:1], runner=slower, store=store, budget=Budget(trials=36), on_event=events.append
    )
    assert report.bests == store.bests()
    (stays,) = report.bests
    assert stays.trials == 36  # though nothing faster was found
    assert replace(stays, trials=12, distance=first.bests[0].distance) == first.bests[0]
    assert not events[-1].stored
    assert events[-1].best.measurement.median_us > 200


def test_replayed_results_do_not_replace_measured_ones(make_runner, store, tasks):
    measured = run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=6))
    replayed = make_runner(time_us=lambda p, c: 1.0, origin=Origin.REPLAYED)
    report = run(tasks[:1], runner=replayed, store=store, retune=True, budget=Budget(trials=6))
    assert report.bests == store.bests() == measured.bests


def test_a_measured_run_does_not_rest_on_replayed_rows(make_runner, store, tasks):
    replayed = make_runner(origin=Origin.REPLAYED)
    run(tasks[:1], runner=replayed, store=store, budget=Budget(trials=6))
    report = run(tasks[:1], runner=make_runner(), store=store, budget=Budget(trials=6))
    assert report.trials_run == 6
    assert not report.skipped
    assert report.bests[0].provenance.origin is Origin.MEASURED


@pytest.mark.parametrize("sampler", ["transfer", "tpe", "random"])
def test_times_without_end_make_no_row(make_runner, store, tasks, sampler):
    runner = make_runner(time_us=lambda problem, config: math.inf)
    report = run(tasks[:1], runner=runner, store=store, sampler=sampler, budget=Budget(trials=16))
    assert store.bests() == report.bests == []
    assert len(report.failed) == 1
