"""What was tried for a key and how it went, from the trials that are stored."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.key import TuningKey
from tunekit.trial import Best, Outcome, Status


@dataclass(frozen=True, slots=True)
class Failure:
    """Configs that failed alike: of one status, for one reason."""

    status: Status
    reason: str
    """The first line of the message, empty if there was none."""
    count: int
    example: Outcome
    """The first of them, with its whole message."""


@dataclass(frozen=True, slots=True)
class Step:
    """An attempt that was better than all before it."""

    attempt: int
    """Which one it was, from 1."""
    config: Config
    median_us: float


@dataclass(frozen=True, slots=True)
class History:
    """The configs that were tried for a key, each as it last went, in the order of first trials.

    A finalist is known by its final time, not by its screening: the last step may lie above the
    best row's time, and a step before it may be gone.
    """

    key: TuningKey
    attempts: int
    failures: tuple[Failure, ...]
    """By status and reason, the most frequent first."""
    curve: tuple[Step, ...]
    """The best so far, wherever it became better."""

    @property
    def failed(self) -> int:
        """How many of the attempts failed."""
        return sum(failure.count for failure in self.failures)

    def by_status(self) -> dict[Status, int]:
        """Return how many attempts failed with each status that occurs."""
        counts: Counter[Status] = Counter()
        for failure in self.failures:
            counts[failure.status] += failure.count
        return dict(counts)


def history(store: Store, key: TuningKey, *, compiler: str | None = None) -> History:
    """Return the history of a key, under one compiler (that of a best row) or all.

    Raises:
        StoreError: the store cannot be read.
    """
    return history_of(key, (trial.outcome for trial, _ in store.trials(key, compiler=compiler)))


def how_sure(best: Best) -> str:
    """Say in one line how many of how many configs a row is the best of, and how far it may be off.

    All of it stands on the row.
    """
    text = f"best of {best.trials} of {best.space_size} legal configs"
    if best.distance is None:
        return f"{text}; how far the best there is may be was not estimated"
    if best.distance.bound == 0:
        return f"{text}: there is no better one"
    return (
        f"{text}; expected to be {best.distance.expected:.1%} slower than the best there is, and at"
        f" most {best.distance.bound:.1%} in nine of ten cases"
    )


def history_of(key: TuningKey, trials: Iterable[Outcome]) -> History:
    """Return the history that trials of a key make, in the order given."""
    last: dict[Config, Outcome] = {}
    for trial in trials:
        last[trial.config] = trial
    curve: list[Step] = []
    for attempt, trial in enumerate(last.values(), start=1):
        median = trial.median_us
        if median is None or not 0 < median < math.inf:
            continue
        if not curve or median < curve[-1].median_us:
            curve.append(Step(attempt, trial.config, median))
    return History(key, len(last), _failures(last.values()), tuple(curve))


def _failures(trials: Iterable[Outcome]) -> tuple[Failure, ...]:
    alike: dict[tuple[Status, str], list[Outcome]] = {}
    for trial in trials:
        if trial.status is not Status.OK:
            reason = (trial.error or "").strip().split("\n", 1)[0]
            alike.setdefault((trial.status, reason), []).append(trial)
    found = [Failure(*kind, len(group), group[0]) for kind, group in alike.items()]
    return tuple(sorted(found, key=lambda failure: -failure.count))
