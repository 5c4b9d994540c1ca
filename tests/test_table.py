"""The rows of `show`: their JSON, their grade, and a table that never shortens a number."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from tunekit import kernels, table
from tunekit.config import Config
from tunekit.errors import ConfigError
from tunekit.key import TuningKey
from tunekit.table import Row, geometric_mean, served_rows
from tunekit.trial import (
    Best,
    Choice,
    Distance,
    Fingerprint,
    Grade,
    Measurement,
    Origin,
    Provenance,
    Status,
)

CURRENT = Fingerprint("source-now", "triton-now")
CONFIG = Config("pointer", 128, 256, 64, group_size=8, num_warps=8, num_stages=4)


def measured(median, spread=0.5):
    return Measurement(
        median,
        low_us=median - spread,
        high_us=median + spread / 2,
        p20_us=median,
        p80_us=median,
        min_us=median,
        repetitions=50,
        protocol="test-1",
        error_ratio=0.5,
    )


def best(
    m=64,
    *,
    gpu="fake-sm90-132",
    triton=100.0,
    vendor=110.0,
    choice=Choice.TRITON,
    fingerprint=CURRENT,
    origin=Origin.MEASURED,
    config=CONFIG,
):
    return Best(
        key=TuningKey("matmul", m, 4096, 4096, "bfloat16", gpu),
        choice=choice,
        config=config,
        measurement=measured(triton),
        vendor=None if vendor is None else measured(vendor),
        trials=80,
        space_size=536,
        provenance=Provenance(
            fingerprint=fingerprint,
            protocol="test-1",
            tunekit="0",
            triton="0",
            torch="0",
            driver="0",
            device_name="Fake GPU",
            created_at="2020-01-01T00:00:00",
            origin=origin,
        ),
        count=3,
    )


class OneFamily:
    def fingerprint(self, variant):
        if variant != "pointer":
            raise ConfigError(f"unknown variant {variant!r}")
        return CURRENT


@pytest.fixture(autouse=True)
def fixed_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "family", lambda name: OneFamily())


def test_a_row_is_the_documented_json():
    (row,) = served_rows([best()])
    plain = json.loads(json.dumps(row.to_dict()))
    promised = (  # noqa: SIM905
        "family m n k dtype layout gpu choice variant config triton_us triton_low_us "
        "triton_high_us vendor_us ratio trials space_size origin grade"
    ).split()
    assert list(plain)[: len(promised)] == promised
    assert plain["config"] == CONFIG.to_dict()
    assert (plain["triton_us"], plain["triton_low_us"], plain["triton_high_us"]) == (
        100.0,
        99.5,
        100.25,
    )
    assert plain["ratio"] == pytest.approx(1.1)
    assert (plain["choice"], plain["origin"], plain["grade"]) == ("triton", "measured", "exact")
    assert (plain["count"], plain["aligned"]) == (3, True)


def test_a_row_says_how_far_it_may_be_from_the_best_and_what_failed():
    far = replace(best(), distance=Distance(0.004, 0.0204))
    failures = {
        (far.key, CURRENT.compiler): {Status.TIMEOUT: 1, Status.COMPILE_ERROR: 3},
        (far.key, "another"): {Status.TIMEOUT: 50},
    }
    rows = served_rows([far, best(512)], failures)
    plain = rows[0].to_dict()
    assert plain["distance"] == {"expected": 0.004, "bound": 0.0204}
    assert plain["failed"] == {"compile-error": 3, "timeout": 1}
    assert (rows[1].to_dict()["distance"], rows[1].to_dict()["failed"]) == (None, {})
    text = table.table(rows, width=None)
    first, second = (line for line in text.splitlines() if "80/536" in line)
    assert "80/536       4    0.4 % (2.0 %)" in first
    assert "80/536       0                -" in second
    line = "tried: 160 of 1072 legal configs; failed: 4 (compile-error 3, timeout 1)"
    assert line in text.splitlines()


def test_a_row_without_a_vendor_has_neither_its_time_nor_a_ratio():
    (row,) = served_rows([best(vendor=None)])
    assert row.to_dict()["vendor_us"] is None
    assert row.to_dict()["ratio"] is None
    text = table.table([row], width=None)
    assert "geometric mean" not in text


@pytest.mark.parametrize(
    ("stored", "variant", "expected"),
    [
        (CURRENT, "pointer", Grade.EXACT),
        (replace(CURRENT, compiler="triton-old"), "pointer", Grade.OTHER_COMPILER),
        (replace(CURRENT, source="source-old"), "pointer", Grade.OTHER_SOURCE),
        (CURRENT, "removed", Grade.OTHER_SOURCE),
    ],
)
def test_the_grade_is_against_what_is_installed(stored, variant, expected):
    assert (
        table.graded(best(fingerprint=stored, config=replace(CONFIG, variant=variant))).grade
        is expected
    )


def test_a_key_shows_the_row_that_fits_best():
    old = best(triton=50.0, fingerprint=replace(CURRENT, source="source-old"))
    other = best(triton=60.0, fingerprint=replace(CURRENT, compiler="triton-old"))
    slower = best(triton=90.0)
    exact = best(triton=80.0)
    for order in ([old, other, slower, exact], [exact, slower, other, old]):
        assert [row.best for row in served_rows(order)] == [exact]
    assert [row.grade for row in served_rows([old, other])] == [Grade.OTHER_COMPILER]


def test_rows_are_ordered_by_gpu_and_size():
    rows = served_rows([best(512), best(16, gpu="zz"), best(64)])
    assert [(row.best.key.gpu, row.best.key.m) for row in rows] == [
        ("fake-sm90-132", 64),
        ("fake-sm90-132", 512),
        ("zz", 16),
    ]


def test_a_pipe_gets_one_whole_line_a_row():
    text = table.table(served_rows([best(64), best(65536, triton=123456.78)]), width=None)
    lines = text.splitlines()
    assert "Triton us (95 %)" in lines[1]
    assert "vendor us" in lines[1]
    row = lines[3]
    for whole in ("65536x4096x4096 bfloat16 nt", "123456.78 +-0.50", "110.00", "0.001", "80/536"):
        assert whole in row
    assert "measured" in row
    assert "exact" in row
    assert str(CONFIG) in row


def test_a_window_of_100_columns_shows_everything():
    slow = best(
        65536,
        triton=123456.78,
        vendor=123456.78,
        fingerprint=replace(CURRENT, compiler="old"),
        origin=Origin.REPLAYED,
        config=replace(CONFIG, block_m=256, split_k=16, group_size=16),
    )
    key = replace(slow.key, n=28672, k=14335, dtype="float32", out_dtype="float32", aligned=False)
    slow = replace(slow, key=key)
    text = table.table(served_rows([slow]), width=100)
    assert max(map(len, text.splitlines()[1:])) <= 100
    for whole in ("123456.78 +-0.50", "80/536", "replayed", "other-compiler", "split_k=16"):
        assert whole in text


def test_replayed_rows_are_said_to_be_so_twice():
    text = table.table(served_rows([best(64), best(128, origin=Origin.REPLAYED)]), width=None)
    (row,) = [line for line in text.splitlines() if line.startswith("128x")]
    assert "replayed" in row
    assert "replayed: 1 of 2 rows" in text.splitlines()[-1]


def test_the_mean_of_the_ratios_is_geometric():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([1e-300, 1e-300]) == pytest.approx(1e-300)
    rows = [Row(best(triton=100.0, vendor=400.0), Grade.EXACT), Row(best(), Grade.EXACT)]
    assert f"{math.sqrt(4 * 1.1):.3f}" in table.table(rows, width=None)


def test_how_often_triton_is_chosen_is_counted():
    rows = served_rows([best(64), best(128, choice=Choice.VENDOR)])
    assert "problems: 2, Triton chosen for 1" in table.table(rows, width=None)


def test_a_key_shows_the_row_that_is_served_a_measured_one_before_a_replayed():
    measured_row = best(triton=90.0)
    for fast in (
        best(triton=50.0, origin=Origin.REPLAYED),
        replace(best(triton=50.0, origin=Origin.IMPORTED), imported_replay=True),
    ):
        assert [row.best for row in served_rows([fast, measured_row])] == [measured_row]


def test_an_imported_replay_is_labelled_as_both():
    rows = served_rows([replace(best(origin=Origin.IMPORTED), imported_replay=True)])
    text = table.table(rows, width=None)
    assert "imported (replayed)" in text
    assert "replayed: 1 of 1 rows" in text
    assert rows[0].to_dict()["origin"] == "imported"


def test_a_name_cannot_drive_the_terminal():
    row = best()
    row = replace(row, provenance=replace(row.provenance, device_name="G\x1b[31mPU\nrow"))
    text = table.table(served_rows([row]), width=None)
    assert text.splitlines()[0] == "G?[31mPU?row (fake-sm90-132)"


def test_a_row_made_otherwise_says_in_which_field():
    rows = served_rows([best(64, fingerprint=replace(CURRENT, compiler="triton-old")), best(128)])
    assert rows[0].to_dict()["differences"] == [{"field": "triton", "stored": "old", "here": "now"}]
    assert rows[1].to_dict()["differences"] == []
    text = table.table(rows, width=None)
    cure = "(`tunekit tune --stale` verifies them again)"
    assert f"other-compiler, triton old -> now {cure}: 1 of 2 rows" in text
    replay = best(fingerprint=replace(CURRENT, compiler="triton-old"))
    replay = replace(replay, provenance=replace(replay.provenance, origin=Origin.REPLAYED))
    cure = "(`tunekit tune --stale` verifies on a GPU)"
    assert cure in table.table(served_rows([replay]), width=None)
    (changed,) = served_rows([best(fingerprint=replace(CURRENT, source="before"))])
    assert "other-source, kernel pointer before -> source-now" in table.table([changed], width=None)


def test_a_row_never_verified_is_shown_last_and_said_to_be_unserved():
    doubtful = best(triton=1.0)
    doubtful = replace(doubtful, measurement=replace(doubtful.measurement, error_ratio=None))
    old = best(fingerprint=replace(CURRENT, compiler="triton-old"))
    assert [row.best for row in served_rows([doubtful, old])] == [old]
    (row,) = served_rows([doubtful])
    assert row.to_dict()["verified"] is False
    assert "never verified: 1 of 1 rows" in table.table([row], width=None)
