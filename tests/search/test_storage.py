"""Studies kept in a storage of Optuna's: continued, kept apart, and never the truth."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import optuna
import pytest

from tunekit.errors import TuneError
from tunekit.search import Experience, Searcher, open_storage

KINDS = ("sqlite", "journal")


@pytest.fixture(params=KINDS)
def url(request, tmp_path):
    file = tmp_path / "studies"
    return f"sqlite:///{file}.db" if request.param == "sqlite" else f"journal:{file}.log"


def start(world, url, *, configs=None, m=384, sampler="tpe", **how):
    space = world.space(world.problem(m), configs or world.configs)
    return Searcher(
        space, sampler, experience=Experience(), storage=open_storage(url), trials=30, **how
    )


def step(world, searcher, count, m=384):
    configs = searcher.ask(count)
    for config in configs:
        searcher.tell(world.trial(world.problem(m), config))
    return configs


def values(searcher):
    return [t.value for t in searcher.study.trials if t.state is optuna.trial.TrialState.COMPLETE]


@pytest.mark.parametrize("sampler", ["tpe", "transfer"])
def test_a_study_is_continued(world, url, sampler):
    first = start(world, url, sampler=sampler)
    seen = step(world, first, 6)
    prior = [world.trial(world.problem(384), config) for config in seen]
    second = start(world, url, sampler=sampler, prior=prior)
    assert len(second.study.trials) == 6  # told before: not twice
    more = step(world, second, 6)
    assert not set(seen) & set(more)
    assert len(values(second)) == 12
    assert min(values(second)) == pytest.approx(second.study.best_value)


def test_it_opens_as_any_study_of_optuna(world, url):
    searcher = start(world, url)
    step(world, searcher, 3)
    name = searcher.study.study_name
    loaded = optuna.load_study(study_name=name, storage=open_storage(url))
    assert [t.params["block_m"] for t in loaded.trials] == [
        t.params["block_m"] for t in searcher.study.trials
    ]
    assert name in optuna.get_all_study_names(open_storage(url))


def test_a_changed_space_has_a_study_of_its_own(world, url):
    """Optuna refuses other choices of a parameter under one name."""
    step(world, start(world, url, configs=world.configs[:20]), 4)
    wider = start(world, url)
    assert values(wider) == []
    assert len(step(world, wider, 8)) == 8


def test_two_keys_in_one_storage_do_not_meet(world, url):
    one, two = start(world, url, m=384), start(world, url, m=4096)
    step(world, one, 4, m=384)
    step(world, two, 3, m=4096)
    assert (len(values(one)), len(values(two))) == (4, 3)


def test_what_only_the_study_knows_is_measured_again_the_fastest_first(world, url):
    seen = step(world, start(world, url), 10)
    again = start(world, url).ask(4)

    def times(configs):
        return sorted(world.time_us(world.problem(384), config) for config in configs)

    assert set(again) <= set(seen)
    assert times(again) == times(seen)[:4]


def test_a_worker_killed_in_the_midst_leaves_a_study_that_goes_on(world, url):
    """The trial it was running is ended, and its config is proposed again in time."""
    code = f"""
import os, sys
from tests.search.conftest import World
from tunekit.search import Experience, Searcher, open_storage
world = World()
problem = world.problem(384)
searcher = Searcher(
    world.space(problem), "tpe", experience=Experience(), storage=open_storage({url!r}), trials=30
)
told, lost = searcher.ask(2)
searcher.tell(world.trial(problem, told))
os.kill(os.getpid(), 9)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root
    )
    assert done.returncode == -9, done.stderr
    searcher = start(world, url)
    states = [trial.state.name for trial in searcher.study.trials]
    assert states == ["COMPLETE", "FAIL"]
    seen = []
    while searcher.remaining:
        seen += step(world, searcher, 9)
    assert sorted(seen) == sorted(world.configs)


def test_failures_say_how_they_failed(world, url):
    searcher = start(world, url)
    (config,) = searcher.ask(1)
    searcher.tell(world.failed(config))
    (trial,) = searcher.study.trials
    assert trial.user_attrs == {"failed": "compile-error"}
    assert math.isfinite(trial.value)


@pytest.mark.parametrize(
    "bad", ["studies.db", "sqlite:////nowhere/at/all/x.db", "nodriver+x://host/db"]
)
def test_a_storage_that_cannot_be_opened_is_one_line(bad):
    with pytest.raises(TuneError, match="cannot keep Optuna's studies in") as caught:
        open_storage(bad)
    assert "\n" not in str(caught.value)
    assert "--optuna-storage" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite+pysqlite:///:memory:",
        "sqlite:///file:x?mode=memory&uri=true",
    ],
)
def test_a_storage_in_memory_is_refused_for_it_would_end_with_the_run(url):
    with pytest.raises(TuneError, match="it names no file: use sqlite:///FILE"):
        open_storage(url)


