"""The export as an SQLite file: a cache of its own, sealed, and never changed by an import."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from tunekit.cache import Policy, Store, export_json, export_sqlite, import_json, import_sqlite
from tunekit.errors import ExchangeError, StoreError
from tunekit.trial import Origin


def anything_goes(config, problem, device):
    return None


def take(store, path, **options):
    return import_sqlite(store, path, **{"legality": anything_goes, **options})


def digest(folder: Path) -> dict[str, str]:
    """Return what every file of a folder holds."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


@pytest.fixture
def full(tmp_path, make):
    (tmp_path / "full").mkdir()
    return make.filled(tmp_path / "full" / "full.db")


@pytest.fixture
def empty(tmp_path):
    return Store.open(tmp_path / "empty.db")


@pytest.fixture
def file(full, tmp_path):
    (tmp_path / "file").mkdir()
    path = tmp_path / "file" / "all of it.db"
    export_sqlite(full, path, all_trials=True)
    return path


def change(path, *statements):
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize("all_trials", [False, True])
def test_the_file_is_a_cache_with_the_rows_that_json_holds(full, tmp_path, all_trials):
    path = tmp_path / "slim.db"
    export_sqlite(full, path, all_trials=all_trials)
    text = export_json(full, all_trials=all_trials)
    with Store.open(path, create=False) as slim:
        assert export_json(slim, all_trials=all_trials) == text
        assert bool(slim.trials(slim.bests()[0].key)) is all_trials
        assert slim.bests() == full.bests()
        assert slim.misses() == {}
        slim.put_best(slim.bests()[0], force=True)


def test_the_bytes_depend_on_the_rows_alone(full, empty, tmp_path):
    import_json(empty, export_json(full, all_trials=True), legality=anything_goes)
    paths = [tmp_path / f"{number}.db" for number in range(3)]
    for store, path in zip((full, full, empty), paths, strict=True):
        export_sqlite(store, path, all_trials=True)
    assert len({path.read_bytes() for path in paths}) == 1


def test_one_gpus_rows_and_nothing_else(full, tmp_path, make):
    path = tmp_path / "one.db"
    export_sqlite(full, path, gpu=make.other_device.slug, all_trials=True)
    with Store.open(path, create=False) as slim:
        assert slim.devices() == [make.other_device]
        assert len(slim.bests()) == 1
    with pytest.raises(StoreError, match="no rows of the GPU 'tpu'"):
        export_sqlite(full, tmp_path / "none.db", gpu="tpu")
    assert not (tmp_path / "none.db").exists()


def test_both_forms_import_alike(full, file, tmp_path, make):
    stores = [Store.open(tmp_path / f"{name}.db") for name in ("json", "sqlite")]
    for store in stores:
        store.put_device(make.device)
        store.put_best(make.best(4.0))
    text = export_json(full, all_trials=True)
    for policy in (Policy.KEEP, Policy.FASTER, Policy.REPLACE):
        for dry_run in (True, False):
            options = {"policy": policy, "legality": anything_goes, "dry_run": dry_run}
            reports = [
                import_json(stores[0], text, **options),
                take(stores[1], file, policy=policy, dry_run=dry_run),
            ]
            assert reports[0] == reports[1]
        assert stores[0].bests() == stores[1].bests()
    assert {b.provenance.origin for b in stores[1].bests()} == {Origin.IMPORTED}


def test_an_import_changes_nothing_of_the_file_and_beside_it(file, empty):
    before = digest(file.parent)
    assert take(empty, file).added == 14
    assert digest(file.parent) == before
    folder = file.parent
    folder.chmod(0o500)
    try:
        assert take(empty, file).kept == 14
    finally:
        folder.chmod(0o700)


def test_a_live_cache_can_be_imported_and_goes_on(full, empty, make):
    """It has no seal; a seal of an export that was written to since means nothing any more."""
    assert take(empty, Path(full.location)).added == 14
    assert full.put_best(make.best(1.0, key=make.key(m=77)))


def test_an_export_that_became_a_cache_can_be_imported(file, empty, make):
    with Store.open(file) as used:
        used.put_best(make.best(1.0, key=make.key(m=77)))
    assert take(empty, file).added == 15


