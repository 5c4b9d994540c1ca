"""In which order to compile: what is expected to take long goes first.

A round of the search ends with its last compilation. So one of several times the average, begun
last, has all compilers and the GPU wait for it; begun first, it costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tunekit.config import Config
from tunekit.key import Problem

FOUND_S = 0.05
"""What took no longer was found compiled."""

SLOW = 2.0
"""What is expected to take so many times the average goes first. The others keep their order."""


class Durations:
    """How long compilations took. Kernels of one variant, for one problem, take about as long."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[int, float]] = {}
        """How many there were of a kind, and their seconds together; None is all of them."""

    def learn(self, problem: Problem, config: Config | None, seconds: float) -> None:
        """Take in how long a compilation took."""
        if config is None or seconds <= FOUND_S:
            return
        for kind in (None, *_kinds(problem, config)):
            count, total = self._seen.get(kind, (0, 0.0))
            self._seen[kind] = (count + 1, total + seconds)

    def first(self, waiting: Sequence[tuple[Problem, Config | None]]) -> int:
        """Return the place of what is to be compiled next, of what waits, the oldest first."""
        slow = SLOW * self._mean(None)
        expected = [self._expected(*one) for one in waiting]
        longest = max(expected)
        return expected.index(longest) if longest > slow > 0 else 0

    def _expected(self, problem: Problem, config: Config | None) -> float:
        if config is None:
            return 0.0
        means = (self._mean(kind) for kind in _kinds(problem, config))
        return next((mean for mean in means if mean), 0.0)

    def _mean(self, kind: Hashable) -> float:
        count, total = self._seen.get(kind, (0, 0.0))
        return total / count if count else 0.0


def _kinds(problem: Problem, config: Config) -> tuple[Hashable, ...]:
    """Return what a compilation is like, the narrowest first."""
    return (problem, config.variant), config.variant
