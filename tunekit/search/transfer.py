"""The sampler that learns from other problems.

For a key, a forest grown on the trials of other problems says how slow each config should be, and a
Gaussian process corrects it by the key's own trials (`belief`). Proposed is the config of which the
largest improvement on the best is expected: where the trees disagree or nothing was tried nearby
that may be one the forest thinks slow. Proposals of a batch count as known in what they will teach,
not in what they will say.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from tunekit.search.belief import Belief, Whole
from tunekit.search.experience import WORST, Experience
from tunekit.search.features import Matrix
from tunekit.search.forest import Columns, Forest, Narrow
from tunekit.search.points import Points
from tunekit.search.sampler import WholeConfigSampler
from tunekit.search.study_reader import StudyReader
from tunekit.space import Space
from tunekit.trial import Distance

HORIZON = 8
"""Proposals over which a gain is expected."""
_RIVALS = 128
"""Configs that may be the best; of the others it is not worth asking."""
_DRAWS = 512

_EXPECTED = 0.045
_BOUND = 0.1
"""What is drawn of the distance from the best, times these, is stated: its mean and its 90 %
quantile. The belief is far wider than its errors, which makes the search try what it does not know.
`docs/benchmarks/search.md` says how often the bound held where the problem was left out."""


class TransferSampler(WholeConfigSampler):
    """Proposes configs of a space by what is known of other problems and of this one.

    It reads the key's trials from the study: completed ones with their values, logarithms of time,
    and running ones. The study may be shared with other processes.
    """

    def __init__(self, space: Space, points: Points, experience: Experience, *, seed: int) -> None:
        super().__init__(points)
        self._space = space
        self._experience = experience
        self._seed = seed
        self._reader = StudyReader(points)
        self._forest: Forest | None = None
        self._trees: Matrix | None = None
        self._columns: Columns | None = None
        self._rows: Narrow | None = None
        """Of features of the space, by these columns: forest after forest has the same."""
        self._belief: Belief | None = None
        self._known: dict[int, float] = {}
        self._pending: frozenset[int] = frozenset()

    def propose(self, study: optuna.Study, trial: FrozenTrial) -> int | None:
        """Return the config from which most is expected, or None where all are taken."""
        belief = self.belief(study)
        free = self._free({*self._known, *self._pending})
        if not len(free):
            return None
        return int(free[np.argmax(belief.improvement(self._best(belief))[free])])

    def belief(self, study: optuna.Study) -> Belief:
        """Return what is believed now, after all trials of the study."""
        known, pending = self._reader.read(study)
        forest = self._experience.forest()
        if self._belief is None or forest is not self._forest or known != self._known:
            self._belief = self._believe(forest, known)
            self._known, self._pending = known, frozenset()
        elif not self._pending <= pending:
            self._belief = self._believe(forest, known)
            self._pending = frozenset()
        for index in sorted(pending - self._pending):
            self._belief.observe(index)
        self._pending = pending
        return self._belief

    def expected_gain(self, study: optuna.Study) -> float:
        """Return the part of the best time that the next proposals are expected to save."""
        belief = self.belief(study)
        drawn = self._missing(belief, {*self._known, *self._pending}, HORIZON)
        return float(np.mean(-np.expm1(-_EXPECTED * drawn)))

    def distance(self, study: optuna.Study) -> Distance:
        """Return how far the best tried is from the best there is; what is running is untried."""
        known, _ = self._reader.read(study)
        self._belief = None  # the next proposal begins from what is running as well
        drawn = self._missing(self._believe(self._experience.forest(), known), known, _RIVALS)
        bound = float(np.expm1(_BOUND * np.quantile(drawn, 0.9)))
        return Distance(min(bound, float(np.expm1(_EXPECTED * drawn.mean()))), bound)

    def _missing(self, belief: Belief, taken: Collection[int], rivals: int) -> Matrix:
        """Draw log(best time so far / best time of the others), 0 where that is not lower."""
        free, best = self._free(taken), 0.0  # something has worked: the best is the yardstick
        if not len(free):
            return np.zeros(1)
        hopeful = np.argsort(-belief.improvement(best)[free], kind="stable")[:rivals]
        lowest = belief.lowest(free[hopeful], draws=_DRAWS, seed=self._seed)
        return np.asarray(np.maximum(best - lowest, 0.0))

    def _free(self, taken: Collection[int]) -> Whole:
        """Return the places of all other configs."""
        free = np.ones(len(self._space), dtype=bool)
        free[list(taken)] = False
        return np.flatnonzero(free)

    def _best(self, belief: Belief) -> float:
        """Return the slowdown to improve on: the best is the yardstick, so it is 0."""
        tried = any(map(math.isfinite, self._known.values()))
        return 0.0 if tried else float(belief.mean.min())

    def _believe(self, forest: Forest | None, known: dict[int, float]) -> Belief:
        if forest is not self._forest:
            self._forest = forest
            self._trees = None if forest is None else self._predict(forest)
        belief = Belief(self._trees, self._points.distances)
        worked = [value for value in known.values() if math.isfinite(value)]
        best = min(worked, default=0.0)
        for index in sorted(known):
            belief.observe(index, min(known[index] - best, WORST))
        return belief

    def _predict(self, forest: Forest) -> Matrix:
        """Return what the trees of a forest say of the space."""
        space = self._space
        if self._rows is None or self._columns != forest.columns:
            self._columns = forest.columns
            self._rows = forest.columns.narrow(space.problem, space.device, space.configs)
        return forest.predict_rows(space.problem, space.device, self._rows)
