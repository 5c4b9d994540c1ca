"""Runs that share a store: which keys are this run's, and waiting for those that are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tunekit.cache import Claims, Store
from tunekit.tuner.events import KeysAwaited, Listener
from tunekit.tuner.key_search import KeySearch

POLL_SECONDS = 1.0
"""How often a run that waits for others looks whether they are done."""


class Sharing:
    """The part that one run has in tuning the keys of a store."""

    def __init__(self, store: Store, tell: Listener, sleep: Callable[[float], None]) -> None:
        self._store = store
        self._tell = tell
        self._sleep = sleep
        self._claims = Claims(store)

    def claim(self, keys: list[KeySearch]) -> list[KeySearch]:
        """Lease keys and return those that are now this run's, with what others found for them."""
        taken = self._claims.take([key.key for key in keys])
        mine = [key for key in keys if key.key in taken]
        for key in mine:
            key.refresh()
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
