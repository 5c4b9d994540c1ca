"""How long a search goes on."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_TRIALS = 80
"""Trials a key gets when neither trials nor seconds are given."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to search. None is no limit; a key is always finished when its space is."""

    trials: int | None = None
    """Of each key, on average over a run."""
    seconds: float | None = None
    """Of a run."""
    patience: int | None = None
    """Trials of a key without a gain that end it."""
    reach: float | None = None
    """A key ends when its best takes at most this part longer than what its GPU could do at all
    (`roofline.least_us`); on a GPU whose rates are not known it never does."""
    least: int | None = None
    """Trials that every key has, where others are moved between keys; half of them otherwise."""

    def __post_init__(self) -> None:
        for name in ("trials", "seconds", "patience", "reach", "least"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value!r}")
        if self.least is not None and (self.trials is None or self.least > self.trials):
            raise ValueError(f"least is of trials: {self.least} of {self.trials}")

    @staticmethod
    def for_sampler(
        sampler: str,
        trials: int | None,
        seconds: float | None,
        *,
        patience: int | None = None,
        reach: float | None = None,
        least: int | None = None,
    ) -> Budget:
        """Return the budget of a run: a sweep is not limited unless it is asked to be."""
        if trials is None and seconds is None and sampler != "exhaustive":
            trials = DEFAULT_TRIALS
        return Budget(trials, seconds, patience, reach, least)

    def target(self, space_size: int) -> int:
        """Return how many trials of a key finish it."""
        return space_size if self.trials is None else min(self.trials, space_size)

    def floor(self, target: int) -> int:
        """Return how many of a key's trials stay its own where trials move."""
        return -(-target // 2) if self.least is None else min(self.least, target)

    def spent(self, trials: int, without_gain: int) -> bool:
        """Say whether a key has had its trials, or its patience is at an end."""
        enough = self.trials is not None and trials >= self.trials
        return enough or (self.patience is not None and without_gain >= self.patience)

    def is_near(self, best_us: float, least_us: float | None) -> bool:
        """Say whether a time is within reach of the least there can be, if that is known."""
        if self.reach is None or least_us is None:
            return False
        return best_us <= (1 + self.reach) * least_us

    def late(self, elapsed_s: float) -> bool:
        """Say whether a run has used its seconds."""
        return self.seconds is not None and elapsed_s >= self.seconds