def test_a_password_in_a_storages_url_is_not_repeated():
    with pytest.raises(TuneError, match=r"studies in nodriver\+x://user:\*\*\*@host") as caught:
        open_storage("nodriver+x://user:secret@host/db")
    assert "secret" not in str(caught.value)


def test_studies_share_a_database_with_the_cache_and_no_table(world, tmp_path):
    """Both are kept in order by Alembic: each has a table of its own for that."""
    from tunekit.cache import Store

    file = tmp_path / "both.db"
    with Store.open(file) as store:
        step(world, start(world, f"sqlite:///{file}"), 2)
        assert store.has_trials() is False
    with Store.open(file) as store:
        assert store.bests() == []


def test_a_study_of_another_version_of_optuna_is_refused_in_one_line(world, tmp_path):
    file = tmp_path / "old.db"
    open_storage(f"sqlite:///{file}")
    with sqlite3.connect(file) as old:
        old.execute("UPDATE alembic_version SET version_num = 'v0.0.1.a'")
        old.execute("UPDATE version_info SET schema_version = 1, library_version = '0.1.0'")
    with pytest.raises(TuneError, match="name another --optuna-storage") as caught:
        open_storage(f"sqlite:///{file}")
    assert "\n" not in str(caught.value)


def test_two_searches_with_one_seed_that_share_a_study_do_not_repeat_each_other(world, url):
    """What the one told is known to the other, which the tuner hands it as earlier trials."""
    first = step(world, start(world, url, seed=7), 6)
    prior = [world.trial(world.problem(384), config) for config in first]
    second = step(world, start(world, url, seed=7, prior=prior), 6)
    assert len(set(first + second)) == 12


def test_a_config_tried_twice_counts_once(world, url):
    """Its later trial does not make it the best of a lucky sample."""
    searcher = start(world, url)
    (config,) = searcher.ask(1)
    problem = world.problem(384)
    searcher.tell(world.trial(problem, config, median_us=20.0))
    searcher.tell(world.trial(problem, config, median_us=10.0))
    assert values(searcher) == [pytest.approx(math.log(20.0))]


def test_a_run_on_another_cache_may_end_what_is_being_tried(world, url):
    """It takes it for left by a process that died. The result is kept all the same, once."""
    first = start(world, url)
    worked, failed = first.ask(2)
    start(world, url)
    assert [trial.state.name for trial in first.study.trials] == ["FAIL", "FAIL"]
    first.tell(world.trial(world.problem(384), worked))
    first.tell(world.failed(failed))
    assert values(first)[0] == pytest.approx(math.log(world.time_us(world.problem(384), worked)))
    assert [t.user_attrs for t in first.study.trials[2:]] == [{}, {"failed": "compile-error"}]
    assert len(step(world, first, 4)) == 4


def test_what_another_program_enqueued_is_tried_next_and_under_its_own_name(world, url):
    searcher = start(world, url, sampler="transfer")
    wanted = world.configs[5]
    params = {"variant": wanted.variant, "block_m": wanted.block_m, "block_n": wanted.block_n}
    params |= {"block_k": wanted.block_k, "num_warps": wanted.num_warps}
    searcher.study.enqueue_trial(params | {"num_stages": wanted.num_stages})
    searcher.study.enqueue_trial(params | {"num_stages": 99})  # not a value it may have
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's, of the 99
        seen = step(world, searcher, 5)
    assert wanted in seen[:3]
    assert len(set(seen)) == 5
    assert {t.state.name for t in searcher.study.trials} == {"COMPLETE", "FAIL"}
    known = {(c.block_m, c.block_n, c.block_k, c.num_warps, c.num_stages): c for c in seen}
    names = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
    told = [t for t in searcher.study.trials if t.state is optuna.trial.TrialState.COMPLETE]
    for trial in told:
        config = known.pop(tuple(trial.params[name] for name in names))
        assert trial.value == pytest.approx(math.log(world.time_us(world.problem(384), config)))
    assert not known


def test_a_storage_that_fails_in_the_midst_is_one_line(world, tmp_path):
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    searcher = start(world, url)
    (config,) = searcher.ask(1)
    with sqlite3.connect(tmp_path / "studies.db") as other:
        other.execute("DROP TABLE trial_values")
    with pytest.raises(TuneError, match="cannot keep Optuna's studies in") as caught:
        searcher.tell(world.trial(world.problem(384), config))
    assert "\n" not in str(caught.value)
    assert "no such table" in str(caught.value)  # and not Optuna's words for any failed commit
