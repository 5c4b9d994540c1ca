"""A cache file is looked at from outside: nothing is changed, and what is wrong is named."""

from __future__ import annotations

import sqlite3

import pytest

from tunekit.cache import Store, examine, file_of
from tunekit.cache.models import SCHEMA_VERSION


@pytest.fixture
def file(tmp_path, make):
    path = tmp_path / "rows.db"
    with Store.open(path) as store:
        store.put_device(make.device)
        store.put_best(make.best())
    return path


def test_a_sound_file_is_read_and_left_alone(file):
    before = file.read_bytes(), file.stat().st_mtime_ns
    found = examine(file)
    assert (found.exists, found.readable, found.writable, found.fault) == (True, True, True, None)
    assert found.schema == found.newest_schema == SCHEMA_VERSION
    assert found.size_bytes == len(before[0])
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_is_not_there_may_be_made_or_not(tmp_path):
    assert examine(tmp_path / "deep" / "x.db").writable
    assert not examine(tmp_path / "deep" / "x.db").exists
    (tmp_path / "plain").write_text("")
    assert not examine(tmp_path / "plain" / "x.db").writable


def test_what_is_no_database_or_no_cache_is_said_to_be_none(tmp_path):
    (tmp_path / "text").write_text("hello" * 300)
    assert examine(tmp_path / "text").fault == "file is not a database"
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE a (b)")
    assert examine(tmp_path / "other.db").fault == "it is not a tunekit cache"


def test_damage_within_is_found(file):
    whole = bytearray(file.read_bytes())
    page = 4096
    for start in range(2 * page, len(whole), page):
        whole[start : start + 64] = b"\xff" * 64
    file.write_bytes(whole)
    assert examine(file).fault


def test_an_older_schema_is_named_and_not_migrated(file):
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE schema_version SET version_num = '0001'")
    assert examine(file).schema == "0001"
    assert examine(file).fault is None


def test_a_network_file_system_is_named(file, monkeypatch):
    monkeypatch.setattr("tunekit.cache.health.network_type", lambda path: "nfs4")
    assert examine(file).network == "nfs4"


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b.db", "/a/b.db"),
        ("sqlite:////a/b.db", "/a/b.db"),
        ("postgresql://host/name", None),
        ("nonsense://", None),
    ],
)
def test_a_location_names_a_file_or_a_server(location, path):
    found = file_of(location)
    assert (None if found is None else str(found)) == path
