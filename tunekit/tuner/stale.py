"""After an upgrade: which keys it left behind, and their best few stored configs tried again.

A key is stale if none of its rows was made, and verified, by the kernel source, compiler, torch and
driver that are here now. What was fast before is mostly fast after: so the best of a stale key and
the fastest of its trials are verified and timed again, and nothing is searched.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field

from tunekit.cache import Claims, Store
from tunekit.config import Config
from tunekit.differences import Difference, fingerprint_differences, version_differences
from tunekit.errors import ConfigError, RecordingError
from tunekit.kernels import family
from tunekit.key import Problem, TuningKey
from tunekit.lookup import how_to_tune, is_verified
from tunekit.ranking import most_common_error, ranked
from tunekit.runner import Runner
from tunekit.search import Budget
from tunekit.trial import Best, Origin
from tunekit.tuner.events import (
    KeyDone,
    KeyFailed,
    KeyLeft,
    Listener,
    RunStarted,
    StaleFound,
    Task,
    TrialDone,
    TuneReport,
)
from tunekit.tuner.key_search import KeySearch, Plan
from tunekit.tuner.sharing import Sharing

FASTEST = 5
"""Of a key's stored trials this many are tried again, beside its bests."""


@dataclass
class Survey:
    """The keys of a cache, sorted out before anything is tried."""

    stale: list[tuple[Task, list[Config]]] = field(default_factory=list)
    """Each stale key with the stored configs that are legal for it now."""
    current: list[Best] = field(default_factory=list)
    """For each key that is not, its row."""
    failed: list[KeyFailed] = field(default_factory=list)
    """Keys with nothing that could be tried, each with the command that tunes it."""
    reasons: Counter[str] = field(default_factory=Counter)

    def found(self) -> StaleFound:
        """Return the survey as the event that states what is going to be done."""
        configs = sum(len(configs) for _, configs in self.stale)
        return StaleFound(len(self.stale), len(self.current), configs, dict(self.reasons))


def survey(tasks: Iterable[Task], *, runner: Runner, store: Store) -> Survey:
    """Sort out the keys of these tasks or, if there are none, every key of the runner's GPU."""
    gpu = runner.device.slug
    rows: dict[TuningKey, list[Best]] = {}
    for best in store.bests(gpu=gpu):
        rows.setdefault(best.key, []).append(best)
    wanted: dict[TuningKey, Task] = {}
    for task in tasks:
        key = TuningKey.of(task.problem, gpu)
        count = task.count + (wanted[key].count if key in wanted else 0)
        wanted[key] = Task(task.problem, count, task.name)
    if not wanted:
        wanted = {key: Task(key.problem, max(b.count for b in rows[key])) for key in rows}
    result = Survey()
    for key, task in wanted.items():
        if key not in rows:
            result.failed.append(_hopeless(key, "there is no row of it to verify again", store))
            continue
        told = [(best, differences(best, runner)) for best in rows[key]]
        current = next((best for best, found in told if not found and is_verified(best)), None)
        if current is not None:
            result.current.append(current)
            continue
        nearest = min((found for _, found in told), key=len)
        result.reasons.update(map(str, nearest))
        if not nearest:
            result.reasons["its result was never verified"] += 1
        try:
            configs = _legal(_fastest(rows[key], store), task.problem, runner)
        except (ConfigError, RecordingError) as error:
            result.failed.append(_hopeless(key, str(error), store))
            continue
        if configs:
            result.stale.append((task, configs))
        else:
            result.failed.append(_hopeless(key, "none of its stored configs is legal here", store))
    return result


