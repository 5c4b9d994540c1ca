"""The stated bound: that the record says it held, and how it is judged."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
RECORD = ROOT / "docs" / "benchmarks" / "distance.json"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPTS))  # as when it is run: it imports its neighbour
    try:
        spec = importlib.util.spec_from_file_location("d", SCRIPTS / "distance_benchmark.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPTS))
    return module


@pytest.fixture(scope="module")
def record():
    return json.loads(RECORD.read_text())


def test_the_bound_held_in_85_of_100_held_out_searches_at_every_count(record):
    assert len(record["summary"]) == 9
    for name, found in record["summary"].items():
        assert found["searches"] >= 100, name
        assert found["held"] >= 0.85, name
        assert found["held_fitted_without_it"] >= 0.85, name


def test_the_record_and_the_page_are_what_its_cases_say(script, record):
    cases = [dict(zip(record["columns"], row, strict=True)) for row in record["cases"]]
    assert script.summary(cases) == record["summary"]
    assert script.table(record["summary"]) in (ROOT / "docs/benchmarks/search.md").read_text()


def test_what_a_bound_is_fitted_to_leaves_out_what_it_is_judged_by(script):
    def case(problem, regret):
        return {"problem": problem, "known": "store", "seed": 0, "trials": 12, "regret": regret,
                "expected": 0.0, "bound": 0.01}  # fmt: skip

    near = [case(f"1x1x{k} bfloat16 nt", 0.005) for k in range(9)]
    far = [case("2x2x2 bfloat16 nt", 0.5), case("2x2x2 float16 nt", 0.5)]
    factors = script.fitted_anew([*near, *far])
    assert factors["2x2x2"] == pytest.approx(0.5, rel=0.01)
    assert factors["1x1x0"] > 1
    assert script.summary([*near, *far])["all"]["held_fitted_without_it"] == pytest.approx(
        9 / 11, abs=1e-4
    )


def test_a_search_is_judged_after_each_count_and_not_once_all_is_tried(script):
    bench = script.Bench.open(script.shipped_recordings()[0], script.SUITE)
    problem = next(p for p in sorted(bench.recording.problems) if p.dtype == "float16")
    cases = script.cases_of(bench, problem, "portfolio", 0)
    space = len(bench.recording.problems[problem].screening)
    assert [case["trials"] for case in cases] == [n for n in script.AT if n < space]
    assert all(case["expected"] <= case["bound"] for case in cases)
