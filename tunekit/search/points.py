"""A space as the search sees it: named parameters, and points with a distance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from tunekit.config import Config
from tunekit.search.features import Matrix
from tunekit.space import FIELDS

_VARIANT_WEIGHT = 2.0
_SWITCH_WEIGHT = 1.0
_FIELD_WEIGHT = {"group_size": 0.5}


class Distances:
    """How far points lie from each other.

    A search asks it of each config that it tries, and again for each forest: so it is kept.
    """

    def __init__(self, coordinates: Matrix) -> None:
        self.coordinates = coordinates
        self._known: dict[int, Matrix] = {}

    def to(self, place: Matrix) -> Matrix:
        """Return how far every point is from a place."""
        return np.asarray(np.abs(self.coordinates - place).sum(axis=1))

    def of(self, index: int) -> Matrix:
        """Return how far every point is from one of them, to be read only."""
        if index not in self._known:
            self._known[index] = self.to(self.coordinates[index])
            self._known[index].flags.writeable = False
        return self._known[index]


class Points:
    """The configs of a space as Optuna's named parameters and as points with a distance.

    One unit of distance is a doubling of a size; another variant is as far as two.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        self.configs = tuple(configs)
        self.index = {config: i for i, config in enumerate(self.configs)}
        self._variants = sorted({c.variant for c in self.configs})
        self._switches = sorted({name for c in self.configs for name, _ in c.switches})
        self.distributions: dict[str, BaseDistribution] = {
            "variant": CategoricalDistribution(self._variants)
        }
        for name in FIELDS:
            values = [getattr(c, name) for c in self.configs]
            low, high = min(values, default=1), max(values, default=1)
            self.distributions[name] = IntDistribution(low, high, log=True)
        for name in self._switches:
            settings = sorted({c.switch(name) for c in self.configs})
            self.distributions[name] = CategoricalDistribution(settings)
        every = [self.params(i) for i in range(len(self.configs))]
        self._places = {
            tuple(params[name] for name in self.distributions): i for i, params in enumerate(every)
        }
        places = [self._place(params) for params in every]
        self.distances = Distances(np.array(places, dtype=np.float64).reshape(len(places), -1))

    def find(self, params: Mapping[str, Any]) -> int | None:
        """Return the place of the config with these parameters, or None if there is none."""
        return self._places.get(tuple(map(params.get, self.distributions)))

    def params(self, index: int) -> dict[str, Any]:
        """Return a config as Optuna's parameters. An absent switch is 0."""
        config = self.configs[index]
        plain: dict[str, Any] = {"variant": config.variant}
        plain.update((name, getattr(config, name)) for name in FIELDS)
        plain.update((name, config.switch(name)) for name in self._switches)
        return plain

    def distances_from(self, params: Mapping[str, Any]) -> Matrix:
        """Return how far every config is from these parameters."""
        return self.distances.to(np.array(self._place(params)))

    def strata(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return each config's variant, and its tile's area in octaves."""
        rows = [
            (self._variants.index(c.variant), int(math.log2(c.block_m * c.block_n)))
            for c in self.configs
        ]
        return np.array(rows, dtype=np.int64).reshape(len(rows), 2)

    def _place(self, params: Mapping[str, Any]) -> list[float]:
        # Half the weight on each of two one-hot coordinates, so that a mismatch costs the whole.
        place = [
            _VARIANT_WEIGHT / 2 if params["variant"] == variant else 0.0
            for variant in self._variants
        ]
        place += [_FIELD_WEIGHT.get(name, 1.0) * math.log2(params[name]) for name in FIELDS]
        for name in self._switches:
            distribution = self.distributions[name]
            assert isinstance(distribution, CategoricalDistribution)
            place += [
                _SWITCH_WEIGHT / 2 if params[name] == setting else 0.0
                for setting in distribution.choices
            ]
        return place
