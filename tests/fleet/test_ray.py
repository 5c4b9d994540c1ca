"""The same through a real Ray cluster on this host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fleet_kills.py"


def kills(*options):
    done = subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_nothing_is_lost_when_actors_and_the_leader_are_killed():
    pytest.importorskip("ray", reason="no Ray: install tunekit-triton[ray]")
    found = kills("--crew", "ray", "--kills", "5")
    assert (found["kills_of_a_worker"], found["kills_of_the_leader"]) == (3, 2)
    assert found["failures"] == []
    assert found["longest_until_free_s"] < found["lease_seconds"]
