"""Open a cache by path or URL, making it where there is none, and refusing what is not one.

No look at a file goes past SQLite: opening and closing it beside a connection of this process would
drop that connection's locks. Nothing of a file that is refused is changed.
"""

from __future__ import annotations

import logging
import os
import re
from functools import partial
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from tunekit.cache.damage import Identity, identity, is_cut_off, set_aside
from tunekit.cache.engine import (
    Database,
    file_error,
    is_passing,
    server_database,
)
from tunekit.cache.filesystem import network_type
from tunekit.cache.sqlite_file import sqlite_database
from tunekit.cache.tables import checked, look, nothing_at
from tunekit.errors import DamagedStoreError, StoreError

_log = logging.getLogger(__name__)

_ATTEMPTS = 10
"""How often a file is opened that others move aside and make anew meanwhile."""

_URI = re.compile(r"(file|sqlite|postgres(ql)?)(\+\w+)?:(?!//)|:memory:$")
"""What looks like a URL, but names no cache."""

_LONGEST_PATH, _LONGEST_NAME = 480, 220
"""Bytes of a path that SQLite opens, and of a name that leaves room for those of its journal, its
backups and what is moved aside."""


def open_database(location: str | Path, *, create: bool) -> Database:
    """Return the database at a path or URL, with the tables in it.

    Raises:
        StoreError: it cannot be opened or made, is not a tunekit cache, or is a newer one; or there
            is none and `create` is false.
    """
    try:
        return _open_anything(location, create=create)
    except OSError as error:
        shown = "" if "://" in str(location) else str(location)  # a URL may hold a password
        raise file_error("open", shown, error) from error


def _open_anything(location: str | Path, *, create: bool) -> Database:
    place = place_of(location)
    if isinstance(place, URL):
        return checked(server_database(place), create=create)
    if create:
        _warn_of_network(place)
    if place.exists():
        return _open_file(place, create=create)
    if not create:
        raise nothing_at(str(place))
    _make_folder(place.parent)
    return _open_file(place, create=True)


def place_of(location: str | Path) -> URL | Path:
    """Return the server or the absolute path that a location names, without touching either.

    Raises:
        StoreError: no cache can be there, whatever is done about it.
    """
    if isinstance(location, str):
        location = location.strip()
        if not location:
            raise StoreError("the cache's location is empty: name a path or postgresql://...")
    if isinstance(location, str) and "://" in location:
        url = _parse_url(location)
        if url.get_backend_name() == "postgresql":
            return url
        location = url.database or ""
    return _checked_path(location)


def _warn_of_network(path: Path) -> None:
    """Say that SQLite's locks may not hold on a network file system, and what does."""
    kind = network_type(path)
    if kind is not None:
        _log.warning(
            "the cache %s is on a network file system (%s), where processes of several hosts that"
            " write at once may damage it: name a path on a local disk, or postgresql://..., with"
            " --cache or TUNEKIT_CACHE",
            path,
            kind,
        )


def _parse_url(location: str) -> URL:
    try:
        url = make_url(location)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError) as error:  # may hold a password: not repeated
        raise StoreError("the cache URL cannot be read: use postgresql://... or a path") from error
    if backend not in ("sqlite", "postgresql"):
        raise StoreError(f"a cache cannot be kept in {backend}: use a path or postgresql://...")
    if url.port is not None and url.port >= 1 << 16:
        raise StoreError(f"the cache URL names the port {url.port}, which no server has")
    if backend == "sqlite":
        _check_sqlite(url, location)
    elif "@" in (url.host or ""):  # the rest of a password: not repeated
        raise StoreError("the cache URL has a second @: write one in a password as %40")
    return url


def _check_sqlite(url: URL, location: str) -> None:
    """Refuse a URL that names anything but a file: what is in memory would be lost."""
    use = "use sqlite:///path/to/tunekit.db"
    if url.host:
        raise StoreError(f"the cache URL names a host, but SQLite has none: {use}")
    if url.query or "?" in location:  # what is behind a ? and no option is lost in `url`
        raise StoreError(f"the cache URL has options, but takes none for SQLite: {use}")
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise StoreError(f"the cache URL names the driver {url.drivername}: {use}")
    if not url.database or _URI.match(url.database):
        raise StoreError(f"the cache URL names no file: {use}")