def test_every_byte_is_under_the_seal(file, empty):
    """A flipped bit that leaves a readable database is found too."""
    whole = bytearray(file.read_bytes())
    places = [*range(0, 100), *range(100, len(whole), 997)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        if not bytes(damaged).startswith(b"SQLite format 3\0"):
            with pytest.raises(ExchangeError):
                take(empty, file)
        else:
            with pytest.raises(ExchangeError, match="its bytes are not those"):
                take(empty, file)
    assert empty.bests() == []


def test_values_no_row_may_have_are_refused_by_number(file, empty):
    """What SQLite stores in a column of another type, in a file that is not sealed any more."""
    change(
        file,
        "UPDATE best SET median_us = 'fast' WHERE id = 1",
        "UPDATE best SET trials = x'00' WHERE id = 3",
        "UPDATE best SET created_at = 'yesterday' WHERE id = 4",
        "UPDATE best SET count = 9e300 WHERE id = 6",
        "UPDATE config SET text = '[' || text WHERE id = (SELECT config_id FROM best WHERE id = 2)",
        "UPDATE trial SET status = 'bored' WHERE id = 1",
        "UPDATE trial SET repetitions = -1 WHERE status = 'ok'",
        "UPDATE device SET multiprocessors = 'all' WHERE name LIKE '%A100%'",
    )
    report = take(empty, file)
    words = {number: reason for number, reason in report.refused}
    assert "median_us: expected a positive time, found 'fast'" in words[1]
    assert "trials: expected a whole number" in words[3]
    assert "config: expected an object" in words[2]
    reasons = "\n".join(words.values())
    for reason in ("created_at: ", "count: ", "status: expected one of ok", "repetitions: "):
        assert reason in reasons
    assert "device 1: multiprocessors: expected a whole number" in reasons
    assert all(best.measurement.median_us > 0 for best in empty.bests())


def test_text_that_is_no_utf8_costs_its_own_rows(file, full, empty):
    change(file, "UPDATE best SET source = CAST(x'ff' AS TEXT) WHERE id = 1")
    report = take(empty, file)
    assert len(report.refused) == 1
    assert "source: expected text" in report.refused[0][1]
    assert report.added == 13


def header(path, place, value):
    raw = bytearray(path.read_bytes())
    struct.pack_into(">I", raw, place, value)
    path.write_bytes(raw)


def foreign(path, *statements):
    path.unlink()
    change(path, *statements)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:50]), "ends within its header"),
        (lambda p: p.write_bytes(p.read_bytes()[:5000]), "damaged"),
        (lambda p: p.write_bytes(p.read_bytes()[:-4096]), "damaged"),
        (lambda p: p.write_bytes(p.read_bytes()[:100] + bytes(8000)), "damaged"),
        (lambda p: header(p, 24, 7), "damaged"),
        (lambda p: foreign(p, "CREATE TABLE best (id)"), "not a cache of tunekit"),
        (lambda p: foreign(p, "PRAGMA user_version = 1"), "not a cache of tunekit"),
        (lambda p: foreign(p, "CREATE TABLE schema_version (version_num)"), "not a cache"),
        (lambda p: change(p, "UPDATE schema_version SET version_num = '9999'"), "newer than this"),
        (lambda p: change(p, "UPDATE schema_version SET version_num = 1"), "not a cache"),
        (lambda p: change(p, "UPDATE best SET count = 3"), None),
        (lambda p: change(p, "UPDATE schema_version SET version_num = x'31'"), "not a cache"),
        (lambda p: change(p, "DROP TABLE miss"), "no table miss"),
        (lambda p: change(p, "ALTER TABLE best RENAME median_us TO mean_us"), "cannot be read"),
        (lambda p: change(p, "DELETE FROM config WHERE id = 1"), "names one that is not there"),
        (lambda p: change(p, "CREATE VIEW v AS SELECT 1"), "views or triggers"),
        (
            lambda p: change(
                p, "CREATE TRIGGER t AFTER INSERT ON best BEGIN DELETE FROM trial; END"
            ),
            "views or triggers",
        ),
        (lambda p: Path(f"{p}-journal").write_bytes(b"x" * 600), "in use"),
        (lambda p: Path(f"{p}-wal").write_bytes(b"x" * 600), "in use"),
    ],
)
def test_what_is_no_whole_cache_is_refused_in_one_line_and_left_alone(file, full, harm, words):
    harm(file)
    before, stored = digest(file.parent), export_json(full, all_trials=True)
    if words is None:
        assert take(full, file).kept == 14
    else:
        with pytest.raises(ExchangeError, match=words) as raised:
            take(full, file, policy=Policy.REPLACE)
        assert "\n" not in str(raised.value)
        assert str(raised.value).isprintable()
        assert "tunekit-" not in str(raised.value)  # the folder of the copy
    assert digest(file.parent) == before
    assert export_json(full, all_trials=True) == stored


def test_a_file_in_wal_mode_is_read_and_nothing_is_made_beside_it(file, empty):
    change(file, "PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert {path.name for path in file.parent.iterdir()} == {file.name}
    before = digest(file.parent)
    assert take(empty, file).added == 14
    assert digest(file.parent) == before


def test_an_absent_file_and_a_folder_are_one_line(empty, tmp_path):
    for place in (tmp_path / "nothing.db", tmp_path):
        with pytest.raises(ExchangeError, match="cannot read"):
            take(empty, place)


def test_a_target_is_written_whole_or_not_at_all(full, file, tmp_path, make, monkeypatch):
    old = file.read_bytes()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_disk)
        with pytest.raises(StoreError, match=r"cannot write .*No space left"):
            export_sqlite(full, file)
    assert file.read_bytes() == old
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    link = tmp_path / "link.db"
    link.symlink_to(file)
    export_sqlite(full, link)
    assert link.is_symlink()
    assert file.read_bytes() != old


@pytest.mark.parametrize("target", ["folder", "missing/x.db", "/dev/full", "in use", "nul\0"])
def test_a_target_that_cannot_be_written_is_one_line(full, tmp_path, target, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("in use-journal").touch()
    with pytest.raises(StoreError, match="cannot write"):
        export_sqlite(full, Path(target))
    assert not Path("missing").exists()


def test_a_database_of_the_first_schema_is_read_and_left_as_it_is(empty, tmp_path, caplog):
    asset = Path(__file__).parent / "assets" / "schema-0001.db"
    if not asset.exists():
        pytest.skip("the asset of schema 0001 is not here")
    copy = tmp_path / "old" / "old.db"
    copy.parent.mkdir()
    shutil.copyfile(asset, copy)
    before = digest(copy.parent)
    report = take(empty, copy)
    assert caplog.text == ""
    assert report.added > len(empty.bests()) > 0
    assert report.refused == []
    assert digest(copy.parent) == before
