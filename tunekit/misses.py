"""How often untuned problems were multiplied, written to the cache behind the program's back.

Who multiplies only counts in memory. A daemon thread, started with the first miss, adds what is new
to the cache now and then and at the program's end. A cache that is missing, locked or read-only
costs the counts and nothing else.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tunekit.device import DeviceInfo
from tunekit.errors import NoStoreError, StoreError
from tunekit.key import TuningKey

logger = logging.getLogger(__name__)

WRITE_SECONDS = 30.0
"""How long the thread waits between two writes, and after a failure at first."""

LONGEST_SECONDS = 3600.0
"""How long it waits at most, when one failure follows the other."""

EXIT_SECONDS = 2.0
"""How long the program's end waits for the last write at most."""


class Calls(Protocol):
    """A number of calls that only grows."""

    @property
    def count(self) -> int:
        """How many there were so far."""


@dataclass(slots=True)
class _Watched:
    """An untuned problem, where its misses go, and how many of them were written."""

    key: TuningKey
    device: DeviceInfo
    where: str
    calls: Calls
    before: int = 0
    """What calls came to that were counted elsewhere before these."""
    written: int = 0

    @property
    def count(self) -> int:
        """How many there were so far."""
        return self.before + self.calls.count


@dataclass(slots=True)
class _Batch:
    """What is new for one cache."""

    counts: dict[TuningKey, int] = field(default_factory=dict)
    devices: dict[str, DeviceInfo] = field(default_factory=dict)
    upto: list[tuple[_Watched, int]] = field(default_factory=list)


class MissWriter:
    """Counts that others keep, and the thread that writes them."""

    def __init__(self, write: Callable[[str, _Batch], None] | None = None) -> None:
        self._write = write or _write
        self._watched: dict[tuple[TuningKey, str], _Watched] = {}
        self._begin()
        os.register_at_fork(after_in_child=self._after_fork)

    def watch(self, key: TuningKey, device: DeviceInfo, where: str, calls: Calls) -> None:
        """Write, from now on, what these calls of an untuned problem come to.

        `where` is the path or URL of the cache. The calls take the place of those that were
        watched before for the same problem there. Returns at once and never raises.
        """
        with self._lock:
            known = self._watched.get((key, where))
            if known is None:
                self._watched[key, where] = _Watched(key, device, where, calls)
            else:
                known.before, known.calls = known.count, calls
            self._start()

    def flush(self, seconds: float | None = None) -> bool:
        """Have the thread write what is new; say whether it had its turn within these seconds."""
        done = threading.Event()
        with self._lock:
            if self._thread is None:
                return True
            self._waiting.append(done)
        self._wake.set()
        return done.wait(seconds)

    def write(self) -> bool:
        """Write what is new, and say whether all of it was written or had nowhere to go."""
        with self._lock:
            watched = [(one, one.count) for one in self._watched.values()]
        batches: dict[str, _Batch] = {}
        for one, count in watched:
            if count > one.written:
                batch = batches.setdefault(one.where, _Batch())
                new = count - one.written
                batch.counts[one.key] = batch.counts.get(one.key, 0) + new
                batch.devices[one.device.slug] = one.device
                batch.upto.append((one, count))
        return all([self._try(where, batch) for where, batch in batches.items()])

    def _try(self, where: str, batch: _Batch) -> bool:
        try:
            self._write(where, batch)
        except NoStoreError:
            pass  # nobody has tuned anything: there is nowhere to count
        except StoreError as error:
            logger.info("misses were not counted: %s", error)
            return False
        for one, count in batch.upto:
            one.written = count
        return True

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiting: list[threading.Event] = []
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._keep_writing, name="tunekit-misses", daemon=True
            )
            self._thread.start()
            atexit.unregister(self.flush)  # a forked child has its parent's
            atexit.register(self.flush, EXIT_SECONDS)

    def _keep_writing(self) -> None:
        pause = WRITE_SECONDS
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            with self._lock:
                waiting, self._waiting = self._waiting, []
            pause = WRITE_SECONDS if self.write() else min(2 * pause, LONGEST_SECONDS)
            for done in waiting:
                done.set()

    def _after_fork(self) -> None:
        """Begin anew in a forked child: what was counted before, its parent writes.

        The thread starts with the child's own first miss, for many a child only calls exec.
        """
        self._begin()
        for one in self._watched.values():
            one.written = one.count


def _write(where: str, batch: _Batch) -> None:
    """Add counts to a cache that is there already."""
    from tunekit.cache import Store

    with Store.open(where, create=False) as store:
        known = {device.slug for device in store.devices()}
        for slug, device in batch.devices.items():
            if slug not in known:
                store.put_device(device)
        store.record_misses(batch.counts)


WRITER = MissWriter()
"""The process's own."""
