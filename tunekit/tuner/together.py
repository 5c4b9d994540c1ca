"""A run's runners: one of its own, or one of a fleet for each kind of GPU that the workers have.

Each kind's keys are its own, and so is its search.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields

from tunekit.cache import Store
from tunekit.fleet.hiring import Hired
from tunekit.fleet.identity import made_by
from tunekit.fleet.leading import Lead
from tunekit.fleet.opening import open_lead
from tunekit.key import Problem
from tunekit.runner import Runner
from tunekit.search import Grow, load_portfolios
from tunekit.spent import Spent
from tunekit.trial import Origin
from tunekit.tuner.events import Event, Listener, TuneReport


@dataclass(frozen=True, slots=True)
class Crew:
    """What a run tries its configs with."""

    runners: Sequence[Runner]
    lead: Lead | None = None
    grow: Grow | None = None
    """Grows the search's forests elsewhere."""

    def prepare(self, problems: Sequence[Problem], *, sampler: str, seed: int) -> None:
        """Have what a run needs first made ready, as far as it can be side by side."""
        for runner in self.runners:
            runner.prepare(problems)
        if self.lead is None and self.runners[0].origin is Origin.MEASURED:
            _load_search(sampler, seed, self.grow)  # while the GPU's process starts
            made_by(Origin.MEASURED)  # loads the kernels

    def attach(self, store: Store) -> None:
        """Say in which store the run's leases are."""
        if self.lead is not None:
            self.lead.attach(store)

    def close(self) -> None:
        """End whatever was started."""
        for runner in self.runners:
            runner.close()


@contextmanager
def joined(
    open_runner: Callable[..., Runner],
    started: Runner | Hired,
    *,
    sampler: str,
    seed: int,
    grow: Grow | None,
) -> Iterator[Crew]:
    """Wait until what was started can work. At the end of the block it gives back what it has."""
    if not isinstance(started, Hired):
        yield Crew([started], grow=grow)
        return
    with closing(open_lead(open_runner, started)) as lead:
        _load_search(sampler, seed, grow)  # while the workers start
        yield Crew(lead.runners(started.patience_s), lead, grow)


def _load_search(sampler: str, seed: int, grow: Grow | None) -> None:
    """Load what the search of all keys begins with."""
    if sampler == "transfer":
        load_portfolios(seed, grow=grow)


def on_each(
    runners: Sequence[Runner],
    run: Callable[[Runner, Listener], TuneReport],
    tell: Listener,
    abort: Callable[[], None],
) -> TuneReport:
    """Run on each kind of GPU, all at once, and report as of one run.

    `tell` is called by one thread at a time. If one of them fails, or Ctrl-C is pressed, `abort`
    has to end them all.
    """
    if len(runners) == 1:
        return run(runners[0], tell)
    lock = threading.Lock()

    def tell_in_turn(event: Event) -> None:
        with lock:
            tell(event)

    with ThreadPoolExecutor(len(runners), "tunekit-kind") as threads:
        try:
            pending = {threads.submit(run, runner, tell_in_turn) for runner in runners}
            reports = []
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                reports += [future.result() for future in done]
        except BaseException:
            abort()
            raise
    return merged(reports)


def merged(reports: Sequence[TuneReport]) -> TuneReport:
    """Return one report of runs that went on side by side."""
    whole = TuneReport(seconds=max(report.seconds for report in reports))
    for report in reports:
        whole.bests += report.bests
        whole.failed += report.failed
        whole.counts += report.counts
        whole.disturbed += report.disturbed
        whole.skipped += report.skipped
        whole.left += report.left
    whole.bests.sort(key=lambda best: best.key)
    whole.spent = added([report.spent for report in reports])
    return whole


def added(spent: Sequence[Spent]) -> Spent:
    """Return where the time of several went, together."""
    names = [field.name for field in fields(Spent)]
    return Spent(**{name: sum(getattr(one, name) for one in spent) for name in names})