def verify_again(
    tasks: Iterable[Task] = (),
    *,
    runner: Runner,
    store: Store,
    seconds: float | None = None,
    on_event: Listener | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TuneReport:
    """Try the best few stored configs of stale keys again, key by key. Nothing is searched.

    The keys are those of the problems given or, if none is, all of the cache for the runner's GPU.
    Of the few that are right the finals choose as after a search, and the key has a row under what
    is installed now. No key is begun once `seconds` are over; the rest stays stale, and so does
    what another run is tuning.

    Raises:
        TunekitError: the store cannot be read or written.
    """
    started, tell = clock(), on_event or (lambda event: None)
    found = survey(tasks, runner=runner, store=store)
    report = TuneReport(bests=list(found.current), skipped=len(found.current))
    tell(found.found())
    tell(RunStarted(len(found.stale) + len(found.failed), runner.device, runner.origin, 0))
    for failure in found.failed:
        report.failed.append(failure)
        tell(failure)
    if found.stale:
        store.put_device(runner.device)
    runner.announce([(task.problem, config) for task, configs in found.stale for config in configs])
    with closing(Sharing(store, Claims(store), tell, time.sleep)) as sharing:
        for number, (task, configs) in enumerate(found.stale):
            if number and seconds is not None and clock() - started > seconds:
                break
            # As on `retune`, earlier trials do not count and the row there gives way.
            plan = Plan("tpe", Budget(trials=len(configs)), seed=0, retune=True)
            search = KeySearch(task, runner=runner, store=store, plan=plan)
            if not sharing.claim([search]):
                report.left.append(search.key)
                tell(KeyLeft(search.key))
                continue
            outcome = _verify(search, configs, runner=runner, store=store, report=report, tell=tell)
            if isinstance(outcome, KeyFailed):
                report.failed.append(outcome)
            else:
                report.bests.append(search.stored_best(outcome.best))
                report.note_disturbance(outcome.best)
            sharing.give_back(search)
            tell(outcome)
    report.seconds = clock() - started
    report.spent = runner.spent()
    return report


def _verify(
    search: KeySearch,
    configs: list[Config],
    *,
    runner: Runner,
    store: Store,
    report: TuneReport,
    tell: Listener,
) -> KeyDone | KeyFailed:
    """Screen the configs of one key and let those that are right into the finals."""
    search.meet_vendor()
    vendor_us = None if search.vendor is None else search.vendor.median_us
    for _, screened in runner.screen([(search.task.problem, config) for config in configs]):
        trial = search.keep(screened)
        report.counts[trial.status] += 1
        done = len(search.tried)
        tell(TrialDone(search.key, trial, search.best_us, vendor_us, done, len(configs)))
    entrants = [trial.config for trial in ranked(search.tried.values())]
    outcome = search.decide(entrants) if entrants else None
    if outcome is not None:
        return outcome
    last = search.tried | {trial.config: trial for trial in search.finals}
    reason = most_common_error(last.values())
    return _hopeless(search.key, f"none of its stored configs runs here: {reason}", store)


def differences(best: Best, runner: Runner) -> list[Difference]:
    """Return how a row was made otherwise than the runner would make it now."""
    try:
        now = runner.provenance(best.key.problem, best.config)
    except ConfigError:  # a variant that this version does not have
        return list(fingerprint_differences(best, None))
    versions = {"torch": now.torch, "driver": now.driver}
    return [
        *fingerprint_differences(best, now.fingerprint),
        *version_differences(best.provenance, versions),
    ]


def _fastest(rows: list[Best], store: Store) -> list[Config]:
    """Return the configs of a key's rows, then those of the fastest of its trials."""
    trials = ranked(trial for trial, _ in store.trials(rows[0].key))
    fastest = list(dict.fromkeys(trial.config for trial in trials))[:FASTEST]
    return list(dict.fromkeys([*(best.config for best in rows), *fastest]))


def _legal(configs: list[Config], problem: Problem, runner: Runner) -> list[Config]:
    """Return the configs that may run. Where nothing is measured, only what was recorded can."""
    space = runner.space(problem)
    if not space.configs:
        return []
    legality = family(problem.family).violation
    measured = runner.origin is Origin.MEASURED
    known = frozenset(space.configs)
    return [
        config
        for config in configs
        if config in known or (measured and legality(config, problem, runner.device) is None)
    ]


def _hopeless(key: TuningKey, reason: str, store: Store) -> KeyFailed:
    return KeyFailed(key, reason, 0, how_to_tune(key, store.location))
