"""A run over many keys, in rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tunekit.cache import Claims, Store
from tunekit.errors import TuneError
from tunekit.fleet.runner import FleetRunner
from tunekit.key import Problem, TuningKey
from tunekit.recording import Recording
from tunekit.runner import Runner
from tunekit.search import SAMPLERS, Budget, Grow, one_thread, open_storage
from tunekit.trial import Trial
from tunekit.tuner.dealing import Dealer
from tunekit.tuner.events import (
    KeyDone,
    KeyFailed,
    KeyLeft,
    KeySkipped,
    Listener,
    RunStarted,
    Task,
    TrialDone,
    TuneReport,
    merged_tasks,
)
from tunekit.tuner.experience import stored_experience
from tunekit.tuner.finishing import Finishing
from tunekit.tuner.key_search import KeySearch, Plan
from tunekit.tuner.sharing import Leases, Sharing

FINALS_AHEAD = 4
"""Keys whose finals are asked for at a time, for each worker of a fleet."""


def run(
    tasks: Iterable[Task],
    *,
    runner: Runner,
    store: Store,
    sampler: str = SAMPLERS[0],
    budget: Budget | None = None,
    seed: int = 0,
    retune: bool = False,
    record: str | Path | None = None,
    optuna_storage: str | None = None,
    grow: Grow | None = None,
    on_event: Listener | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> TuneReport:
    """Tune problems; those given more than once are tuned once, their counts added.

    Nothing is written before every problem was found to be one the runner can try. Up to half of
    the budget's trials move between keys (`tunekit.tuner.allocation`); a sweep's do not. `seconds`
    of it end the search of all keys together, which had rounds of equal size until then, and each
    of them has a result.
    `record` names a recording to make or extend; it is written whenever a key is finished.
    The search's forests are grown by `grow`, if it is given.
    Keys that another run with this store is tuning come last: their results are waited for, as long
    as there is time, and a key whose run ends without one is taken over.

    Raises:
        TunekitError: a problem cannot be tried here, or the store or recording not written.
        ValueError: the sampler is unknown.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"unknown sampler {sampler!r}: use one of {', '.join(SAMPLERS)}")
    merged = merged_tasks(tasks)
    if not merged:
        raise TuneError("there is nothing to tune: no problem was given")
    budget = budget or Budget.for_sampler(sampler, None, None)
    moves = len(merged) > 1 and sampler != "exhaustive" and budget.trials is not None
    known = None
    if sampler == "transfer":
        problems = [task.problem for task in merged]
        new = problems if retune else ()
        known = stored_experience(store, runner, seed=seed, new=new, grow=grow)
    storage = None if optuna_storage is None else open_storage(optuna_storage)
    fleet = runner if isinstance(runner, FleetRunner) else None
    plan = Plan(sampler, budget, seed, retune, moves, known, storage, stored=fleet is not None)
    claims = Claims(store) if fleet is None else fleet.claims
    session = _Session(runner, store, plan, claims, clock, on_event, sleep)
    tried = store.tried(gpu=runner.device.slug)
    keys = [
        KeySearch(task, runner=runner, store=store, plan=plan, new=key not in tried)
        for task in merged
        for key in [TuningKey.of(task.problem, runner.device.slug)]
    ]
    if record is not None:
        session.record_to(Path(record), keys)
    store.put_device(runner.device)
    return session.tune(keys)


