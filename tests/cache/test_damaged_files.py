"""A damaged file is moved aside by who writes, is never deleted, and nothing else ever is moved."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from tunekit.cache import Store, import_sqlite, opening
from tunekit.cache.damage import identity, set_aside
from tunekit.errors import DamagedStoreError, ExchangeError, StoreError

ASSET = Path(__file__).parent / "assets" / "schema-0001.db"


def cut(content):
    return content[:5000]


def without_its_first_page(content):
    return b"\xff" * 4096 + content[4096:]


def zeros(content):
    return b"\0" * len(content)


def with_a_broken_table_of_tables(content):
    return content[:100] + b"\xee" * 200 + content[300:]


def with_a_name_that_is_no_text(content):
    """SQLite quotes the name in what it says, which Python then cannot decode."""
    named = content.replace(b"tablebestbest", b"tableb\xe3\xb0tbest", 1)
    return named.replace(b"CREATE TABLE best", b"CREATE TABLX best", 1)


HARM = [
    cut,
    without_its_first_page,
    zeros,
    with_a_broken_table_of_tables,
    with_a_name_that_is_no_text,
]


def table_page(content, table):
    """Return where the first page of a table is."""
    connection = sqlite3.connect(":memory:")
    with sqlite3.connect(ASSET) as asset:
        asset.backup(connection)
    query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    ((page,),) = connection.execute(query, (table,)).fetchall()
    return (page - 1) * 4096


@pytest.fixture
def file(tmp_path, make):
    path = tmp_path / "tunekit.db"
    make.filled(path).close()
    return path


def damage(path, how):
    content = how(path.read_bytes())
    path.write_bytes(content)
    return content


@pytest.mark.parametrize("how", HARM)
def test_a_writer_moves_a_damaged_file_aside_and_starts_a_new_one(file, make, how, caplog):
    content = damage(file, how)
    store = Store.open(file)
    store.put_device(make.device)
    assert store.put_best(make.best())
    aside = file.with_name("tunekit.db.damaged-1")
    assert aside.read_bytes() == content
    (message,) = (record.getMessage() for record in caplog.records)
    assert f"{file} is damaged and was moved to {aside}" in message
    assert len(Store.open(file, create=False).bests()) == 1


@pytest.mark.parametrize("how", HARM)
def test_a_reader_only_says_that_a_file_is_damaged(file, how):
    content = damage(file, how)
    with pytest.raises(DamagedStoreError) as raised:
        Store.open(file, create=False).bests()
    assert "\n" not in str(raised.value)
    assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]


def test_damage_found_in_the_middle_of_a_run_is_told_and_the_next_run_starts_anew(file, make):
    store = Store.open(file)
    with file.open("r+b") as raw:  # a page that opening does not read
        raw.seek(table_page(file.read_bytes(), "best"))
        raw.write(b"\xee" * 4096)
    content = file.read_bytes()
    with pytest.raises(DamagedStoreError, match=r"moved to .*damaged-1: the same command again"):
        store.bests()
    assert file.with_name("tunekit.db.damaged-1").read_bytes() == content
    with Store.open(file) as again:
        again.put_device(make.device)
        assert again.put_best(make.best())


def test_a_third_damaged_file_has_the_number_three(file, make):
    for number in (1, 2, 3):
        damage(file, cut)
        Store.open(file).close()
        assert file.with_name(f"tunekit.db.damaged-{number}").exists()
        file.unlink()
        make.filled(file).close()


def test_no_journal_is_left_to_be_played_into_the_new_file(file):
    damage(file, zeros)
    Path(f"{file}-journal").write_bytes(b"what a writer left" * 99)
    Store.open(file).close()
    assert not Path(f"{file}-journal").exists()
    assert Store.open(file).bests() == []


def test_writers_that_find_the_damage_at_once_move_one_file(file, make, together):
    for attempt in (1, 2, 3):
        content = damage(file, cut)

        def write(number):
            with Store.open(file) as store:
                store.put_device(make.device)
                return store.put_best(make.best(key=make.key(m=number + 1)))

        assert all(together(6, write))
        assert len(Store.open(file).bests()) == 6
        aside = [path for path in file.parent.iterdir() if "damaged" in path.name]
        assert len(aside) == attempt
        assert file.with_name(f"tunekit.db.damaged-{attempt}").read_bytes() == content


def test_one_who_finds_the_file_just_gone_may_write_the_one_in_its_place(file, make, monkeypatch):
    """The file is there, gone as it is opened, and a new one is there at the next look."""
    make.filled(file.with_name("other.db")).close()
    make.filled(file).close()
    really_look = opening.look

    def look(database):
        monkeypatch.setattr(opening, "look", really_look)
        file.rename(file.with_name("gone.db"))
        with pytest.raises(StoreError, match="unable to open"):
            really_look(database)
        file.with_name("other.db").rename(file)
        raise StoreError("it could not be opened")

    monkeypatch.setattr(opening, "look", look)
    with Store.open(file) as store:
        assert store.put_best(make.best(key=make.key(m=77)))


@pytest.mark.parametrize(
    "make_file",
    [
        lambda path: path.write_bytes(b"\x89PNG" + bytes(range(256)) * 64),
        lambda path: sqlite3.connect(path).execute("CREATE TABLE photos (id)").connection.close(),
        lambda path: shutil.copy(ASSET, path),
    ],
    ids=["no database", "another's database", "an old cache"],
)
def test_what_is_whole_or_not_ours_is_never_moved(tmp_path, make_file):
    path = tmp_path / "tunekit.db"
    make_file(path)
    content = path.read_bytes()
    assert set_aside(path, identity(path)) is None
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_database_of_another_program_is_never_moved(tmp_path):
    path = tmp_path / "photos.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (id INTEGER, note TEXT)")
    connection.executemany("INSERT INTO photos VALUES (?, ?)", [(i, "x" * 99) for i in range(999)])
    connection.commit()
    connection.close()
    content = damage(path, cut)
    with pytest.raises(DamagedStoreError):
        Store.open(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_locked_file_is_never_moved(file, monkeypatch):
    monkeypatch.setattr("tunekit.cache.sqlite_file.BUSY_SECONDS", 0.1)
    with sqlite3.connect(file, isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked"):
            Store.open(file).bests()
        assert set_aside(file, identity(file)) is None
        holder.execute("ROLLBACK")
    assert list(file.parent.iterdir()) == [file]
    assert len(Store.open(file).bests()) == 6


def test_a_damaged_file_in_a_read_only_folder_is_an_error(open_folder, make, as_plain_user):
    path = open_folder / "tunekit.db"
    make.filled(path).close()
    content = damage(path, cut)
    path.chmod(0o444)
    open_folder.chmod(0o555)

    def use():
        with pytest.raises(DamagedStoreError) as raised:
            Store.open(path)
        return str(raised.value)

    assert "damaged" in as_plain_user(use)
    assert path.read_bytes() == content


@pytest.mark.parametrize("how", HARM)
def test_a_damaged_file_is_no_export(file, tmp_path, how):
    content = damage(file, how)
    with (
        Store.open(tmp_path / "other.db") as store,
        pytest.raises(ExchangeError, match=r"damaged|not a cache"),
    ):
        import_sqlite(store, file, legality=lambda *_: None)
    assert file.read_bytes() == content
