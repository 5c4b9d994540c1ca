"""What a comparison found: times, ratios, and shares of what the GPU can do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunekit.config import Config
from tunekit.key import Problem
from tunekit.trial import Choice, Grade, Measurement, Origin

SCHEMA = 1
"""Version of the JSON that `bench` prints."""

TUNEKIT, TORCH, INDUCTOR, TRITON_LIST = "tunekit", "torch", "inductor", "triton-list"

AGAINST = (TORCH, INDUCTOR, TRITON_LIST)
"""What tunekit may be compared with."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The rates that nothing passes: of bytes, and of each dtype's arithmetic."""

    gb_per_s: float
    tflops: Mapping[str, float]

    def least_us(self, problem: Problem) -> float | None:
        """Return the time in which the GPU could do it at best, or None if a rate is not known."""
        rate = self.tflops.get(problem.dtype)
        if rate is None:
            return None
        return max(problem.flops / rate / 1e6, problem.min_bytes / self.gb_per_s / 1e3)


@dataclass(frozen=True, slots=True)
class Timed:
    """Everything that was timed on one problem, in the same rounds."""

    times: Mapping[str, Measurement]
    left_out: Mapping[str, str]
    """Who was to be timed and could not be, and why."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One problem: what tunekit runs for it, and how long that and the others take."""

    problem: Problem
    count: int
    name: str | None
    runs: Choice
    grade: Grade | None
    config: Config | None
    timed: Timed

    @property
    def ours(self) -> Measurement | None:
        """The time of what tunekit runs."""
        return self.timed.times.get(TUNEKIT)

    def ratio(self, name: str) -> float | None:
        """Return another's time over ours: above 1 tunekit is the faster."""
        other = self.timed.times.get(name)
        if self.ours is None or other is None:
            return None
        return other.median_us / self.ours.median_us

    def bounds(self, name: str) -> tuple[float, float] | None:
        """Return the ratio with both times at the ends of their 95 % intervals."""
        other = self.timed.times.get(name)
        if self.ours is None or other is None:
            return None
        return other.low_us / self.ours.high_us, other.high_us / self.ours.low_us

    def share(self, ceilings: Ceilings) -> float | None:
        """Return the least possible time over ours: 1 is the roofline."""
        least = ceilings.least_us(self.problem)
        return None if least is None or self.ours is None else least / self.ours.median_us

    def to_dict(self, ceilings: Ceilings) -> dict[str, Any]:
        """Return the problem's part of `bench --json`. Times are in microseconds."""
        ours, problem = self.ours, self.problem
        return {
            **problem.to_dict(),
            "count": self.count,
            "name": self.name,
            "runs": self.runs.value,
            "grade": None if self.grade is None else self.grade.value,
            "config": None if self.config is None else self.config.to_dict(),
            "times": {
                name: {"median_us": m.median_us, "low_us": m.low_us, "high_us": m.high_us}
                for name, m in self.timed.times.items()
            },
            "ratios": {
                name: {"ratio": ratio, "low": bounds[0], "high": bounds[1]}
                for name in self.timed.times
                if name != TUNEKIT
                and (ratio := self.ratio(name)) is not None
                and (bounds := self.bounds(name)) is not None
            },
            "left_out": dict(self.timed.left_out),
            "tflops": None if ours is None else problem.flops / ours.median_us / 1e6,
            "gb_per_s": None if ours is None else problem.min_bytes / ours.median_us / 1e3,
            "share_of_roofline": self.share(ceilings),
        }


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A whole comparison."""

    device: str
    gpu: str
    origin: Origin
    protocol: str
    against: tuple[str, ...]
    ceilings: Ceilings
    problems: tuple[Compared, ...]

    def geometric_mean(self, name: str) -> float | None:
        """Return the geometric mean of the ratios to another, over the problems that have one."""
        ratios = [ratio for one in self.problems if (ratio := one.ratio(name)) is not None]
        if not ratios:
            return None
        return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))

    def untimed(self) -> list[tuple[Problem, str, str]]:
        """Return who could not be timed on which problem, and why."""
        return [
            (one.problem, name, reason)
            for one in self.problems
            for name, reason in one.timed.left_out.items()
        ]

    def to_dict(self, *, fail_below: float | None, passed: bool) -> dict[str, Any]:
        """Return the plain data of `bench --json`."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "gpu": self.gpu,
            "origin": self.origin.value,
            "protocol": self.protocol,
            "ceilings": {
                "gb_per_s": self.ceilings.gb_per_s,
                "tflops": dict(self.ceilings.tflops),
            },
            "problems": [one.to_dict(self.ceilings) for one in self.problems],
            "geometric_mean": {name: self.geometric_mean(name) for name in self.against},
            "fail_below": fail_below,
            "passed": passed,
        }