def _checked_path(location: str | Path) -> Path:
    """Return the absolute path, if a database could be there."""
    if _URI.match(str(location)):
        raise StoreError(f"the cache {str(location)!r} is not a plain path: name a file")
    if any(letter < " " or letter == "\x7f" for letter in str(location)):
        raise StoreError(f"the cache's path {str(location)!r} holds a control letter: name another")
    try:
        # SQLite keeps the journal of a file beside the file itself, not beside a link to it.
        path = Path(location).expanduser().resolve()
        if path.is_dir():
            raise StoreError(f"the cache {path} is a folder: name a file in it")
        if path.exists() and not path.is_file():
            raise StoreError(f"the cache {path} is not a plain file: name another path")
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise StoreError(
            f"the cache {str(location)!r} is not a usable path: {error}", passing=is_passing(error)
        ) from error
    if len(os.fsencode(path)) > _LONGEST_PATH or len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise StoreError(
            f"the path of the cache is too long for SQLite ({_LONGEST_PATH} bytes, {_LONGEST_NAME}"
            f" of them in the name): name a shorter one than {path}"
        )
    return path


def _make_folder(folder: Path) -> None:
    """Make a folder, and those above it, for this user alone."""
    try:
        missing = [f for f in (folder, *folder.parents) if not f.exists()]
        for made in reversed(missing):
            made.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make the cache folder {folder}: {error.strerror}: name another with --cache"
        ) from error
    fault = None if folder.is_dir() else "not a folder"
    if fault is None and not os.access(folder, os.W_OK | os.X_OK):
        fault = "not writable"
    if fault is not None:
        raise StoreError(f"cannot make the cache in {folder}: it is {fault}: name another --cache")


def _open_file(path: Path, *, create: bool) -> Database:
    """Open a file; one that is damaged is moved out of the way of whoever is going to write."""
    for _ in range(_ATTEMPTS):
        found = identity(path)
        aside = partial(set_aside, path, found)
        try:
            database = _open_as_allowed(path, found, create=create)
        except DamagedStoreError:
            done = aside() if create else None
            if done is None:
                raise
            _log.warning("%s; a new one takes its place", done)
        except StoreError:
            if identity(path) == found:
                raise  # else another process moved it meanwhile
        else:
            database.on_damage = aside if create and found is not None else None
            return database
    raise StoreError(f"the cache {path} is replaced again and again by other processes: try later")


def _open_as_allowed(path: Path, known: Identity | None, *, create: bool) -> Database:
    """Open a known file for writing if possible, else for reading; or make it."""
    if known is None:
        return checked(sqlite_database(path, "rwc" if create else "rw"), create=create, path=path)
    if not os.access(path, os.R_OK):
        raise StoreError(f"the cache {path} may not be read by this user: name another path")
    if is_cut_off(path):
        raise DamagedStoreError(
            f"the cache {path}: file is not a database, or was cut off: name another path"
        )
    modes = ["rw", "ro"]
    # SQLite reads an immutable file without locks. That is right only where nobody can write: a
    # live writer's unfinished journal would be overlooked.
    beside = (Path(f"{path}{suffix}") for suffix in ("-journal", "-wal"))
    if not os.access(path.parent, os.W_OK) and not any(other.exists() for other in beside):
        modes.append("ro&immutable=1")
    while True:
        mode = modes.pop(0)
        database = sqlite_database(path, mode)
        try:
            found = look(database)
        except DamagedStoreError:
            raise
        except StoreError:
            # One that was moved away cannot be opened either: the next is not for reading alone.
            if not modes or identity(path) != known:
                raise
        else:
            return checked(database, create=create, found=found, path=path, mode=mode)
