"""Trees that predict slowdowns, and the rows of features they are grown on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import Problem
from tunekit.search.features import ConfigTable, Matrix, features

Narrow = np.ndarray[Any, np.dtype[np.float32]]

TREES = 64

_BAG = 0.6
"""Share of the problems that a tree sees."""
_FEWEST_TREES = 12
_LEAF = 2
_FEATURES = 0.5
_AT_ONCE = 4
"""Trees that grow at a time. They do not hold the interpreter, and the run may wait for them."""


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Trials that can be compared: of one problem on one device, made in one way."""

    problem: Problem
    gpu: str
    made_with: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """The variants and switches that have a column of their own."""

    variants: tuple[str, ...]
    switches: tuple[str, ...]

    @staticmethod
    def of(groups: Iterable[Iterable[Config]]) -> Columns:
        """Return the columns that groups of configs need."""
        configs = [config for group in groups for config in group]
        return Columns(
            tuple(sorted({config.variant for config in configs})),
            tuple(sorted({name for config in configs for name, _ in config.switches})),
        )

    def rows(self, problem: Problem, device: DeviceInfo, configs: Sequence[Config]) -> Matrix:
        """Return a row of numbers for each config of a problem."""
        table = ConfigTable(configs)
        own = table.own(self.variants, self.switches)
        return np.hstack([features(problem, device, table), own])

    def narrow(self, problem: Problem, device: DeviceInfo, configs: Sequence[Config]) -> Narrow:
        """Return the same rows as trees take them."""
        return np.ascontiguousarray(self.rows(problem, device, configs), dtype=np.float32)


class Forest:
    """Trees that predict slowdowns, each grown on some of the subjects.

    A key's own trials correct the forest's word afterwards, and would count twice if its trees knew
    them. So a key is predicted by the trees that were not grown on its own trials, and one forest
    serves all keys of a round.
    """

    def __init__(self, columns: Columns, trees: Sequence[Any], unseen: dict[Subject, Any]) -> None:
        self.columns = columns
        """What the rows are made of that it predicts from."""
        self._trees = trees
        self._unseen = unseen

    @staticmethod
    def grow(
        columns: Columns,
        rows: Matrix,
        slowdowns: Matrix,
        subjects: Sequence[Subject],
        *,
        trees: int,
        seed: int,
    ) -> Forest:
        """Grow a forest on one row of features for each slowdown."""
        from sklearn.tree import ExtraTreeRegressor  # a second to load: only where it is needed

        narrow = np.ascontiguousarray(rows, dtype=np.float32)
        names = sorted(set(subjects))
        number = {subject: i for i, subject in enumerate(names)}
        of_row = np.array([number[subject] for subject in subjects])
        random = np.random.Generator(np.random.PCG64(seed))
        count = max(1, math.ceil(_BAG * len(names)))
        seen, seeds = np.zeros((trees, len(names)), dtype=bool), []
        for i in range(trees):
            seen[i, random.permutation(len(names))[:count]] = True
            seeds.append(int(random.integers(1 << 31)))

        def tree(sees: Matrix, seed: int) -> Any:
            chosen = sees[of_row]
            grown = ExtraTreeRegressor(
                min_samples_leaf=_LEAF, max_features=_FEATURES, random_state=seed
            )
            return grown.fit(narrow[chosen], slowdowns[chosen], check_input=False)

        with ThreadPoolExecutor(_AT_ONCE, "tunekit-trees") as threads:
            grown = list(threads.map(tree, seen, seeds))
        return Forest(columns, grown, {s: ~seen[:, number[s]] for s in names})

    def predict(self, problem: Problem, device: DeviceInfo, configs: Sequence[Config]) -> Matrix:
        """Return what the trees say of each config: trees x configs."""
        return self.predict_rows(problem, device, self.columns.narrow(problem, device, configs))

    def predict_rows(self, problem: Problem, device: DeviceInfo, rows: Narrow) -> Matrix:
        """Return what the trees say of configs of which the rows of features are given."""
        unseen = self._unseen.get(Subject(problem, device.slug))
        trees = list(self._trees)
        if unseen is not None and int(unseen.sum()) >= _FEWEST_TREES:
            trees = [tree for tree, fresh in zip(trees, unseen, strict=True) if fresh]
        # The rows are float32, in order and finite: checking them takes longer than the trees do.
        return np.array([tree.predict(rows, check_input=False) for tree in trees], dtype=np.float64)


def load_forests() -> None:
    """Load what forests are grown with: a second's work, for whoever waits for something else."""
    from sklearn.tree import ExtraTreeRegressor  # noqa: F401
