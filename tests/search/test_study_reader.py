"""Reading a study again: what was kept of it says the same as all of it."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState

from tunekit.search import open_storage
from tunekit.search.points import Points
from tunekit.search.study_reader import FAILED, StudyReader


@pytest.fixture
def points(world):
    return Points(world.configs)


def added(study, points, index, value, **attributes):
    study.add_trial(
        optuna.trial.create_trial(
            params=points.params(index),
            distributions=points.distributions,
            value=value,
            user_attrs=attributes,
        )
    )


def begun(study, points, index):
    study.enqueue_trial(points.params(index))
    return study.ask(points.distributions)


def test_what_ends_later_and_what_others_add_is_read(points):
    study = optuna.create_study()
    reader = StudyReader(points)
    first, second = (begun(study, points, index) for index in (3, 4))
    assert reader.read(study) == ({}, {3, 4})
    study.tell(second, 1.5)  # the first is still running
    assert reader.read(study) == ({4: 1.5}, {3})
    other = optuna.load_study(study_name=study.study_name, storage=study._storage)
    added(other, points, 7, 2.5)
    added(other, points, 8, 9.0, **{FAILED: "compile-error"})
    assert reader.read(study) == ({4: 1.5, 7: 2.5, 8: math.inf}, {3})
    study.tell(first, state=TrialState.FAIL)
    assert reader.read(study) == ({4: 1.5, 7: 2.5, 8: math.inf}, set())


def test_another_process_is_read_through_a_file(points, tmp_path):
    where = f"journal:{tmp_path / 'studies.log'}"
    study = optuna.create_study(study_name="shared", storage=open_storage(where))
    reader = StudyReader(points)
    added(study, points, 1, 1.0)
    assert reader.read(study) == ({1: 1.0}, set())
    other = optuna.load_study(study_name="shared", storage=open_storage(where))
    running = begun(other, points, 2)
    assert reader.read(study) == ({1: 1.0}, {2})
    other.tell(running, 2.0)
    added(other, points, 1, 3.0)  # tried again: the last one counts
    assert reader.read(study) == ({1: 3.0, 2: 2.0}, set())


@pytest.mark.parametrize("seed", range(3))
def test_it_says_what_one_who_reads_all_of_it_says(points, seed):
    chance = random.Random(seed)
    study = optuna.create_study()
    reader, running = StudyReader(points), []
    for _ in range(60):
        index = chance.randrange(12)  # some more than once
        step = chance.choice(["begin", "end", "fail", "add", "add failed"])
        if step == "begin":
            running.append(begun(study, points, index))
        elif step == "add":
            added(study, points, index, chance.random())
        elif step == "add failed":
            added(study, points, index, 9.0, **{FAILED: "wrong-result"})
        elif running:
            trial = running.pop(chance.randrange(len(running)))
            if step == "end":
                study.tell(trial, chance.random())
            else:
                study.tell(trial, state=TrialState.FAIL)
        assert reader.read(study) == StudyReader(points).read(study)


def test_a_trial_that_a_database_shows_late_is_not_missed(points):
    """Of two transactions that add trials, the one with the higher number may end first."""
    study = optuna.create_study()
    for index in range(3):
        added(study, points, index, float(index))
    shown = study.get_trials()

    listed = [shown[0], shown[2]]
    late = SimpleNamespace(get_trials=lambda deepcopy: list(listed))
    reader = StudyReader(points)
    assert reader.read(late) == ({0: 0.0, 2: 2.0}, set())
    listed.insert(1, shown[1])
    assert reader.read(late) == ({0: 0.0, 1: 1.0, 2: 2.0}, set())
