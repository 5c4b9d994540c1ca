"""What a worker does first: a runner and a leader that are scripted, a real store."""

from __future__ import annotations

import queue
import threading
from collections import deque

import pytest

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import ProblemError
from tunekit.fleet.member import work
from tunekit.fleet.messages import (
    Hello,
    Measure,
    Measured,
    Outlined,
    Screen,
    Stop,
    Stopped,
    Take,
    Taken,
    Tried,
)
from tunekit.key import Problem, TuningKey
from tunekit.runner import MOST_HELD, Finals
from tunekit.space import Space
from tunekit.spent import Spent
from tunekit.trial import Fingerprint, Origin, Provenance, Status, Trial

H200 = KNOWN_DEVICES["sm_90"]
PROBLEMS = [Problem("matmul", m, 64, 64, "bfloat16") for m in range(1, MOST_HELD + 6)]
KEYS = [TuningKey.of(problem, H200.slug) for problem in PROBLEMS]
CONFIGS = tuple(Config("pointer", 64, 64, 16 * k) for k in range(1, 9))


class Runner:
    """Notes what it is asked to do; has time between two trials where `idle` says so."""

    device, origin = H200, Origin.REPLAYED

    def __init__(self, *, idle):
        self.idle, self.done, self.left = idle, [], deque()
        self.listening = threading.Event()

    def prepare(self, problems):
        self.done.append(("prepare", *problems))

    def space(self, problem):
        if problem.m == 1:
            raise ProblemError("one row is none")
        return Space(problem, self.device, CONFIGS)

    def provenance(self, problem, config):
        mark = Fingerprint("source", "compiler")
        return Provenance(
            mark, "fake", "0", "3", "2", "d", "F", "2020-01-01T00:00:00Z", self.origin
        )

    def announce(self, work):
        pass

    def vendor(self, problem):
        return None

    def add(self, work):
        self.left.extend(work)

    def screen(self, work):
        self.left.extend(work)
        self.listening.wait(30)  # until all that the leader says first has come
        while self.left:
            problem, config = self.left.popleft()
            self.done.append(("screen", problem.m))
            yield problem, Trial(config, Status.COMPILE_ERROR, error="none")

    def has_time(self):
        return self.idle(len(self.done))

    def finals(self, problem, configs):
        self.done.append(("finals", problem.m))
        return Finals(tuple(Trial(c, Status.COMPILE_ERROR, error="none") for c in configs), None)

    def spent(self):
        return Spent()

    def close(self):
        self.done.append(("close",))


class Link:
    """A leader that says what it is told to."""

    def __init__(self, messages):
        self.inbox, self.said = queue.SimpleQueue(), []
        for message in messages:
            self.inbox.put(message)

    def send(self, message):
        self.said.append(message)
        if isinstance(message, Measured) and self.last == message.job:
            self.inbox.put(Stop())

    def recv(self):
        return self.inbox.get()


@pytest.fixture
def worked(tmp_path):
    """Return a function that has a worker screen one key and measure others; gives what it did."""

    def run(idle, finals):
        runner = Runner(idle=idle)
        messages = [Take(tuple(KEYS)), Screen(0, KEYS[0], CONFIGS)]
        messages += [Measure(job, KEYS[job], CONFIGS[:1]) for job in range(1, finals + 1)]
        link = Link(messages)
        link.last = finals
        recv = link.recv

        def heard():
            if link.inbox.empty():
                runner.listening.set()
            return recv()

        link.recv = heard
        work(link, runner, str(tmp_path / "cache.db"))
        assert isinstance(link.said[0], Hello)
        assert [len(m.keys) for m in link.said if isinstance(m, Taken)] == [len(KEYS)]
        assert sum(isinstance(m, Tried) for m in link.said) == len(CONFIGS)
        assert [m.job for m in link.said if isinstance(m, Measured)] == list(range(1, finals + 1))
        assert any(isinstance(m, Stopped) for m in link.said)
        return [what for what in runner.done if what[0] in ("screen", "finals")]

    return run


def test_finals_wait_while_there_is_something_to_try(worked):
    done = worked(lambda count: False, 3)
    assert done == [("screen", 1)] * len(CONFIGS) + [("finals", m) for m in (2, 3, 4)]


def test_finals_are_measured_while_what_is_to_be_tried_is_compiled(worked):
    done = worked(lambda count: count == 3, 2)
    assert done == [*[("screen", 1)] * 3, ("finals", 2), *[("screen", 1)] * 5, ("finals", 3)]


def test_many_finals_do_not_wait_for_ever(worked):
    done = worked(lambda count: False, MOST_HELD + 2)
    assert done[:3] == [("screen", 1), ("finals", 2), ("finals", 3)]
    assert done[3 : 3 + len(CONFIGS) - 1] == [("screen", 1)] * (len(CONFIGS) - 1)


def test_spaces_are_said_before_anything_is_asked_for(tmp_path):
    runner, link = Runner(idle=lambda count: False), Link([Stop()])
    link.recv = lambda: (runner.listening.wait(30), Stop())[1]
    send = link.send

    def said(message):
        send(message)
        if isinstance(message, Outlined) and message.problem == PROBLEMS[2]:
            runner.listening.set()

    link.send = said
    work(link, runner, str(tmp_path / "cache.db"), PROBLEMS[:3])
    hello, *spaces = link.said[:4]
    assert hello.outlining == tuple(PROBLEMS[:3])
    assert [message.problem for message in spaces] == PROBLEMS[:3]
    assert isinstance(spaces[0].space, ProblemError)
    assert [message.space.configs for message in spaces[1:]] == [CONFIGS] * 2
    assert not (tmp_path / "cache.db").exists()
    assert runner.done == [("close",)]  # who opened it has prepared it
