"""A runner with a made-up landscape, so that the whole of a run is tested without a GPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import ProblemError
from tunekit.key import Problem
from tunekit.runner import Finals
from tunekit.space import Space
from tunekit.spent import Spent
from tunekit.trial import Fingerprint, Measurement, Origin, Provenance, Status, Trial
from tunekit.tuner import Task

PROBLEM = Problem("matmul", 512, 512, 512, "bfloat16")
OTHER = Problem("matmul", 1024, 256, 512, "bfloat16")
CONFIGS = tuple(
    Config("pointer", m, n, 32, num_warps=w, num_stages=s)
    for m in (32, 64, 128)
    for n in (32, 64, 128)
    for w in (4, 8)
    for s in (2, 4)
)


def measurement(median, *, width=0.01, final=False):
    low, high = median * (1 - width), median * (1 + width)
    return Measurement(median, low, high, low, high, low, 20, "fake-1", 0.1, final=final)


def landscape(problem, config):
    """Give a time in microseconds, best at one corner, different for every config."""
    steps = math.log2(128 / config.block_m) + math.log2(128 / config.block_n)
    return 10 + 5 * steps + config.num_warps / 8 + config.num_stages / 16 + problem.m / 1e4


class FakeRunner:
    """Times configs by a formula; `broken` says which fail, `interrupt_after` when Ctrl-C comes."""

    device = KNOWN_DEVICES["sm_90"]

    def __init__(self, *, time_us=landscape, vendor_us=11.0, broken=None, origin=Origin.MEASURED):
        self.time_us = time_us
        self.final_us = time_us
        self.vendor_us = vendor_us
        self.broken = broken or (lambda config: None)
        self.broken_finals = lambda config: None
        self.origin = origin
        self.sources = {"pointer": "source-1"}
        self.compiler = "compiler-1"
        self.interrupt_after = None
        self.on_screen = lambda: None
        self.screened = []
        self.ended, self.ended_unseen = [], 0
        self.finalists = []
        self.announced = []
        self.idle = True
        self.closed = False

    def prepare(self, problems):
        """Have nothing to prepare."""

    def space(self, problem):
        if problem.family != "matmul":
            raise ProblemError(f"{problem} cannot be tried")
        return Space(problem, self.device, CONFIGS)

    def provenance(self, problem, config):
        mark = Fingerprint(self.sources[config.variant], self.compiler)
        return Provenance(
            mark, "fake-1", "0", "3", "2", "d", "Fake", "2020-01-01T00:00:00Z", self.origin
        )

    def announce(self, work):
        self.announced.append(list(work))

    def vendor(self, problem):
        return None if self.vendor_us is None else measurement(self.vendor_us)

    def untaken(self):
        """Return what a measuring process would have ended while nobody took it."""
        return [(p, self._trial(c, None, self.time_us(p, c))) for p, c in self.ended]

    def screen(self, work):
        for at, (problem, config) in enumerate(work):
            if self.interrupt_after is not None and len(self.screened) >= self.interrupt_after:
                self.ended = work[at : at + self.ended_unseen]
                raise KeyboardInterrupt
            self.on_screen()
            self.screened.append((problem, config))
            yield problem, self._trial(config, self.broken(config), self.time_us(problem, config))

    def has_time(self):
        return self.idle

    def finals(self, problem, configs):
        self.finalists.append(list(configs))
        trials = [
            self._trial(c, self.broken_finals(c), self.final_us(problem, c), final=True)
            for c in configs
        ]
        vendor = self.vendor(problem)
        return Finals(tuple(trials), None if vendor is None else replace(vendor, final=True))

    def spent(self):
        return Spent()

    def close(self):
        self.closed = True

    def _trial(self, config, error, time_us, *, final=False):
        if error is not None:
            return Trial(config, Status.LAUNCH_ERROR, error=error)
        return Trial(config, Status.OK, measurement(time_us, final=final))


@pytest.fixture
def make_runner():
    return FakeRunner


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "cache.db") as opened:
        yield opened


@pytest.fixture
def tasks():
    return [Task(PROBLEM, 3, "one"), Task(OTHER)]


@pytest.fixture
def events():
    return []
