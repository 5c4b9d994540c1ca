"""What is particular to a store on a server. What it shares with a file is tested on both."""

from __future__ import annotations

import threading
import time

import pytest

from tunekit.cache import Store, leases, place_of
from tunekit.cache.engine import server_database
from tunekit.cache.models import SCHEMA_VERSION, Base
from tunekit.cache.tables import look
from tunekit.errors import NoStoreError, StoreError

psycopg = pytest.importorskip("psycopg", reason="install the extra `postgres`")


@pytest.fixture
def server(server_url):
    """A connection of the test's own to the server's database."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        yield connection


OLDER = """
ALTER TABLE trial DROP COLUMN throttled;
ALTER TABLE baseline DROP COLUMN throttled;
ALTER TABLE best DROP COLUMN expected_distance;
ALTER TABLE best DROP COLUMN distance_bound;
ALTER TABLE best DROP COLUMN throttled;
DROP TABLE lease;
CREATE TABLE lease (problem_id INTEGER, device_id INTEGER, holder VARCHAR);
UPDATE schema_version SET version_num = '0001';
"""


@pytest.fixture
def old(server_url, server, make):
    """A database in the first schema, with a row."""
    with Store.open(server_url) as store:
        store.put_device(make.device)
        store.put_best(make.best())
    server.execute(OLDER)
    return server_url


def test_a_url_without_a_driver_means_psycopg_and_is_shown_as_it_was_given(server_url, make):
    with Store.open(server_url) as store:
        assert store.location == server_url.replace("/tmp/", "%2Ftmp%2F")
        store.put_device(make.device)
    named = server_url.replace("postgresql:", "postgresql+psycopg:")
    with Store.open(named, create=False) as again:
        assert again.devices() == [make.device]


def test_a_database_without_tables_is_no_cache_for_who_only_reads(server_url, server):
    with pytest.raises(NoStoreError, match="there is no cache"):
        Store.open(server_url, create=False)
    assert (
        server.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()[0]
        == 0
    )


def test_tables_of_others_in_the_same_database_are_left_alone(server_url, server, make):
    server.execute("CREATE TABLE photos (id INTEGER)")
    with Store.open(server_url) as store:
        store.put_device(make.device)
    assert server.execute("SELECT count(*) FROM photos").fetchone() == (0,)


def test_an_older_schema_is_migrated_once_by_processes_that_open_it_at_once(
    old, server, make, together
):
    assert together(6, lambda number: Store.open(old).bests()) == [[make.best()]] * 6
    assert server.execute("SELECT version_num FROM schema_version").fetchall() == [
        (SCHEMA_VERSION,)
    ]


def test_a_table_that_is_replaced_meanwhile_is_never_overlooked(server_url, server):
    """As a migration replaces one: what PostgreSQL says is visible is of no one transaction."""
    Store.open(server_url).close()
    seen, ended = [], threading.Event()

    def look_on():
        database = server_database(place_of(server_url))
        while not ended.is_set():
            seen.append(look(database).tables)
        database.close()

    watching = [threading.Thread(target=look_on) for _ in range(2)]
    for thread in watching:
        thread.start()
    for _ in range(200):
        with server.transaction():
            server.execute("ALTER TABLE lease RENAME TO older")
            server.execute("CREATE TABLE lease (LIKE older INCLUDING ALL)")
            server.execute("DROP TABLE older")
    ended.set()
    for thread in watching:
        thread.join()
    assert set(seen) == {frozenset(Base.metadata.tables)}


def test_migrated_tables_are_those_of_the_models(old):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with Store.open(old) as store, store.database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "schema_version"})
        assert compare_metadata(context, Base.metadata) == []


def test_a_newer_schema_is_refused(old, server):
    server.execute("UPDATE schema_version SET version_num = '0042'")
    with pytest.raises(StoreError, match="newer than this tunekit's"):
        Store.open(old)


def test_a_store_goes_on_after_its_connections_were_cut(server_url, server, make):
    with Store.open(server_url) as store:
        store.put_device(make.device)
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert store.put_best(make.best())
        assert store.bests() == [make.best()]


def test_a_connection_cut_in_a_transaction_is_one_line_and_loses_nothing_else(
    server_url, server, make
):
    with Store.open(server_url) as store:
        store.put_device(make.device)
        store.put_best(make.best())

        def write_and_be_cut():
            with store.database.writing() as connection:
                connection.exec_driver_sql("UPDATE best SET trials = 999")
                pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
                server.execute("SELECT pg_terminate_backend(%s)", [pid])
                connection.exec_driver_sql("UPDATE best SET trials = 998")

        with pytest.raises(StoreError) as raised:
            write_and_be_cut()
        assert "\n" not in str(raised.value)
        assert store.bests() == [make.best()]


def test_a_writer_that_waits_too_long_says_for_what(server_url, make, monkeypatch):
    with Store.open(server_url) as store, Store.open(server_url) as other:
        monkeypatch.setattr("tunekit.cache.engine.BUSY_SECONDS", 1)
        with store.database.writing(), pytest.raises(StoreError, match="another process held it"):
            other.put_device(make.device)


def test_a_server_that_is_not_there_is_one_line_without_the_password():
    for url in (
        "postgresql://me:hunter2@127.0.0.1:1/db",
        "postgresql://me:hunter2@/db?host=/nowhere",
        "postgresql://me@/db?host=/nowhere&password=hunter2&sslpassword=hunter2",
    ):
        with pytest.raises(StoreError) as raised:
            Store.open(url)
        assert "hunter2" not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_leases_go_by_the_servers_clock(server_url, make, monkeypatch):
    with Store.open(server_url) as store:
        store.put_device(make.device)
        with monkeypatch.context() as wrong:
            wrong.setattr(time, "time", lambda: 0.0)  # a host whose clock is decades behind
            store.acquire([make.key()], leases.Holder.here(), seconds=60)
        assert abs(store.leases()[make.key()].expires_at - time.time() - 60) < 30


def test_a_role_that_may_only_read_reads(server_url, server, make):
    with Store.open(server_url) as store:
        store.put_device(make.device)
        store.put_best(make.best())
    role = "reader_" + server.info.dbname
    server.execute(
        f"CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
    )
    with Store.open(server_url.replace("postgres@", f"{role}@"), create=False) as reader:
        assert reader.bests() == [make.best()]
        with pytest.raises(StoreError, match="permission denied"):
            reader.put_best(make.best(1.0))
    server.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
