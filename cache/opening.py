"""Open a cache by path or URL, making it where there is none, and refusing what is not one.

No look at a file goes past SQLite: opening and closing it beside a connection of this process would
drop that connection's locks. Nothing of a file that is refused is changed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, insert, inspect, make_url, select
from sqlalchemy.exc import ArgumentError

from tunekit.cache.engine import Database, server_database, sqlite_database
from tunekit.cache.models import SCHEMA_VERSION, Base, SchemaVersion
from tunekit.errors import NoStoreError, StoreError

_OURS = frozenset(Base.metadata.tables)
_URI = re.compile(r"(file|sqlite|postgres(ql)?)(\+\w+)?:(?!//)|:memory:$")
"""What looks like a URL, but names no cache."""

_SMALLEST = 512
"""Bytes of the smallest database there is."""


def open_database(location: str | Path, *, create: bool) -> Database:
    """Return the database at a path or URL, with the tables in it.

    Raises:
        StoreError: it cannot be opened or made, is not a tunekit cache, or is a newer one; or there
            is none and `create` is false.
    """
    if isinstance(location, str):
        location = location.strip()
        if not location:
            raise StoreError("the cache's location is empty: name a path or postgresql://…")
    if isinstance(location, str) and "://" in location:
        url = _parse_url(location)
        if url.get_backend_name() == "postgresql":
            database = server_database(url)
            return _checked(database, _look(database), create=create)
        location = url.database or ""
    path = _checked_path(location)
    if path.exists():
        return _open_file(path, create=create)
    if not create:
        raise _nothing_at(str(path))
    _make_folder(path.parent)
    database = sqlite_database(path, "rwc")
    return _checked(database, _look(database), create=True)


def _parse_url(location: str) -> URL:
    try:
        url = make_url(location)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError) as error:  # may hold a password: not repeated
        raise StoreError("the cache URL cannot be read: use postgresql://… or a path") from error
    if backend not in ("sqlite", "postgresql"):
        raise StoreError(f"a cache cannot be kept in {backend}: use a path or postgresql://…")
    if url.port is not None and url.port >= 1 << 16:
        raise StoreError(f"the cache URL names the port {url.port}, which no server has")
    if backend == "sqlite":
        _check_sqlite(url)
    return url


def _check_sqlite(url: URL) -> None:
    """Refuse a URL that names anything but a file: what is in memory would be lost."""
    use = "use sqlite:///path/to/tunekit.db"
    if url.host:
        raise StoreError(f"the cache URL names a host, but SQLite has none: {use}")
    if url.query:
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
        path = Path(location).expanduser().absolute()
        if path.is_dir():
            raise StoreError(f"the cache {path} is a folder: name a file in it")
        if path.exists() and not path.is_file():
            raise StoreError(f"the cache {path} is not a plain file: name another path")
        # SQLite takes what is shorter than any database for an empty one, and would write over it.
        if path.exists() and 0 < path.stat().st_size < _SMALLEST:
            raise StoreError(f"the cache {path}: file is not a database: name another path")
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise StoreError(f"the cache {str(location)!r} is not a usable path: {error}") from error
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
    if not folder.is_dir():
        raise StoreError(f"cannot make the cache in {folder}: it is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"cannot make the cache in {folder}: the folder is not writable")


def _open_file(path: Path, *, create: bool) -> Database:
    """Open a file for writing if possible, else for reading."""
    if not os.access(path, os.R_OK):
        raise StoreError(f"the cache {path} may not be read by this user: name another path")
    modes = ["rw", "ro"]
    # SQLite reads an immutable file without locks. That is right only where nobody can write: a
    # live writer's unfinished journal would be overlooked.
    beside = (Path(f"{path}{suffix}") for suffix in ("-journal", "-wal"))
    if not os.access(path.parent, os.W_OK) and not any(other.exists() for other in beside):
        modes.append("ro&immutable=1")
    while True:
        database = sqlite_database(path, modes.pop(0))
        try:
            found = _look(database)
        except StoreError:
            if not modes:
                raise
        else:
            return _checked(database, found, create=create)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a database holds: the names of its tables, and the revision they say they have."""

    tables: frozenset[str]
    version: str | None


def _look(database: Database) -> _Found:
    with database.reading() as connection:
        return _look_through(connection)


def _look_through(connection: Connection) -> _Found:
    tables = frozenset(inspect(connection).get_table_names())
    if connection.dialect.name != "sqlite":
        tables &= _OURS  # a server's schema may be shared with others
    version = None
    if SchemaVersion.__tablename__ in tables:
        found = connection.scalar(select(SchemaVersion.version_num))
        version = found if isinstance(found, str) else None  # SQLite holds any value in any column
    return _Found(tables, version)


def _checked(database: Database, found: _Found, *, create: bool) -> Database:
    """Return the database if its tables are ours, made now where there were none."""
    if not found.tables:
        if not create:
            raise _nothing_at(database.location)
        found = _make_tables(database)
    version = found.version
    if version is not None and version.isdecimal() and version > SCHEMA_VERSION:
        raise StoreError(
            f"the cache {database.location} has schema {version}, newer than this tunekit's"
            f" {SCHEMA_VERSION}: upgrade tunekit, or name another cache"
        )
    if version != SCHEMA_VERSION or not found.tables >= _OURS:
        raise StoreError(
            f"{database.location} is a database, but not a tunekit cache: name another path"
        )
    return database


def _make_tables(database: Database) -> _Found:
    with database.writing() as connection:
        # Whoever waited for the lock finds the tables that another process made meanwhile.
        if not _look_through(connection).tables:
            Base.metadata.create_all(connection, checkfirst=False)
            connection.execute(insert(SchemaVersion).values(version_num=SCHEMA_VERSION))
        return _look_through(connection)


def _nothing_at(location: str) -> StoreError:
    return NoStoreError(
        f"there is no cache at {location}: make one with `tunekit tune`", location=location
    )
