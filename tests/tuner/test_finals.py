"""The finals: who takes part, who wins, and against whom."""

from __future__ import annotations

from tunekit.ranking import cost
from tunekit.search import Budget
from tunekit.trial import Choice
from tunekit.tuner import run

SWEEP = {"sampler": "exhaustive", "budget": Budget()}


def by_screening(runner, problem):
    times = [(runner.time_us(problem, config), config) for _, config in runner.screened]
    return [config for _, config in sorted(times)]


def test_the_five_fastest_take_part(make_runner, store, tasks):
    runner = make_runner()
    run(tasks[:1], runner=runner, store=store, **SWEEP)
    assert runner.finalists == [by_screening(runner, tasks[0].problem)[:5]]


def test_only_final_times_compete(make_runner, store, tasks):
    runner = make_runner()
    calls = iter([50.0, 60.0, 40.0, 70.0, 80.0])
    runner.final_us = lambda problem, config: next(calls)
    report = run(tasks[:1], runner=runner, store=store, **SWEEP)
    third = by_screening(runner, tasks[0].problem)[2]
    assert report.bests[0].config == third
    assert report.bests[0].measurement.median_us == 40.0


def test_all_that_are_near_take_part(make_runner, store, tasks):
    runner = make_runner(time_us=lambda problem, config: 10.0 + config.num_warps / 100)
    run(tasks[:1], runner=runner, store=store, **SWEEP)
    assert [len(configs) for configs in runner.finalists] == [36]


def test_when_all_finalists_fail_the_next_ones_take_part(make_runner, store, tasks):
    runner = make_runner()
    run(tasks[:1], runner=runner, store=store, **SWEEP)
    order = by_screening(runner, tasks[0].problem)
    again = make_runner()
    again.broken_finals = lambda config: "not twice the same" if config in order[:5] else None
    report = run(tasks[:1], runner=again, store=store, retune=True, **SWEEP)
    first, second = again.finalists
    assert first == order[:5]
    assert second == order[5 : 5 + len(second)]
    assert len(second) >= 5
    assert report.bests[0].config in second


def test_when_they_fail_too_the_key_fails(make_runner, store, tasks):
    runner = make_runner()
    runner.broken_finals = lambda config: "not twice the same"
    report = run(tasks[:1], runner=runner, store=store, **SWEEP)
    assert len(runner.finalists) == 2
    assert not store.bests()
    count = sum(map(len, runner.finalists))
    assert report.failed[0].reason == f"launch-error: not twice the same ({count} of {count})"
    assert report.failed[0].count == count


def test_the_vendor_is_chosen_where_it_is_faster(make_runner, store, tasks):
    runner = make_runner(vendor_us=2.0)
    (best,) = run(tasks[:1], runner=runner, store=store, **SWEEP).bests
    assert best.choice is Choice.VENDOR
    assert best.vendor.median_us == 2.0
    assert best.measurement.median_us > 2.0
    assert best.ratio < 1


def test_triton_is_chosen_where_it_is_faster_or_alone(make_runner, store, tasks):
    slow = make_runner(vendor_us=100.0)
    assert run(tasks[:1], runner=slow, store=store, **SWEEP).bests[0].choice is Choice.TRITON
    alone = make_runner(vendor_us=None)
    (best,) = run(tasks[:1], runner=alone, store=store, retune=True, **SWEEP).bests
    assert best.choice is Choice.TRITON
    assert best.vendor is None
    assert best.ratio is None


def test_a_tie_goes_to_the_cheaper_config(make_runner, store, tasks):
    runner = make_runner(time_us=lambda problem, config: 10 - config.num_warps / 1000)
    (best,) = run(tasks[:1], runner=runner, store=store, **SWEEP).bests
    cheapest = min(runner.finalists[0], key=cost)
    assert best.config == cheapest


def test_finals_wait_while_there_is_something_to_try(make_runner, store, tasks):
    runner = make_runner()
    runner.idle, done = False, []
    screened, finals = runner.screen, runner.finals

    def screen(work):
        for problem, trial in screened(work):
            done.append("screen")
            yield problem, trial

    def measured(problem, configs):
        done.append("finals")
        return finals(problem, configs)

    runner.screen, runner.finals = screen, measured
    report = run(tasks, runner=runner, store=store)
    assert len(report.bests) == len(tasks) == done.count("finals")
    assert done == sorted(done, reverse=True)  # all that was to be tried came first