class _Session:
    """What the keys of a run share."""

    def __init__(
        self,
        runner: Runner,
        store: Store,
        plan: Plan,
        claims: Leases,
        clock: Callable[[], float],
        on_event: Listener | None,
        sleep: Callable[[float], None],
    ) -> None:
        self._runner = runner
        self._store = store
        self._plan = plan
        self._clock = clock
        self._started = clock()
        self._tell: Listener = on_event or (lambda event: None)
        self._report = TuneReport()
        self._search_s = 0.0
        self._finished: set[KeySearch] = set()
        self._dealer = Dealer()
        self._searching = ThreadPoolExecutor(1, "tunekit-search")
        self._proposals: dict[KeySearch, Future[None]] = {}
        self._sharing = Sharing(store, claims, self._tell, sleep)
        at_once = FINALS_AHEAD * runner.width if isinstance(runner, FleetRunner) else None
        self._finishing = Finishing(self._conclude, runner, at_once=at_once)
        self._recording: Recording | None = None
        self._record: Path | None = None

    def record_to(self, path: Path, keys: list[KeySearch]) -> None:
        """Prepare a recording, making sure that all results of the keys will fit in it."""
        self._recording = Recording.extend(path, self._runner.device)
        self._record = path
        one_of_each = {
            config.variant: (key.task.problem, config)
            for key in keys
            for config in key.space.configs
        }
        for problem, config in one_of_each.values():
            self._recording.admit(config, self._runner.provenance(problem, config))

    def tune(self, keys: list[KeySearch]) -> TuneReport:
        """Take every key to its end and report."""
        try:
            with one_thread():
                self._tune(keys)
        finally:
            self._searching.shutdown(cancel_futures=True)
            self._finishing.close()
        order = [key.key for key in keys]  # they end as their compilations do
        self._report.bests.sort(key=lambda best: order.index(best.key))
        self._report.failed.sort(key=lambda failure: order.index(failure.key))
        self._report.seconds = self._clock() - self._started
        self._report.spent = replace(self._runner.spent(), search_s=self._search_s)
        return self._report

    def _tune(self, keys: list[KeySearch]) -> None:
        rows = {best.key for best in self._store.bests(gpu=self._runner.device.slug)}
        done = self._dealer.done_before(keys, rows)
        left = [key for key in keys if key not in done]
        resumed = sum(key.resumed for key in left)
        self._tell(RunStarted(len(keys), self._runner.device, self._runner.origin, resumed))
        for key, best in done.items():
            self._skip(key, KeySkipped(best))
        with closing(self._sharing):
            self._tune_shared(left)

    def _tune_shared(self, keys: list[KeySearch]) -> None:
        """Tune the keys that are free, then those that other runs had, as they become so."""
        mine = self._sharing.claim(keys)
        others = [key for key in keys if key not in mine]
        while mine or others:
            if not mine:
                mine = self._sharing.wait(others, lambda: self._late)
                if not mine:
                    self._leave(others)
                    return
                others = [key for key in others if key not in mine]
            self._tune_own(self._undone(mine), others)
            mine = []

    def _tune_own(self, left: list[KeySearch], others: list[KeySearch]) -> None:
        """Take this run's keys to their ends. Those it loses join the `others`."""
        for key in left:
            key.weigh()  # those that earlier runs left with all of their own trials
        self._dealer.begin(left)
        first = True
        while left:
            lost = self._sharing.lost(left)
            others += lost
            for key in lost:
                if key in self._proposals:
                    self._proposals.pop(key).result()
                self._dealer.lose(key)
            left = [key for key in left if key not in lost]
            over = [key for key in left if key.finished or (self._late and not first)]
            for key in over:
                self._finish(key)
            left = [key for key in left if key not in over]
            self._round(left, first=first)
            left = [key for key in left if key not in self._finished]
            first = False
        others += self._finishing.wait()

    def _undone(self, keys: list[KeySearch]) -> list[KeySearch]:
        """Return the keys that other runs have not tuned meanwhile; their results are taken."""
        rows = {best.key for best in self._store.bests(gpu=self._runner.device.slug)}
        undone = []
        for key in keys:
            best = self._dealer.done_meanwhile(key) if key.key in rows else None
            if best is None:
                undone.append(key)
            else:
                self._sharing.give_back(key)
                self._skip(key, KeySkipped(best))
        return undone

    def _leave(self, keys: list[KeySearch]) -> None:
        for key in keys:
            self._report.left.append(key.key)
            self._tell(KeyLeft(key.key))

    @property
    def _late(self) -> bool:
        return self._plan.budget.late(self._clock() - self._started)

    def _round(self, keys: list[KeySearch], *, first: bool) -> None:
        """Try a batch of each key. If time is over in the first, each is tried until it works."""
        for key in keys:
            if not key.untried and key not in self._proposals:
                self._propose(key)
        for key in keys:
            if key in self._proposals:
                self._proposals.pop(key).result()
            key.meet_vendor()  # while the others still search
        self._dealer.grant(keys)
        if self._plan.experience is not None:
            # All of the last round is told, and what is proposed next is proposed while this one
            # is measured: so every key learns the same of the others, whoever is ready first.
            self._plan.experience.turn()
        if self._late and not first:
            return
        self._screen(keys)
        if self._late and first:
            for key in keys:
                self._screen([key], until_it_works=True)

    def _screen(self, keys: list[KeySearch], *, until_it_works: bool = False) -> None:
        """Try what keys have proposed until time is over, or the first of them has a result."""
        if until_it_works and keys[0].best_us is not None:
            return
        by_problem = {key.task.problem: key for key in keys}
        work = [(key.task.problem, config) for key in keys for config in key.untried]
        try:
            self._take(self._runner.screen(work), by_problem, until_it_works=until_it_works)
        except KeyboardInterrupt:
            for problem, trial in self._runner.untaken():
                self._keep(by_problem[problem], trial)
            raise

    def _take(
        self,
        screening: Iterator[tuple[Problem, Trial]],
        by_problem: Mapping[Problem, KeySearch],
        *,
        until_it_works: bool,
    ) -> None:
        """Keep each trial as it ends."""
        for problem, trial in screening:
            key = by_problem[problem]
            self._keep(key, trial)
            self._finishing.settle()
            if key.untried:
                pass
            elif key.finished:
                self._finish(key)  # while the others' configs are compiled
            elif key not in self._proposals:
                self._propose(key)  # for the next round: it is compiled meanwhile
            if key.best_us is not None if until_it_works else self._late:
                return

    def _propose(self, key: KeySearch) -> None:
        """Have a key propose its next batch and start to compile it, while others are measured.

        The thread that takes what was measured must not wait for the search: what it has not
        stored yet would be lost with the process.
        """
        count = self._dealer.take(key)

        def propose() -> None:
            began = time.perf_counter()
            batch = key.propose(count) if count else []
            key.weigh()
            self._search_s += time.perf_counter() - began
            self._runner.announce([(key.task.problem, config) for config in batch])

        self._proposals[key] = self._searching.submit(propose)

    def _keep(self, key: KeySearch, trial: Trial) -> None:
        trial = key.keep(trial)
        key.meet_vendor()  # of a fleet it is known once its worker has said it
        self._report.counts[trial.status] += 1
        vendor_us = None if key.vendor is None else key.vendor.median_us
        done = len(key.tried)
        self._tell(TrialDone(key.key, trial, key.best_us, vendor_us, done, key.total))

    def _finish(self, key: KeySearch) -> None:
        self._finished.add(key)
        if key in self._proposals:  # time is over: nobody will try them
            self._proposals.pop(key).result()
        self._finishing.begin(key)

    def _conclude(self, key: KeySearch, outcome: KeyDone | KeyFailed) -> None:
        self._save(key)
        if isinstance(outcome, KeyFailed):
            self._report.failed.append(outcome)
        else:
            self._report.bests.append(key.stored_best(outcome.best))
            self._report.note_disturbance(outcome.best)
        self._sharing.give_back(key)
        self._tell(outcome)

    def _skip(self, key: KeySearch, event: KeySkipped) -> None:
        key.vendor = event.best.vendor
        self._save(key)
        self._report.skipped += 1
        self._report.bests.append(event.best)
        self._tell(event)

    def _save(self, key: KeySearch) -> None:
        """Add a finished key to the recording, if one is made."""
        if self._recording is None or self._record is None or not key.tried:
            return
        self._recording.put(
            key.task.problem,
            key.tried.values(),
            finals=key.last_finals(),
            vendor=key.vendor,
            space_size=len(key.space),
        )
        self._recording.save(self._record)
