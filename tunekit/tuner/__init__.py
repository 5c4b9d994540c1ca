"""Tuning: problems in, a stored best for each out.

A run goes in rounds. In each, every unfinished key proposes a few configs; all of them are
announced, so that they can be compiled ahead, and then tried key by key. A trial is in the store
before the next one starts, so whatever ends the run, the next run does only the rest. A key whose
budget is spent has its fastest configs measured again beside the vendor's call, and only those
measurements decide what is stored as its best.

Runs that share a store never tune one key at the same time: a run leases its keys, goes on with
those it got, and waits at the end for those that others have.
"""

from __future__ import annotations

from tunekit.tuner.api import open_runner, tune
from tunekit.tuner.events import (
    Event,
    KeyDone,
    KeyFailed,
    KeyLeft,
    KeysAwaited,
    KeySkipped,
    RunStarted,
    Task,
    TrialDone,
    TuneReport,
)
from tunekit.tuner.rounds import run

__all__ = [
    "Event",
    "KeyDone",
    "KeyFailed",
    "KeyLeft",
    "KeySkipped",
    "KeysAwaited",
    "RunStarted",
    "Task",
    "TrialDone",
    "TuneReport",
    "open_runner",
    "run",
    "tune",
]
