"""What a worker is asked to do for one key, and what has come of it so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tunekit.config import Config
from tunekit.fleet.messages import Measure, Screen
from tunekit.key import TuningKey
from tunekit.runner import Finals
from tunekit.trial import Provenance, Trial


@dataclass(eq=False, slots=True)
class Job:
    """Configs to try, or finalists to measure. Part of it may be done by one that then ends."""

    number: int
    key: TuningKey
    configs: tuple[Config, ...]
    is_finals: bool = False
    tried: dict[Config, Trial] = field(default_factory=dict)
    held: deque[Trial] = field(default_factory=deque)
    """Trials that nobody has asked for yet."""
    asked: bool = False
    finals: Finals | None = None
    made: Mapping[Config, Provenance] = field(default_factory=dict)
    lost: bool = False
    """The key is another run's now."""

    @property
    def left(self) -> tuple[Config, ...]:
        """The configs that were not tried yet."""
        return tuple(config for config in self.configs if config not in self.tried)

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        done = self.finals is not None if self.is_finals else not self.left
        return done or self.lost

    def message(self) -> Screen | Measure:
        """Return what to ask for."""
        if self.is_finals:
            return Measure(self.number, self.key, self.configs)
        return Screen(self.number, self.key, self.left)


class State(Enum):
    """How it stands with the lease of a key of the run."""

    ORPHAN = "nobody has it"
    TAKING = "a worker was told to take it"
    HELD = "a worker has it"
    LEAVING = "the worker was told to give it back, for another one to take it"


@dataclass(eq=False, slots=True)
class Place:
    """The worker that a key is with, and its jobs."""

    key: TuningKey
    state: State = State.ORPHAN
    worker: int | None = None
    heir: int | None = None
    """Who is to have it next, while it is leaving."""
    waiting: deque[Job] = field(default_factory=deque)
    running: Job | None = None
