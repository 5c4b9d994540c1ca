"""Trees that predict slowdowns, and the rows of features they are grown on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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


class Trees:
    """Trees as plain arrays, one after the other: scikit-learn is not needed to ask them.

    They say to the bit what scikit-learn's own would, as fast for as many configs as a space has,
    and go from one process to another.
    """

    def __init__(self, grown: Sequence[Any]) -> None:
        """Take over what scikit-learn has grown."""
        trees = [one.tree_ for one in grown]
        sizes = np.array([tree.node_count for tree in trees])
        self._roots = np.cumsum(sizes) - sizes
        first = np.repeat(self._roots, sizes)
        left = np.concatenate([tree.children_left for tree in trees]) + first
        right = np.concatenate([tree.children_right for tree in trees]) + first
        self._feature = np.concatenate([tree.feature for tree in trees])
        self._threshold = np.concatenate([tree.threshold for tree in trees])
        self._value = np.concatenate([tree.value[:, 0, 0] for tree in trees])
        self._child = np.ravel(np.column_stack([left, right]))
        """Where a row goes from node i: to the first of 2 i if it is low, else to the next."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._roots)

    def predict(self, rows: Narrow, chosen: np.ndarray[Any, Any]) -> Matrix:
        """Return what the chosen trees, by place, say of each row: trees x rows."""
        count, width = rows.shape
        whole = np.repeat(self._roots[chosen], count)
        values = rows.ravel()
        node, begins = whole, np.tile(np.arange(0, count * width, width), len(chosen))
        going = np.arange(len(whole))
        while True:
            feature = self._feature.take(node)
            inner = feature >= 0
            if not inner.all():
                whole[going] = node
                going, node, begins = going[inner], node[inner], begins[inner]
                feature = feature[inner]
            if not len(going):
                return np.asarray(self._value[whole].reshape(len(chosen), count))
            high = values.take(begins + feature) > self._threshold.take(node)
            node = self._child.take(2 * node + high)


class Forest:
    """Trees that predict slowdowns, each grown on some of the subjects.

    A key's own trials correct the forest's word afterwards, and would count twice if its trees knew
    them. So a key is predicted by the trees that were not grown on its own trials, and one forest
    serves all keys of a round.
    """

    def __init__(self, columns: Columns, trees: Trees, unseen: dict[Subject, Any]) -> None:
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
        return Forest(columns, Trees(grown), {s: ~seen[:, number[s]] for s in names})

    def predict(self, problem: Problem, device: DeviceInfo, configs: Sequence[Config]) -> Matrix:
        """Return what the trees say of each config: trees x configs."""
        return self.predict_rows(problem, device, self.columns.narrow(problem, device, configs))

    def predict_rows(self, problem: Problem, device: DeviceInfo, rows: Narrow) -> Matrix:
        """Return what the trees say of configs of which the rows of features are given."""
        unseen = self._unseen.get(Subject(problem, device.slug))
        chosen = np.arange(len(self._trees))
        if unseen is not None and int(unseen.sum()) >= _FEWEST_TREES:
            chosen = np.flatnonzero(unseen)
        return self._trees.predict(rows, chosen)


Grow = Callable[..., Forest]
"""Grows forests as `Forest.grow` does."""


def load_forests() -> None:
    """Load what forests are grown with: a second's work, for whoever waits for something else."""
    from sklearn.tree import ExtraTreeRegressor  # noqa: F401
