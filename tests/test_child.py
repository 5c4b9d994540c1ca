"""Processes of our own: what they are told, how they end, and that they end with us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tunekit.child import Child, ChildError

SERVE = """
import os, signal, subprocess, sys
from tunekit.child import forget_output
def serve(connection, *args):
    while True:
        asked = connection.recv()
        forget_output()
        if asked == "abort":
            print("a line before")
            print("LLVM ERROR: no luck", file=sys.stderr, flush=True)
            os.abort()
        if asked == "exit": os._exit(3)
        if asked == "raise": raise TypeError("a bug")
        if asked == "start":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            connection.send(child.pid)
            continue
        if asked == "state":
            sigint = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            connection.send((args, os.environ.get("ONLY_HERE"), sigint, os.getpgrp(), sys.path))
        if asked == "print": print("words on stdout", flush=True); connection.send("printed")
"""


@pytest.fixture
def serve(tmp_path, monkeypatch):
    (tmp_path / "served_by_a_child.py").write_text(SERVE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import served_by_a_child

    return served_by_a_child.serve


@pytest.fixture
def child(serve):
    child = Child(serve, 1, "two", environ={"ONLY_HERE": "yes"})
    yield child
    child.kill()


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(pid: int, within_s: float = 20.0) -> bool:
    end = time.monotonic() + within_s
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


def test_a_child_runs_with_its_arguments_in_a_group_and_environment_of_its_own(child, capfd):
    child.send("state")
    args, only_here, ignores_sigint, group, path = child.recv()
    assert args == (1, "two")
    assert only_here == "yes"
    assert "ONLY_HERE" not in os.environ
    assert ignores_sigint
    assert group == child.pid != os.getpgrp()
    assert path == sys.path
    child.send("print")
    assert child.recv() == "printed"
    assert capfd.readouterr() == ("", "")


def test_what_is_no_text_in_the_path_is_passed_over_as_imports_do(serve, monkeypatch):
    monkeypatch.setattr(sys, "path", [Path("/no/text"), *sys.path])
    child = Child(serve)
    child.send("state")
    assert child.recv()[-1] == sys.path[1:]
    assert child.kill()


def test_how_a_child_ended_is_told_with_its_last_words(child):
    child.send("abort")
    with pytest.raises(EOFError):
        child.recv()
    assert child.ended() == "was ended by SIGABRT: LLVM ERROR: no luck"


def test_words_from_before_the_last_message_are_not_the_reason(child):
    child.send("print")
    child.recv()
    child.send("exit")
    with pytest.raises(EOFError):
        child.recv()
    assert child.ended() == "ended with exit code 3"


def test_a_bug_in_a_child_keeps_its_traceback(child):
    child.send("raise")
    with pytest.raises(ChildError, match=r"(?s)Traceback .* in serve.*TypeError: a bug"):
        child.recv()


def test_killing_a_child_kills_what_it_started(child):
    child.send("start")
    grandchild = child.recv()
    assert is_alive(grandchild)
    child.kill()
    assert ended(child.pid)
    assert ended(grandchild)
    child.kill()  # twice does no harm


PARENT = """
import json, sys, time
from served_by_a_child import serve
from tunekit.child import Child
child = Child(serve)
child.send("start")
print(json.dumps([child.pid, child.recv()]), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_and_what_it_started_end_with_the_parent(serve, tmp_path, number):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pids = json.loads(parent.stdout.readline())
    assert all(map(is_alive, pids))
    parent.send_signal(number)
    parent.wait()
    assert all(map(ended, pids))
