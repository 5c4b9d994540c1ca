"""The errors tunekit raises on purpose.

A `TunekitError` is for the person at the keyboard: its text is one line that says what is wrong,
where, and what to do. The command line prints that line and exits 1. A fault in tunekit itself is
never turned into one of these; it keeps its traceback.
"""

from __future__ import annotations


class TunekitError(Exception):
    """Base of every error that is the user's to act on."""


class ConfigError(TunekitError, ValueError):
    """A config is malformed, or no legal config exists for a problem on a device."""


class ProblemError(TunekitError, ValueError):
    """A problem's description is malformed: a size, dtype, layout or other field is not allowed."""


class ShapesError(TunekitError, ValueError):
    """A shapes file is missing, malformed, or names something that does not exist."""


class DeviceError(TunekitError, RuntimeError):
    """The device asked for is not there or cannot be used."""


class RecordingError(TunekitError):
    """A recording cannot be read, or does not hold the problem asked for."""


class StoreError(TunekitError):
    """The cache cannot be opened, read or written.

    `passing` says that it may be otherwise at once, as where a network file system was busy.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class NoStoreError(StoreError):
    """There is no cache at `location`, a path or a URL without its password."""

    def __init__(self, message: str, *, location: str = "") -> None:
        super().__init__(message)
        self.location = location


class DamagedStoreError(StoreError):
    """What is where the cache should be cannot be read as a database."""


class ExchangeError(TunekitError):
    """An export file cannot be read or does not hold what it says."""


class ReportError(TunekitError):
    """A report cannot be made: what draws it is not installed."""


class MissError(TunekitError, LookupError):
    """`on_miss="error"`: a problem without a tuned row was asked for."""


class ProgramError(TunekitError):
    """A command to record is no Python program, or is not there."""


class TuneError(TunekitError, RuntimeError):
    """A tuning run produced nothing that can be stored."""
