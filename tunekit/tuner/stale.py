"""Which keys an upgrade has left behind, and which of their stored configs are worth another look.

A key is stale if none of its rows was made, and verified, by the kernel source, compiler, torch and
driver that are here now. What was fast before is mostly fast after: so the best of a stale key and
the fastest of its trials are verified and timed again, and nothing is searched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.differences import Difference, fingerprint_differences, version_differences
from tunekit.errors import ConfigError, RecordingError
from tunekit.kernels import family
from tunekit.key import Problem, TuningKey
from tunekit.lookup import how_to_tune, is_verified
from tunekit.ranking import ranked
from tunekit.runner import Runner
from tunekit.trial import Best, Origin
from tunekit.tuner.events import KeyFailed, StaleFound, Task

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
    wanted: Mapping[TuningKey, Task] = {TuningKey.of(task.problem, gpu): task for task in tasks}
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
