"""One key, from the trials it has in the store to its best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.errors import ConfigError
from tunekit.key import TuningKey
from tunekit.ranking import (
    contenders,
    is_sound,
    most_common_error,
    pick,
    ranked,
    score,
    sound,
)
from tunekit.runner import Runner, known_provenance
from tunekit.search import Budget, Experience, Searcher, StudyStorage, least_us
from tunekit.space import Space
from tunekit.trial import (
    Best,
    Distance,
    Fingerprint,
    Measurement,
    Origin,
    Provenance,
    Trial,
    choose,
)
from tunekit.tuner.allocation import BATCH, Standing, batch_for
from tunekit.tuner.events import KeyDone, KeyFailed, Task

ATTEMPTS = 2
"""How many times the next finalists are tried when those before them all failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How every key of a run is searched."""

    sampler: str
    budget: Budget
    seed: int
    retune: bool
    moves: bool = False
    """Whether up to half of each key's trials may go to other keys."""
    experience: Experience | None = None
    """What the keys of the run share of what they and earlier runs tried."""
    storage: StudyStorage | None = None
    """Where Optuna's studies are kept, beside the trials in the store."""
    stored: bool = False
    """Whether the runner stores what it tries itself, as the workers of a fleet do."""


class KeySearch:
    """The state of one key in a run."""

    def __init__(
        self, task: Task, *, runner: Runner, store: Store, plan: Plan, new: bool = False
    ) -> None:
        """`new` says that the store has no trials of the key, so that it need not be asked."""
        self.task = task
        self.space: Space = runner.space(task.problem)
        if not self.space.configs:
            raise ConfigError(f"no config is legal for {task.problem} on {runner.device.name}")
        self._legal = frozenset(self.space.configs)
        self.key = TuningKey.of(task.problem, runner.device.slug)
        self._bound_us = least_us(task.problem, runner.device)
        self.vendor: Measurement | None = None
        self.finals: list[Trial] = []
        self._runner = runner
        self._store = store
        self._plan = plan
        self.refresh(new=new)

    def refresh(self, *, new: bool = False) -> None:
        """Begin from the trials that the store has now: another run may have added some."""
        self._searcher: Searcher | None = None
        nothing = new or self._plan.retune
        self.tried: dict[Config, Trial] = {} if nothing else self._stored_trials()
        self.resumed = len(self.tried)
        self._best_score = math.inf
        self._learnt_score = math.inf
        self._without_gain = 0
        self._batch: list[Config] = []
        for trial in self.tried.values():
            self._note(trial)
            self._learn(trial)
        self._nothing_left = False
        self._worth: float | None = None
        self.closed = False
        """Whether it is to have no more trials than it has or is about to have."""

    @property
    def target(self) -> int:
        """How many trials the key brings to the run."""
        return self._plan.budget.target(len(self.space))

    @property
    def total(self) -> int:
        """How many trials the key is to have, as far as that is known."""
        planned = len(self.tried) + len(self.untried)
        return planned if self.closed else max(self.target, planned)

    def standing(self) -> Standing:
        """Return what the run deals out trials by."""
        return Standing(
            tried=len(self.tried),
            trials=len(self.tried) + len(self.untried),
            target=self.target,
            floor=self._floor,
            space=len(self.space),
            batch=self._batch_size,
            worth=self._worth,
        )

    def weigh(self) -> None:
        """Find out what more trials are worth: the time they are expected to save the program."""
        if self._plan.moves and self.best_us is not None and self.standing().trials >= self._floor:
            gain = self._search().expected_gain()
            self._worth = gain * self.task.count * self._time_us()

    @property
    def _floor(self) -> int:
        budget = self._plan.budget
        return budget.floor(self.target) if self._plan.moves else self.target

    @property
    def _batch_size(self) -> int:
        budget = self._plan.budget
        ends_early = (budget.seconds, budget.patience, budget.reach) != (None, None, None)
        # What may end a key or a run is seen to between batches.
        return BATCH if ends_early or not self._plan.moves else batch_for(self.target)

    def _time_us(self) -> float:
        """Return what one run of the problem takes the program now."""
        times = [self.best_us, None if self.vendor is None else self.vendor.median_us]
        return min((time for time in times if time is not None), default=0.0)

    @property
    def best_us(self) -> float | None:
        """The lowest median so far, in microseconds."""
        return math.exp(self._best_score) if math.isfinite(self._best_score) else None

    @property
    def finished(self) -> bool:
        """Whether the key has had the trials it is to have."""
        if self.untried:
            return False
        return self.closed or self._nothing_left or self._satisfied

    @property
    def _satisfied(self) -> bool:
        """Whether its patience is at an end, or it can hardly be faster."""
        budget, best_us = self._plan.budget, self.best_us
        near = best_us is not None and budget.is_near(best_us, self._bound_us)
        return near or budget.spent(0, self._without_gain)

    def row(self) -> Best | None:
        """Return the stored row that a run like this one made, if there is one."""
        if self._plan.retune:
            return None
        for best in self._store.best(self.key):
            now = self._fingerprint(best.config)
            if best.provenance.fingerprint != now or self._outlawed(best.config):
                continue
            own = best.provenance.origin in (Origin.MEASURED, self._runner.origin)
            if own or len(self.tried) >= self.target or self._satisfied:
                return best
        return None

    def row_standing(self, row: Best) -> Standing:
        """Return the standing of a key with a row, which may know of more trials than the store."""
        trials = max(len(self.tried), row.trials)
        if self._satisfied:
            trials = max(trials, self.target)
        return Standing(trials, trials, self.target, self._floor, len(self.space))

    @property
    def untried(self) -> list[Config]:
        """What was proposed and is not tried yet."""
        return [config for config in self._batch if config not in self.tried]

    def meet_vendor(self) -> None:
        """Time the vendor's call once, as the yardstick of the progress shown."""
        if self.vendor is None:
            found = self._runner.vendor(self.task.problem)
            self.vendor = found if found and is_sound(found) else None

    def propose(self, count: int) -> list[Config]:
        """Return the next configs to try, at most `count`."""
        self._batch = self._search().ask(count)
        self._nothing_left = not self._batch
        return self._batch

    def _search(self) -> Searcher:
        if self._searcher is None:
            self._searcher = Searcher(
                self.space,
                self._plan.sampler,
                seed=self._plan.seed,
                trials=self._plan.budget.trials,
                prior=list(self.tried.values()),
                experience=self._plan.experience,
                storage=self._plan.storage,
            )
        return self._searcher

    def keep(self, trial: Trial) -> Trial:
        """Store a finished trial and return it as stored.

        The search learns from a batch once all of it is tried, in the order of its proposals: so
        what it proposes next does not depend on which config happened to be ready first.
        """
        trial = sound(trial)
        self._put([trial])
        self.tried[trial.config] = trial
        self._note(trial)
        if not self.untried:
            for config in self._batch:
                self._learn(self.tried[config])
        return trial

    def distance(self) -> Distance | None:
        """Return how far the best tried may be from the best there is, as the search sees it."""
        return self._search().distance() if ranked(self.tried.values()) else None

    def finish(self, distance: Distance | None) -> KeyDone | KeyFailed:
        """Measure the fastest configs again beside the vendor's call, choose, and store the best.

        Screening only says who takes part: it ran at other times, on a cooler or hotter device.
        """
        order = ranked(self.tried.values())
        for _ in range(ATTEMPTS):
            count = contenders(order)
            entrants = [trial.config for trial in order[:count]]
            if not entrants:
                break
            done = self.decide(entrants, distance)
            if done is not None:
                return done
            failed = {trial.config for trial in self.finals}
            order = [trial for trial in order if trial.config not in failed]
        last = self.tried | {trial.config: trial for trial in self.finals}
        failures = [trial for trial in last.values() if score(trial) is None]
        return KeyFailed(self.key, most_common_error(failures), len(failures))

    def decide(
        self, entrants: Sequence[Config], distance: Distance | None = None
    ) -> KeyDone | None:
        """Measure finalists and store the best, or return None if none of them works."""
        finals = self._runner.finals(self.task.problem, entrants)
        trials = [sound(trial) for trial in finals.trials]
        vendor = finals.vendor if finals.vendor and is_sound(finals.vendor) else None
        self._put(trials)
        self.finals.extend(trials)
        self.vendor = vendor or self.vendor
        chosen = pick(trials, vendor)
        if chosen is None or chosen.measurement is None:
            return None
        best = replace(self._best(chosen.config, chosen.measurement, vendor), distance=distance)
        return KeyDone(best, self._store.put_best(best, stale=self._may_replace))

    def last_finals(self) -> list[Trial]:
        """Return the finals of this run or, if it had none, those that earlier ones left."""
        kept = [t for t in self.tried.values() if t.measurement is not None and t.measurement.final]
        return self.finals or kept

    def stored_best(self, best: Best) -> Best:
        """Return the row the store holds under the compiler of `best`."""
        compiler = best.provenance.fingerprint.compiler
        rows = self._store.best(self.key)
        return next((r for r in rows if r.provenance.fingerprint.compiler == compiler), best)

    def _best(self, config: Config, measurement: Measurement, vendor: Measurement | None) -> Best:
        return Best(
            key=self.key,
            choice=choose(measurement, vendor),
            config=config,
            measurement=measurement,
            vendor=vendor,
            trials=len(self.tried),
            space_size=len(self.space),
            provenance=self._provenance(config),
            count=self.task.count,
        )

    def _may_replace(self, old: Best) -> bool:
        """Say whether an older row gives way whatever its time.

        It does if its kernel changed, its config is no longer legal, or on `retune`. What is only
        replayed never takes the place of anything else this way.
        """
        replayed = old.provenance.origin is Origin.REPLAYED
        if self._runner.origin is not Origin.MEASURED and not replayed:
            return False
        now = self._fingerprint(old.config)
        changed = now is None or old.provenance.fingerprint.source != now.source
        return self._plan.retune or changed or self._outlawed(old.config)

    def _outlawed(self, config: Config) -> bool:
        """Say whether a config is not legal here. A recording's space is not all that is."""
        return self._runner.origin is Origin.MEASURED and config not in self._legal

    def _stored_trials(self) -> dict[Config, Trial]:
        """Return earlier trials that this run could have made: same source, compiler and origin."""
        found = {}
        for trial, provenance in self._store.trials(self.key):
            if trial.config in self._legal and provenance.origin is self._runner.origin:
                now = self._provenance(trial.config)
                same_protocol = provenance.protocol == now.protocol
                if provenance.fingerprint == now.fingerprint and same_protocol:
                    found[trial.config] = trial
        return found

    def _put(self, trials: Sequence[Trial]) -> None:
        if not self._plan.stored:
            self._store.add_trials(self.key, [(t, self._provenance(t.config)) for t in trials])

    def _fingerprint(self, config: Config) -> Fingerprint | None:
        """Return that of a row's kernel as it is now, or None if there is none of its variant."""
        now = known_provenance(self._runner, self.task.problem, config)
        return None if now is None else now.fingerprint

    def _provenance(self, config: Config) -> Provenance:
        return self._runner.provenance(self.task.problem, config)

    def _note(self, trial: Trial) -> None:
        value = score(trial)
        if value is not None:
            self._best_score = min(value, self._best_score)

    def _learn(self, trial: Trial) -> None:
        value = score(trial)
        if value is not None and value < self._learnt_score:
            self._learnt_score = value
            self._without_gain = 0
        else:
            self._without_gain += 1
        if self._searcher is not None:
            self._searcher.tell(trial)
