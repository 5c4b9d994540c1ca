"""Many processes and threads on one file: nothing fails, nothing is lost, nothing is half there."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tunekit.cache import Store

EVERY_DATABASE = True

FORK = multiprocessing.get_context("fork")


def assert_sound(store):
    if "://" in store.location:
        return  # the server sees to it
    with sqlite3.connect(store.location) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_processes_that_open_a_new_file_at_once_all_succeed(tmp_path, make, together):
    for attempt in range(4):
        path = tmp_path / str(attempt) / "tunekit.db"

        def first_use(number, path=path):
            store = Store.open(path)
            store.put_device(make.device)
            store.put_best(make.best(key=make.key(m=number + 1)))
            return len(store.bests()) >= 1

        assert all(together(8, first_use))
        assert len(Store.open(path).bests()) == 8


def test_processes_that_open_the_same_file_at_once_all_succeed(store, make, together):
    store.put_best(make.best())
    for _ in range(3):
        assert together(8, lambda number: Store.open(store.location).bests()) == [[make.best()]] * 8


def test_writers_wait_for_one_that_holds_the_lock(store, make, together):
    """Eight writers and a ninth process that sits on the write lock for a second."""

    def write(number):
        if number == 8:
            with store.database.writing():
                time.sleep(1)
            return 0
        for m in range(10):
            store.put_best(make.best(key=make.key(m=1 + number * 10 + m)))
        return 10

    assert sum(together(9, write)) == 80
    assert len(store.bests()) == 80


def test_readers_do_not_wait_for_a_writer_at_work(store, make):
    store.put_best(make.best())
    with store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE best SET trials = 999")
        assert store.bests() == [make.best()]
        connection.rollback()
    assert store.bests() == [make.best()]


def test_one_key_written_by_two_processes_is_one_row(store, make, together):
    def write(number):
        for step in range(200):
            median_us = 1000.0 - step - number / 2
            store.put_best(make.best(median_us, config=make.config(num_warps=2**number)))

    together(2, write)
    assert [best.measurement.median_us for best in store.bests()] == [800.5]
    assert_sound(store)


def test_threads_share_a_store(store, make):
    def use(number):
        for step in range(3):
            store.put_best(make.best(key=make.key(m=1 + number, n=1 + step)))
            store.add_trials(make.key(m=1 + number), [(make.trial(num_stages=1 + step), origin)])
            assert store.best(make.key(m=1 + number, n=1 + step))

    origin = make.provenance()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(use, range(16)))
    assert len(store.bests()) == 48
    assert all(len(store.trials(make.key(m=1 + number))) == 3 for number in range(16))


def test_a_forked_child_goes_on_using_its_parents_store(store, make, together):
    store.put_best(make.best())

    def use(number):
        store.put_best(make.best(key=make.key(m=number + 1)))
        return os.getpid(), make.best() in store.bests()

    outcomes = together(4, use)
    assert len({pid for pid, _ in outcomes}) == 4
    assert all(found for _, found in outcomes)
    store.put_best(make.best(key=make.key(m=99)))
    assert {best.key.m for best in store.bests()} == {1, 2, 3, 4, 99, 512}
    assert_sound(store)


def test_a_child_forked_while_another_thread_reads_can_write(store, make, monkeypatch):
    """SQLite's notes of the thread's locks must not come along: nobody would ever clear them."""
    monkeypatch.setattr("tunekit.cache.sqlite_file.BUSY_SECONDS", 5.0)
    store.put_best(make.best())
    stop = threading.Event()

    def read_on():
        while not stop.is_set():
            with store.database.reading() as connection:
                connection.exec_driver_sql("SELECT count(*) FROM best").scalar_one()
                time.sleep(0.005)  # most forks come here

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        for number in range(1, 13):
            child = FORK.Process(
                target=lambda m=number: store.put_best(make.best(key=make.key(m=m)))
            )
            child.start()
            child.join(60)
            assert child.exitcode == 0
    finally:
        stop.set()
        reader.join()
    assert len(store.bests()) == 13


def test_a_writer_killed_at_any_moment_leaves_the_old_row_or_the_new(store, make):
    """Each row's trial count and times are of one write; a half-written row would mix two."""

    def write_for_ever():
        step = 0
        while True:
            step += 1
            best = make.best(float(step), trials=step, vendor=make.vendor(float(step)))
            store.put_best(best, force=True)
            store.add_trials(make.key(), [(make.trial(float(step)), make.provenance())])
            begun.set()

    begun = FORK.Event()
    moments = random.Random(0)
    for _ in range(10):
        writer = FORK.Process(target=write_for_ever, daemon=True)
        writer.start()
        assert begun.wait(60)
        begun.clear()
        time.sleep(moments.uniform(0.0, 0.1))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        for best in store.bests():
            step = best.trials
            assert best == make.best(float(step), trials=step, vendor=make.vendor(float(step)))
        assert_sound(store)
    assert len(store.bests()) == len(store.trials(make.key())) == 1
