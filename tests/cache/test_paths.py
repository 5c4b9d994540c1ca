"""Paths of a cache: links, too long ones, files cut off within their first bytes, and drivers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tunekit.cache import Store, export_sqlite
from tunekit.errors import DamagedStoreError, StoreError


def test_a_link_in_a_read_only_folder_names_a_file_that_is_written(
    open_folder, make, as_plain_user
):
    """The journal is made beside the file, so the folder of the link has no say."""
    links, real = open_folder / "links", open_folder / "real"
    links.mkdir()
    real.mkdir()
    real.chmod(0o777)
    make.filled(real / "tunekit.db").close()
    (real / "tunekit.db").chmod(0o666)
    (links / "tunekit.db").symlink_to(real / "tunekit.db")
    links.chmod(0o555)

    def write():
        with Store.open(links / "tunekit.db") as store:
            return store.put_best(make.best(1.0))

    assert as_plain_user(write)
    assert make.best(1.0) in Store.open(real / "tunekit.db").bests()


def test_a_link_to_a_file_in_a_read_only_folder_says_which_folder(open_folder, make, as_plain_user):
    real = open_folder / "real"
    real.mkdir()
    make.filled(real / "tunekit.db").close()
    (real / "tunekit.db").chmod(0o666)
    real.chmod(0o555)
    (open_folder / "link.db").symlink_to(real / "tunekit.db")

    def write():
        with Store.open(open_folder / "link.db") as store, pytest.raises(StoreError) as raised:
            store.put_device(make.device)
        return str(raised.value), len(store.bests())

    line, rows = as_plain_user(write)
    assert f"{real}/tunekit.db: its folder is not writable" in line
    assert rows == 6


def test_a_damaged_file_behind_a_link_is_moved_and_the_link_stays(tmp_path, make):
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "big.db", tmp_path / "tunekit.db"
    make.filled(real).close()
    content = real.read_bytes()[:5000]
    real.write_bytes(content)
    Path(f"{real}-journal").write_bytes(b"what a writer left" * 99)
    link.symlink_to(real)
    with Store.open(link) as store:
        assert store.bests() == []
    assert link.is_symlink()
    assert link.samefile(real)
    assert Path(f"{real}.damaged-1").read_bytes() == content
    assert not Path(f"{real}-journal").exists()


def test_a_link_to_nothing_makes_the_file_that_it_names(tmp_path, make):
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real.db")
    Store.open(link).put_device(make.device)
    assert link.is_symlink()
    assert Store.open(tmp_path / "real.db", create=False).devices() == [make.device]


def test_a_path_that_sqlite_cannot_open_is_refused_before_anything_is_made(tmp_path):
    folders = Path(*["d" * 200] * 3)
    for path in (tmp_path / folders / "x.db", tmp_path / ("n" * 221), tmp_path / ("é" * 111)):
        with pytest.raises(StoreError, match=re.escape("too long for SQLite")) as raised:
            Store.open(path)
        assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_is_a_cache_that_can_be_written_and_moved_aside(tmp_path, make):
    path = tmp_path / ("n" * 220)
    make.filled(path).close()
    path.write_bytes(path.read_bytes()[:5000])
    Store.open(path).put_device(make.device)
    assert Path(f"{path}.damaged-1").exists()


@pytest.mark.parametrize("size", [72, 100, 511])
def test_a_cache_cut_off_within_its_header_is_moved_aside_by_a_writer_alone(tmp_path, make, size):
    path = tmp_path / "tunekit.db"
    make.filled(path).close()
    content = path.read_bytes()[:size]
    path.write_bytes(content)
    with pytest.raises(DamagedStoreError, match="cut off"):
        Store.open(path, create=False)
    assert path.read_bytes() == content
    assert Store.open(path).bests() == []
    assert path.with_name("tunekit.db.damaged-1").read_bytes() == content


@pytest.mark.parametrize("content", [b"SQLite format 3\0", b"a note\n", b"x" * 511])
def test_a_short_file_that_was_not_ours_stays_where_it_is(tmp_path, content):
    path = tmp_path / "note"
    path.write_bytes(content)
    with pytest.raises(DamagedStoreError, match="not a database"):
        Store.open(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_that_cannot_be_written_names_the_file_that_was_asked_for(
    open_folder, make, as_plain_user
):
    source, shut = open_folder / "tunekit.db", open_folder / "shut"
    make.filled(source).close()
    source.chmod(0o666)
    shut.mkdir()
    shut.chmod(0o555)

    def export():
        with pytest.raises(StoreError) as raised:
            export_sqlite(Store.open(source), shut / "out.db")
        return str(raised.value)

    assert as_plain_user(export) == f"cannot write {shut}/out.db: Permission denied"


def test_a_url_with_another_driver_says_which_to_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(StoreError, match="write postgresql://") as raised:
        Store.open("postgresql+asyncpg://me:hunter2@host/db")
    assert "hunter2" not in str(raised.value)
