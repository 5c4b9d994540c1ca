"""What is known of other problems, and the forest that learns from it.

Times of different problems cannot be compared, so each trial counts as its slowdown: the logarithm
of its time over the best of its problem. The roofline would be the other yardstick; measured
against the recordings it ranks worse, for a forest then spends its splits on why one problem lies
further from the roofline than another.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import Problem
from tunekit.search.features import ConfigTable, Matrix, features, roofline_us
from tunekit.trial import Status, Trial

WORST = 0.7
"""A slowdown counts as at most this, twice as slow: a slow outlier says no more than a slow one."""

TREES = 64
MAX_ROWS = 3000
"""Rows the forest is grown on; of each problem the fastest half of its share, and others."""

FEWEST = 4
"""Trials that a problem must have to say what is slow for it."""

_BAG = 0.6
"""Share of the problems that a tree sees."""
_NEWS = 0.05
"""Share of the trials that must be new before the forest is grown again."""
_FEWEST_TREES = 12
_LEAF = 2
_FEATURES = 0.5
_IMPOSSIBLE = 0.25
"""No kernel takes this part of the roofline's time: such a time was not of this product."""

_OWN_FAULT = frozenset(
    {Status.COMPILE_ERROR, Status.OUT_OF_RESOURCES, Status.WRONG_RESULT, Status.NOT_REPEATABLE}
)
"""Failures a config is to blame for. The others may be the machine's."""


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Trials that can be compared: of one problem on one device, made in one way."""

    problem: Problem
    gpu: str
    made_with: str = ""


class Experience:
    """Trials of many problems. The forest it gives depends on which, not on their order.

    Trials that would mislead do not count: failures that may be the machine's, results that were
    not verified, times that were contended or that no kernel could take.

    What is noted is seen when it is settled, not before. So all who ask between two calls of
    `settle` are told the same, however their own trials come in; any thread may note and ask.
    """

    def __init__(self, *, seed: int = 0, trees: int = TREES, max_rows: int = MAX_ROWS) -> None:
        self._seed = seed
        self._trees = trees
        self._max_rows = max_rows
        self._devices: dict[str, DeviceInfo] = {}
        self._times: dict[Subject, dict[Config, float]] = {}
        self._settled: dict[Subject, dict[Config, float]] | None = None
        self._forest: Forest | None = None
        self._lock = threading.Lock()

    def note(
        self, problem: Problem, device: DeviceInfo, trials: Iterable[Trial], *, made_with: str = ""
    ) -> None:
        """Take in trials of a problem; a config tried again is known by its last trial.

        `made_with` sets apart what cannot be compared, such as trials under another compiler.
        """
        found = [(t.config, believable_us(t, problem, device)) for t in trials]
        with self._lock:
            self._devices[device.slug] = device
            times = self._times.setdefault(Subject(problem, device.slug, made_with), {})
            times.update((config, time) for config, time in found if time is not None)

    def settle(self) -> None:
        """Let all that was noted be seen, if it is enough to grow the forest again for."""
        with self._lock:
            before = sum(map(len, (self._settled or {}).values()))
            now = sum(map(len, self._times.values()))
            if self._settled is None or now - before > _NEWS * before:
                self._settled = {s: dict(times) for s, times in self._times.items()}
                self._forest = None

    def without(self, forbidden: Iterable[Problem]) -> Experience:
        """Return what is known of other products than these: nothing of their (M, N, K)."""
        sizes = {(p.m, p.n, p.k) for p in forbidden}
        rest = Experience(seed=self._seed, trees=self._trees, max_rows=self._max_rows)
        with self._lock:
            rest._devices = dict(self._devices)
            rest._times = {
                subject: dict(times)
                for subject, times in self._times.items()
                if (subject.problem.m, subject.problem.n, subject.problem.k) not in sizes
            }
        return rest

    @property
    def problems(self) -> frozenset[Problem]:
        """The problems of which something was noted."""
        return frozenset(subject.problem for subject in self._times)

    def times(self) -> Iterator[tuple[Problem, Config, float]]:
        """Yield every time that was noted, in microseconds."""
        for subject, times in self._times.items():
            for config, time in times.items():
                yield subject.problem, config, time

    def knows(self, arch: str) -> bool:
        """Say whether enough is settled of GPUs of an architecture."""
        return any(self._devices[subject.gpu].arch == arch for subject in self._telling())

    def forest(self) -> Forest | None:
        """Return a forest grown on what is settled, or None if that is too little.

        The first to ask settles, if nobody has, and waits for the forest to grow.
        """
        known = self._telling()
        with self._lock:
            if self._forest is None and known:
                self._forest = self._grow(known)
            return self._forest

    def _telling(self) -> dict[Subject, dict[Config, float]]:
        """Return what is settled of subjects with enough trials, in order."""
        if self._settled is None:
            self.settle()
        settled = self._settled or {}
        return {
            subject: times
            for subject, times in sorted(settled.items(), key=lambda item: item[0])
            if sum(map(math.isfinite, times.values())) >= FEWEST
        }

    def _grow(self, known: dict[Subject, dict[Config, float]]) -> Forest:
        share = max(FEWEST, self._max_rows // len(known))
        names = {c for times in known.values() for c in times}
        columns = Columns(
            tuple(sorted({c.variant for c in names})),
            tuple(sorted({name for c in names for name, _ in c.switches})),
        )
        rows, slowdowns, subjects = [], [], []
        for subject, times in known.items():
            kept, slow = _share(times, share, _seed_of(self._seed, str(subject)))
            rows.append(columns.rows(subject.problem, self._devices[subject.gpu], kept))
            slowdowns.append(slow)
            subjects += [subject] * len(kept)
        return Forest.grow(
            columns, np.vstack(rows), np.concatenate(slowdowns), subjects,
            trees=self._trees, seed=self._seed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Columns:
    """The variants and switches that have a column of their own."""

    variants: tuple[str, ...]
    switches: tuple[str, ...]

    def rows(self, problem: Problem, device: DeviceInfo, configs: Sequence[Config]) -> Matrix:
        """Return a row of numbers for each config of a problem."""
        table = ConfigTable(configs)
        own = table.own(self.variants, self.switches)
        return np.hstack([features(problem, device, table), own])


class Forest:
    """Trees that predict slowdowns, each grown on some of the subjects.

    A key's own trials correct the forest's word afterwards, and would count twice if its trees knew
    them. So a key is predicted by the trees that were not grown on its own trials, and one forest
    serves all keys of a round.
    """

    def __init__(self, columns: Columns, trees: Sequence[Any], unseen: dict[Subject, Any]) -> None:
        self._columns = columns
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
        grown, seen = [], np.zeros((trees, len(names)), dtype=bool)
        for i in range(trees):
            count = max(1, math.ceil(_BAG * len(names)))
            seen[i, random.permutation(len(names))[:count]] = True
            chosen = seen[i][of_row]
            tree = ExtraTreeRegressor(
                min_samples_leaf=_LEAF,
                max_features=_FEATURES,
                random_state=int(random.integers(1 << 31)),
            )
            tree.fit(narrow[chosen], slowdowns[chosen])
            grown.append(tree)
        return Forest(columns, grown, {s: ~seen[:, number[s]] for s in names})

    def predict(self, problem: Problem, device: DeviceInfo, configs: Sequence[Config]) -> Matrix:
        """Return what the trees say of each config: trees x configs."""
        rows = np.ascontiguousarray(self._columns.rows(problem, device, configs), dtype=np.float32)
        unseen = self._unseen.get(Subject(problem, device.slug))
        trees = list(self._trees)
        if unseen is not None and int(unseen.sum()) >= _FEWEST_TREES:
            trees = [tree for tree, fresh in zip(trees, unseen, strict=True) if fresh]
        # The rows are float32, in order and finite: checking them takes longer than the trees do.
        return np.array([tree.predict(rows, check_input=False) for tree in trees], dtype=np.float64)


def load_forests() -> None:
    """Load what forests are grown with: a second's work, for whoever waits for something else."""
    from sklearn.tree import ExtraTreeRegressor  # noqa: F401


