"""The nursery: what its forks share with it and what not, how they end, and how it does."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tunekit.child import ChildError
from tunekit.errors import TuneError
from tunekit.nursery import MOST_DEATHS, Nursery


@pytest.fixture
def forked(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))
    import forked

    return forked


@pytest.fixture
def open_nursery(forked):
    """Return a function that makes nurseries, and waits until they are ready."""
    made = []

    def make(*args, environ=None):
        made.append(Nursery(forked.prepare, *args, environ=environ))
        made[-1].hear()
        return made[-1]

    yield make
    for nursery in made:
        nursery.kill()


@pytest.fixture
def nursery(open_nursery):
    return open_nursery(environ={"ONLY_HERE": "yes", "PYTHONWARNINGS": "error"})


@pytest.fixture
def fork(nursery, forked):
    """Return a function that has the nursery fork a child."""
    made = []

    def make(*args):
        made.append(nursery.fork(forked.serve, *args))
        return made[-1]

    yield make
    for child in made:
        child.kill()


def answer(child, asked):
    child.send(asked)
    return child.recv()


def ended(pid: int, within_s: float = 20.0) -> bool:
    """Wait until a process has ended, reaped or not."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_fork_has_what_was_prepared_and_a_session_and_arguments_of_its_own(nursery, fork):
    for number in (1, 2):
        child = fork(number, "two")
        args, prepared, only_here, ignores_sigint, where = answer(child, "state")
        assert args == (number, "two")
        assert prepared == [nursery.pid]
        assert only_here == "yes"
        assert ignores_sigint
        assert where == (nursery.pid, child.pid, child.pid)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("abort", "was ended by SIGABRT: LLVM ERROR: no luck"),
        ("exit", "ended with exit code 3"),
        ("leave", "ended with exit code 1: SystemExit: out of here"),
    ],
)
def test_how_a_fork_ended_is_told_with_its_own_last_words(fork, what, words):
    other, child = fork(), fork()
    child.send(what)
    with pytest.raises(EOFError):
        child.recv()
    assert child.ended() == words
    os.kill(other.pid, signal.SIGKILL)
    assert other.ended() == "was ended by SIGKILL"
    assert not Path(f"/proc/{other.pid}").exists()  # the nursery has seen to it


def test_a_bug_in_a_fork_keeps_its_traceback(fork):
    child = fork()
    with pytest.raises(ChildError, match=r"(?s)Traceback .* in serve.*TypeError: a bug"):
        answer(child, "raise")


def test_killing_a_fork_kills_what_it_started_and_nothing_else(fork):
    other, child = fork(), fork()
    started = answer(child, "start")
    child.kill()
    assert ended(child.pid)
    assert ended(started)
    child.kill()  # twice does no harm
    assert answer(other, "state")


def test_a_fork_can_be_killed_as_soon_as_it_is_there(fork):
    for _ in range(20):
        child = fork()  # leads a group of its own by now, or there was none to kill
        child.kill()
        assert not Path(f"/proc/{child.pid}").exists()


def test_no_process_keeps_open_what_is_anothers(nursery, fork, forked):
    children = [fork() for _ in range(3)]
    children[1].kill()
    children[1] = fork()
    files = [answer(child, "files") for child in children]
    files.append(forked.open_files(nursery.pid))
    for one in files[:-1]:
        assert len({text for text in one if text.startswith("/memfd")}) == 1
        assert len([text for text in one if not text.startswith("/memfd")]) == 2
    everything = [text for one in files for text in set(one)]
    assert len(everything) == len(set(everything))


def test_forks_outlive_the_nursery_and_another_takes_its_place(nursery, fork):
    first, child = nursery.pid, fork()
    os.kill(nursery.pid, signal.SIGKILL)
    nursery.hear()
    assert not nursery.is_ready
    assert answer(child, "state")[1] == [first]
    child.send("abort")
    with pytest.raises(EOFError):
        child.recv()
    assert child.ended() == "ended, and nothing saw how: LLVM ERROR: no luck"
    nursery.hear()
    assert nursery.is_ready
    assert answer(fork(), "state")[1] == [nursery.pid] != [first]


def test_a_nursery_that_is_found_dead_or_hung_when_it_is_asked_is_replaced(nursery, monkeypatch):
    os.kill(nursery.pid, signal.SIGKILL)
    assert ended(nursery.pid)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert nursery.fork(print) is None
    nursery.hear()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    monkeypatch.setattr("tunekit.nursery._FORK_S", 0.2)
    monkeypatch.setattr("tunekit.child._EXIT_WAIT_S", 0.2)
    hung = nursery.pid
    os.kill(hung, signal.SIGSTOP)
    assert nursery.fork(print) is None
    assert ended(hung)
    nursery.hear()
    assert nursery.is_ready


def test_nurseries_that_die_one_after_the_other_are_given_up_without_a_word_too_many(nursery):
    for _ in range(MOST_DEATHS):
        os.kill(nursery.pid, signal.SIGKILL)
        with suppress(EOFError):
            nursery.hear()
    os.kill(nursery.pid, signal.SIGKILL)
    with pytest.raises(TuneError) as raised:
        nursery.hear()
    assert str(raised.value) == "nothing can be compiled here: the compiler was ended by SIGKILL"


def test_a_nursery_that_cannot_prepare_says_why(open_nursery, forked):
    nursery = open_nursery("abort")
    for _ in range(MOST_DEATHS - 1):
        nursery.hear()
    with pytest.raises(TuneError, match="ended by SIGABRT: LLVM ERROR: an import"):
        nursery.hear()
    with pytest.raises(ChildError, match=r"(?s)Traceback .* in prepare.*TypeError: a bug"):
        open_nursery("raise")


@pytest.mark.parametrize(
    ("what", "reason"),
    [("few files", "Too many open files"), ("no forks", "Resource temporarily unavailable")],
)
def test_a_host_on_which_nothing_can_be_forked_is_an_error_that_says_so(
    open_nursery, forked, what, reason
):
    nursery = open_nursery(what)
    before = [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in ("self", nursery.pid)]
    for _ in range(2):
        with pytest.raises(TuneError, match=rf"no compiler can be started here: {reason}.*ulimit"):
            nursery.fork(forked.serve)
    after = [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in ("self", nursery.pid)]
    assert after == before


def test_a_limit_of_our_own_is_the_same_error_and_leaves_no_file_open(nursery, forked, monkeypatch):
    def refuse(name):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("tunekit.child.os.memfd_create", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(TuneError, match="no compiler can be started here: Too many open files"):
        nursery.fork(forked.serve)
    with pytest.raises(TuneError, match="no compiler can be started here: Too many open files"):
        Nursery(forked.prepare)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


PARENT = """
import json, sys, time
import forked
from tunekit.nursery import Nursery
nursery = Nursery(forked.prepare, sys.argv[1])
nursery.hear()
children = [nursery.fork(forked.serve) for _ in range(2)]
for child in children: child.send("start")
pids = [nursery.pid, *(child.pid for child in children), *(child.recv() for child in children)]
print(json.dumps(pids), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (signal.SIGKILL, "as here"),
        (signal.SIGTERM, "as here"),
        (signal.SIGINT, "as here"),
        (signal.SIGKILL, "no signals"),
    ],
)
def test_the_nursery_and_its_forks_end_with_the_parent(forked, number, what):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, what],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pids = json.loads(parent.stdout.readline())
    assert not any(ended(pid, 0.01) for pid in pids)
    parent.send_signal(number)
    parent.communicate()
    assert all(map(ended, pids))
