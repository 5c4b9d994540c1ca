"""The store: every trial, the best of each key, and what was asked for and missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tunekit.cache.engine import Database
from tunekit.cache.holder import Holder
from tunekit.cache.leases import Lease, drop_leases, find_leases, renew_leases, take_leases
from tunekit.cache.location import default_location
from tunekit.cache.opening import open_database
from tunekit.cache.outcomes import find_outcomes, find_places
from tunekit.cache.queries import ANY_TRIAL, Where
from tunekit.cache.reading import (
    UnreadBest,
    count_trials,
    find_bests,
    find_devices,
    find_failures,
    find_misses,
    find_recent_trials,
    find_trials,
    find_tried,
    find_unread,
)
from tunekit.cache.rules import has_tried_more, supersedes
from tunekit.cache.writing import RowWriter
from tunekit.device import DeviceInfo
from tunekit.key import TuningKey
from tunekit.trial import Best, Outcome, Provenance, Status, Trial

KEYS_AT_ONCE = 500
"""The keys whose trials are read together."""


class Store:
    """A cache on disk or on a server.

    Threads may share one, and a forked child may go on using its parent's. Each method is one
    transaction. Every method may raise `StoreError`, which is the only exception of the database
    that leaves a store. A row that came from a file is shown with the origin `imported`; a row that
    is damaged is left out and logged.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._numbers: Mapping[Any, int] = {}
        """Of rows on a server that trials share: nothing there removes one, or gives it another."""

    @classmethod
    def open(cls, location: str | Path | None = None, *, create: bool = True) -> Store:
        """Open the cache at a path or URL (by default `default_location()`).

        A path where nothing is gets a new cache if `create`, in a folder for this user alone. A
        file that may only be read is opened all the same, and refuses writes.

        Raises:
            StoreError: it cannot be opened or made; it is something else, or of a newer tunekit; or
                there is none and `create` is false. The text says what to do, and nothing changed.
        """
        place = default_location() if location is None else location
        return cls(open_database(place, create=create))

    @property
    def location(self) -> str:
        """The path or URL, without its password."""
        return self.database.location

    def put_device(self, device: DeviceInfo) -> None:
        """Store a device, which the rows of its keys need. Again with the same is harmless."""
        with self.database.writing(alone=False) as connection:
            RowWriter(connection).device(device)

    def devices(self) -> list[DeviceInfo]:
        """Return the devices there are rows for, by slug."""
        with self.database.reading() as connection:
            return find_devices(connection)

    def add_trials(self, key: TuningKey, trials: Iterable[tuple[Trial, Provenance]]) -> None:
        """Keep trials of a key, all or none; trying a config again updates its row.

        Raises:
            StoreError: the key's device was never put, or the store cannot be written.
        """
        known, self._numbers = self._numbers, {}  # asked for again if anything goes wrong
        with self.database.writing(alone=False) as connection:
            writer = RowWriter(connection, known)
            writer.trials(key, trials)
        if self.database.on_server:
            self._numbers = writer.numbers

    def trials(
        self, key: TuningKey, *, compiler: str | None = None
    ) -> list[tuple[Trial, Provenance]]:
        """Return the trials of a key (under one compiler) in the order they were first stored."""
        with self.database.reading() as connection:
            found = find_trials(connection, Where(key=key, compiler=compiler))
        return [stored.shown() for stored in found]

    def outcomes(
        self, *, gpu: str | None = None
    ) -> Iterator[tuple[TuningKey, list[tuple[str, Outcome]]]]:
        """Yield each key that has trials, of one GPU kind, with what came of all, by compiler.

        They are in the order they were first stored, the keys in no particular order. There is one
        transaction for every few hundred keys, and so much is held at a time.
        """
        with self.database.reading() as connection:
            places = list(find_places(connection, Where(gpu=gpu)).items())
        for start in range(0, len(places), KEYS_AT_ONCE):
            keys = dict(places[start : start + KEYS_AT_ONCE])
            first, *_ = keys
            *_, last = keys
            where = Where(gpu=gpu, first=first[0], last=last[0])
            with self.database.reading() as connection:
                found = find_outcomes(connection, where)
            for place, key in keys.items():
                if place in found:
                    yield key, found[place]

    def tried(self, *, gpu: str | None = None) -> dict[TuningKey, int]:
        """Return how many trials each key has that has any, of one GPU kind, sorted by key."""
        with self.database.reading() as connection:
            return find_tried(connection, Where(gpu=gpu))

    def recent_trials(self, gpu: str, most: int) -> list[tuple[TuningKey, Trial, Provenance]]:
        """Return at most so many trials of a GPU kind's keys, those stored last first."""
        with self.database.reading() as connection:
            found = find_recent_trials(connection, gpu, most)
        return [(stored.key, *stored.shown()) for stored in found]

    def trial_counts(self, key: TuningKey) -> dict[Status, int]:
        """Return how many trials of a key ended how, under any compiler."""
        with self.database.reading() as connection:
            return count_trials(connection, key)

    def failures(self, *, gpu: str | None = None) -> dict[tuple[TuningKey, str], dict[Status, int]]:
        """Return how many configs failed how, by key and compiler; keys without any are absent."""
        with self.database.reading() as connection:
            return find_failures(connection, Where(gpu=gpu))

    def has_trials(self) -> bool:
        """Say whether there is a trial of any key."""
        with self.database.reading() as connection:
            return connection.scalar(ANY_TRIAL) is not None

    def put_best(
        self,
        best: Best,
        *,
        force: bool = False,
        stale: Callable[[Best], bool] | None = None,
    ) -> bool:
        """Store a best if its key has none under its compiler, or one that it supersedes.

        `supersedes` in `rules` is the rule. A row that `stale` says no longer holds is replaced by
        any, and `force` replaces any row. One that stays takes over how much was tried, and how far
        from the best it may be, unless it came from elsewhere.

        Returns:
            Whether `best` is now the stored row.
        """
        where = Where(key=best.key, compiler=best.provenance.fingerprint.compiler)
        with self.database.writing() as connection:
            for stored in find_bests(connection, where):
                outdated = force or (stale is not None and stale(stored.shown()))
                if not outdated and not supersedes(best, stored.best):
                    if has_tried_more(best, stored.best) and not stored.imported:
                        RowWriter(connection).effort(best)
                    return False
            RowWriter(connection).best(best)
        return True

    def bests(self, *, gpu: str | None = None, family: str | None = None) -> list[Best]:
        """Return the best rows, of one GPU kind or family, sorted by key and then compiler."""
        with self.database.reading() as connection:
            found = find_bests(connection, Where(gpu=gpu, family=family))
        return [stored.shown() for stored in found]

    def unread_bests(self, *, gpu: str | None = None) -> list[UnreadBest]:
        """Return the best rows, of one GPU kind, each to be decoded when it is asked for."""
        with self.database.reading() as connection:
            return find_unread(connection, Where(gpu=gpu))

    def best(self, key: TuningKey) -> list[Best]:
        """Return the best rows of a key: one for each compiler it was tuned under."""
        with self.database.reading() as connection:
            found = find_bests(connection, Where(key=key))
        return [stored.shown() for stored in found]

    def record_misses(self, counts: Mapping[TuningKey, int]) -> None:
        """Add to how often keys were asked for and not there.

        Raises:
            StoreError: a key's device was never put, or the store cannot be written.
        """
        with self.database.writing() as connection:
            RowWriter(connection).misses(counts)

    def misses(self) -> dict[TuningKey, int]:
        """Return how often each key was missed, sorted by key."""
        with self.database.reading() as connection:
            return find_misses(connection)

    def clear_misses(self, keys: Collection[TuningKey]) -> None:
        """Forget that these keys were missed.

        Raises:
            StoreError: a key's device was never put, or the store cannot be written.
        """
        with self.database.writing() as connection:
            RowWriter(connection).clear_misses(keys)

    def acquire(
        self, keys: Collection[TuningKey], holder: Holder, *, seconds: float
    ) -> set[TuningKey]:
        """Lease keys to a holder for a time, and return those it now has.

        The others are leased to others. A lease of a process of this host that has ended does not
        count, nor does one whose time is over.

        Raises:
            StoreError: a key's device was never put, or the store cannot be written.
        """
        with self.database.reading() as connection:  # no turn at writing is needed to find nothing
            held = find_leases(connection)
        if all(key in held and held[key].holder.name != holder.name for key in keys):
            return set()
        with self.database.writing() as connection:
            return take_leases(connection, keys, holder, seconds)

    def renew(self, holder: Holder, *, seconds: float) -> set[TuningKey]:
        """Let a holder's leases begin again; return the keys it has, without those others took."""
        with self.database.writing(alone=False) as connection:
            return renew_leases(connection, holder, seconds)

    def release(self, holder: Holder, keys: Collection[TuningKey] | None = None) -> None:
        """Give back a holder's leases, of these keys or all."""
        with self.database.writing(alone=False) as connection:
            drop_leases(connection, holder, keys)

    def leases(self) -> dict[TuningKey, Lease]:
        """Return the leases that hold, by key."""
        with self.database.reading() as connection:
            return find_leases(connection)

    def close(self) -> None:
        """Let go of every connection. A later call would make a new one."""
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
