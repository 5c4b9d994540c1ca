"""What goes between the process that leads a run and those that do its work: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunekit.config import Config
from tunekit.key import Problem

if TYPE_CHECKING:
    from tunekit.cache import Holder
    from tunekit.device import DeviceInfo
    from tunekit.errors import TunekitError
    from tunekit.key import TuningKey
    from tunekit.runner import Finals
    from tunekit.space import Space
    from tunekit.spent import Spent
    from tunekit.trial import Measurement, Origin, Provenance, Trial

Work = tuple[Problem, Config]


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker is ready."""

    holder: Holder
    device: DeviceInfo
    origin: Origin
    made_by: Mapping[str, str]
    """What its results depend on, as installed there: it has to be the same everywhere."""
    driver: str
    outlining: tuple[Problem, ...] = ()
    """The problems whose spaces it says next, without being asked."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A worker cannot work, for a reason that is the user's to act on."""

    error: TunekitError


@dataclass(frozen=True, slots=True)
class Broke:
    """A fault of tunekit itself in a worker, with its traceback."""

    traceback: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker has ended; `how` says it in words."""

    how: str


@dataclass(frozen=True, slots=True)
class Outline:
    """Say which configs can be tried for these problems."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Outlined:
    """A problem's space, or why there is none."""

    problem: Problem
    space: Space | TunekitError


@dataclass(frozen=True, slots=True)
class Take:
    """Lease these keys."""

    keys: tuple[TuningKey, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """Of the keys asked for, those that are leased now; another run has the others."""

    asked: tuple[TuningKey, ...]
    keys: frozenset[TuningKey]


@dataclass(frozen=True, slots=True)
class Drop:
    """Give keys back."""

    keys: tuple[TuningKey, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """They are free."""

    keys: tuple[TuningKey, ...]


@dataclass(frozen=True, slots=True)
class Compile:
    """This will be tried here soon, as far as anybody can tell."""

    work: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Screen:
    """Try configs of a key."""

    job: int
    key: TuningKey
    configs: tuple[Config, ...]


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial of a job; it is in the store."""

    job: int
    trial: Trial


@dataclass(frozen=True, slots=True)
class Met:
    """The vendor's first time for a problem, or that it has none."""

    problem: Problem
    vendor: Measurement | None


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure finalists of a key."""

    job: int
    key: TuningKey
    configs: tuple[Config, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of them; the trials are in the store."""

    job: int
    finals: Finals
    made: Mapping[Config, Provenance]


@dataclass(frozen=True, slots=True)
class Lost:
    """A key's lease was over and another run took it: the job is not done."""

    job: int


@dataclass(frozen=True, slots=True)
class Account:
    """Say where the time went, or answer that."""

    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Give everything back and end."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Everything is given back."""


Message = (
    Hello | Refused | Broke | Gone | Outline | Outlined | Take | Taken | Drop | Dropped
    | Compile | Screen | Tried | Met | Measure | Measured | Lost | Account | Stop | Stopped
)  # fmt: skip
