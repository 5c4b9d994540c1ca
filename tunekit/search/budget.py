"""How long a search goes on."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_TRIALS = 80
"""Trials a key gets when neither trials nor seconds are given."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to search: trials of a key, seconds of a run, trials of a key without a gain.

    None is no limit. A key is always finished when its space is.
    """

    trials: int | None = None
    seconds: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "seconds", "patience"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value!r}")

    @staticmethod
    def for_sampler(sampler: str, trials: int | None, seconds: float | None) -> Budget:
        """Return the budget of a run: a sweep is not limited unless it is asked to be."""
        if trials is None and seconds is None and sampler != "exhaustive":
            return Budget(trials=DEFAULT_TRIALS)
        return Budget(trials=trials, seconds=seconds)

    def target(self, space_size: int) -> int:
        """Return how many trials of a key finish it."""
        return space_size if self.trials is None else min(self.trials, space_size)

    def spent(self, trials: int, without_gain: int) -> bool:
        """Say whether a key has had its trials, or its patience is at an end."""
        enough = self.trials is not None and trials >= self.trials
        return enough or (self.patience is not None and without_gain >= self.patience)

    def late(self, elapsed_s: float) -> bool:
        """Say whether a run has used its seconds."""
        return self.seconds is not None and elapsed_s >= self.seconds
