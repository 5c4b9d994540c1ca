"""What the tests of many workers share: a small recording, and runs in processes of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def slow(monkeypatch):
    """Workers that take their time; the processes that are started here can import them too."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import slow_replay

    return slow_replay


@pytest.fixture
def recording(slow, tmp_path):
    """A few problems of the recording that ships; gives the file."""
    path = tmp_path / "small.json.gz"
    slow.small_recording(path, 4)
    return path


@pytest.fixture
def place(request, tmp_path):
    """Where the workers keep what they find: a path or a URL."""
    if request.param == "postgresql":
        return request.getfixturevalue("server_url")
    return str(tmp_path / "shared.db")


@pytest.fixture
def start(slow, recording, place, tmp_path):
    """Start a run of slow workers in a process of its own; it prints what happens."""
    started = []

    def run(kind="processes", workers=2, trials=16, seconds=0.02):
        log = tmp_path / "log"
        leader = subprocess.Popen(
            slow.command(kind, workers, place, recording, trials, seconds, log),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(leader)
        return leader

    yield run
    for leader in started:
        leader.kill()
        leader.communicate()
