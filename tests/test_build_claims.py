"""Builds are claimed by real processes, and are free the moment one ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tunekit.build_claims import BuildClaims, build_number

HOLD = """
import sys, time
from pathlib import Path
from tunekit.build_claims import BuildClaims
with BuildClaims(Path(sys.argv[1])).claim(int(sys.argv[2])) as claimed:
    print(claimed, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hold(tmp_path):
    """Start a process that claims a build, and return it with what it got."""
    started = []

    def run(number):
        command = [sys.executable, "-c", HOLD, str(tmp_path), str(number)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield run
    for process in started:
        process.kill()
        process.communicate()


def claimed(claims, number):
    with claims.claim(number) as got:
        return got


def test_one_process_has_a_build_and_when_it_is_killed_another_can(hold, tmp_path):
    claims = BuildClaims(tmp_path)
    one, other = build_number("one"), build_number("other")
    process, got = hold(one)
    assert got == "True"
    assert not claimed(claims, one)
    assert claimed(claims, other)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert claimed(claims, one)
    assert claimed(claims, one)
    assert [path.name for path in tmp_path.iterdir()] == ["compiling.lock"]
    assert (tmp_path / "compiling.lock").stat().st_size == 0


def test_where_no_file_can_be_made_everybody_builds(tmp_path):
    place = tmp_path / "a file"
    place.write_text("")
    assert claimed(BuildClaims(place), 1)
    assert list(tmp_path.iterdir()) == [place]


def test_a_build_has_one_number_in_every_process():
    code = "from tunekit.build_claims import build_number as n; print(n('k', (1, True), None))"
    there = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert int(there) == build_number("k", (1, True), None)
    assert build_number("k", (1, True), None) != build_number("k", (2, True), None)
