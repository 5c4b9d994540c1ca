"""The search for the best config of one key."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import optuna

from tunekit.config import Config
from tunekit.key import TuningKey
from tunekit.ranking import score
from tunekit.search.points import Points
from tunekit.search.sampler import SpaceSampler, tpe
from tunekit.space import Space
from tunekit.trial import Trial

SAMPLERS = ("tpe", "random", "exhaustive")

_FAR_WORSE = math.log(4.0)
_WORST_VALUE = math.log(3600e6)
"""Told for a failure while nothing has worked yet: the logarithm of an hour."""


class Searcher:
    """The search for one key. Not thread-safe.

    `prior` are earlier trials of the key; those whose config the space still holds are told first
    and never proposed again. The same arguments give the same proposals.
    """

    def __init__(
        self,
        space: Space,
        sampler: str = "tpe",
        *,
        seed: int = 0,
        trials: int | None = None,
        prior: Sequence[Trial] = (),
    ) -> None:
        if sampler not in SAMPLERS:
            raise ValueError(f"unknown sampler {sampler!r}: use one of {', '.join(SAMPLERS)}")
        self._points = Points(space.configs)
        whole = trials is not None and len(space) <= trials
        inner = None
        if sampler == "tpe" and not whole:
            inner = tpe(seed)
        startup = 0 if inner is None else _startup_trials(trials)
        spread = sampler != "random" or whole
        self._sampler = SpaceSampler(self._points, inner, seed=seed, startup=startup, spread=spread)
        key = TuningKey.of(space.problem, space.device.slug)
        with _quiet():
            self._study = optuna.create_study(
                study_name=f"{space.problem.family}/{key}/{space.digest()}",
                sampler=self._sampler,
                direction="minimize",
            )
        self._asked: dict[Config, int] = {}
        self._told: set[Config] = set()
        self._worst: float | None = None
        for trial in prior:
            self.tell(trial)

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
            trial = self._study.ask(self._points.distributions)
            config = self._points.configs[self._sampler.taken]
            self._asked[config] = trial.number
            proposed.append(config)
        return proposed

    def tell(self, trial: Trial) -> None:
        """Learn from a trial, proposed here or not. A config told before is not told again."""
        index = self._points.index.get(trial.config)
        if index is None or trial.config in self._told:
            return
        self._told.add(trial.config)
        value = self._value(trial)
        number = self._asked.pop(trial.config, None)
        if number is not None:
            self._study.tell(number, value)
            return
        self._sampler.take(index)
        self._study.add_trial(
            optuna.trial.create_trial(
                params=self._points.params(index),
                distributions=self._points.distributions,
                value=value,
            )
        )

    def _value(self, trial: Trial) -> float:
        value = score(trial)
        if value is None:
            return _WORST_VALUE if self._worst is None else self._worst + _FAR_WORSE
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
