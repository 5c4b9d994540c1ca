"""What is believed of the configs of one key: the forest's word, corrected by the key's own trials.

A Gaussian process over the configs of a space. Its mean is the mean of the trees and its covariance
how the trees vary together, so what they disagree on is what a trial settles; configs that lie
close to each other share the rest of the error; and one unknown constant is common to all, for the
forest speaks of slowdowns and nobody knows the best. Everything is in logarithms of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunekit.search.features import Matrix
from tunekit.search.points import Distances

Whole = np.ndarray[Any, np.dtype[np.int64]]

_LOCAL = 0.10
_LOCAL_ALONE = 0.3
"""Standard deviation of the forest's error that neighbouring configs share, and of the slowdowns
themselves where there is no forest."""
_LENGTH = 2.0
"""Distance, in doublings, over which they do."""
_OFFSET = 0.3
"""Standard deviation of the constant."""
_NOISE = 0.02
"""Of a measurement."""
_ROOM = 32
"""Observations there is room for at first."""


class Belief:
    """Mean and variance of every config's slowdown, updated by one observation at a time."""

    def __init__(self, trees: Matrix | None, distances: Distances) -> None:
        count = len(distances.coordinates)
        self._distances = distances
        spread = np.zeros((1, count)) if trees is None else trees - trees.mean(axis=0)
        self._spread = spread / math.sqrt(len(spread))
        self._local = (_LOCAL_ALONE if trees is None else _LOCAL) ** 2
        self.mean: Matrix = np.zeros(count) if trees is None else trees.mean(axis=0)
        self.variance: Matrix = (self._spread**2).sum(axis=0) + self._local + _OFFSET**2
        self._observed: Matrix = np.empty((_ROOM, count))
        self._count = 0

    def observe(self, index: int, slowdown: float | None = None) -> None:
        """Learn a config's slowdown, or only that it is going to be known."""
        row = self.covariance(index)
        deviation = math.sqrt(max(float(row[index]), 0.0) + _NOISE**2)
        row /= deviation
        if slowdown is not None:
            self.mean = self.mean + row * ((slowdown - self.mean[index]) / deviation)
        self.variance = np.maximum(self.variance - row**2, 0.0)
        self._keep(row)

    def _keep(self, row: Matrix) -> None:
        if self._count == len(self._observed):  # twice the room
            self._observed = np.concatenate([self._observed, np.empty_like(self._observed)])
        self._observed[self._count] = row
        self._count += 1

    @property
    def _seen(self) -> Matrix:
        """A row for each observation."""
        return self._observed[: self._count]

    def covariance(self, index: int) -> Matrix:
        """Return the covariance of every config with one, given what was observed."""
        row = self._spread.T @ self._spread[:, index] + _OFFSET**2
        row += self._local * np.exp(-self._distances.of(index) / _LENGTH)
        if self._count:
            seen = self._seen
            row -= seen.T @ seen[:, index]
        return np.asarray(row)

    def _joint(self, places: Whole) -> Matrix:
        """Return the covariance of some configs with each other, given what was observed."""
        at, spread = self._distances.coordinates[places], self._spread[:, places]
        away = np.zeros((len(places), len(places)))
        for axis in at.T:
            away += np.abs(axis[:, None] - axis)
        joint = spread.T @ spread + _OFFSET**2 + self._local * np.exp(-away / _LENGTH)
        if self._count:
            seen = self._seen.take(places, axis=1)
            joint -= seen.T @ seen
        return np.asarray(joint)

    def improvement(self, best: float) -> Matrix:
        """Return by how much each config is expected to be better than `best`."""
        deviation = np.sqrt(np.maximum(self.variance, 1e-12))
        return _expected_excess((best - self.mean) / deviation) * deviation

    def lowest(self, free: Sequence[int] | Whole, *, draws: int, seed: int) -> Matrix:
        """Draw the slowdown of the best of some configs, `draws` times."""
        places = np.asarray(free, dtype=np.int64)
        root = _root(self._joint(places))
        random = np.random.Generator(np.random.PCG64(seed))
        drawn = self.mean[places] + random.standard_normal((draws, len(places))) @ root.T
        return np.asarray(drawn.min(axis=1))


def _root(covariance: Matrix) -> Matrix:
    """Return a square root of a covariance, which rounding may have made a little indefinite."""
    size = float(covariance.diagonal().max())
    for part in (1e-9, 1e-6, 1e-3):
        try:
            root = np.linalg.cholesky(covariance + part * size * np.eye(len(covariance)))
            return np.asarray(root)
        except np.linalg.LinAlgError:
            continue
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def _expected_excess(z: Matrix) -> Matrix:
    """Return the mean of max(0, z + a standard normal)."""
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    scaled = (
        z / math.sqrt(2)
    ).tolist()  # plain numbers: math takes three times as long for NumPy's
    below = 0.5 * (1 + np.array(list(map(math.erf, scaled))))
    return np.asarray(np.maximum(z * below + density, 0.0))
