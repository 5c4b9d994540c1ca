"""Tuning: problems in, a stored best for each out.

A run goes in rounds. In each, every unfinished key proposes a few configs; they are announced, so
that they can be compiled ahead, and tried as they get ready. A trial is stored as soon as it ends,
so whatever ends the run, the next run does only the rest. A key whose
budget is spent has its fastest configs measured again beside the vendor's call, and only those
measurements decide what is stored as its best.

`verify_again` searches nothing: after an upgrade the few stored configs that did best are tried
again, key by key, and the one that wins now is the key's row under what is installed now.

Runs that share a store never tune one key at the same time: a run leases its keys, goes on with
those it got, and waits at the end for those that others have.
"""

from __future__ import annotations

from tunekit.runners import open_runner
from tunekit.tuner.api import tune
from tunekit.tuner.events import (
    Event,
    KeyDone,
    KeyFailed,
    KeyLeft,
    KeysAwaited,
    KeySkipped,
    Listener,
    RunStarted,
    StaleFound,
    Task,
    TrialDone,
    TuneReport,
)
from tunekit.tuner.rounds import run
from tunekit.tuner.stale import verify_again

__all__ = [
    "Event",
    "KeyDone",
    "KeyFailed",
    "KeyLeft",
    "KeySkipped",
    "KeysAwaited",
    "Listener",
    "RunStarted",
    "StaleFound",
    "Task",
    "TrialDone",
    "TuneReport",
    "open_runner",
    "run",
    "tune",
    "verify_again",
]
