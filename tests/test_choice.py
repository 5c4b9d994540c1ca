"""The choice under noise, with a tenth of the seeds. The full figures are in the docs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "choice_benchmark.py"
RECORD = ROOT / "docs" / "benchmarks" / "choice.json"


@pytest.mark.parametrize("noise", ["5 % a launch", "and 5 % drift"])
def test_of_200_configs_the_chosen_one_is_close_to_the_best(noise):
    options = ["--seeds", "10", "--landscape", "lone", "--noise", noise]
    done = subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ((landscape, found),) = json.loads(done.stdout)["landscapes"].items()
    assert landscape.startswith("lone")
    assert found[noise]["seeds"] == 10
    assert found[noise]["close"] >= 9
    assert found[noise]["finals_ms"] < 220


def test_the_full_run_was_close_in_95_of_100_seeds():
    record = json.loads(RECORD.read_text())
    assert (record["configs"], record["close"]) == (200, 1.02)
    for landscape, found in record["landscapes"].items():
        for noise, outcome in found.items():
            if not landscape.startswith("lost"):
                assert outcome["seeds"] >= 100, (landscape, noise)
                assert outcome["close"] >= 0.95 * outcome["seeds"], (landscape, noise)
