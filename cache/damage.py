"""Move a damaged cache out of the way, never deleting it, and never anything else.

Only a file that SQLite finds damaged twice is moved, and only if it was ours: its header says so,
or the text of our tables is somewhere in it, or it holds nothing but zeros. Of processes that find
the damage together one moves the file; the others see another file in its place and leave that.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

from tunekit.cache.models import APPLICATION_ID

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_ID_PLACE = slice(68, 72)
_MARK = b"schema_version_pkc"
"""A name that stands in the definition of our tables."""

_SMALLEST = 512
"""Bytes of the smallest database there is."""

_CHUNK = 1 << 20
_BESIDE = ("-journal", "-wal", "-shm")

Identity = tuple[int, int]


def identity(path: Path) -> Identity | None:
    """Return what tells one file from a later one at the same path, or None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def set_aside(path: Path, damaged: Identity | None) -> str | None:
    """Move a damaged file to `<path>.damaged-<n>`, with its journal, and say so in one line.

    Returns None if it stays: it is not damaged after all, was not ours, or cannot be moved.
    """
    try:
        with _alone(path.parent):
            if identity(path) != damaged:
                return f"the cache {path} was damaged, and another process has moved it aside"
            if not (_is_damaged(path) and _was_ours(path)):
                return None
            target = _unused(path)
            for suffix in _BESIDE:  # a journal left behind would be played into the next file
                beside = Path(f"{path}{suffix}")
                if beside.exists():
                    beside.rename(f"{target}{suffix}")
            path.rename(target)
    except OSError:
        return None
    return f"the cache {path} is damaged and was moved to {target}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time move files in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_cut_off(path: Path) -> bool:
    """Say whether a file is shorter than any database, though not empty.

    SQLite takes such a file for an empty one, and would write over it.
    """
    try:
        return 0 < path.stat().st_size < _SMALLEST
    except FileNotFoundError:  # another process has moved it
        return False


def _is_damaged(path: Path) -> bool:
    """Ask SQLite again, about the whole file. One that is locked, say, is not damaged."""
    if is_cut_off(path):
        return True
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)) as connection:
            return connection.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]
    except sqlite3.OperationalError:
        return False
    except (sqlite3.DatabaseError, UnicodeDecodeError):  # the latter: what is wrong with a name
        return True


def _was_ours(path: Path) -> bool:
    """Say whether a file is signed, has our tables in it somewhere, or nothing but zeros."""
    with path.open("rb") as file:
        last = file.read(_HEADER_BYTES)
        if last.startswith(_MAGIC) and last[_ID_PLACE] == APPLICATION_ID.to_bytes(4, "big"):
            return True
        zeros = not last.strip(b"\0")
        while chunk := file.read(_CHUNK):
            if _MARK in last + chunk:
                return True
            zeros = zeros and not chunk.strip(b"\0")
            last = chunk[-len(_MARK) :]
    return zeros


def _unused(path: Path) -> Path:
    targets = (Path(f"{path}.damaged-{number}") for number in count(1))
    return next(target for target in targets if not os.path.lexists(target))
