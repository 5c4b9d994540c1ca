"""What is known of a config once it was tried, and where that knowledge comes from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import NamedTuple

from tunekit.config import Config
from tunekit.key import TuningKey

PROTOCOL = "events-clean-cold-l2-1"
"""Name of the timing protocol in every row. A change that shifts results takes a new name."""


def timestamp() -> str:
    """Return the time now as rows hold it, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Status(str, Enum):
    """How a trial ended. Everything but `OK` is a failure, kept with its reason."""

    OK = "ok"
    COMPILE_ERROR = "compile-error"
    OUT_OF_RESOURCES = "out-of-resources"
    OUT_OF_MEMORY = "out-of-memory"
    LAUNCH_ERROR = "launch-error"
    WRONG_RESULT = "wrong-result"
    NOT_REPEATABLE = "not-repeatable"
    TIMEOUT = "timeout"


class Origin(str, Enum):
    """Where a row comes from, as the store that holds it knows."""

    MEASURED = "measured"
    REPLAYED = "replayed"
    IMPORTED = "imported"


class Choice(str, Enum):
    """What the dispatcher runs for a key."""

    TRITON = "triton"
    VENDOR = "vendor"


class Grade(str, Enum):
    """How well a stored row fits what was asked for, best first."""

    EXACT = "exact"
    OTHER_COMPILER = "other-compiler"
    NEAREST = "nearest"
    OTHER_GPU = "other-gpu"
    OTHER_SOURCE = "other-source"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Device time of one launch, in microseconds.

    `low_us` and `high_us` bound the median with 95 % confidence; `p20_us`, `p80_us` are quantiles
    of the launches themselves. `error_ratio` is the largest error against the reference over the
    tolerance of the dtype (at most 1 for a right result), or None for the vendor's own call.
    `final` marks the interleaved re-measurement of the finalists; the rest is screening.
    `contended` says that another process used the GPU meanwhile, `throttled` that its clocks fell.
    """

    median_us: float
    low_us: float
    high_us: float
    p20_us: float
    p80_us: float
    min_us: float
    repetitions: int
    protocol: str
    error_ratio: float | None = None
    final: bool = False
    contended: bool = False
    throttled: bool = False


class Outcome(NamedTuple):
    """What came of a trial in brief: what is read of hundreds of thousands at once."""

    config: Config
    status: Status
    median_us: float | None
    """None where it failed."""
    error: str | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One config, tried: a measurement, or the status and text of what went wrong."""

    config: Config
    status: Status
    measurement: Measurement | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.status is Status.OK) != (self.measurement is not None):
            raise ValueError(f"a trial has a measurement exactly if it is ok: {self}")

    @property
    def outcome(self) -> Outcome:
        """What came of it, in brief."""
        median_us = None if self.measurement is None else self.measurement.median_us
        return Outcome(self.config, self.status, median_us, self.error)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a timing depends on beside the key: the kernel's source and the compiler."""

    source: str
    compiler: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where and how a row was made. Two rows with equal provenance came from one environment."""

    fingerprint: Fingerprint
    protocol: str
    tunekit: str
    triton: str
    torch: str
    driver: str
    device_name: str
    created_at: str
    """UTC, ISO 8601, to the second."""
    origin: Origin = Origin.MEASURED


@dataclass(frozen=True, slots=True)
class Distance:
    """How far the best tried may be from the best there is, as parts of the time of the latter."""

    expected: float
    bound: float
    """Held in at least nine of ten recorded cases (docs/benchmarks/search.md)."""


@dataclass(frozen=True, slots=True)
class Best:
    """The chosen row of a key: the best Triton config and, beside it, the vendor's call."""

    key: TuningKey
    choice: Choice
    config: Config
    measurement: Measurement
    vendor: Measurement | None
    trials: int
    """Configs tried for the key when the choice was made."""
    space_size: int
    """Legal configs of the key's space."""
    provenance: Provenance
    count: int = 1
    """How often the program runs this problem, as its shapes file says."""
    imported_replay: bool = False
    """An imported row that was replayed where it was made, as only the store can tell."""
    distance: Distance | None = None
    """What the search said when the choice was made, if it could: `transfer` can."""

    @property
    def replayed(self) -> bool:
        """Whether the times come from a recording, here or where the row was made."""
        return self.imported_replay or self.provenance.origin is Origin.REPLAYED

    @property
    def ratio(self) -> float | None:
        """The vendor's time over Triton's: above 1 the Triton kernel is the faster."""
        return None if self.vendor is None else self.vendor.median_us / self.measurement.median_us


def choose(triton: Measurement, vendor: Measurement | None) -> Choice:
    """Decide what the dispatcher runs: Triton only where its interval lies wholly below."""
    if vendor is None or triton.high_us < vendor.low_us:
        return Choice.TRITON
    return Choice.VENDOR
