"""The keys that a run has claimed: leases that a thread renews until the run gives them back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from types import TracebackType

from tunekit.cache.holder import Holder
from tunekit.cache.store import Store
from tunekit.errors import StoreError
from tunekit.key import TuningKey

_log = logging.getLogger(__name__)

LEASE_SECONDS = 120.0
"""How long a lease holds. More than a busy database may make its renewal wait."""

BEATS = 6
"""How often a lease is renewed while it would hold."""


class Claims:
    """The keys of one run. Threads may share it; a forked child has none of them."""

    def __init__(
        self, store: Store, *, seconds: float = LEASE_SECONDS, holder: Holder | None = None
    ) -> None:
        self.holder = holder or Holder.here()
        self._store = store
        self._seconds = seconds
        self._held: set[TuningKey] = set()
        self._renewed = _clock()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, keys: Collection[TuningKey]) -> set[TuningKey]:
        """Claim those of the keys that no other run has, and return them.

        Raises:
            StoreError: the store cannot be written, or does not know the keys' device.
        """
        with self._lock:
            taken = self._store.acquire(keys, self.holder, seconds=self._seconds)
            self._held |= taken
            if taken and self._thread is None:
                self._renewed = _clock()
                self._thread = threading.Thread(
                    target=self._beat, name="tunekit-leases", daemon=True
                )
                self._thread.start()
        return taken

    def holds(self, key: TuningKey) -> bool:
        """Say whether a key is still this run's.

        It is not once the lease was over, as when the whole machine slept, and another run took it.
        """
        if _clock() - self._renewed > self._seconds:
            self._renew()
        with self._lock:
            return key in self._held

    def give_back(self, keys: Collection[TuningKey]) -> None:
        """Let others have keys.

        Raises:
            StoreError: the store cannot be written.
        """
        with self._lock:
            self._held -= set(keys)
            self._store.release(self.holder, keys)

    def close(self) -> None:
        """Let others have every key, and renew nothing any more."""
        self._stop.set()
        with self._lock:
            if not self._held:
                return
            self._held = set()
            try:
                self._store.release(self.holder)
            except StoreError as problem:  # they end by themselves
                _log.warning("the leases of this run were not given back: %s", problem)

    def __enter__(self) -> Claims:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _beat(self) -> None:
        while not self._stop.wait(self._seconds / BEATS):
            self._renew()

    def _renew(self) -> None:
        with self._lock:
            if self._stop.is_set() or not self._held:
                return
            try:
                self._held &= self._store.renew(self.holder, seconds=self._seconds)
                self._renewed = _clock()
            except StoreError as problem:  # the next beat tries again
                _log.warning("the leases of this run were not renewed: %s", problem)


def _clock() -> float:
    """Return seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
