"""Runs that share a store: which keys are this run's, and waiting for those that are not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from tunekit.cache import Store
from tunekit.key import TuningKey
from tunekit.tuner.events import KeysAwaited, Listener
from tunekit.tuner.key_search import KeySearch

POLL_SECONDS = 1.0
"""How often a run that waits for others looks whether they are done."""


class Leases(Protocol):
    """The keys of a run, which `Claims` leases for its own process and a fleet for its workers."""

    def take(self, keys: Collection[TuningKey]) -> set[TuningKey]:
        """Claim those of the keys that no other run has, and return them."""

    def holds(self, key: TuningKey) -> bool:
        """Say whether a key is still this run's."""

    def give_back(self, keys: Collection[TuningKey]) -> None:
        """Let others have keys."""

    def close(self) -> None:
        """Let others have every key."""


class Sharing:
    """The part that one run has in tuning the keys of a store."""

    def __init__(
        self, store: Store, claims: Leases, tell: Listener, sleep: Callable[[float], None]
    ) -> None:
        self._store = store
        self._claims = claims
        self._tell = tell
        self._sleep = sleep

    def claim(self, keys: list[KeySearch]) -> list[KeySearch]:
        """Lease keys and return those that are now this run's, with what others found for them."""
        taken = self._claims.take([key.key for key in keys])
        mine = [key for key in keys if key.key in taken]
        tried = self._store.tried(gpu=mine[0].key.gpu) if mine else {}
        for key in mine:
            key.refresh(new=key.key not in tried)
        return mine

    def lost(self, keys: Iterable[KeySearch]) -> list[KeySearch]:
        """Return the keys that another run took, because their leases were over."""
        return [key for key in keys if not self._claims.holds(key.key)]

    def give_back(self, key: KeySearch) -> None:
        """Let other runs have a key."""
        self._claims.give_back([key.key])

    def wait(self, keys: list[KeySearch], late: Callable[[], bool]) -> list[KeySearch]:
        """Wait until keys that other runs are tuning are free; return them, or none if too late."""
        leases = self._store.leases()
        holders = sorted({str(leases[key.key].holder) for key in keys if key.key in leases})
        if holders:
            self._tell(KeysAwaited(tuple(key.key for key in keys), tuple(holders)))
        while not late():
            mine = self.claim(keys)
            if mine:
                return mine
            self._sleep(POLL_SECONDS)
        return []

    def close(self) -> None:
        """Let other runs have every key."""
        self._claims.close()
