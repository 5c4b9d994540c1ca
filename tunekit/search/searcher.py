"""The search for the best config of one key."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from tunekit.config import Config
from tunekit.key import TuningKey
from tunekit.ranking import score
from tunekit.search.experience import Experience
from tunekit.search.points import Points
from tunekit.search.portfolio import shipped_experience
from tunekit.search.sampler import SpaceSampler, gaussian_process, tpe
from tunekit.search.storage import told_plainly
from tunekit.search.study_reader import FAILED
from tunekit.search.transfer import HORIZON, TransferSampler
from tunekit.space import Space
from tunekit.trial import Distance, Trial

SAMPLERS = ("transfer", "tpe", "gp", "random", "exhaustive")
"""The samplers there are, the default one first."""

_AGAIN = 8
"""Configs that a stored study found fast and the cache does not know are tried first, so many."""

_FAR_WORSE = math.log(4.0)
_WORST_VALUE = math.log(3600e6)
"""Told for a failure while nothing has worked yet: the logarithm of an hour."""


class Searcher:
    """The search for one key. Not thread-safe.

    `prior` are earlier trials of the key; those whose config the space still holds are told first
    and never proposed again. `experience` is what `transfer` learns of other keys from: the shipped
    portfolio unless one is given, which all searches of a run share and add their trials to. The
    same arguments, and the same trials told, give the same proposals.

    With a `storage` the study is kept there, and continued if it is there already. Only `prior`
    says what was tried: what the study alone knows is tried again, the fastest first, and what it
    says is running was left by a process that died, for a key is searched by one at a time. Where a
    run on another cache shares the storage, each ends what the other runs, and neither minds. A
    trial that another program enqueued is no trial of ours: its config comes next, if it is legal.
    """

    def __init__(
        self,
        space: Space,
        sampler: str = SAMPLERS[0],
        *,
        seed: int = 0,
        trials: int | None = None,
        prior: Sequence[Trial] = (),
        experience: Experience | None = None,
        storage: optuna.storages.BaseStorage | None = None,
    ) -> None:
        if sampler not in SAMPLERS:
            raise ValueError(f"unknown sampler {sampler!r}: use one of {', '.join(SAMPLERS)}")
        self._space = space
        self._storage = storage
        self._points = Points(space.configs)
        self._experience: Experience | None = None
        self._transfer: TransferSampler | None = None
        whole = trials is not None and len(space) <= trials
        inner: optuna.samplers.BaseSampler | None = None
        startup = _startup_trials(trials)
        if whole or sampler in ("random", "exhaustive"):
            startup = 0
        elif sampler == "transfer":
            known = shipped_experience(seed) if experience is None else experience
            self._experience = known
            self._transfer = TransferSampler(space, self._points, known, seed=seed)
            inner = self._transfer
            startup = 0 if known.knows(space.device.arch) else startup
        else:
            inner = tpe(seed) if sampler == "tpe" else gaussian_process(seed)
        spread = sampler != "random" or whole
        self._sampler = SpaceSampler(self._points, inner, seed=seed, startup=startup, spread=spread)
        key = TuningKey.of(space.problem, space.device.slug)
        with _quiet(), told_plainly(storage, opening=True):
            self._study = optuna.create_study(
                study_name=f"{space.problem.family}/{key}/{space.digest()}",
                sampler=self._sampler,
                direction="minimize",
                storage=storage,
                load_if_exists=True,
            )
            self._recorded = self._recall() if storage is not None else {}
        self._asked: dict[Config, optuna.Trial] = {}
        self._told: set[Config] = set()
        self._worst: float | None = None
        self._scores: list[float] = []
        for trial in prior:
            self.tell(trial)
        self._sampler.first = sorted(self._recorded, key=lambda i: (self._recorded[i], i))[:_AGAIN]

    @property
    def study(self) -> optuna.Study:
        """The study that records the search."""
        return self._study

    @property
    def remaining(self) -> int:
        """How many configs of the space were neither proposed nor told."""
        return self._sampler.remaining

    def ask(self, n: int) -> list[Config]:
        """Propose up to `n` configs, fewer where the space ends."""
        proposed = []
        for _ in range(min(n, self.remaining)):
            with told_plainly(self._storage):
                trial = self._study.ask(self._points.distributions)
                found = self._points.find(trial.params)
                if found == self._sampler.taken:
                    self._asked[self._points.configs[found]] = trial
                else:  # enqueued by another program: Optuna hands it out under our proposal
                    self._study.tell(trial, state=TrialState.FAIL)
                    self._sampler.first[:0] = [] if found is None else [found]
            proposed.append(self._points.configs[self._sampler.taken])
        return proposed

    def expected_gain(self) -> float:
        """Return the part of the best time that the next proposals are expected to save, 0 to 1.

        1 while nothing has worked, 0 at the end of the space. `transfer` asks its model. For any
        other sampler the times are taken as if drawn at random: of n trials, the next 8 hold a new
        best with a chance of 8 / (n + 8), which then leads by as much as the best leads the third.
        """
        if not self.remaining:
            return 0.0
        if not self._scores:
            return 1.0
        if self._transfer is not None:
            return self._transfer.expected_gain(self._study)
        lead = sorted(self._scores)[min(2, len(self._scores) - 1)] - min(self._scores)
        chance = HORIZON / (len(self._told) + HORIZON)
        return chance * -math.expm1(-lead) if len(self._scores) > 1 else chance

    def distance(self) -> Distance | None:
        """Return how far the best tried may be from the best there is, or None if nobody can say.

        Only `transfer` has a model that knows, and only once something has worked.
        """
        if not self.remaining and self._scores:
            return Distance(0.0, 0.0)
        if self._transfer is None or not self._scores:
            return None
        return self._transfer.distance(self._study)

    def tell(self, trial: Trial) -> None:
        """Learn from a trial, proposed here or not. A config told before is not told again."""
        index = self._points.index.get(trial.config)
        if index is None or trial.config in self._told:
            return
        self._told.add(trial.config)
        if self._experience is not None:
            self._experience.note(self._space.problem, self._space.device, [trial])
        failed = score(trial) is None
        value = self._value(trial)
        attributes = {FAILED: trial.status.value} if failed else {}
        asked = self._asked.pop(trial.config, None)
        with told_plainly(self._storage):
            if asked is not None and self._end(asked, value, attributes):
                return
            self._sampler.take(index)
            if asked is None and self._recorded.pop(index, None) is not None:
                return
            self._study.add_trial(
                optuna.trial.create_trial(
                    params=self._points.params(index),
                    distributions=self._points.distributions,
                    value=value,
                    user_attrs=attributes,
                )
            )

    def _end(self, asked: optuna.Trial, value: float, attributes: dict[str, str]) -> bool:
        """End a trial that was asked for, or return False where another run has ended it."""
        try:
            for name, text in attributes.items():
                asked.set_user_attr(name, text)
            ended = self._study.tell(asked, value, skip_if_finished=True)
        except UpdateFinishedTrialError:
            return False
        return ended.state is TrialState.COMPLETE

    def _recall(self) -> dict[int, float]:
        """Return what a stored study knows of the configs, by place; end what was left running."""
        recorded: dict[int, float] = {}
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state is TrialState.RUNNING:
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            index = self._points.find(trial.params)
            if index is not None and trial.state is TrialState.COMPLETE:
                recorded[index] = math.inf if trial.user_attrs.get(FAILED) else trial.values[0]
        return recorded

    def _value(self, trial: Trial) -> float:
        value = score(trial)
        if value is None:
            return _WORST_VALUE if self._worst is None else self._worst + _FAR_WORSE
        self._scores.append(value)
        self._worst = value if self._worst is None else max(self._worst, value)
        return value


def _startup_trials(trials: int | None) -> int:
    """Return how many trials are spread over the space before the model is asked."""
    return 24 if trials is None else max(4, min(24, trials // 3))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's notes of normal operation off stderr, and its own level as it was."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
