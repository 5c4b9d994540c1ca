"""Forests that are grown in a process of their own."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from tunekit.growing import Grower, growing
from tunekit.search.experience import Experience
from tunekit.search.forest import Columns, Forest, Subject
from tunekit.search.portfolio import load_portfolios, shipped_experience

PROBLEM, DEVICE = "problem", "device"


def arguments(seed=3):
    random = np.random.default_rng(seed)
    subjects = [Subject(name, DEVICE) for name in ("a", "b", "c") for _ in range(40)]
    rows = random.normal(size=(120, 6))
    return (Columns((), ()), rows, rows[:, 0] + rows[:, 1] ** 2, subjects), {"trees": 6, "seed": 1}


def said(forest):
    rows = np.random.default_rng(5).normal(size=(50, 6)).astype(np.float32)

    class Device:
        slug = DEVICE

    return forest.predict_rows("a", Device, rows)


@pytest.fixture
def grower():
    made = Grower()
    yield made
    made.close()


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_forest_is_the_same_wherever_it_grows(grower):
    for seed in (3, 4):
        args, settings = arguments(seed)
        assert np.array_equal(
            said(grower.grow(*args, **settings)), said(Forest.grow(*args, **settings))
        )


def test_a_run_goes_on_without_the_process(grower):
    args, settings = arguments()
    first = grower.grow(*args, **settings)
    os.kill(grower.pid, signal.SIGKILL)
    assert np.array_equal(said(grower.grow(*args, **settings)), said(first))
    assert grower.pid is None


def test_where_no_process_can_be_started_forests_grow_here(monkeypatch):
    def refuse(*args):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("tunekit.growing.Child", refuse)
    args, settings = arguments()
    grower = Grower()
    assert grower.pid is None
    assert np.array_equal(
        said(grower.grow(*args, **settings)), said(Forest.grow(*args, **settings))
    )
    grower.close()


def test_several_threads_may_ask(grower):
    found = {}

    def ask(seed):
        args, settings = arguments(seed)
        found[seed] = said(grower.grow(*args, **settings))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, trees in found.items():
        args, settings = arguments(seed)
        assert np.array_equal(trees, said(Forest.grow(*args, **settings)))


def test_nothing_grows_after_the_end(grower):
    args, settings = arguments()
    grower.grow(*args, **settings)
    grower.close()
    with pytest.raises(RuntimeError, match="was ended"):
        grower.grow(*args, **settings)


def test_it_is_for_searches_with_forests_that_measure():
    with growing("tpe", measures=True) as grow:
        assert grow is None
    with growing("transfer", measures=False) as grow:
        assert grow is None
    with growing("transfer", measures=True) as grow:
        pid = grow.__self__.pid
        assert is_there(pid)
    assert not is_there(pid)


def test_what_was_grown_ahead_for_a_run_is_no_other_runs():
    """A run that ended before its search leaves one behind, whose process has ended too."""
    asked = []

    def first(*args, **settings):
        return Forest.grow(*args, **settings)

    def second(*args, **settings):
        asked.append(settings)
        return Forest.grow(*args, **settings)

    load_portfolios(7, grow=first)
    known = shipped_experience(7, grow=second)
    known.settle(whole=True)
    assert known.forest() is not None
    assert len(asked) == 1
    load_portfolios(7, grow=second)
    assert len(asked) == 2
    shipped_experience(7, grow=second).forest()
    assert len(asked) == 2  # it was grown ahead


def test_an_experience_has_its_forests_grown_where_it_is_told_to():
    asked = []

    def grow(*args, **settings):
        asked.append(settings)
        return Forest.grow(*args, **settings)

    known = shipped_experience(7, grow=grow)
    assert isinstance(known, Experience)
    assert known.forest() is known.forest()
    known.without([]).forest()
    assert [settings["seed"] for settings in asked] == [7, 7]
