"""A run of many workers: what one gives, and nothing lost whoever dies."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunekit.cache import Claims, Holder, Store
from tunekit.child import Child
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import DeviceError, StoreError, TuneError
from tunekit.fleet import crews, leading
from tunekit.fleet.crews import Threads
from tunekit.fleet.leading import Lead
from tunekit.fleet.post import Post
from tunekit.key import TuningKey
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner
from tunekit.search import Budget
from tunekit.tuner import KeysAwaited, Task, run

TRIALS = 16


def tasks_of(recording):
    problems = Recording.load(recording).problems
    return [Task(problem, 1 + number) for number, problem in enumerate(problems)]


def outcome(slow, recording, cache, kind=None, workers=0, **settings):
    """Run in this process, alone or leading workers; return the trials and the rows."""
    alone = ReplayRunner(Recording.load(recording))
    lead = None
    if kind is not None:
        lead, _ = slow.lead_workers(kind, workers, str(cache), recording)
    try:
        (runner,) = [alone] if lead is None else lead.runners(60)
        with Store.open(cache) as store:
            budget = Budget(trials=TRIALS)
            tasks = tasks_of(recording)
            report = run(tasks, runner=runner, store=store, budget=budget, **settings)
            tried = {b.key: {t.config for t, _ in store.trials(b.key)} for b in report.bests}
            rows = [(b.key, b.config, b.measurement, b.trials, b.distance) for b in report.bests]
            assert store.leases() == {}
    finally:
        if lead is not None:
            lead.close()
    return tried, rows, report.counts


@pytest.mark.parametrize(("kind", "workers"), [("threads", 3), ("processes", 2)])
def test_any_number_of_workers_gives_what_one_run_gives(slow, recording, tmp_path, kind, workers):
    alone = outcome(slow, recording, tmp_path / "alone.db", seed=3)
    assert len({len(configs) for configs in alone[0].values()}) > 1  # some trials were moved
    assert outcome(slow, recording, tmp_path / "many.db", kind, workers, seed=3) == alone


def events_until(leader, name, count):
    """Read what a run prints until something has happened so often; return all of it."""
    seen = []
    for line in leader.stdout:
        seen.append(tuple(line.split()))
        if sum(event[0] == name for event in seen) == count:
            return seen
    raise AssertionError(leader.stderr.read())


def finished(leader):
    out, err = leader.communicate(timeout=120)
    assert leader.returncode == 0, err
    return [tuple(line.split()) for line in out.splitlines()]


def check_all_is_done(place, recording, log, *, in_flight):
    """Every key has its row and its trials; what was tried in vain is what was in flight."""
    tried = [line for line in log.read_text().splitlines() if " trial " in line]
    problems = Recording.load(recording).problems
    with Store.open(place) as store:
        assert store.leases() == {}
        assert {best.key.problem for best in store.bests()} == set(problems)
        counts = store.tried()
    assert sum(counts.values()) == TRIALS * len(problems)
    assert min(counts.values()) >= TRIALS // 2
    assert 0 <= len(tried) - sum(counts.values()) <= in_flight


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_worker_that_is_killed_loses_its_leases_and_nothing_else(
    start, place, recording, tmp_path
):
    leader = start()
    seen = events_until(leader, "TrialDone", 10)
    workers = next(event[1:] for event in seen if event[0] == "workers")
    os.kill(int(workers[0]), signal.SIGKILL)
    assert finished(leader)[-1] == ("bests", str(len(Recording.load(recording).problems)))
    check_all_is_done(place, recording, tmp_path / "log", in_flight=1)


@pytest.mark.parametrize(
    ("number", "place"),
    [(signal.SIGKILL, "postgresql"), (signal.SIGINT, "sqlite")],
    indirect=["place"],
)
def test_a_run_whose_leader_ends_is_taken_up_by_the_next(start, place, recording, tmp_path, number):
    leader = start()
    told = events_until(leader, "TrialDone", 12)
    leader.send_signal(number)
    rest, _ = leader.communicate(timeout=60)
    told += [tuple(line.split()) for line in rest.splitlines()]
    with Store.open(place) as store:
        stored = sum(store.tried().values())
    assert stored >= sum(event[0] == "TrialDone" for event in told)
    assert (("interrupted",) in told) == (number == signal.SIGINT)
    finished(start(seconds=0))
    check_all_is_done(place, recording, tmp_path / "log", in_flight=2)


def test_a_key_that_another_run_has_comes_last(slow, recording, tmp_path):
    """The workers get the others; the leader waits for that key, and has it when it is free."""
    cache, told = tmp_path / "c.db", []
    with Store.open(cache) as store:
        device = Recording.load(recording).device
        store.put_device(device)
        with Claims(store) as other:
            other.take([TuningKey.of(tasks_of(recording)[0].problem, device.slug)])
            tried, *_ = outcome(
                slow, recording, cache, "threads", 2,
                on_event=told.append, sleep=lambda seconds: other.close(),
            )  # fmt: skip
    (awaited,) = (event for event in told if isinstance(event, KeysAwaited))
    assert len(awaited.keys) == 1
    assert len(tried) == len(tasks_of(recording))


def test_a_worker_that_joins_later_gets_work(slow, recording, tmp_path):
    cache, log = str(tmp_path / "c.db"), tmp_path / "log"
    lead, crew = slow.lead_workers("threads", 1, cache, recording, seconds=0.01, log=log)
    told, opener = [], partial(slow.open_slow, seconds=0.01, log=log)

    def tell(event):
        told.append(event)
        if len(told) == 8:
            crew.add(Post(opener, f"replay:{recording}", cache))

    try:
        (runner,) = lead.runners(60)
        with Store.open(cache) as store:
            tasks = tasks_of(recording)
            run(tasks, runner=runner, store=store, budget=Budget(trials=TRIALS), on_event=tell)
            assert store.leases() == {}
    finally:
        lead.close()
    assert crew.planned == 1
    assert crew.size == 2
    threads = {line.split(" ", 1)[0] for line in log.read_text().splitlines()}
    assert len(threads) == 2


def test_each_kind_of_gpu_is_tuned_once_however_many_there_are(slow, recording, tmp_path):
    """Two workers of one kind and one of another: two runs of the same problems, side by side."""
    cache = str(tmp_path / "c.db")
    other = replace(KNOWN_DEVICES["sm_80"], name="Another GPU")
    openers = [None, other, None]
    posts = [
        Post(partial(slow.open_slow, gpu=gpu), f"replay:{recording}", cache) for gpu in openers
    ]
    lead = Lead(Threads(posts), cache)
    try:
        runners = lead.runners(60)
        assert sorted(runner.width for runner in runners) == [1, 2]
        assert len({runner.device.slug for runner in runners}) == 2
    finally:
        lead.close()


def test_a_host_with_other_kernels_is_left_out(slow, recording, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(leading, "made_by", lambda origin: {"tunekit": "99"})
    monkeypatch.setattr(crews.Threads, "is_local", False)  # as a cluster's may not be
    lead, _ = slow.lead_workers("threads", 2, str(tmp_path / "c.db"), recording)
    with pytest.raises(DeviceError, match=r"tunekit is .* and 99 here: install the same"):
        lead.runners(60)
    lead.close()
    assert not (tmp_path / "c.db").exists()


def test_a_file_is_not_shared_with_another_host(slow, recording, tmp_path, monkeypatch):
    elsewhere = SimpleNamespace(here=lambda: replace(Holder.here(), host="elsewhere"))
    monkeypatch.setattr("tunekit.fleet.member.Holder", elsewhere)
    lead, _ = slow.lead_workers("threads", 1, str(tmp_path / "c.db"), recording)
    with pytest.raises(StoreError, match=r"another host, cannot share the file .* --cache postgre"):
        lead.runners(60)
    lead.close()


def test_no_more_workers_are_started_than_may_die_in_a_row(slow, recording, tmp_path):
    post = Post(slow.open_and_die, f"replay:{recording}", str(tmp_path / "c.db"))
    lead = Lead(slow.Processes([post]), post.cache)
    with pytest.raises(TuneError, match=r"6 workers died with no trial in between, the last one"):
        lead.runners(60)
    lead.close()


def test_a_host_that_cannot_have_so_many_workers_says_how_many_it_can(slow, tmp_path, monkeypatch):
    """Those that were started are ended, and no file stays open."""
    post, started = Post(slow.open_and_die, "replay:none", str(tmp_path / "c.db")), []

    def child(*arguments):
        if len(started) == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        started.append(SimpleNamespace(kill=lambda: killed.append(1), connection=None))
        return started[-1]

    killed = []
    monkeypatch.setattr(crews, "Child", child)
    with pytest.raises(TuneError, match=r"started 2 of 3 workers, and then: Too many open files"):
        Lead(crews.Processes([post] * 3), post.cache)
    assert len(killed) == 2


def test_a_child_that_cannot_be_started_leaves_no_file_open(monkeypatch):
    def refuse(*arguments, **settings):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("tunekit.child.subprocess.Popen", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BlockingIOError):
        Child(print)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
