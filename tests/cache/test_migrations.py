"""Databases of every released schema open, are brought to the newest, and lose nothing."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import alembic.operations
import alembic.script  # noqa: F401  (here: a plain user may not read where Python is)
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from tunekit.cache import Store, export_json
from tunekit.cache.models import OLDER_VERSIONS, SCHEMA_VERSION, Base
from tunekit.errors import StoreError

ASSETS = Path(__file__).parent / "assets"
RELEASED = (*OLDER_VERSIONS, SCHEMA_VERSION)


@pytest.fixture
def old(tmp_path):
    """A copy of a database of the first schema."""
    return Path(shutil.copy(ASSETS / "schema-0001.db", tmp_path / "tunekit.db"))


def version_of(path):
    connection = sqlite3.connect(path)
    ((version,),) = connection.execute("SELECT version_num FROM schema_version").fetchall()
    connection.close()
    return version


def beside(path):
    return sorted(file.name for file in path.parent.iterdir() if file != path)


def differences(path):
    """Return what Alembic would still change for the tables to be those of the models."""
    with create_engine(f"sqlite:///{path}").connect() as connection:
        options = {"version_table": "schema_version", "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, Base.metadata)


def test_there_is_a_database_of_every_released_schema():
    assert {version_of(ASSETS / f"schema-{version}.db") for version in RELEASED} == set(RELEASED)
    assert len(list(ASSETS.glob("*.db"))) == len(RELEASED)


@pytest.mark.parametrize("version", RELEASED)
def test_a_released_schema_is_migrated_and_loses_nothing(tmp_path, make, version):
    path = Path(shutil.copy(ASSETS / f"schema-{version}.db", tmp_path / "tunekit.db"))
    with Store.open(path) as store, make.filled(tmp_path / "new" / "tunekit.db") as new:
        assert export_json(store, all_trials=True) == export_json(new, all_trials=True)
        assert store.bests() == new.bests()
        assert store.devices() == new.devices()
        assert store.misses() == {make.key(m=96): 4, make.key(m=97, dtype="float16"): 1}
        assert store.put_best(make.best(1.0))
    assert version_of(path) == SCHEMA_VERSION
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


@pytest.mark.parametrize("version", RELEASED)
def test_migrated_tables_are_those_a_new_cache_gets(tmp_path, version):
    path = Path(shutil.copy(ASSETS / f"schema-{version}.db", tmp_path / "tunekit.db"))
    Store.open(path).close()
    Store.open(tmp_path / "new.db").close()
    assert differences(path) == differences(tmp_path / "new.db") == []


def test_the_file_as_it_was_is_kept_beside_and_said(old, caplog):
    old.chmod(0o640)
    Store.open(old, create=False).close()
    kept = old.with_name("tunekit.db.schema-0001.backup")
    assert beside(old) == [kept.name]
    assert kept.stat().st_mode & 0o777 == 0o640
    (message,) = (record.getMessage() for record in caplog.records)
    assert f"kept as {kept}" in message
    assert "schema 0001 to " in message
    with sqlite3.connect(kept) as backup, sqlite3.connect(ASSETS / "schema-0001.db") as asset:
        assert list(backup.iterdump()) == list(asset.iterdump())
    Store.open(old)
    assert beside(old) == [kept.name]


def test_an_earlier_backup_is_never_overwritten(old):
    old.with_name("tunekit.db.schema-0001.backup").write_text("mine")
    Store.open(old).close()
    assert beside(old) == ["tunekit.db.schema-0001.backup", "tunekit.db.schema-0001.backup-2"]
    assert old.with_name("tunekit.db.schema-0001.backup").read_text() == "mine"


def test_processes_that_open_an_old_file_at_once_migrate_it_once(old, together):
    assert together(8, lambda number: len(Store.open(old).bests())) == [6] * 8
    assert beside(old) == ["tunekit.db.schema-0001.backup"]
    assert differences(old) == []


def test_threads_that_open_old_files_at_once_migrate_each(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    paths = [
        Path(shutil.copy(ASSETS / "schema-0001.db", tmp_path / f"{number}.db"))
        for number in range(8)
    ]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda path: len(Store.open(path).bests()), paths)) == [6] * 8
    assert {version_of(path) for path in paths} == {SCHEMA_VERSION}


def read_only(path):
    """Open, read, and try to write; give what was found and what the refusal says."""
    store = Store.open(path)
    counts = len(store.bests()), len(store.misses()), len(store.bests())
    with pytest.raises(StoreError, match="cannot write") as raised:
        store.put_best(store.bests()[0], force=True)
    store.close()
    assert len(store.bests()) == 6
    return counts, str(raised.value)


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_an_old_file_that_may_only_be_read_is_read_from_a_copy_in_memory(
    open_folder, as_plain_user, folder_mode
):
    path = Path(shutil.copy(ASSETS / "schema-0001.db", open_folder / "tunekit.db"))
    path.chmod(0o444)
    open_folder.chmod(folder_mode)
    content = path.read_bytes()
    counts, refusal = as_plain_user(lambda: read_only(path))
    assert counts == (6, 2, 6)
    assert "older schema 0001" in refusal
    assert path.read_bytes() == content
    assert beside(path) == []


def test_threads_and_children_share_a_copy_in_memory(open_folder, as_plain_user):
    from concurrent.futures import ThreadPoolExecutor

    path = Path(shutil.copy(ASSETS / "schema-0001.db", open_folder / "tunekit.db"))
    path.chmod(0o444)

    def read():
        store = Store.open(path)
        with ThreadPoolExecutor(8) as threads:
            found = set(threads.map(lambda number: len(store.bests()), range(32)))
        child = os.fork()
        if child == 0:
            os._exit(len(store.bests()))
        return found, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert as_plain_user(read) == ({6}, 6)


def test_an_old_file_in_use_by_a_writer_is_read_from_a_copy(old, monkeypatch):
    monkeypatch.setattr("tunekit.cache.sqlite_file.BUSY_SECONDS", 0.1)
    with sqlite3.connect(old, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        counts, refusal = read_only(old)
        writer.execute("ROLLBACK")
    assert counts == (6, 2, 6)
    assert "locked" in refusal
    assert version_of(old) == "0001"
    assert len(Store.open(old).bests()) == 6
    assert version_of(old) == SCHEMA_VERSION


KILLED = """
import os, signal, sys
from alembic import op
from tunekit.cache import Store
op.drop_table = lambda name: os.kill(os.getpid(), signal.SIGKILL)
Store.open(sys.argv[1])
"""


def test_a_process_killed_while_it_migrates_leaves_the_old_schema_whole(old):
    done = subprocess.run([sys.executable, "-c", KILLED, str(old)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(Store.open(old).bests()) == 6
    assert differences(old) == []
    assert "tunekit.db.schema-0001.backup" in beside(old)


def test_alembic_is_loaded_only_to_migrate(tmp_path):
    code = (
        "import sys; from tunekit.cache import Store; Store.open(sys.argv[1]).bests()\n"
        "print('alembic' in sys.modules)"
    )
    for name, loaded in (("new.db", "False"), ("new.db", "False"), ("old.db", "True")):
        if name == "old.db":
            shutil.copy(ASSETS / "schema-0001.db", tmp_path / name)
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True
        )
        assert done.stdout.strip() == loaded, done.stderr
