"""What a store is opened from, and what it refuses to touch."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from tunekit.cache import Store
from tunekit.cache.models import SCHEMA_VERSION
from tunekit.errors import StoreError


def refusal(location: str | Path, **options: bool) -> str:
    """Return the one line with which a location is refused."""
    with pytest.raises(StoreError) as raised:
        Store.open(location, **options)
    line = str(raised.value)
    assert "\n" not in line
    return line


def database(path: Path, *statements: str) -> bytes:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path.read_bytes()


def test_the_default_location_is_opened_without_one(own_cache):
    assert Store.open().location == str(own_cache)


def test_a_new_cache_is_in_a_folder_for_this_user_alone(tmp_path):
    store = Store.open(tmp_path / "a" / "b" / "tunekit.db")
    assert Path(store.location).is_file()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]


def test_an_sqlite_url_and_a_home_path_name_files(tmp_path, monkeypatch):
    assert Store.open(f"sqlite:///{tmp_path}/url.db").location == f"{tmp_path}/url.db"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store.open("~/home.db").location == f"{tmp_path}/home.db"


def test_odd_letters_in_a_path_are_only_letters(tmp_path, make):
    path = tmp_path / "a b?mode=ro#%41&.db"
    Store.open(path).put_device(make.device)
    assert path.is_file()
    assert Store.open(path, create=False).devices() == [make.device]


def test_the_schema_has_its_version_and_no_write_ahead_log(store):
    with sqlite3.connect(store.location) as connection:
        assert connection.execute("SELECT * FROM schema_version").fetchall() == [(SCHEMA_VERSION,)]
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert list(Path(store.location).parent.iterdir()) == [Path(store.location)]


def test_no_cache_is_made_for_who_only_reads(tmp_path):
    path = tmp_path / "folder" / "none.db"
    assert "tunekit tune" in refusal(path, create=False)
    assert not path.parent.exists()
    empty = tmp_path / "empty.db"
    empty.touch()
    assert str(empty) in refusal(empty, create=False)
    assert empty.stat().st_size == 0


def test_an_empty_file_becomes_a_cache(tmp_path):
    (tmp_path / "empty.db").touch()
    assert Store.open(tmp_path / "empty.db").bests() == []


@pytest.mark.parametrize(
    "content", [b"shapes:\n  - {m: 1}\n", b"x", os.urandom(9000)], ids=["text", "short", "long"]
)
@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_no_database_is_left_alone(tmp_path, content, create):
    path = tmp_path / "shapes.yaml"
    path.write_bytes(content)
    assert f"{path}: file is not a database" in refusal(path, create=create)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_a_device_and_a_path_through_a_file_are_no_caches(tmp_path):
    assert "is a folder" in refusal(tmp_path)
    assert "not a plain file" in refusal("/dev/null")
    (tmp_path / "file").touch()
    for create in (True, False):
        assert str(tmp_path / "file") in refusal(tmp_path / "file" / "x.db", create=create)
    refusal(tmp_path / ("x" * 400))
    refusal("nul\0letter.db")


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE photos (id INTEGER)"],
        ["CREATE TABLE best (id INTEGER)"],
        ["CREATE TABLE schema_version (version_num TEXT)"],
        [
            "CREATE TABLE schema_version (version_num TEXT)",
            f"INSERT INTO schema_version VALUES ('{SCHEMA_VERSION}')",
        ],
        [
            "CREATE TABLE schema_version (version_num TEXT)",
            "INSERT INTO schema_version VALUES ('ae10f2')",
        ],
    ],
)
def test_the_database_of_another_program_is_left_alone(tmp_path, statements):
    path = tmp_path / "photos.db"
    content = database(path, *statements)
    assert "not a tunekit cache" in refusal(path)
    assert path.read_bytes() == content


def test_a_newer_cache_is_refused_and_left_alone(store):
    path = Path(store.location)
    content = database(path, "UPDATE schema_version SET version_num = '0042'")
    assert "schema 0042, newer than this tunekit's" in refusal(path)
    assert "upgrade" in refusal(path, create=False)
    assert path.read_bytes() == content


def test_a_cut_file_is_an_error_for_a_reader_and_stays(tmp_path, make):
    path = tmp_path / "cut.db"
    make.filled(path).close()
    content = path.read_bytes()[:5000]
    path.write_bytes(content)
    with pytest.raises(StoreError, match="it is damaged"):
        Store.open(path, create=False).bests()
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("mysql://root:hunter2@host/db", "cannot be kept in mysql"),
        ("postgresql+nosuchdriver://me:hunter2@host/db", "cannot open"),
        ("postgresql+pg8000://me:hunter2@host:port/db", "cannot be read"),
        ("postgresql://me:pass@hunter2@host/db", "write one in a password as %40"),
        ("://", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url, words):
    line = refusal(url)
    assert words in line
    assert "hunter2" not in line


def test_a_server_without_its_driver_says_which(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    line = refusal("postgresql+psycopg://me:hunter2@host/db")
    assert line.endswith("needs the driver psycopg: pip install 'tunekit-triton[postgres]'")
    assert "hunter2" not in line


def test_a_read_only_file_in_a_read_only_folder_is_readable(open_folder, make, as_plain_user):
    path = open_folder / "tunekit.db"
    make.filled(path).close()
    path.chmod(0o444)
    open_folder.chmod(0o555)
    content = path.read_bytes()

    def read_then_write():
        found = Store.open(path)
        bests = found.bests()
        with pytest.raises(StoreError, match="cannot write"):
            found.put_device(make.device)
        with pytest.raises(StoreError, match="cannot write"):
            found.put_best(bests[0], force=True)
        return len(bests)

    assert as_plain_user(read_then_write) == 6
    assert path.read_bytes() == content


def test_a_writable_file_in_a_read_only_folder_says_so_at_the_first_write(
    open_folder, make, as_plain_user
):
    path = open_folder / "tunekit.db"
    make.filled(path).close()
    path.chmod(0o666)
    open_folder.chmod(0o555)

    def write():
        with pytest.raises(StoreError, match="cannot write") as raised:
            Store.open(path).put_device(make.device)
        return str(raised.value)

    assert "folder" in as_plain_user(write)


def test_a_read_only_file_in_a_writable_folder_is_readable(open_folder, make, as_plain_user):
    path = open_folder / "tunekit.db"
    make.filled(path).close()
    path.chmod(0o444)

    def read_then_write():
        with pytest.raises(StoreError, match="it is read-only"):
            Store.open(path).put_device(make.device)
        return len(Store.open(path).bests())

    assert as_plain_user(read_then_write) == 6


def test_a_folder_that_may_not_be_written_gets_no_cache(open_folder, as_plain_user):
    open_folder.chmod(0o555)
    for path in (open_folder / "tunekit.db", open_folder / "sub" / "tunekit.db"):
        line = as_plain_user(lambda path=path: refusal(path))
        assert str(path.parent) in line


def test_a_file_or_folder_that_may_not_be_read_is_refused(open_folder, make, as_plain_user):
    path = open_folder / "tunekit.db"
    make.filled(path).close()
    path.chmod(0o000)
    assert "may not be read" in as_plain_user(lambda: refusal(path))
    open_folder.chmod(0o000)
    assert "Permission denied" in as_plain_user(lambda: refusal(path))


def test_rows_in_a_live_writers_log_are_seen(tmp_path, make):
    """A file that another program put into WAL mode is read with its log, never as immutable."""
    path = tmp_path / "tunekit.db"
    make.filled(path).close()
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE best SET trials = 77777")
    writer.commit()
    assert Path(f"{path}-wal").stat().st_size > 0
    assert {best.trials for best in Store.open(path).bests()} == {77777}
    writer.close()


def test_a_file_left_in_wal_mode_is_readable_from_a_read_only_folder(
    open_folder, make, as_plain_user
):
    path = open_folder / "tunekit.db"
    make.filled(path).close()
    database(path, "PRAGMA journal_mode = WAL")
    open_folder.chmod(0o555)
    path.chmod(0o444)
    assert as_plain_user(lambda: len(Store.open(path, create=False).bests())) == 6


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("sqlite://host/x.db", "names a host"),
        ("sqlite:///x.db?mode=memory", "has options"),
        ("sqlite:///x.db?mode", "has options"),
        ("sqlite:///file:memdb?mode=memory&cache=shared&uri=true", "has options"),
        ("sqlite:///file:memdb", "names no file"),
        ("sqlite+nosuch:///x.db", "driver"),
        ("nosuch://host/x", "cannot be kept in nosuch"),
        ("postgresql://host:99999999/x", "port"),
        (":memory:", "not a plain path"),
        ("file:x.db?mode=ro", "not a plain path"),
        ("sqlite:/x.db", "not a plain path"),
        ("", "is empty"),
        (" \n", "is empty"),
        ("a\nb.db", "control letter"),
        ("~nosuchuser/x.db", "not a usable path"),
    ],
)
def test_a_location_that_names_no_file_is_refused(location, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for create in (True, False):
        assert words in refusal(location, create=create)
    assert list(tmp_path.iterdir()) == []


def test_space_around_a_location_is_not_part_of_it(tmp_path):
    assert Store.open(f" {tmp_path}/x.db\n").location == f"{tmp_path}/x.db"


@pytest.mark.parametrize("version", ["x'30303031ff'", "7", "NULL"])
def test_a_version_that_is_no_text_is_refused(store, version):
    path = Path(store.location)
    statements = (
        "ALTER TABLE schema_version RENAME TO old",
        "CREATE TABLE schema_version (version_num)",
        f"INSERT INTO schema_version VALUES ({version})",
        "DROP TABLE old",
    )
    content = database(path, *statements)
    assert "not a tunekit cache" in refusal(path)
    assert path.read_bytes() == content
