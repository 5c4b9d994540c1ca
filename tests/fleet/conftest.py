"""What the tests of many workers share: a small recording, and runs in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tunekit.recording import Recording
from tunekit.replay import shipped_recordings

FAKES = Path(__file__).parents[1] / "fakes"


LEADER = "import sys; sys.path.insert(0, sys.argv.pop(1)); import slow_replay; "
LEADER += "slow_replay.main(*sys.argv[1:])"


@pytest.fixture
def slow(monkeypatch):
    """The stand-ins that take their time, which the processes that start here can import too."""
    monkeypatch.syspath_prepend(str(FAKES))
    import slow_replay

    return slow_replay


@pytest.fixture(scope="session")
def recording(tmp_path_factory):
    """A few problems of the recording that ships; gives the file."""
    whole = Recording.load(shipped_recordings()[0])
    chosen = [p for p in sorted(whole.problems) if p.dtype == "bfloat16"][::9]
    small = replace(whole, problems={p: whole.problems[p] for p in chosen})
    path = tmp_path_factory.mktemp("recording") / "small.json.gz"
    small.save(path)
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Where the workers keep what they find: a path or a URL."""
    if request.param == "postgresql":
        return request.getfixturevalue("server_url")
    return str(tmp_path / "shared.db")


@pytest.fixture
def start(recording, place, tmp_path):
    """Start a run of slow workers in a process of its own; it prints what happens."""
    started = []

    def run(kind="processes", workers=2, trials=16, seconds=0.02):
        command = [sys.executable, "-c", LEADER, FAKES, kind, workers, place, recording]
        leader = subprocess.Popen(
            [str(part) for part in (*command, trials, seconds, tmp_path / "log")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(leader)
        return leader

    yield run
    for leader in started:
        leader.kill()
        leader.communicate()
