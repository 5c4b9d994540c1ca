"""The distance from the best that a row states, from the search to `show`."""

from __future__ import annotations

import pytest

from tunekit.search import Budget
from tunekit.trial import Distance
from tunekit.tuner import run, verify_again


def tune(runner, store, tasks, trials=12, **settings):
    return run(tasks, runner=runner, store=store, budget=Budget(trials=trials), **settings).bests


def test_a_row_keeps_what_the_search_said_of_its_distance(make_runner, store, tasks):
    bests = tune(make_runner(), store, tasks[:1])
    stated = bests[0].distance
    assert 0 <= stated.expected <= stated.bound < 0.5
    assert [best.distance for best in store.bests()] == [stated]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_without_a_model_states_none(make_runner, store, tasks, sampler):
    (best,) = tune(make_runner(), store, tasks[:1], sampler=sampler)
    assert best.distance is None


def test_a_whole_space_leaves_no_distance(make_runner, store, tasks):
    (best,) = tune(make_runner(), store, tasks[:1], None, sampler="exhaustive")
    assert best.distance == Distance(0.0, 0.0)


def test_a_run_that_has_only_the_finals_to_do_states_it_too(make_runner, store, tasks):
    runner = make_runner()
    runner.broken_finals = lambda config: "out of luck"
    assert tune(runner, store, tasks[:1], 24) == []  # more than are tried in vain as finalists
    again = make_runner()
    (best,) = tune(again, store, tasks[:1], 24)
    assert again.screened == []
    assert best.distance is not None


def test_what_was_only_verified_again_states_none(make_runner, store, tasks):
    pytest.importorskip("torch", reason="verifying asks the kernels' own rules, which need torch")
    tune(make_runner(), store, tasks[:1])
    upgraded = make_runner()
    upgraded.compiler = "compiler-2"
    (best,) = verify_again(runner=upgraded, store=store).bests
    assert best.distance is None
