"""A comparison over many problems: what tunekit would run for each, against the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tunekit.bench.results import BenchReport, Ceilings, Compared, Timed
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.decision import decide
from tunekit.device import DeviceInfo
from tunekit.key import Problem
from tunekit.ladder import row_table
from tunekit.trial import Choice, Origin


@dataclass(frozen=True, slots=True)
class Entry:
    """A problem to compare on, with how often a program runs it."""

    problem: Problem
    count: int = 1
    name: str | None = None


class Times(Protocol):
    """What gives times: a GPU, or a recording of one."""

    @property
    def device(self) -> DeviceInfo:
        """The GPU the times are of."""

    @property
    def origin(self) -> Origin:
        """`MEASURED` or `REPLAYED`."""

    @property
    def protocol(self) -> str:
        """How they were measured."""

    def time(self, problem: Problem, config: Config | None, against: Sequence[str]) -> Timed:
        """Time what tunekit runs (a config, or the vendor's call for None) and the others."""

    def ceilings(self, dtypes: Iterable[str]) -> Ceilings:
        """Return the highest rates of this GPU."""


def compare(
    entries: Sequence[Entry],
    store: Store,
    times: Times,
    *,
    against: Sequence[str],
    on_done: Callable[[Compared], None] = lambda compared: None,
) -> BenchReport:
    """Compare on every problem, telling each as it ends.

    Raises:
        StoreError: the store cannot be read.
        RecordingError: the times are a recording's, which does not hold a problem.
    """
    table = row_table(store, times.device)
    ceilings = times.ceilings(sorted({entry.problem.dtype for entry in entries}))
    compared = []
    for entry in entries:
        decision = decide(table, entry.problem)
        answer = decision.answer
        runs = Choice.TRITON if decision.triton else Choice.VENDOR
        config = answer.best.config if answer is not None and decision.triton else None
        timed = times.time(entry.problem, config, against)
        grade = None if answer is None else answer.grade
        one = Compared(entry.problem, entry.count, entry.name, runs, grade, config, timed)
        compared.append(one)
        on_done(one)
    device = times.device
    return BenchReport(
        device.name, device.slug, times.origin, times.protocol, tuple(against), ceilings,
        tuple(compared),
    )  # fmt: skip
