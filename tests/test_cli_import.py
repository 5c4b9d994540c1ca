"""`import-cache` on exports of both forms, on Triton's own timings, and on what is neither."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tunekit.cache import Store
from tunekit.cli import main
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels import family
from tunekit.key import Problem, TuningKey
from tunekit.trial import Best, Choice, Measurement, Provenance

H200 = KNOWN_DEVICES["sm_90"]
ASSET = Path(__file__).parent / "cache" / "assets" / "matmul_kernel.autotune.json"
SHAPE = ["--shape", "512,1024,256", "--gpu", H200.slug]


def best(m=64, *, triton=100.0):
    problem = Problem("matmul", m, 128, 128, "bfloat16")
    space = family("matmul").space(problem, H200)
    times = (triton, triton - 0.5, triton + 0.5, triton, triton, triton)
    measured = Measurement(*times, 50, "test-1", error_ratio=0.5, final=True)
    provenance = Provenance(
        fingerprint=family("matmul").fingerprint(space.configs[0].variant),
        **dict.fromkeys(("protocol", "tunekit", "triton", "torch", "driver"), "0"),
        device_name=H200.name,
        created_at="2020-01-01T00:00:00",
    )
    return Best(
        key=TuningKey.of(problem, H200.slug),
        choice=Choice.TRITON,
        config=space.configs[0],
        measurement=measured,
        vendor=replace(measured, median_us=200.0, low_us=199.0, high_us=201.0, error_ratio=None),
        trials=8,
        space_size=len(space),
        provenance=provenance,
    )


@pytest.fixture
def exported(tmp_path, own_cache):
    """Return both forms of an export of two rows, named as the other is."""
    with Store.open(own_cache) as store:
        store.put_device(H200)
        for m in (16, 64):
            store.put_best(best(m))
    files = {"json": tmp_path / "rows.db", "sqlite": tmp_path / "rows.json"}
    for form, file in files.items():
        assert main(["export-cache", "--format", form, "-o", str(file)]) == 0
    return files


def lines(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    found = captured.err.splitlines()
    assert all(line.startswith("tunekit: ") for line in found)
    return [line.removeprefix("tunekit: ") for line in found]


@pytest.mark.parametrize("form", ["json", "sqlite"])
def test_both_forms_are_known_by_their_contents(exported, form, tmp_path, capsys):
    other = tmp_path / "other.db"
    for dry_run in (["--dry-run"], []):
        command = ["import-cache", str(exported[form]), "--cache", str(other), *dry_run]
        assert main(command) == 0
        would = "would be " if dry_run else ""
        assert lines(capsys) == [
            f"{other}: 2 rows {would}added, 0 {would}replaced, 0 {would}kept as they are, 0 refused"
        ]
    assert main(["import-cache", str(exported[form]), "--on-conflict", "fail"]) == 0
    assert "2 kept" in lines(capsys)[0]


@pytest.mark.parametrize("signature", [b"\xef\xbb\xbf", b""])
def test_an_export_that_an_editor_saved_its_way_is_the_same(exported, signature, tmp_path, capsys):
    text = exported["json"].read_bytes()
    saved = tmp_path / "saved.json"
    saved.write_bytes(signature + text.replace(b"\n", b"\r\n"))
    assert main(["import-cache", str(saved), "--cache", str(tmp_path / "other.db")]) == 0
    assert "2 rows added" in lines(capsys)[0]


@pytest.mark.parametrize("form", ["json", "sqlite"])
def test_a_conflict_under_fail_is_one_line_and_changes_nothing(exported, form, own_cache, capsys):
    with Store.open(own_cache) as store:
        store.put_best(best(64, triton=50.0), force=True)
        before = store.bests()
    command = ["import-cache", str(exported[form]), "--on-conflict", "fail"]
    for dry_run in (["--dry-run"], []):
        assert main([*command, *dry_run]) == 1
        (line,) = lines(capsys)
        assert line.startswith(f"{exported[form]}: row 2 (64x128x128 ")
        assert "nothing was imported" in line
    with Store.open(own_cache) as store:
        assert store.bests() == before


def test_a_cache_that_was_cut_off_is_moved_aside_by_an_import_that_has_rows(
    exported, own_cache, tmp_path, capsys
):
    cut = own_cache.read_bytes()[:8192]
    own_cache.write_bytes(cut)
    empty = tmp_path / "empty.json"
    document = {"format": "tunekit-cache", "schema": 1}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    empty.write_text(json.dumps(document))
    command = ["import-cache", str(exported["json"])]
    for harmless in ([*command, "--dry-run"], ["import-cache", str(empty)]):
        assert main(harmless) == 1
        assert own_cache.read_bytes() == cut
    assert lines(capsys)[-1] == "the file holds no rows"
    assert main(command) == 0
    moved, loaded = lines(capsys)
    assert f"was moved to {own_cache}.damaged-1" in moved
    assert "2 rows added" in loaded
    assert Path(f"{own_cache}.damaged-1").read_bytes() == cut


def test_a_dash_is_stdout_and_stdin(exported, tmp_path):
    tunekit = [sys.executable, "-m", "tunekit"]
    written = subprocess.run(
        [*tunekit, "export-cache", "-o", "-"], capture_output=True, cwd=tmp_path
    )
    assert written.stdout == exported["json"].read_bytes()
    assert not (tmp_path / "-").exists()
    command = [*tunekit, "import-cache", "-", "--cache", str(tmp_path / "other.db")]
    read = subprocess.run(command, capture_output=True, input=written.stdout, cwd=tmp_path)
    assert b"2 rows added" in read.stderr


def test_an_export_through_a_pipe(exported, tmp_path, capsys):
    other = str(tmp_path / "other.db")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for form, code, words in (("json", 0, "2 rows added"), ("sqlite", 1, "from a pipe: save it")):
        with subprocess.Popen(["cp", exported[form], pipe]):
            assert main(["import-cache", str(pipe), "--cache", other]) == code
        assert words in lines(capsys)[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not whole JSON"),
        (b"shapes:\n  - [1, 2, 3]\n", "neither JSON nor SQLite"),
        (b"SQLite format 3\0", "ends within its header"),
        (b"SQLite format 3\0" + bytes(4000), "damaged"),
        (b"\0" * 5000, "it is not text"),
        (gzip.compress(b"{}", mtime=0), "is compressed"),
        (b"\xff\xfe{", "it is not UTF-8 text"),
        (b'{"format": "tunekit-cache"}', "schema: expected"),
        (b'{"configs_timings": []}', "key: expected a list, found None"),
        (b'{"configs_timings": 5, "key": []}', "configs_timings: expected a list"),
    ],
)
def test_what_is_no_export_is_one_line_that_names_it(content, words, tmp_path, own_cache, capsys):
    file = tmp_path / "export"
    file.write_bytes(content)
    shape = SHAPE if b"configs" in content else []
    assert main(["import-cache", str(file), *shape]) == 1
    (line,) = lines(capsys)
    assert line.startswith(f"{file}: ")
    assert words in line
    assert not own_cache.exists()


@pytest.mark.parametrize("place", ["nothing.json", ".", "/dev/zero", "nul\0"])
def test_a_place_without_an_export_is_one_line(place, tmp_path, own_cache, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["import-cache", place]) == 1
    assert len(lines(capsys)) == 1
    assert not own_cache.exists()


@pytest.mark.parametrize("form", ["json", "sqlite"])
def test_an_export_needs_no_shape(exported, form, capsys):
    assert main(["import-cache", str(exported[form]), *SHAPE]) == 1
    assert "--shape and --gpu are for a file of Triton's autotuner" in lines(capsys)[0]


def test_a_file_without_rows_says_so(tmp_path, own_cache, capsys):
    import hashlib

    body = {"format": "tunekit-cache", "schema": 1, "bests": []}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    checksum = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    file = tmp_path / "empty.json"
    file.write_text(json.dumps({**body, "checksum": checksum}))
    assert main(["import-cache", str(file)]) == 1
    assert "the file holds no rows" in lines(capsys)[-1]
    assert not own_cache.exists()


def test_tritons_timings_are_taken_as_trials_and_shown_as_nothing(tmp_path, own_cache, capsys):
    assert main(["import-cache", str(ASSET), *SHAPE, "--dry-run"]) == 0
    assert not own_cache.exists()
    capsys.readouterr()
    assert main(["import-cache", str(ASSET), *SHAPE]) == 0
    refused, counts, note = lines(capsys)
    assert refused.startswith("row 3 refused: trial 3: times: it did not run")
    assert "2 rows added, 0 replaced, 0 kept as they are, 1 refused" in counts
    assert "nothing is served from them" in note
    with Store.open(own_cache, create=False) as store:
        key = TuningKey("matmul", 512, 1024, 256, "float16", H200.slug, layout="nt")
        assert len(store.trials(key)) == 2
        assert store.bests() == []
    for command in (["show"], ["show", "--json"]):
        assert main(command) == 1
        assert "has trials, but no best of any problem" in lines(capsys)[0]
    assert main(["export-cache"]) == 1
    assert "--all-trials" in lines(capsys)[0]


def test_a_tune_does_not_take_tritons_timings_for_its_own(own_cache, capsys):
    """They are of no kernel here: every trial of the run is made anew, and the row is its own."""
    document = json.loads(ASSET.read_text())
    document["key"] = [4096, 4096, 4096, "torch.bfloat16"]
    file = own_cache.with_name("mine.autotune.json")
    file.write_text(json.dumps(document))
    shape = "4096,4096,4096,bfloat16,nt"
    assert main(["import-cache", str(file), "--shape", shape, "--gpu", H200.slug]) == 0
    command = ["tune", "--device", "replay", "--shape", shape, "--trials", "12", "--quiet"]
    if main([*command, "--json"]):
        pytest.skip(f"the shipped recording has no {shape}: {capsys.readouterr().err}")
    (row,) = json.loads(capsys.readouterr().out)["keys"]
    assert row["trials"] == 12
    with Store.open(own_cache) as store:
        (stored,) = store.bests()
        assert "triton-autotune" not in stored.provenance.fingerprint.source
        assert len(store.trials(stored.key)) >= 14


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "say which product it timed with --shape"),
        (["--shape", "512,1024"], "is not of the form"),
        (["--shape", "512,1024,0"], "k must be"),
        (["--shape", "512,1024,256,float12"], "unknown dtype"),
        (["--shape", "512,1024,256,bfloat16"], "its tensors are float16, not bfloat16"),
        (["--shape", "513,1024,256"], "has no M=513"),
        (["--shape", "512,1024,256", "--gpu", "tpu-v9"], "nothing is known of the GPU 'tpu-v9'"),
    ],
)
def test_which_product_was_timed_has_to_be_said(options, words, own_cache, capsys):
    assert main(["import-cache", str(ASSET), *options]) == 1
    (line,) = lines(capsys)
    assert words in line
    assert not own_cache.exists()


def test_without_a_gpu_the_one_that_timed_it_has_to_be_named(capsys, monkeypatch):
    monkeypatch.setattr("tunekit.cli_import.cuda_available", lambda: False)
    assert main(["import-cache", str(ASSET), "--shape", "512,1024,256"]) == 1
    (line,) = lines(capsys)
    assert "no GPU is usable here: say which one timed it with --gpu: " in line
    assert H200.slug in line


def test_float32_is_refused_for_its_precision_is_not_known(tmp_path, capsys):
    file = tmp_path / "f32"
    file.write_text(ASSET.read_text().replace("torch.float16", "torch.float32"))
    assert main(["import-cache", str(file), *SHAPE]) == 1
    assert "ieee or as tf32" in lines(capsys)[0]


WRITER = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 64, "BLOCK_N": n, "BLOCK_K": 32}, num_warps=4) for n in (64, 128)
    ],
    key=["M", "N", "K"],
    cache_results=True,
)
@triton.jit
def kernel(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    pass

class Target:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

def bench():
    times = ([0.02, 0.019, 0.021], [float("inf")] * 3)
    kernel.configs_timings = dict(zip(kernel.configs, times))

driver.set_active(Target())
key = (512, 1024, 256, "torch.float16", "torch.float16", "torch.float16")
kernel.check_disk_cache(key, kernel.configs, bench)
"""


def test_the_file_that_the_installed_triton_writes_is_read(tmp_path, own_cache, capsys):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = tmp_path / "tuned.py"
    script.write_text(WRITER)
    done = subprocess.run(
        [sys.executable, script],
        env={**env, "TRITON_CACHE_DIR": str(tmp_path / "triton")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "triton").rglob("*.autotune.json")
    shutil.copy(written, tmp_path)
    assert main(["import-cache", str(written), *SHAPE]) == 0
    assert "1 row added" in lines(capsys)[1]
