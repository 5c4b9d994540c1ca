"""The connection that is kept between transactions, and everything that it must not outlive."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tunekit.cache import Store, sqlite_file
from tunekit.errors import StoreError

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def connects(monkeypatch):
    """The files that were connected to, in turn."""
    made, connect = [], sqlite3.connect

    def counted(place, *arguments, **options):
        made.append(str(place))
        return connect(place, *arguments, **options)

    monkeypatch.setattr(sqlite_file.sqlite3, "connect", counted)
    return made


def open_files(path):
    """Return how many descriptors of this process lead to a file."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += descriptor.samefile(path)
        except OSError:  # the listing's own, or a file that is gone
            continue
    return found


def test_one_connection_serves_as_long_as_nobody_else_writes(store, make, connects):
    store.put_best(make.best())
    del connects[:]
    for number in range(5):
        assert store.put_best(make.best(9.0 - number))
        assert store.bests() == [make.best(9.0 - number)]
    assert connects == []


def test_opening_leaves_the_connection_that_the_first_lookup_uses(store, make, connects):
    store.put_best(make.best())
    del connects[:]
    with Store.open(store.location, create=False) as other:
        assert other.best(make.key()) == [make.best()]
    assert len(connects) == 1


def test_what_another_wrote_is_seen(store, make):
    with Store.open(store.location) as other:
        for number in range(5):
            assert other.put_best(make.best(9.0 - number))
            assert store.bests() == [make.best(9.0 - number)]


@pytest.mark.parametrize("how", ["replaced", "overwritten"])
def test_another_file_in_its_place_is_seen_and_written(store, make, tmp_path, own_cache, how):
    for number in range(3):
        with Store.open(tmp_path / f"other-{number}.db") as other:
            other.put_device(make.device)
            other.put_best(make.best(key=make.key(m=number + 1)))
    for number in range(3):
        assert len(store.bests()) <= 2
        if how == "replaced":
            (tmp_path / f"other-{number}.db").replace(own_cache)
        else:
            shutil.copyfile(tmp_path / f"other-{number}.db", own_cache)
        assert [best.key.m for best in store.bests()] == [number + 1]
        assert store.put_best(make.best(key=make.key(m=100)))
        with Store.open(own_cache) as again:
            assert {best.key.m for best in again.bests()} == {number + 1, 100}


def test_a_file_that_was_replaced_while_it_was_opened_is_not_kept(
    store, make, tmp_path, own_cache, monkeypatch
):
    with Store.open(tmp_path / "other.db") as other:
        other.put_device(make.device)
        other.put_best(make.best())
    connect = sqlite3.connect

    def slow(*arguments, **options):
        connection = connect(*arguments, **options)
        (tmp_path / "other.db").replace(own_cache)
        return connection

    store.close()
    monkeypatch.setattr(sqlite_file.sqlite3, "connect", slow)
    assert store.bests() == []  # of the file that was opened
    monkeypatch.undo()
    assert store.bests() == [make.best()]


def test_no_connection_comes_into_a_child(store, make, own_cache):
    store.put_best(make.best())
    assert store.bests()
    assert open_files(own_cache) == 1
    answers = FORK.SimpleQueue()

    def child():
        answers.put((open_files(own_cache), store.bests() == [make.best()]))

    process = FORK.Process(target=child)
    process.start()
    found = answers.get()
    process.join()
    assert found == (0, True)
    assert store.bests() == [make.best()]


def test_closing_a_store_closes_its_file(store, own_cache):
    assert store.bests() == []
    store.close()
    assert open_files(own_cache) == 0


def test_a_writer_that_gave_up_leaves_a_connection_that_waits(store, make, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(store.location, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process held it"):
            store.put_best(make.best())
        holder.execute("ROLLBACK")
    with store.database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 50


def test_threads_have_connections_of_their_own(store, make):
    store.put_best(make.best())
    inside, outside = threading.Event(), threading.Event()
    seen = []

    def read():
        with store.database.reading() as connection:
            seen.append(connection.connection.dbapi_connection)
            inside.set()
            outside.wait(60)

    thread = threading.Thread(target=read)
    thread.start()
    inside.wait(60)
    with store.database.reading() as connection:
        seen.append(connection.connection.dbapi_connection)
    outside.set()
    thread.join()
    assert seen[0] is not seen[1]


def test_an_immutable_file_is_opened_anew_each_time(make, own_cache, connects):
    make.filled(own_cache).close()
    database = sqlite_file.sqlite_database(own_cache, "ro&immutable=1")
    for _ in range(3):
        del connects[:]
        with database.reading() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM best").scalar_one()
        assert connects


@pytest.mark.sqlite
@pytest.mark.parametrize("where", ["before_cursor_execute", "after_cursor_execute"])
def test_what_ctrl_c_interrupts_leaves_no_lock_though_its_traceback_is_held(
    store, make, monkeypatch, where
):
    """The next to write is this very process, which gives its leases back before it ends."""
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 1.0)
    store.put_best(make.best(9.0))
    seen = []

    def interrupt(connection, cursor, statement, *rest):
        if connection.get_execution_options().get("tunekit_writes"):
            seen.append(statement)
            if len(seen) == 3:
                raise KeyboardInterrupt

    event.listen(Engine, where, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt) as held:
            store.put_best(make.best(8.0))
    finally:
        event.remove(Engine, where, interrupt)
    assert held.traceback
    assert store.put_best(make.best(7.0))
    assert store.bests() == [make.best(7.0)]
