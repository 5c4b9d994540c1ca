"""`export-cache`: both forms, and the check that every problem of a file has a row."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tunekit.cache import Store, export_json
from tunekit.cli import main
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels import family
from tunekit.key import Problem, TuningKey
from tunekit.trial import Best, Choice, Measurement, Provenance

H200 = KNOWN_DEVICES["sm_90"]
A100 = KNOWN_DEVICES["sm_80"]
CHECK = ["export-cache", "--check", "shapes.yaml", "--gpu", H200.slug]


def best(m=64, *, device=H200, **changes):
    problem = Problem("matmul", m, 128, 128, "bfloat16")
    space = family("matmul").space(problem, device)
    measured = Measurement(9.0, 8.5, 9.5, 9.0, 9.0, 9.0, 50, "test-1", error_ratio=0.5, final=True)
    provenance = Provenance(
        fingerprint=family("matmul").fingerprint(space.configs[0].variant),
        **dict.fromkeys(("protocol", "tunekit", "triton", "torch", "driver"), "0"),
        device_name=device.name,
        created_at="2020-01-01T00:00:00",
    )
    row = Best(
        key=TuningKey.of(problem, device.slug),
        choice=Choice.TRITON,
        config=space.configs[0],
        measurement=measured,
        vendor=None,
        trials=8,
        space_size=len(space),
        provenance=provenance,
    )
    return replace(row, **changes)


@pytest.fixture
def fill(own_cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def put(*bests):
        with Store.open(own_cache) as store:
            for device in (H200, A100):
                store.put_device(device)
            for row in bests:
                store.put_best(row, force=True)
        return own_cache

    return put


@pytest.fixture
def shapes(tmp_path):
    def write(*sizes, more=""):
        entries = "".join(f"  - {{m: {m}, n: 128, k: 128}}\n" for m in sizes)
        (tmp_path / "shapes.yaml").write_text(f"shapes:\n{entries}{more}")

    return write


def other(row, **fingerprint):
    changed = replace(row.provenance.fingerprint, **fingerprint)
    return replace(row, provenance=replace(row.provenance, fingerprint=changed))


def test_a_whole_file_with_rows_is_one_line_and_0(fill, shapes, own_cache, capsys):
    fill(best(16), other(best(64), compiler="triton-0"))
    shapes(16, 64, 16)
    assert main(CHECK) == 0
    captured = capsys.readouterr()
    assert (
        captured.out == f"{own_cache}: all 2 problems of shapes.yaml have a row for {H200.slug}\n"
    )
    assert captured.err == ""


def test_what_has_no_row_is_listed_with_the_command_that_tunes_it(fill, shapes, own_cache, capsys):
    illegal = replace(best(32).config, block_m=48)
    fill(best(16), other(best(64), source="0"), best(32, config=illegal), best(8, device=A100))
    shapes(64, 16, 32, 8, more="  - {m: 7, n: 9, k: 11, dtype: float16, out_dtype: float32}\n")
    assert main(CHECK) == 1
    captured = capsys.readouterr()
    changed, unfit, absent, odd = captured.out.splitlines()
    command = f"to tune it: tunekit tune --shape {{}},128,128,bfloat16,nt --cache {own_cache}"
    assert changed == (
        "64x128x128 bfloat16 nt: its row was tuned for a kernel that has changed since; "
        + command.format(64)
    )
    assert unfit.startswith("32x128x128 bfloat16 nt: the config of its row is not legal here (bl")
    assert absent == "8x128x128 bfloat16 nt: no row; " + command.format(8)
    assert odd == (
        "7x9x11 float16 nt -> float32 unaligned: no row; to tune it: tunekit tune --shape"
        f" '7x9x11 float16 nt -> float32 unaligned' --cache {own_cache}"
    )
    assert captured.err == (
        f"tunekit: 4 of 5 problems of shapes.yaml have no row that serves them on {H200.slug}; "
        f"to tune them there: tunekit tune --shapes shapes.yaml --cache {own_cache}\n"
    )


def test_the_command_it_gives_tunes_what_is_missing(fill, shapes, capsys):
    fill(best(16))
    shapes(more="  - {m: 4096, n: 4096, k: 4096, name: big}\n")
    assert main(CHECK) == 1
    line = capsys.readouterr().out
    command = shlex.split(line.partition("to tune it: tunekit ")[2])
    if main([*command, "--device", "replay", "--trials", "5", "--quiet"]):
        pytest.skip(f"the shipped recording has no such problem: {capsys.readouterr().err}")
    assert main(CHECK) == 0


def test_the_check_as_json_is_stable(fill, shapes, capsys):
    fill(best(16))
    shapes(64, 16, more="  - {m: 8, n: 128, k: 128, count: 3, name: head}\n")
    documents = []
    for _ in range(2):
        assert main([*CHECK, "--json"]) == 1
        documents.append(capsys.readouterr().out)
    assert documents[0] == documents[1]
    document = json.loads(documents[0])
    missing = document.pop("missing")
    assert document == {"schema": 1, "gpu": H200.slug, "problems": 3}
    assert [(row["m"], row["count"], row["name"], row["reason"]) for row in missing] == [
        (64, 1, "", "no row"),
        (8, 3, "head", "no row"),
    ]
    assert [*missing[0]] == [
        *("family", "m", "n", "k", "dtype", "out_dtype", "precision", "layout", "aligned"),
        *("scaling", "batch", "count", "name", "reason", "how"),
    ]
    shapes(16)
    assert main([*CHECK, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["missing"] == []
    assert captured.err == ""


def test_the_gpu_here_is_the_one_that_is_meant(fill, shapes, capsys, monkeypatch):
    fill(best(16))
    shapes(16)
    command = [*CHECK[:3]]
    monkeypatch.setattr("tunekit.which_gpu.cuda_available", lambda: True)
    monkeypatch.setattr("tunekit.which_gpu.detect", lambda: H200)
    assert main(command) == 0
    b200 = KNOWN_DEVICES["sm_100"]
    monkeypatch.setattr("tunekit.which_gpu.detect", lambda: b200)
    assert main(command) == 1
    assert b200.slug in capsys.readouterr().err
    monkeypatch.setattr("tunekit.which_gpu.cuda_available", lambda: False)
    assert main(command) == 1
    line = capsys.readouterr().err
    assert "no GPU is usable here: name one with --gpu: " in line
    assert f"{A100.slug}, {H200.slug}" in line


def test_without_a_gpu_the_only_one_of_the_cache_is_meant(
    own_cache, tmp_path, shapes, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tunekit.which_gpu.cuda_available", lambda: False)
    shapes(64)
    with Store.open(own_cache) as store:
        store.put_device(H200)
        store.put_best(best())
    assert main(CHECK[:3]) == 0
    assert H200.slug in capsys.readouterr().out


@pytest.mark.parametrize("form", [[], ["--format", "sqlite"]])
def test_what_was_written_is_told_with_what_loads_it(form, fill, capsys):
    fill(best(16), best(32))
    assert main(["export-cache", "-o", "out.file", *form]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tunekit: wrote out.file: 2 rows, ")
    assert "tunekit import-cache out.file" in captured.err


@pytest.mark.parametrize(
    "options", [["--check", "shapes.yaml"], [], ["--format", "sqlite", "-o", "x"]]
)
def test_an_unknown_gpu_lists_those_there_are(options, fill, shapes, capsys):
    fill(best(16))
    shapes(16)
    assert main(["export-cache", *options, "--gpu", "tpu-v9"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "'tpu-v9'" in captured.err
    assert H200.slug in captured.err
    assert not Path("x").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--format", "sqlite"],
        ["--json"],
        ["--check", "shapes.yaml", "-o", "x"],
        ["--check", "shapes.yaml", "--all-trials"],
        ["--check", "shapes.yaml", "--format", "sqlite"],
        ["--format", "yaml"],
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(options, fill, shapes, capsys):
    fill(best(16))
    shapes(16)
    assert main(["export-cache", *options]) == 2
    assert capsys.readouterr().out == ""
    assert not Path("x").exists()


@pytest.mark.parametrize("content", [None, "shapes: []", "{", "shapes:\n  - {m: 0, n: 1, k: 1}"])
def test_a_shapes_file_that_cannot_be_read_is_one_line(content, fill, capsys):
    fill(best(16))
    if content is not None:
        Path("shapes.yaml").write_text(content)
    assert main(CHECK) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "shapes.yaml" in captured.err


def test_a_check_without_a_cache_says_so(shapes, own_cache, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shapes(16)
    assert main(CHECK) == 1
    assert f"there is no cache at {own_cache}" in capsys.readouterr().err
    assert not own_cache.exists()


@pytest.mark.parametrize("form", ["json", "sqlite"])
def test_the_cache_is_never_written_over_by_its_own_export(form, fill, own_cache, capsys):
    fill(best(16))
    Path("link").symlink_to(own_cache)
    before = own_cache.read_bytes()
    for target in (str(own_cache), "link"):
        assert main(["export-cache", "--format", form, "-o", target]) == 1
        assert "it is the cache itself" in capsys.readouterr().err
    assert own_cache.read_bytes() == before


def test_the_sqlite_form_is_a_cache_to_use(fill, own_cache, capsys):
    fill(best(16), best(64), best(16, device=A100))
    assert main(["export-cache", "--format", "sqlite", "-o", "slim.db", "--gpu", H200.slug]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert main(["show", "--cache", "slim.db", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["keys"]
    assert [(row["m"], row["gpu"]) for row in rows] == [(16, H200.slug), (64, H200.slug)]
    with Store.open(own_cache) as store, Store.open("slim.db") as slim:
        assert export_json(slim) == export_json(store, gpu=H200.slug)


def test_an_empty_cache_says_so_in_both_forms(fill, capsys):
    fill()
    for options in (["-o", "x.json"], ["--format", "sqlite", "-o", "x.db"], ["--all-trials"]):
        assert main(["export-cache", *options]) == 1
        assert "holds nothing to export: fill it with `tunekit tune`" in capsys.readouterr().err
    assert not list(Path().glob("x.*"))
