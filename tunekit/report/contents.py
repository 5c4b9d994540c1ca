"""Everything a report shows, as numbers: read from a store once, before any page is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunekit.cache import Store
from tunekit.device import DeviceInfo
from tunekit.key import Problem, TuningKey
from tunekit.report.findings import Findings, find, shortened
from tunekit.trial import Best, Grade, Origin, Provenance


@lru_cache(maxsize=1 << 14)
def _problem(key: TuningKey) -> Problem:
    return key.problem  # which is made, and checked, anew each time


@dataclass(frozen=True, slots=True)
class Entry:
    """A key that was tried: its row, if some config worked, and what its trials say."""

    number: int
    """Its place in the report, from 1."""
    key: TuningKey
    best: Best | None
    grade: Grade | None
    findings: Findings

    @property
    def problem(self) -> Problem:
        """What is multiplied."""
        return _problem(self.key)

    @property
    def ratio_bounds(self) -> tuple[float, float] | None:
        """The least and the most that the ratio may be, both times at the ends of their interval.

        Wider than 95 %: the two times would have to be off in opposite directions.
        """
        if self.best is None or self.best.vendor is None:
            return None
        ours, vendor = self.best.measurement, self.best.vendor
        return vendor.low_us / ours.high_us, vendor.high_us / ours.low_us


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The highest rates that any stored time of a GPU reaches."""

    gb_per_s: float
    tflops: dict[str, float]
    """By dtype."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What bests were made with, how many, and when."""

    provenance: Provenance
    rows: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Contents:
    """What a report shows."""

    location: str
    devices: tuple[DeviceInfo, ...]
    entries: tuple[Entry, ...]
    environments: tuple[Environment, ...]

    def of_gpu(self, slug: str) -> list[Entry]:
        """Return the entries of a kind of GPU that have a row."""
        return [e for e in self.entries if e.key.gpu == slug and e.best is not None]


def gather(
    store: Store, served: Iterable[tuple[Best, Grade]], *, gpu: str | None = None
) -> Contents:
    """Read what a report of a store shows; `served` is the row of each key that answers.

    Of a key's trials those count that were made with the compiler of its row.
    """
    rows = {best.key: (best, grade) for best, grade in served}
    found = {}
    for key, trials in store.outcomes(gpu=gpu):
        best, _ = rows.get(key, (None, None))
        compiler = None if best is None else best.provenance.fingerprint.compiler
        found[key] = find(key, [trial for made, trial in trials if compiler in (None, made)])
    keys = sorted({*rows, *found}, key=lambda key: (key.gpu, key))
    entries = []
    for number, key in enumerate(keys, start=1):
        best, grade = rows.get(key, (None, None))
        entries.append(Entry(number, key, best, grade, found.get(key) or find(key, ())))
    slugs = {key.gpu for key in keys}
    return Contents(
        store.location,
        tuple(device for device in store.devices() if device.slug in slugs),
        tuple(entries),
        environments(best for best, _ in rows.values()),
    )


def ceiling(entries: Sequence[Entry]) -> Ceiling:
    """Return the highest rates that the stored times of some entries reach."""
    rate = 0.0
    tflops: dict[str, float] = {}
    for entry in entries:
        if entry.best is None:
            continue
        problem = entry.problem
        times = [m.median_us for m in (entry.best.measurement, entry.best.vendor) if m is not None]
        rate = max(rate, problem.min_bytes / min(times) / 1e3)
        flops = problem.flops / min(times) / 1e6
        tflops[problem.dtype] = max(flops, tflops.get(problem.dtype, 0.0))
    return Ceiling(rate, dict(sorted(tflops.items())))


def environments(bests: Iterable[Best]) -> tuple[Environment, ...]:
    """Return what rows were made with, the most frequent first; dates and kernels aside."""
    groups: dict[tuple[str, ...], list[Provenance]] = {}
    for best in bests:
        made = best.provenance
        origin = f"{made.origin.value} (replayed)" if best.imported_replay else made.origin.value
        same = (
            *(made.fingerprint.compiler, made.protocol, made.tunekit, made.triton, made.torch),
            *(made.driver, made.device_name, origin),
        )
        groups.setdefault(same, []).append(made)
    found = []
    for members in groups.values():
        dates = sorted(made.created_at for made in members)
        found.append(Environment(members[0], len(members), dates[0], dates[-1]))
    return tuple(sorted(found, key=lambda e: (-e.rows, e.first)))


def failures(entries: Iterable[Entry]) -> list[tuple[str, int]]:
    """Return how many trials of all entries failed how, the most frequent first."""
    total: Counter[str] = Counter()
    for entry in entries:
        total.update(dict(entry.findings.failures))
    return total.most_common()


def reasons(entries: Iterable[Entry], most: int) -> list[tuple[str, str, int]]:
    """Return the most frequent statuses and texts of all entries' failed trials."""
    total: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        for failure in entry.findings.history.failures:
            total[failure.status.value, shortened(failure.reason)] += failure.count
    return [(*reason, number) for reason, number in total.most_common(most)]


def replayed(entries: Iterable[Entry]) -> int:
    """Return how many entries have a row whose times come from a recording."""
    return sum(e.best is not None and e.best.replayed for e in entries)


def is_imported(best: Best) -> bool:
    """Say whether a row came from a file."""
    return best.provenance.origin is Origin.IMPORTED
