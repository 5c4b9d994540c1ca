"""What a run is given, what it tells while it goes on, and what it gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tunekit.device import DeviceInfo
from tunekit.errors import TuneError
from tunekit.key import Problem, TuningKey
from tunekit.spent import Spent
from tunekit.trial import Best, Origin, Status, Trial


@dataclass(frozen=True, slots=True)
class Task:
    """A problem to tune, how often the program runs it, and its name there."""

    problem: Problem
    count: int = 1
    name: str = ""


def merged_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Return one task for each problem, in the order given, with the sum of the counts."""
    merged: dict[Problem, Task] = {}
    for task in tasks:
        known = merged.get(task.problem)
        if known is not None:
            task = Task(task.problem, known.count + task.count, known.name or task.name)
        merged[task.problem] = task
    return list(merged.values())


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Everything was checked and the first trial is about to start."""

    keys: int
    device: DeviceInfo
    origin: Origin
    resumed: int
    """Trials of unfinished keys that earlier runs left in the store."""


@dataclass(frozen=True, slots=True)
class StaleFound:
    """What `--stale` found before it tries anything: the run's cost, and why it is needed."""

    stale: int
    """Keys whose rows were made otherwise than rows are made here."""
    current: int
    """Keys that are left alone."""
    configs: int
    """Stored configs of the stale keys that are verified and timed again."""
    reasons: Mapping[str, int]
    """In how many stale keys a field differs: `triton 3.6.0 -> 3.9.0`."""


@dataclass(frozen=True, slots=True)
class TrialDone:
    """A trial ended and is in the store. Times are medians in microseconds."""

    key: TuningKey
    trial: Trial
    best_us: float | None
    vendor_us: float | None
    done: int
    """Trials of the key, those of earlier runs included."""
    total: int
    """Trials the key is to have."""


@dataclass(frozen=True, slots=True)
class KeyDone:
    """A key has a result; `stored` says whether it is now the stored row."""

    best: Best
    stored: bool


@dataclass(frozen=True, slots=True)
class KeySkipped:
    """A key was tuned before, under this kernel source and compiler; this is its row."""

    best: Best


@dataclass(frozen=True, slots=True)
class KeyFailed:
    """No config of a key gave a result: the most common reason, and how many configs failed."""

    key: TuningKey
    reason: str
    count: int
    cure: str = ""
    """What to do about it, where it is not to run the same again."""


@dataclass(frozen=True, slots=True)
class KeysAwaited:
    """All that is left to do is being tuned by other runs; this one waits for their results."""

    keys: tuple[TuningKey, ...]
    holders: tuple[str, ...]
    """Who they are, in words."""


@dataclass(frozen=True, slots=True)
class KeyLeft:
    """Another run is tuning a key, and this one does not wait for it (any longer)."""

    key: TuningKey


Event = (
    StaleFound | RunStarted | TrialDone | KeyDone | KeySkipped | KeyFailed | KeysAwaited | KeyLeft
)
Listener = Callable[[Event], None]


@dataclass
class TuneReport:
    """What came of a run."""

    bests: list[Best] = field(default_factory=list)
    """For each key with a result, the row that the store now holds for it."""
    failed: list[KeyFailed] = field(default_factory=list)
    counts: Counter[Status] = field(default_factory=Counter)
    """Trials of this run by how they ended."""
    disturbed: list[Best] = field(default_factory=list)
    """Those of this run whose finals were disturbed, and again when they were repeated."""
    seconds: float = 0.0
    spent: Spent = field(default_factory=Spent)
    """Where the time went since the device was opened."""
    skipped: int = 0
    left: list[TuningKey] = field(default_factory=list)
    """Keys that another run was still tuning when the time was over."""

    @property
    def trials_run(self) -> int:
        """How many configs this run tried."""
        return self.counts.total()

    @property
    def trials_per_second(self) -> float:
        """How fast configs were tried, finals and all."""
        return self.trials_run / self.seconds if self.seconds > 0 else 0.0

    def note_disturbance(self, best: Best) -> None:
        """Remember a best of this run if its finals were disturbed."""
        if best.measurement.contended or best.measurement.throttled:
            self.disturbed.append(best)

    def raise_failures(self) -> None:
        """Raise if a key has no result.

        Raises:
            TuneError: some key's configs all failed; the text gives the first one's reason.
        """
        if not self.failed:
            return
        first = self.failed[0]
        others = f", and so for {len(self.failed) - 1} more keys" if len(self.failed) > 1 else ""
        cure = f"; {first.cure}" if first.cure else ""
        raise TuneError(f"no config works for {first.key}{others}: {first.reason}{cure}")
