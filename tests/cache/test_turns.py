"""Writers of one SQLite file take turns: nobody waits longer because it has waited already."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tunekit.cache import Store, sqlite_file
from tunekit.errors import StoreError


@pytest.fixture
def holder(store):
    """Another process's connection, which holds the lock for writing."""
    with closing(sqlite3.connect(store.location, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def test_a_writer_looks_as_often_after_a_long_wait_as_at_first(store, make, holder, monkeypatch):
    sleeps = []

    def sleep(seconds):
        sleeps.append(seconds)
        if len(sleeps) == 200:
            holder.execute("COMMIT")

    monkeypatch.setattr(sqlite_file.time, "sleep", sleep)
    assert store.put_best(make.best())
    low, high = sqlite_file.LOOK_SECONDS
    assert len(sleeps) == 200
    assert all(low <= seconds <= high for seconds in sleeps)
    assert store.bests() == [make.best()]


def test_a_writer_gives_up_after_the_time_it_says(store, make, holder, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(sqlite_file.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sqlite_file.time, "sleep", lambda seconds: None)
    with pytest.raises(StoreError, match="another process held it for 30 s"):
        store.put_best(make.best())
    assert 30 <= next(clock) <= 60
    holder.execute("COMMIT")
    monkeypatch.undo()
    assert store.put_best(make.best())


def test_a_writer_that_has_its_turn_still_waits_for_readers(store):
    with store.database.writing() as connection:
        waits = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    assert waits == 1000 * sqlite_file.BUSY_SECONDS


def test_many_writers_of_one_file_lose_nothing(make, own_cache, together):
    writers, upserts, shared = 12, 15, 5

    def best(writer, number):
        size = number if number < shared else 1000 * (writer + 1) + number
        time_us = 100.0 + (7 * writer + number) % 13
        config = make.config(num_stages=writer + 1)
        return make.best(time_us, key=make.key(m=size + 1), config=config)

    def write(writer):
        with Store.open(own_cache) as store:
            store.put_device(make.device)
            for number in range(upserts):
                store.put_best(best(writer, number))

    together(writers, write)
    fastest = {}
    for writer in range(writers):
        for number in range(upserts):
            one = best(writer, number)
            time_us = one.measurement.median_us
            fastest[one.key] = min(time_us, fastest.get(one.key, time_us))
    with Store.open(own_cache, create=False) as store:
        assert {b.key: b.measurement.median_us for b in store.bests()} == fastest
