"""Counts of untuned problems reach the cache; what goes wrong on the way costs only them."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass

import pytest
import torch

import tunekit
from tunekit import misses, products, serving
from tunekit.cache import Store
from tunekit.device import KNOWN_DEVICES
from tunekit.dispatch import MissWarning
from tunekit.errors import NoStoreError, StoreError
from tunekit.key import Problem, TuningKey
from tunekit.misses import MissWriter

H200 = KNOWN_DEVICES["sm_90"]
pytestmark = pytest.mark.filterwarnings("ignore::tunekit.serving.MissWarning")


@dataclass
class Calls:
    count: int = 0


def key(m=48):
    return TuningKey.of(Problem("matmul", m, 64, 64, "float16"), H200.slug)


class Sink:
    """Takes what a writer writes."""

    def __init__(self):
        self.batches = []
        self.error = None

    def __call__(self, where, batch):
        if self.error is not None:
            raise self.error
        self.batches.append((where, dict(batch.counts)))


@pytest.fixture
def sink():
    return Sink()


def test_only_what_is_new_is_written(sink):
    writer = MissWriter(sink)
    calls, others = Calls(3), Calls(0)
    writer.watch(key(), H200, "here", calls)
    writer.watch(key(7), H200, "here", others)
    assert writer.flush(60)
    calls.count += 2
    others.count += 1
    assert writer.flush(60)
    assert writer.flush(60)
    assert sink.batches == [("here", {key(): 3}), ("here", {key(): 2, key(7): 1})]


def test_each_cache_gets_its_own_and_a_key_that_begins_anew_goes_on(sink):
    writer = MissWriter(sink)
    writer.watch(key(), H200, "here", Calls(3))
    writer.watch(key(), H200, "here", Calls(4))  # after a reload
    writer.watch(key(), H200, "there", Calls(1))
    assert writer.write()
    assert sorted(sink.batches) == [("here", {key(): 7}), ("there", {key(): 1})]


def test_a_key_that_begins_anew_again_and_again_is_watched_once(sink):
    writer = MissWriter(sink)
    for _ in range(100):
        writer.watch(key(), H200, "here", Calls(2))
    assert len(writer._watched) == 1
    last = Calls(1)
    writer.watch(key(), H200, "here", last)
    sink.error = StoreError("read-only")
    assert not writer.write()
    sink.error = None
    assert writer.write()
    last.count += 1
    writer.watch(key(), H200, "here", Calls(5))
    assert writer.write()
    assert sink.batches == [("here", {key(): 201}), ("here", {key(): 6})]


def test_a_key_that_begins_anew_while_it_is_written_is_not_counted_twice(sink):
    def begin_anew(where, batch):
        sink(where, batch)
        if len(sink.batches) == 1:
            writer.watch(key(), H200, "here", Calls(1))

    writer = MissWriter(begin_anew)
    writer.watch(key(), H200, "here", Calls(3))
    assert writer.write()
    assert writer.write()
    assert writer.write()
    assert sink.batches == [("here", {key(): 3}), ("here", {key(): 1})]


def test_what_could_not_be_written_is_written_later(sink):
    writer = MissWriter(sink)
    calls = Calls(3)
    writer.watch(key(), H200, "here", calls)
    sink.error = StoreError("read-only")
    assert not writer.write()
    calls.count += 1
    sink.error = None
    assert writer.write()
    assert sink.batches == [("here", {key(): 4})]


def test_where_there_is_no_cache_there_is_nowhere_to_count(sink):
    writer = MissWriter(sink)
    writer.watch(key(), H200, "here", Calls(3))
    sink.error = NoStoreError("there is none")
    assert writer.write()
    sink.error = None
    assert writer.write()
    assert sink.batches == []


def test_a_failing_cache_is_tried_less_and_less_often(sink, monkeypatch):
    pauses, enough = [], threading.Event()

    class Wake(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout)
            if len(pauses) == 9:
                sink.error = None
            if len(pauses) == 11:
                enough.set()
                super().wait()  # for ever
            return False

    sink.error = StoreError("locked")
    writer = MissWriter(sink)
    monkeypatch.setattr(writer, "_wake", Wake())
    writer.watch(key(), H200, "here", Calls(3))
    assert enough.wait(60)
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 30, 30]
    assert len(sink.batches) == 1


def test_watching_never_waits_for_a_write():
    writing, go_on = threading.Event(), threading.Event()

    def slow(where, batch):
        writing.set()
        assert go_on.wait(60)

    writer = MissWriter(slow)
    writer.watch(key(), H200, "here", Calls(1))
    asked = threading.Thread(target=writer.flush, args=(60,))
    asked.start()
    assert writing.wait(60)
    for m in range(1, 100):
        writer.watch(key(m), H200, "here", Calls(1))
    assert not writer.flush(0.01)  # the program's end does not wait for ever
    go_on.set()
    asked.join(60)


# through matmul


@pytest.fixture
def writer(monkeypatch):
    """What `matmul` tells its misses to: a process's own in all but this test's."""
    made = MissWriter()
    monkeypatch.setattr(misses.WRITER, "watch", made.watch)
    return made


@pytest.fixture
def pretend_gpu(monkeypatch, writer):
    """Let operands on the CPU stand for an H200's, in a process that has read nothing."""
    monkeypatch.setattr(serving, "_device_info", lambda place, backend: H200)
    monkeypatch.setattr(products, "on_gpu", lambda a: True)
    tunekit.reload()
    yield
    tunekit.reload()