def believable_us(trial: Trial, problem: Problem, device: DeviceInfo) -> float | None:
    """Return a trial's time in microseconds, infinity for a config that cannot run, else None."""
    found = trial.measurement
    if found is None or trial.status is not Status.OK:
        return math.inf if trial.status in _OWN_FAULT else None
    verified = found.error_ratio is not None and found.error_ratio <= 1
    time = found.median_us
    if not verified or found.contended or not math.isfinite(time):
        return None
    return time if time > _IMPOSSIBLE * roofline_us(problem, device) else None


def slowdowns_of(times: Matrix) -> Matrix:
    """Return log(time / best time) of each, cut at `WORST`; configs that cannot run have that."""
    return np.asarray(np.minimum(np.log(times / times.min()), WORST))


def _share(times: dict[Config, float], most: int, seed: int) -> tuple[tuple[Config, ...], Matrix]:
    """Return the configs of a problem the forest is grown on, in order, with their slowdowns."""
    order = sorted(times, key=lambda config: (times[config], config))
    if len(order) > most:
        fast, rest = order[: most // 2], order[most // 2 :]
        random = np.random.Generator(np.random.PCG64(seed))
        picked = random.permutation(len(rest))[: most - len(fast)]
        order = fast + [rest[i] for i in sorted(picked)]
    kept = tuple(sorted(order))
    return kept, slowdowns_of(np.array([times[config] for config in kept]))


def _seed_of(seed: int, text: str) -> int:
    """Return a seed for one of many things that share a run's seed."""
    return int.from_bytes(hashlib.sha256(f"{seed} {text}".encode()).digest()[:8], "big")
