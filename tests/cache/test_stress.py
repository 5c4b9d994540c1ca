"""The stress script itself, with a hundredth of its load. Its full figures are in the docs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "store_stress.py"


def stress(*options):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--short", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_store_stands_a_hundredth_of_the_load(database, request):
    options = []
    if database == "postgresql":
        options = ["--database", request.getfixturevalue("server_url")]
    found = stress(*options)
    assert found["failures"] == 0
    assert set(found["parts"]) == {
        "cold_open", "reopen", "writers_wait", "kills", "threads", "children", "leases"
    }  # fmt: skip
    assert found["parts"]["writers_wait"]["rows"] == 40
    assert "postgresql://" not in found["command"]
