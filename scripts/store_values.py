"""What the loads of a store write, how much of it, and where: rows that tell if they are whole."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

from tunekit.cache import Store
from tunekit.cache.models import Base
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import TuningKey
from tunekit.trial import Best, Choice, Fingerprint, Measurement, Provenance

DEVICE = KNOWN_DEVICES["sm_90"]
PROVENANCE = Provenance(
    Fingerprint("5eed", "triton-3.9"), "cold-1", "0", "3.9", "2", "1", "GPU", "2026-01-01T00:00:00Z"
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything."""

    opening_processes: int = 16
    opening_rounds: int = 100
    reopening_rounds: int = 60
    writers: int = 8
    keys_each: int = 200
    lock_seconds: float = 3.0
    kills: int = 200
    threads: int = 16
    thread_seconds: float = 5.0
    children: int = 4
    lease_processes: int = 16
    leased_keys: int = 200

    def short(self) -> Load:
        """Return about a hundredth of it."""
        return replace(
            self, opening_rounds=1, reopening_rounds=1, keys_each=5, lock_seconds=0.3, kills=3,
            thread_seconds=0.3, lease_processes=4, leased_keys=20,
        )  # fmt: skip


CONFIG = Config("pointer", 64, 64, 32)


def key(m: int = 512, n: int = 1024) -> TuningKey:
    """Return a key of the device."""
    return TuningKey("matmul", m, n, 256, "bfloat16", DEVICE.slug)


def measurement(median_us: float) -> Measurement:
    """Return a measurement whose every time tells which it is."""
    factors = (1.0, 0.9, 1.1, 0.95, 1.05, 0.8)
    times = [median_us * factor for factor in factors]
    return Measurement(*times, repetitions=100, protocol="cold-1", error_ratio=0.25, final=True)


def best(of: TuningKey, median_us: float) -> Best:
    """Return a best of a key."""
    vendor = replace(measurement(median_us), error_ratio=None)
    return Best(of, Choice.TRITON, CONFIG, measurement(median_us), vendor, 40, 900, PROVENANCE)


def step_best(step: int) -> Best:
    """Return a best whose count of trials says what its times have to be."""
    return replace(best(key(), float(step)), trials=step)


def is_sound(place: str) -> bool:
    """Ask SQLite whether the file is whole; a server sees to that itself."""
    if "://" in place:
        return True
    connection = sqlite3.connect(place)
    try:
        whole = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return whole and connection.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        connection.close()


def clear(place: str) -> None:
    """Remove what was written."""
    if "://" not in place:
        for path in Path(place).parent.glob("tunekit.db*"):
            path.unlink()
        return
    with Store.open(place) as store, store.database.writing() as connection:
        Base.metadata.drop_all(connection)
