"""What would run for a problem, and why: read from a store, shown as text or as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tunekit.cache import Store
from tunekit.decision import decide
from tunekit.device import DeviceInfo
from tunekit.key import Problem, TuningKey
from tunekit.ladder import row_table
from tunekit.lookup import BORROWED, Answer, PassedOver, how_to_tune
from tunekit.ranking import ranked
from tunekit.report import Findings, find
from tunekit.trial import Best, Choice, Grade, Measurement, Trial

SCHEMA = 1
"""Version of the JSON that `explain` prints."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What serves a problem on a kind of GPU, and all that led to it."""

    key: TuningKey
    device: DeviceInfo
    location: str
    answer: Answer | None
    """The row that decides, or None: then the vendor is called."""
    passed_over: tuple[PassedOver, ...]
    """Rows that would have come first, and why they do not serve."""
    rival: Trial | None
    """The fastest of the other configs tried with the row's compiler."""
    findings: Findings | None
    """What the key's own trials say, if there are any."""

    @property
    def runs(self) -> Choice:
        """What would be launched."""
        return Choice.VENDOR if self.answer is None else self.answer.best.choice

    @property
    def why(self) -> str:
        """Why that is launched, in a few words."""
        if self.answer is None:
            return "no row of the cache serves it"
        whose = ""
        if self.answer.grade in BORROWED:
            whose = f", as tuned for {self.answer.best.key.problem}"
        if self.runs is Choice.VENDOR:
            return f"Triton was not clearly faster{whose}"
        if self.answer.best.vendor is None:
            return f"no vendor's call was measured{whose}"
        return f"Triton was faster than the vendor{whose}"

    @property
    def rival_lost_by(self) -> float | None:
        """By what part of the best config's time the next best is slower."""
        if self.answer is None or self.rival is None or self.rival.measurement is None:
            return None
        return self.rival.measurement.median_us / self.answer.best.measurement.median_us - 1

    @property
    def improve(self) -> str | None:
        """How a better answer is got, or None where everything was tried with what is here."""
        own = None if self.answer is None or self.answer.grade in BORROWED else self.answer.best
        if own is None:
            return how_to_tune(self.key, self.location)
        if own.replayed:  # what is measured takes its place
            return how_to_tune(self.key, self.location)
        if self.answer is not None and self.answer.grade is not Grade.EXACT:
            how = how_to_tune(self.key, self.location)
            return how.replace("tunekit tune ", "tunekit tune --stale ", 1)
        if own.trials >= own.space_size:
            return None
        more = min(2 * own.trials, own.space_size)
        return f"{how_to_tune(self.key, self.location)} --trials {more}"

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data of `explain --json`. Times are in microseconds."""
        answer, found = self.answer, self.findings
        return {
            "schema": SCHEMA,
            "problem": self.key.problem.to_dict(),
            "gpu": self.key.gpu,
            "device": self.device.name,
            "cache": self.location,
            "runs": self.runs.value,
            "why": self.why,
            "grade": None if answer is None else answer.grade.value,
            "differences": [] if answer is None else [d.to_dict() for d in answer.differences],
            "row": None if answer is None else _row(answer.best),
            "next_best": _rival(self.rival, self.rival_lost_by),
            "tried": None if found is None else _tried(found),
            "passed_over": [one.to_dict() for one in self.passed_over],
            "improve": self.improve,
        }


def explain(store: Store, problem: Problem, device: DeviceInfo) -> Explanation:
    """Say what would run for a problem on a device, by the rows of a store.

    Raises:
        StoreError: the store cannot be read.
    """
    key = TuningKey.of(problem, device.slug)
    table = row_table(store, device, family_name=problem.family)
    decision = decide(table, problem)
    answer = decision.answer
    own = answer is not None and answer.best.key == key
    compiler = answer.best.provenance.fingerprint.compiler if answer and own else None
    trials = [trial for trial, _ in store.trials(key, compiler=compiler)]
    return Explanation(
        key,
        device,
        store.location,
        answer,
        decision.passed_over,
        _next_best(trials, answer.best) if answer and own else None,
        find(key, [trial.outcome for trial in trials]) if trials else None,
    )


def _next_best(trials: Sequence[Trial], best: Best) -> Trial | None:
    """Return the fastest other finalist, or if there is none the fastest other trial.

    Finals ran on a hotter card than the screening, so the two are not compared.
    """
    others = ranked(trial for trial in trials if trial.config != best.config)
    finals = [t for t in others if t.measurement is not None and t.measurement.final]
    return next(iter(finals or others), None)


def _times(measured: Measurement | None) -> dict[str, float] | None:
    if measured is None:
        return None
    return {
        "median_us": measured.median_us,
        "low_us": measured.low_us,
        "high_us": measured.high_us,
    }


def _row(best: Best) -> dict[str, Any]:
    made = best.provenance
    return {
        "problem": best.key.problem.to_dict(),
        "gpu": best.key.gpu,
        "choice": best.choice.value,
        "config": best.config.to_dict(),
        "triton": _times(best.measurement),
        "vendor": _times(best.vendor),
        "ratio": best.ratio,
        "trials": best.trials,
        "space_size": best.space_size,
        "distance": None if best.distance is None else asdict(best.distance),
        "origin": made.origin.value,
        "replayed": best.replayed,
        "made": made.created_at,
        "versions": {
            "tunekit": made.tunekit,
            "triton": made.triton,
            "torch": made.torch,
            "driver": made.driver,
            "compiler": made.fingerprint.compiler,
        },
    }


def _rival(rival: Trial | None, lost_by: float | None) -> dict[str, Any] | None:
    if rival is None or rival.measurement is None:
        return None
    return {
        "config": rival.config.to_dict(),
        **(_times(rival.measurement) or {}),
        "final": rival.measurement.final,
        "slower_by": lost_by,
    }


def _tried(found: Findings) -> dict[str, Any]:
    return {
        "trials": found.history.attempts,
        "failed": [
            {"status": f.status.value, "reason": f.reason, "count": f.count}
            for f in found.history.failures
        ],
        "best_so_far": [
            {"trial": step.attempt, "us": step.median_us} for step in found.history.curve
        ],
        "variants": [
            {"variant": name, "us": us, "trials": count} for name, us, count in found.variants
        ],
    }
