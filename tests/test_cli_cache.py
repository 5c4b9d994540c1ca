"""`show`, `export-cache` and `import-cache` on real stores."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest

from tunekit.cache import Store
from tunekit.cli import main
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels import family
from tunekit.key import Problem, TuningKey
from tunekit.trial import Best, Choice, Measurement, Provenance

H200 = KNOWN_DEVICES["sm_90"]
A100 = KNOWN_DEVICES["sm_80"]


def measured(median):
    times = (median, median - 0.5, median + 0.5, median, median, median)
    return Measurement(*times, 50, "test-1", error_ratio=0.5, final=True)


def best(m=64, *, device=H200, triton=100.0, vendor=110.0, at=0, **changes):
    problem = Problem("matmul", m, 128, 128, "bfloat16")
    space = family("matmul").space(problem, device)
    config = space.configs[at]
    provenance = Provenance(
        fingerprint=family("matmul").fingerprint(config.variant),
        protocol="test-1",
        tunekit="0",
        triton="0",
        torch="0",
        driver="0",
        device_name=device.name,
        created_at="2020-01-01T00:00:00",
    )
    row = Best(
        key=TuningKey.of(problem, device.slug),
        choice=Choice.TRITON,
        config=config,
        measurement=measured(triton),
        vendor=measured(vendor),
        trials=8,
        space_size=len(space),
        provenance=provenance,
    )
    return replace(row, **changes)


@pytest.fixture
def fill(own_cache):
    def put(*bests, location=own_cache):
        with Store.open(location) as store:
            for device in (H200, A100):
                store.put_device(device)
            for row in bests:
                store.put_best(row, force=True)
        return location

    return put


def error_line(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    said = [line for line in captured.err.splitlines() if not line.startswith("tunekit: wrote ")]
    assert len(said) == 1
    assert said[0].startswith("tunekit: ")
    return said[0]


def test_show_gives_the_stored_numbers_as_json(fill, capsys):
    fill(best(64), best(16, triton=50.0))
    assert main(["show", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["schema"] == 1
    assert [(row["m"], row["triton_us"]) for row in document["keys"]] == [(16, 50.0), (64, 100.0)]
    row = document["keys"][1]
    assert row["ratio"] == pytest.approx(1.1)
    assert row["grade"] == "exact"
    assert Config.from_dict(row["config"]) == best().config


def test_show_prints_a_table_whole_in_a_pipe(fill, capsys):
    fill(best(64), best(64, device=A100, triton=55.5))
    assert main(["show"]) == 0
    out = capsys.readouterr().out
    assert "100.00 +-0.50" in out
    assert "55.50 +-0.50" in out
    assert H200.slug in out
    assert A100.slug in out


def test_show_of_one_gpu(fill, capsys):
    fill(best(64), best(16, device=A100))
    assert main(["show", "--json", "--gpu", A100.slug]) == 0
    assert [row["m"] for row in json.loads(capsys.readouterr().out)["keys"]] == [16]
    assert main(["show", "--gpu", "other"]) == 1
    line = error_line(capsys)
    assert "other" in line
    assert H200.slug in line


def test_show_grades_a_row_of_another_compiler(fill, capsys):
    row = best()
    fingerprint = replace(row.provenance.fingerprint, compiler="triton-0")
    fill(replace(row, provenance=replace(row.provenance, fingerprint=fingerprint)))
    assert main(["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"][0]["grade"] == "other-compiler"


@pytest.mark.parametrize("command", [["show"], ["show", "--json"], ["export-cache"]])
def test_without_rows_the_way_to_get_some_is_said(command, fill, own_cache, capsys):
    assert main(command) == 1
    assert "tunekit tune" in error_line(capsys)
    assert not own_cache.exists()
    fill()
    assert main(command) == 1
    assert str(own_cache) in error_line(capsys)


@pytest.mark.parametrize(
    "command", [["show"], ["export-cache"], ["import-cache", "export.json"]], ids=lambda c: c[0]
)
@pytest.mark.parametrize("kind", ["folder", "text"])
def test_a_cache_that_is_none_is_one_line(command, kind, fill, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export-cache", "-o", "export.json", "--cache", str(fill(best()))]) == 0
    place = tmp_path / "place"
    if kind == "folder":
        place.mkdir()
    else:
        place.write_text("not a database, but long enough to be looked at\n" * 50)
    before = sorted(tmp_path.rglob("*"))
    assert main([*command, "--cache", str(place)]) == 1
    assert "place" in error_line(capsys)
    assert sorted(tmp_path.rglob("*")) == before


def test_export_import_export_gives_the_same_bytes(fill, tmp_path, capsys):
    fill(best(64), best(16), best(64, device=A100))
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    other = str(tmp_path / "other.db")
    assert main(["export-cache", "-o", str(first)]) == 0
    assert main(["import-cache", str(first), "--cache", other]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "3 rows added, 0 replaced, 0 kept as they are, 0 refused" in captured.err
    assert main(["export-cache", "-o", str(second), "--cache", other]) == 0
    assert second.read_bytes() == first.read_bytes()
    assert main(["export-cache", "--cache", other]) == 0
    assert capsys.readouterr().out == first.read_text()
    assert main(["show", "--cache", other, "--json"]) == 0
    assert {row["origin"] for row in json.loads(capsys.readouterr().out)["keys"]} == {"imported"}


def test_what_is_measured_here_is_kept_unless_told_otherwise(fill, tmp_path, capsys):
    file = tmp_path / "faster.json"
    faster = fill(best(triton=50.0, at=1), location=tmp_path / "faster.db")
    assert main(["export-cache", "-o", str(file), "--cache", str(faster)]) == 0
    fill(best(triton=100.0))

    def stored():
        assert main(["show", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["keys"][0]["triton_us"]

    assert main(["import-cache", str(file)]) == 0
    assert "1 kept" in capsys.readouterr().err
    assert stored() == 100.0
    assert main(["import-cache", str(file), "--on-conflict", "replace", "--dry-run"]) == 0
    assert "1 would be replaced" in capsys.readouterr().err
    assert stored() == 100.0
    assert main(["import-cache", str(file), "--on-conflict", "replace"]) == 0
    capsys.readouterr()
    assert stored() == 50.0


def test_a_dry_run_makes_no_cache(fill, tmp_path, capsys):
    file, other = tmp_path / "export.json", tmp_path / "other.db"
    assert main(["export-cache", "-o", str(file), "--cache", str(fill(best()))]) == 0
    assert main(["import-cache", str(file), "--cache", str(other), "--dry-run"]) == 0
    assert "1 row would be added" in capsys.readouterr().err
    assert not other.exists()


def test_an_illegal_row_is_refused_by_number_and_the_rest_is_loaded(fill, tmp_path, capsys):
    bad = replace(best().config, block_m=48)
    file, other = tmp_path / "export.json", tmp_path / "other.db"
    assert main(["export-cache", "-o", str(file), "--cache", str(fill(best(16), best()))]) == 0
    both = tmp_path / "both.json"
    source = fill(best(16), best(64, config=bad), location=tmp_path / "bad.db")
    assert main(["export-cache", "-o", str(both), "--cache", str(source)]) == 0
    assert main(["import-cache", str(both), "--cache", str(other)]) == 0
    err = capsys.readouterr().err
    assert "refused: " in err
    assert "block_m" in err
    assert "1 row added, 0 replaced, 0 kept as they are, 1 refused" in err

    alone = tmp_path / "alone.json"
    source = fill(best(64, config=bad), location=tmp_path / "alone.db")
    assert main(["export-cache", "-o", str(alone), "--cache", str(source)]) == 0
    nothing = tmp_path / "nothing.db"
    assert main(["import-cache", str(alone), "--cache", str(nothing)]) == 1
    assert not nothing.exists()


@pytest.mark.parametrize("kind", ["cut", "empty", "binary", "json", "absent", "folder"])
def test_a_damaged_export_is_one_line_and_makes_no_cache(kind, fill, tmp_path, capsys):
    file, other = tmp_path / "export.json", tmp_path / "other.db"
    assert main(["export-cache", "-o", str(file), "--cache", str(fill(best()))]) == 0
    whole = file.read_bytes()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "binary": b"\xff\xfe" + whole,
        "json": b'{"hello": [1, 2]}',
    }
    if kind in damaged:
        file.write_bytes(damaged[kind])
    elif kind == "absent":
        file.unlink()
    else:
        file.unlink()
        file.mkdir()
    assert main(["import-cache", str(file), "--cache", str(other)]) == 1
    error_line(capsys)
    assert not other.exists()


def new_cache(kind, path):
    """Return how an import names a cache that has no tables yet."""
    if kind.startswith("file"):
        path.touch()
    elif kind.startswith("database"):
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 1")
        connection.close()
    return f"sqlite:///{path}" if kind.endswith("url") else str(path)


NEW = ["path", "url", "file", "file by url", "database", "database by url"]


@pytest.mark.parametrize("kind", NEW)
def test_an_import_makes_the_cache_however_it_is_named(kind, fill, tmp_path, capsys):
    file, path = tmp_path / "export.json", tmp_path / "new.db"
    assert main(["export-cache", "-o", str(file), "--cache", str(fill(best()))]) == 0
    location = new_cache(kind, path)
    before = path.read_bytes() if path.exists() else None
    assert main(["import-cache", str(file), "--cache", location, "--dry-run"]) == 0
    assert (path.read_bytes() if path.exists() else None) == before
    assert main(["import-cache", str(file), "--cache", location]) == 0
    assert f"{path}: 1 row added" in capsys.readouterr().err
    with Store.open(path, create=False) as store:
        assert len(store.bests()) == 1


@pytest.mark.parametrize("kind", NEW)
def test_a_damaged_import_makes_none_and_is_named(kind, tmp_path, capsys):
    file, path = tmp_path / "export.json", tmp_path / "new.db"
    file.write_text("{")
    location = new_cache(kind, path)
    before = path.read_bytes() if path.exists() else None
    assert main(["import-cache", str(file), "--cache", location]) == 1
    assert str(file) in error_line(capsys)
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("place", ["x" * 300, "~nosuchuser/x.db", "", "/proc/1/nope/x.db"])
def test_a_place_that_cannot_be_is_one_line(place, fill, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export-cache", "-o", "export.json", "--cache", str(fill(best()))]) == 0
    for command in (["show"], ["import-cache", "export.json"]):
        assert main([*command, "--cache", place]) == 1
        error_line(capsys)


@pytest.mark.parametrize("target", ["/", "/proc/self/fd", "nul\0"])
def test_an_output_that_is_no_file_is_one_line(target, fill, capsys):
    fill(best())
    assert main(["export-cache", "-o", target]) == 1
    assert "cannot write" in error_line(capsys)


@pytest.mark.parametrize("command", [["show"], ["show", "--json"], ["export-cache"]])
def test_a_closed_stdout_is_one_line(command, fill, capsys, monkeypatch):
    fill(best())
    monkeypatch.setattr("sys.stdout", None)
    assert main(command) == 1
    assert "cannot write to stdout: it is closed" in capsys.readouterr().err


def test_a_closed_stderr_changes_only_what_can_be_read(fill, capsys, monkeypatch, tmp_path):
    fill(best())
    monkeypatch.setattr("sys.stderr", None)
    assert main(["show"]) == 0
    assert "100.00" in capsys.readouterr().out
    assert main(["show", "--cache", str(tmp_path / "none.db")]) == 1
    assert main(["nonsense"]) == 2
