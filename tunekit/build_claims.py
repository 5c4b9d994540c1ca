"""Who compiles what, and on whose cores, of all processes of this user on this host.

Workers that share Triton's cache find there what another has built, so none needs to build the same
at the same time. A claim is a lock on one byte of a file, which stands for the build: the kernel
lets it go when its process ends, however it ends, and no file is left for each of thousands. Cores
are claimed likewise, so that a worker sees whether another leaves some idle.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_runtime_path

_BYTES = 1 << 62


def build_number(*parts: object) -> int:
    """Return the number that stands for a build, whichever process asks."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") % _BYTES


class BuildClaims:
    """The claims of one process, one at a time. Where no file can be made, it claims anything."""

    def __init__(self, folder: Path | None = None) -> None:
        self._file = _opened("compiling.lock", folder)

    @contextmanager
    def claim(self, number: int) -> Iterator[bool]:
        """Claim a build inside the block; give False where another process is at it."""
        if self._file is None:
            yield True
            return
        try:
            _lock(self._file, number)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks: both build, as without this
            yield True
            return
        try:
            yield True
        finally:
            _unlock(self._file, number)


class CoreClaims:
    """The cores that one process claims, any of so many. Where no file can be made there is none.

    The locks are the process's, so whoever has them must have one of these and no more.
    """

    def __init__(self, count: int, folder: Path | None = None) -> None:
        self._file = _opened("cores.lock", folder)
        self._count = count
        self._mine: set[int] = set()

    def take(self) -> int | None:
        """Claim a core, or give None: each is claimed, by this process or by another."""
        if self._file is None:
            return None
        for number in range(self._count):
            if number not in self._mine:
                try:
                    _lock(self._file, number)
                except BlockingIOError:
                    continue
                except OSError:  # a file system without locks
                    return None
                self._mine.add(number)
                return number
        return None

    def give_back(self, number: int) -> None:
        """Let another process have a core."""
        if self._file is not None:
            self._mine.discard(number)
            _unlock(self._file, number)

    def close(self) -> None:
        """Let others have all."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _opened(name: str, folder: Path | None) -> int | None:
    """Open a file of locks, or return None where there can be none."""
    with contextlib.suppress(OSError):
        place = folder or _runtime_folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(place / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return None


def _lock(file: int, number: int) -> None:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)


def _unlock(file: int, number: int) -> None:
    fcntl.lockf(file, fcntl.LOCK_UN, 1, number)


def _runtime_folder() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no session's folder, as in a container: a temporary one
        return user_runtime_path("tunekit", appauthor=False)
