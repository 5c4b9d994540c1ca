"""The scripts of the ladder: what is planned, what the tables say, what a second part keeps."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    names = ("ladder", "ladder_steps", "ladder_table")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def row(size: int, dtype: str = "float16", *, tunekit: float = 5.0, choice: str = "triton") -> dict:
    times = {"blockwise": 20, "grouped": 16, "list of 15": 8, "tunekit": tunekit, "vendor": 6.0}
    return {
        "size": size, "dtype": dtype, "precision": "ieee", "flops": 2 * size**3, "choice": choice,
        "trials": 5,
        "us": {name: [us, us - 0.1, us + 0.1] for name, us in times.items()},
    }  # fmt: skip


def record(rows: list[dict]) -> dict:
    return {
        "device": "a GPU", "driver": "1", "torch": "2", "triton": "3", "date": "2000-01-01T00:00",
        "rounds": 3, "block": 64, "trials": 5, "tune_seconds": 1.5, "protocol": "p",
        "commands": ["python scripts/ladder.py"],
        "loops": [{"step": "three loops", "size": 26, "seconds": 0.5}], "rows": rows,
    }  # fmt: skip


def test_every_size_and_kind_of_arithmetic_is_planned_within_its_time(scripts):
    ladder = scripts["ladder"]
    problems = ladder.ladder_problems(list(ladder.ARITHMETIC), ladder.SIZES)
    assert len(set(problems)) == 31 * 4
    assert {p.precision for p in problems if p.dtype == "float32"} == {"ieee", "tf32"}
    plan = ladder.Plan(len(problems), 4, 24, 240.0)
    assert sum(plan.seconds().values()) < 8 * 60
    with pytest.raises(SystemExit, match="unknown dtype 'int4'"):
        ladder.ladder_problems(["int4"], ladder.SIZES)


def test_the_loops_are_timed_at_both_sizes(scripts):
    times = scripts["ladder_steps"].loop_times()
    assert [(one["size"], one["step"]) for one in times] == [
        (26, "three loops"), (26, "blocked loops"), (64, "three loops"), (64, "blocked loops"),
    ]  # fmt: skip


def test_the_tables_say_what_each_step_brings(scripts, tmp_path):
    table = scripts["ladder_table"]
    found = record([row(256), row(512, tunekit=10.0), row(1024, tunekit=9.0, choice="vendor")])
    assert table.gain(found["rows"], "grouped", "blockwise") == (pytest.approx(1.25), 1.25, 256)
    # at 1024 the vendor is served, and it is not behind
    assert table.below_the_list(found["rows"]) == [512]
    text = table.tables(found)
    assert "| group order | 1.250 (1.25 at 256) |" in text
    assert "behind the fixed list beyond noise: float16 at [512]." in text


def test_the_page_has_one_place_for_the_tables(scripts, tmp_path, monkeypatch):
    table = scripts["ladder_table"]
    kept, page = tmp_path / "record.json", tmp_path / "ladder.md"
    kept.write_text(json.dumps(record([row(256)])))
    page.write_text((SCRIPTS.parent / "docs" / "ladder.md").read_text())
    monkeypatch.setattr(table, "plot", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["x", "--record", str(kept), "--page", str(page)])
    table.main()
    first = page.read_text()
    assert "a GPU" in first
    table.main()
    assert page.read_text() == first


def test_a_second_part_keeps_the_rows_of_the_first(scripts, tmp_path):
    ladder, kept = scripts["ladder"], tmp_path / "record.json"
    assert ladder.merged(record([row(256)]), kept)["rows"] == [row(256)]
    kept.write_text(json.dumps(record([row(256), row(256, "bfloat16")])))
    again = ladder.merged(record([row(256, tunekit=4.0)]), kept)
    assert again["rows"] == [row(256, "bfloat16"), row(256, tunekit=4.0)]
    with pytest.raises(SystemExit, match="has triton 3, not 4: remove it"):
        ladder.merged({**record([]), "triton": "4"}, kept)
