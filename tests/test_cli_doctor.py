"""`tunekit doctor`: healthy here, and every fault is named with what mends it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.report.conftest import DEVICE, best_of, fill
from tunekit import checkup, cli_doctor
from tunekit.cache import FileHealth, Store
from tunekit.checkup import Check, Level, gpus, versions
from tunekit.cli import main
from tunekit.kernels import current_fingerprint
from tunekit.trial import Origin


def doctor(capsys, *argv):
    code = main(["doctor", "--json", *argv])
    captured = capsys.readouterr()
    plain = json.loads(captured.out)
    assert captured.err == ""
    assert plain["healthy"] is (code == 0)
    return code, {check["name"]: check for check in plain["checks"]}


def test_a_healthy_install_without_a_cache_exits_0(capsys, own_cache):
    code, checks = doctor(capsys)
    assert code == 0
    assert checks["tunekit"]["level"] == "ok"
    assert checks["cache"]["text"] == f"none yet at {own_cache}"
    assert checks["cache"]["fix"].startswith("tunekit tune")
    assert not own_cache.exists()


def test_the_text_has_a_line_each_and_a_verdict(capsys, own_cache):
    fill(own_cache, 2)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "no problems"
    assert any("2 tuned problems of " + DEVICE.slug in line for line in lines)


def test_replayed_rows_of_changed_kernels_are_said_not_to_be_served(capsys, own_cache):
    fill(own_cache, 2)
    _, checks = doctor(capsys)
    assert checks["changed"]["text"].endswith("not served: 2 rows")
    assert checks["changed"]["fix"].startswith("tunekit tune --retune --shapes FILE --cache ")


def requirements(monkeypatch, *texts):
    monkeypatch.setattr(checkup, "requires", lambda name: list(texts))
    found = {check.name: check for check in versions()}
    return {name: check for name, check in found.items() if name not in ("tunekit", "python")}


def test_versions_out_of_range_or_missing_are_problems_with_the_command(monkeypatch):
    found = requirements(monkeypatch, "click>=99", "no-such-thing>=1", "click>=8")
    assert found["no-such-thing"] == Check(
        "no-such-thing",
        Level.PROBLEM,
        "not installed (needs >=1)",
        "pip install 'no-such-thing>=1'",
    )
    found = requirements(monkeypatch, "click>=99")
    assert found["click"].level is Level.PROBLEM
    assert found["click"].fix == "pip install 'click>=99'"


def test_an_extra_that_is_missing_is_a_note(monkeypatch):
    found = requirements(
        monkeypatch, "no-such-thing>=1; extra == 'report'", "x; python_version < '3'"
    )
    assert set(found) == {"report"}
    assert (found["report"].level, found["report"].fix) == (
        Level.NOTE,
        "pip install 'tunekit-triton[report]'",
    )


def gpu(name="NVIDIA H200", major=9, minor=0):
    return SimpleNamespace(
        name=name, major=major, minor=minor, multi_processor_count=132, total_memory=141 << 30,
        shared_memory_per_block_optin=227 << 10, L2_cache_size=60 << 20, warp_size=32,
        gcnArchName="gfx942",
    )  # fmt: skip


def seen(monkeypatch, *properties, driver="580.1"):
    monkeypatch.setattr(checkup, "cuda_available", lambda: bool(properties))
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(properties))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: properties[index])
    monkeypatch.setattr(checkup, "driver_version", lambda: driver)
    return {check.name: check for check in gpus()}


def test_each_gpu_is_named_with_its_slug(monkeypatch):
    found = seen(monkeypatch, gpu(), gpu("NVIDIA H200 NVL"))
    assert found["cuda:0"].text == "NVIDIA H200, sm_90, 141 GiB (nvidia-h200-sm90-132)"
    assert "nvidia-h200-nvl-sm90-132" in found["cuda:1"].text
    assert found["driver"] == Check("driver", Level.OK, "580.1")


def test_a_gpu_that_triton_cannot_serve_and_a_driver_that_nobody_can_ask(monkeypatch):
    found = seen(monkeypatch, gpu("Tesla P100", 6, 0), driver="unknown")
    assert found["cuda:0"].level is Level.PROBLEM
    assert found["driver"].fix == "pip install nvidia-ml-py"


@pytest.mark.parametrize(
    ("there", "built_for", "level", "part"),
    [
        (False, None, Level.NOTE, "replays"),
        (True, None, Level.PROBLEM, "built without support"),
        (True, "13.0", Level.PROBLEM, "cannot use it"),
    ],
)
def test_no_usable_gpu_is_told_apart_from_none(monkeypatch, there, built_for, level, part):
    monkeypatch.setattr(checkup.Path, "exists", lambda path: there)
    monkeypatch.setattr("torch.version.cuda", built_for)
    found = seen(monkeypatch)
    assert found["gpu"].level is level
    assert part in found["gpu"].text
    assert (found["gpu"].fix is None) is (level is Level.NOTE)


def test_rows_that_do_not_fit_or_were_never_verified_are_notes_with_the_command(capsys, own_cache):
    made = replace(best_of(0).provenance, origin=Origin.MEASURED)
    current = current_fingerprint("matmul", "pointer")
    rows = [replace(best_of(n), provenance=made) for n in range(3)]
    fresh = replace(made, fingerprint=current)
    bare = replace(rows[2].measurement, error_ratio=None)
    with Store.open(own_cache) as store:
        store.put_device(DEVICE)
        store.put_best(rows[0])
        config = replace(rows[1].config, variant="pointer")
        store.put_best(replace(rows[1], provenance=fresh, config=config))
        store.put_best(replace(rows[2], measurement=bare))
        store.record_misses({best_of(9).key: 4})
    code, checks = doctor(capsys)
    assert code == 0
    assert checks["rows"]["text"] == f"3 tuned problems of {DEVICE.slug}"
    assert checks["stale"]["text"].endswith("2 rows")
    assert checks["stale"]["fix"] == f"tunekit tune --stale --cache {own_cache}"
    assert checks["unverified"]["text"].endswith(": 1 row")
    assert checks["misses"]["text"].endswith(": 1 problem")
    assert checks["misses"]["fix"] == f"tunekit tune --misses --cache {own_cache}"
    assert "replayed" not in checks


@pytest.mark.parametrize(
    ("health", "level", "part"),
    [
        ({"readable": False}, "problem", "may not be read"),
        ({"fault": "row 3 missing from index"}, "problem", "row 3 missing"),
        ({"schema": "9999"}, "problem", "newer than this tunekit"),
        ({"exists": False, "writable": False}, "problem", "none can be made"),
    ],
)
def test_a_cache_that_cannot_be_used_is_a_problem(
    capsys, own_cache, monkeypatch, health, level, part
):
    fill(own_cache, 1)
    plain = {"exists": True, "schema": "0002", **health}
    monkeypatch.setattr(cli_doctor, "examine", lambda path: FileHealth(path, **plain))
    code, checks = doctor(capsys)
    assert code == 1
    assert checks["cache"]["level"] == level
    assert part in checks["cache"]["text"]
    assert checks["cache"]["fix"]


@pytest.mark.parametrize(
    ("place", "part"),
    [
        ("x" * 300, "is not a usable path"),
        ("new\nline.db", "holds a control letter"),
        (".", "is a folder: name a file in it"),
        ("/dev/null", "is not a plain file"),
        ("file:x.db", "is not a plain path"),
        ("sqlite:///x.db?mode=ro", "takes none for SQLite"),
        ("", "is empty"),
    ],
)
def test_a_place_where_no_cache_can_be_is_told_as_every_command_tells_it(capsys, place, part):
    code, checks = doctor(capsys, "--cache", place)
    assert (code, checks["cache"]["level"]) == (1, "problem")
    assert part in checks["cache"]["text"]
    assert main(["show", "--cache", place]) == 1
    assert capsys.readouterr().err == f"tunekit: {checks['cache']['text']}\n"


def test_a_folder_that_may_not_be_searched_is_a_problem(capsys, monkeypatch, tmp_path):
    def refuse(self, **how):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.is_dir", refuse)  # root may search them all
    code, checks = doctor(capsys, "--cache", str(tmp_path / "closed" / "c.db"))
    assert (code, checks["cache"]["level"]) == (1, "problem")
    assert "Permission denied" in checks["cache"]["text"]


def test_an_older_schema_a_read_only_file_and_a_network_are_notes(capsys, own_cache, monkeypatch):
    fill(own_cache, 1)
    found = FileHealth(own_cache, True, schema="0001", writable=False, network="nfs4")
    monkeypatch.setattr(cli_doctor, "examine", lambda path: found)
    code, checks = doctor(capsys)
    assert code == 0
    assert {checks[name]["level"] for name in ("schema", "permissions", "file system")} == {"note"}


def test_a_server_that_is_not_there_is_a_problem_without_its_password(capsys):
    pytest.importorskip("psycopg", reason="no PostgreSQL driver")
    url = "postgresql://me:secret@127.0.0.1:1/tunekit"
    code, checks = doctor(capsys, "--cache", url)
    assert code == 1
    assert "secret" not in json.dumps(checks)


def test_the_default_place_of_another_user_is_a_problem(capsys, monkeypatch):
    def refuse():
        raise cli_doctor.StoreError("/x belongs to another user")

    monkeypatch.setattr(cli_doctor, "default_location", refuse)
    code, checks = doctor(capsys)
    assert code == 1
    assert "belongs to another user" in checks["cache"]["text"]
