"""Optuna samplers that propose only what a space holds and was not proposed before."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution

from tunekit.search.points import Points


class WholeConfigSampler(optuna.samplers.BaseSampler):
    """Proposes configs, all of their parameters together: drawn one by one they would be illegal.

    A subclass says which config comes next.
    """

    def __init__(self, points: Points) -> None:
        self._points = points
        self._varying = {n: d for n, d in points.distributions.items() if not d.single()}

    def propose(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> int | None:
        """Return the place of the config that comes next, or None where there is none."""
        raise NotImplementedError

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Give every parameter that has more than one value."""
        return self._varying

    def sample_relative(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return the parameters of the config that comes next, or none."""
        index = self.propose(study, trial)
        if index is None:
            return {}
        params = self._points.params(index)
        return {name: params[name] for name in search_space}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Refuse: a parameter drawn on its own would leave the legal configs."""
        raise RuntimeError(f"{param_name} was not proposed together with the others")


class SpaceSampler(WholeConfigSampler):
    """Proposes untried configs of the space alone.

    The first `startup` trials, and all of a sweep, are spread over the space. After that the inner
    sampler's proposal is moved to the nearest config left; without one, configs are drawn evenly.
    """

    def __init__(
        self,
        points: Points,
        inner: optuna.samplers.BaseSampler | None,
        *,
        seed: int,
        startup: int,
        spread: bool,
    ) -> None:
        super().__init__(points)
        self._inner = inner
        self._startup = startup
        self._spread = spread
        self._free = np.ones(len(points.configs), dtype=bool)
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._coverage = Coverage(points, self._random)
        self.first: list[int] = []
        """Configs to propose before any other."""
        self.taken = -1
        """The config proposed last, by its place in the space."""

    @property
    def remaining(self) -> int:
        """How many configs are untried."""
        return int(self._free.sum())

    def take(self, index: int) -> None:
        """Mark a config as tried or about to be."""
        if self._free[index]:
            self._free[index] = False
            self._coverage.add(index)
        self.taken = index

    def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        """Take the next config: here, for Optuna asks nothing where no parameter varies."""
        self.take(self._pick(study, trial))

    def propose(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> int:
        """Return the config that was taken for this trial."""
        return self.taken

    def _pick(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> int:
        while self.first:
            index = self.first.pop(0)
            if self._free[index]:
                return index
        if self._inner is not None and self._coverage.count >= self._startup and self._varying:
            proposal = self._inner.sample_relative(study, trial, self._varying)
            if proposal:
                return self._nearest(self._points.params(0) | proposal)
        if self._spread:
            return self._coverage.next(self._free)
        return int(self._random.choice(np.flatnonzero(self._free)))

    def _nearest(self, params: Mapping[str, Any]) -> int:
        found = self._points.find(params)
        if found is not None and self._free[found]:
            return found
        distances = np.where(self._free, self._points.distances_from(params), np.inf)
        return int(np.argmin(distances))


class Coverage:
    """An order of the configs of which every beginning covers the space.

    Variants take turns, then the octaves of tile area within them. In the chosen group the config
    furthest from all taken ones comes next, chance deciding between equals.
    """

    def __init__(self, points: Points, random: np.random.Generator) -> None:
        self.count = 0
        self._points = points
        self._strata = points.strata()
        self._taken = np.zeros(len(points.configs), dtype=bool)
        self._gap = np.full(len(points.configs), np.inf)
        self._new: list[int] = []
        """Taken, and not in the gaps yet: a search that knows where to go asks for none."""
        self._chance = random.random(len(points.configs))

    def add(self, index: int) -> None:
        """Count a config as taken."""
        self.count += 1
        self._taken[index] = True
        self._new.append(index)

    def next(self, free: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
        """Return the free config that covers most."""
        self._close_gaps()
        left = np.flatnonzero(free)
        for cost in (*self._crowding(), -self._gap, self._chance):
            left = left[cost[left] == cost[left].min()]
        return int(left[0])

    def _close_gaps(self) -> None:
        distances = self._points.distances
        for index in self._new:
            near = distances.to(distances.coordinates[index])
            np.minimum(self._gap, near, out=self._gap)
        self._new.clear()

    def _crowding(self) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
        """Give how many of each config's group are taken, for ever finer groups."""
        variant, area = self._strata[:, 0], self._strata[:, 1]
        for group in (variant, area, variant * 64 + area):
            counts = np.bincount(group[self._taken], minlength=int(group.max()) + 1)
            yield counts[group]


def tpe(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's tree-structured Parzen estimator, all parameters modelled together."""
    with warnings.catch_warnings():
        # Optuna 4 calls these two options experimental; Optuna 5 made them the default.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed,
            n_startup_trials=1,
            multivariate=True,
            constant_liar=True,
        )


def gaussian_process(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's Gaussian process. It needs SciPy and torch, and seconds for long searches."""
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)
