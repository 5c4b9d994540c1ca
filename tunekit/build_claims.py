"""Who compiles what: of all processes of this user on this host, one at a time for each build.

Workers that share Triton's cache find there what another has built, so none needs to build the same
at the same time. A claim is a lock on one byte of a file, which stands for the build: the kernel
lets it go when its process ends, however it ends, and no file is left for each of thousands.
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
        self._file: int | None = None
        with contextlib.suppress(OSError):
            place = folder or _runtime_folder()
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(place / "compiling.lock", flags, 0o600)

    @contextmanager
    def claim(self, number: int) -> Iterator[bool]:
        """Claim a build inside the block; give False where another process is at it."""
        if self._file is None:
            yield True
            return
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks: both build, as without this
            yield True
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)


def _runtime_folder() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no session's folder, as in a container: a temporary one
        return user_runtime_path("tunekit", appauthor=False)
