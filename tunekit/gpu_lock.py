"""One measuring run at a time on a GPU, whatever process it is in.

The lock is the kernel's (flock), so it is free the moment its holder ends, however it ends. It is
named after the GPU's UUID in the user's runtime folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import warnings
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_runtime_path

_log = logging.getLogger(__name__)

POLL_S = 0.2


class GpuLock:
    """A lock on the GPU with this UUID. Where no lock file can be made, it says so and is none."""

    def __init__(self, uuid: str, folder: Path | None = None) -> None:
        self._uuid = uuid
        self._folder = folder or _runtime_folder()
        self._lock: FileLock | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock is not None and self._lock.is_locked

    def acquire(self) -> None:
        """Take the lock; if another run holds it, say so once and wait until it ends."""
        reason = _unusable(self._folder)
        if reason is not None:
            _log.warning(
                "no lock can be made for this GPU (%s): two runs on it at once would spoil each"
                " other's times",
                reason,
            )
            return
        lock = FileLock(self._folder / f"{self._uuid}.lock", mode=0o600, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _log.warning(
                "another run measures on this GPU (%s): waiting until it ends", self._holder()
            )
            lock.acquire(poll_interval=POLL_S)
        self._lock = lock
        with contextlib.suppress(OSError):  # a full disk: the next one cannot say who holds it
            self._note.write_text(f"{os.getpid()}\n", encoding="ascii")

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def _note(self) -> Path:
        """Where the holder leaves its process id: opening a lock file may empty it."""
        return self._folder / f"{self._uuid}.pid"

    def _holder(self) -> str:
        try:
            return f"process {int(self._note.read_text(encoding='ascii'))}"
        except (OSError, ValueError):
            return "its process is not known"


def _runtime_folder() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no session's folder, as in a container: a temporary one
        return user_runtime_path("tunekit", appauthor=False)


def _unusable(folder: Path) -> str | None:
    """Make the folder, for this user alone; say why it cannot hold a lock, or None if it can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return str(error)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return f"{folder} is another user's"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"