@pytest.fixture
def store(own_cache):
    with Store.open(own_cache) as opened:
        yield opened


def multiply(*sizes):
    for m in sizes:
        tunekit.matmul(torch.randn(m, 64).half(), torch.randn(64, 64).half().t())


def test_misses_reach_the_cache(pretend_gpu, writer, store):
    multiply(48, 48, 49)
    assert writer.flush(60)
    assert store.misses().keys() == {key(), key(49)}
    assert {one.slug for one in store.devices()} == {H200.slug}
    before = store.misses()
    assert writer.flush(60)
    assert store.misses() == before
    tunekit.reload()
    multiply(48)
    assert writer.flush(60)
    assert store.misses()[key()] == before[key()] + 1


def test_a_cache_that_is_not_there_is_not_made(pretend_gpu, writer, own_cache):
    multiply(48)
    assert writer.flush(60)
    assert not own_cache.exists()


def test_a_read_only_cache_costs_the_counts_alone(
    pretend_gpu, writer, store, own_cache, monkeypatch
):
    store.close()

    def refuse(self, counts):
        raise StoreError("attempt to write a readonly database")

    monkeypatch.setattr(Store, "record_misses", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", MissWarning)
        multiply(48, 49)
        assert writer.flush(60)
        multiply(48, 49)
    monkeypatch.undo()


@pytest.mark.interpreted
def test_the_interpreters_misses_are_nobodys(writer, store):
    a, b = torch.randn(16, 32).half(), torch.randn(32, 16).half()
    tunekit.reload()
    tunekit.matmul(a, b, backend="triton")
    assert writer.flush(60)
    assert store.misses() == {}
    tunekit.reload()


def test_no_sql_is_run_by_who_multiplies(pretend_gpu, writer, store, monkeypatch):
    multiply(1)  # the store is read once
    here, seen = threading.get_ident(), []
    connect = sqlite3.connect

    def watching(*arguments, **options):
        seen.append(threading.get_ident())
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", watching)
    multiply(*range(2, 80), *range(2, 80))
    assert writer.flush(60)
    assert seen
    assert here not in seen
    assert len(store.misses()) == 79


AT_EXIT = """
import sys, warnings
import torch, tunekit
from tunekit import products, serving
from tunekit.device import KNOWN_DEVICES
warnings.simplefilter("ignore")
serving._device_info = lambda place, backend: KNOWN_DEVICES["sm_90"]
products.on_gpu = lambda a: True
for m in (48, 49, 48):
    tunekit.matmul(torch.randn(m, 64).half(), torch.randn(64, 64).half().t())
if sys.argv[1] == "raise":
    raise SystemExit(3)
"""


def test_they_are_written_when_the_program_ends(store):
    done = subprocess.run([sys.executable, "-c", AT_EXIT, "raise"], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert done.stderr == ""
    assert store.misses().keys() == {key(), key(49)}


def count_in_child(writer, calls, where, queue):
    calls.count += 5
    threads = threading.active_count()  # none is started for a child that never misses
    writer.watch(key(7), H200, where, Calls(2))
    queue.put((threads, writer.flush(60)))


def test_a_forked_child_writes_its_own_and_nothing_of_its_parents(store, own_cache):
    writer = MissWriter()
    calls = Calls(10)
    writer.watch(key(), H200, str(own_cache), calls)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=count_in_child, args=(writer, calls, str(own_cache), queue))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this process has threads
        child.start()
    assert queue.get(timeout=60) == (1, True)
    child.join(60)
    assert child.exitcode == 0
    assert store.misses() == {key(): 5, key(7): 2}
    assert writer.flush(60)
    assert store.misses() == {key(): 15, key(7): 2}


def test_a_child_forked_while_counts_are_written_is_not_stuck():
    writing, go_on = threading.Event(), threading.Event()

    def slow(where, batch):
        writing.set()
        go_on.wait(60)

    writer = MissWriter(slow)
    writer.watch(key(), H200, "here", Calls(1))
    asked = threading.Thread(target=writer.flush, args=(60,))
    asked.start()
    assert writing.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            go_on.set()
            writer.watch(key(7), H200, "here", Calls(1))
            os._exit(0 if writer.flush(30) else 1)
        finally:
            os._exit(2)
    go_on.set()
    asked.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_eight_processes_that_miss_at_once_lose_no_count(store, own_cache):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        children = [
            context.Process(target=count_in_process, args=(str(own_cache), queue)) for _ in range(8)
        ]
        for child in children:
            child.start()
    assert all(queue.get(timeout=120) for _ in children)
    for child in children:
        child.join(60)
    assert store.misses() == {key(m): 8 * m for m in range(1, 21)}


def count_in_process(where, queue):
    writer = MissWriter()
    for m in range(1, 21):
        writer.watch(key(m), H200, where, Calls(m))
    queue.put(writer.flush(60))
