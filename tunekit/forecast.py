"""What would run for a problem or for two tensors, and why. Nothing is launched or counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunekit.config import Config
from tunekit.decision import Decision, decide
from tunekit.differences import Difference
from tunekit.key import Problem, TuningKey
from tunekit.lookup import Answer, PassedOver, RowTable, how_to_tune
from tunekit.policies import Policy
from tunekit.trial import Choice, Grade


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would run, and why. Times are in microseconds, as they were measured for the row."""

    runs: Choice
    why: str
    key: TuningKey | None = None
    """What was looked for, or None for operands that no kernel takes."""
    config: Config | None = None
    """The config that would be launched, or that lost to the vendor."""
    grade: Grade | None = None
    """How well the row fits, or None where none decided."""
    row: TuningKey | None = None
    """The key of the row that decided."""
    differences: tuple[Difference, ...] = ()
    """Every field in which the row differs from what was asked for and is installed."""
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    vendor_us: float | None = None
    passed_over: tuple[PassedOver, ...] = ()
    """Rows that would have come first, and why they do not serve."""
    cure: str | None = None
    """How to tune it, where it has no row of its own."""

    @property
    def ratio(self) -> float | None:
        """The vendor's time over Triton's: above 1 the Triton kernel is the faster."""
        if self.vendor_us is None or self.median_us is None:
            return None
        return self.vendor_us / self.median_us

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "runs": self.runs.value,
            "why": self.why,
            "key": None if self.key is None else self.key.to_dict(),
            "config": None if self.config is None else self.config.to_dict(),
            "grade": None if self.grade is None else self.grade.value,
            "row": None if self.row is None else self.row.to_dict(),
            "differences": [one.to_dict() for one in self.differences],
            "median_us": self.median_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "vendor_us": self.vendor_us,
            "ratio": self.ratio,
            "passed_over": [one.to_dict() for one in self.passed_over],
            "cure": self.cure,
        }

    def __str__(self) -> str:
        lines = [f"{self.runs.value}: {self.why}"]
        if self.key is not None:
            lines.append(f"problem: {self.key}")
        if self.config is not None:
            lines.append(f"config: {self.config}")
        if self.median_us is not None:
            interval = f"{self.low_us:.2f} to {self.high_us:.2f}"
            lines.append(f"time: {self.median_us:.2f} us ({interval})")
        if self.vendor_us is not None:
            lines.append(f"vendor: {self.vendor_us:.2f} us, {self.ratio:.3f} times that")
        lines += [f"differs: {one}" for one in self.differences]
        lines += [f"passed over: {one.best.config}: {one.reason}" for one in self.passed_over]
        return "\n".join([*lines, *([self.cure] if self.cure else [])])


def forecast(
    table: RowTable, problem: Problem, gpu: str, *, location: str, policy: Policy | None = None
) -> Forecast:
    """Say what the rows of a table make of a problem on a kind of GPU, under a policy.

    `location` is that of the cache, for the command that tunes the problem. No tensor is needed,
    and no kernel is built: that a row's kernel does not compile here shows only when it is asked
    for.
    """
    policy = policy or Policy()
    key = TuningKey.of(problem, gpu)
    if policy.backend == "vendor":
        return Forecast(Choice.VENDOR, "the policy says backend=vendor", key)
    if policy.config is not None:
        return Forecast(Choice.TRITON, "the policy pins this config", key, policy.config)
    decision = decide(table, problem, backend=policy.backend, own_only=policy.deterministic)
    cure = how_to_tune(key, location) if decision.is_miss else None
    if decision.answer is None:
        runs = Choice.TRITON if policy.backend == "triton" else Choice.VENDOR
        what = "a default config serves it" if runs is Choice.TRITON else "torch serves it"
        why = f"no row of {location} serves this problem: {what}"
        return Forecast(runs, why, key, passed_over=decision.passed_over, cure=cure)
    return _of_row(decision, decision.answer, key, cure)


def _of_row(decision: Decision, answer: Answer, key: TuningKey, cure: str | None) -> Forecast:
    best = answer.best
    return Forecast(
        runs=Choice.TRITON if decision.triton else Choice.VENDOR,
        why=_why(decision, answer),
        key=key,
        config=best.config,
        grade=answer.grade,
        row=best.key,
        differences=answer.differences,
        median_us=best.measurement.median_us,
        low_us=best.measurement.low_us,
        high_us=best.measurement.high_us,
        vendor_us=None if best.vendor is None else best.vendor.median_us,
        passed_over=decision.passed_over,
        cure=cure,
    )


def _why(decision: Decision, answer: Answer) -> str:
    whose = f"the row of {answer.best.key}" if decision.is_miss else "its own row"
    if not decision.triton:
        return f"{whose} says that the vendor was not slower"
    if answer.best.choice is Choice.VENDOR:
        return f"backend=triton, though {whose} says that the vendor was not slower"
    return f"{whose} says that Triton was faster"
