"""What tables a database holds: ours, of which schema, and how it comes to have the newest.

Nothing of a database that is refused is changed.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, insert

from tunekit.cache.engine import Database
from tunekit.cache.models import (
    APPLICATION_ID,
    OLDER_VERSIONS,
    SCHEMA_VERSION,
    Base,
    SchemaVersion,
)
from tunekit.cache.queries import SERVER_TABLES, TABLES, VERSIONS, select_rows
from tunekit.cache.sqlite_file import copied_database, sqlite_connect
from tunekit.errors import DamagedStoreError, NoStoreError, StoreError

_log = logging.getLogger(__name__)

_OURS = frozenset(Base.metadata.tables)


@dataclass(frozen=True, slots=True)
class Found:
    """What a database holds: the names of its tables, and the revision they say they have."""

    tables: frozenset[str]
    version: str | None


def look(database: Database) -> Found:
    """Return what a database holds.

    Raises:
        StoreError: it cannot be read.
    """
    with database.reading() as connection:
        return _look_through(connection)


def checked(
    database: Database,
    *,
    create: bool,
    found: Found | None = None,
    path: Path | None = None,
    mode: str = "rw",
) -> Database:
    """Return a database with the newest tables, if it has ours or none.

    `found` is what was seen in it, if somebody has just looked.

    Tables are made where there are none, if `create`. Those of an older schema are migrated; a file
    (`path`, opened with `mode`) that cannot be is given as a migrated copy in memory.

    Raises:
        StoreError: it is not a tunekit cache, or a newer one, or cannot be read or made; or there
            are no tables and `create` is false.
    """
    found = found or look(database)
    if not found.tables:
        if not create:
            raise nothing_at(database.location)
        found = _make_tables(database)
    version = found.version
    if version is not None and version.isdecimal() and version > SCHEMA_VERSION:
        raise StoreError(
            f"the cache {database.location} has schema {version}, newer than this tunekit's"
            f" {SCHEMA_VERSION}: upgrade tunekit, or name another cache"
        )
    if version not in (*OLDER_VERSIONS, SCHEMA_VERSION) or not found.tables >= _OURS:
        raise StoreError(
            f"{database.location} is a database, but not a tunekit cache: name another path"
        )
    return database if version == SCHEMA_VERSION else _migrated(database, version, path, mode)


def nothing_at(location: str) -> NoStoreError:
    """Return the error that says there is no cache, and how one comes about."""
    return NoStoreError(
        f"there is no cache at {location}: make one with `tunekit tune --shapes FILE`",
        location=location,
    )


def _look_through(connection: Connection) -> Found:
    if connection.dialect.name == "sqlite":
        names = (name for (name,) in select_rows(connection, TABLES))
        tables = frozenset(name for name in names if not name.startswith("sqlite_"))
    else:
        names = (name for (name,) in select_rows(connection, SERVER_TABLES))
        tables = _OURS.intersection(names)  # others may share it
    version = None
    if SchemaVersion.__tablename__ in tables:
        rows = select_rows(connection, VERSIONS)
        version = rows[0][0] if rows else None
    # SQLite holds any value in any column.
    return Found(tables, version if isinstance(version, str) else None)


def _make_tables(database: Database) -> Found:
    with database.writing() as connection:
        # Whoever waited for the lock finds the tables that another process made meanwhile.
        if not _look_through(connection).tables:
            Base.metadata.create_all(connection, checkfirst=False)
            connection.execute(insert(SchemaVersion).values(version_num=SCHEMA_VERSION))
            _sign(connection)
        return _look_through(connection)


def _migrated(database: Database, version: str, path: Path | None, mode: str) -> Database:
    """Return the database in the newest schema: changed where it is, or else a copy in memory."""
    try:
        _migrate(database, version, path)
    except DamagedStoreError:
        raise
    except StoreError as error:
        if path is None:
            raise
        from tunekit.cache.migrating import private_copy

        reason = f"it has the older schema {version}, and cannot be brought up to date: {error}"
        copy = private_copy(sqlite_connect(path, mode), version)
        database = copied_database(path, copy, unwritable=reason)
    return checked(database, create=False, path=path, mode=mode)


def _migrate(database: Database, version: str, path: Path | None) -> None:
    from tunekit.cache.migrating import keep_copy, migrate

    if path is not None and not os.access(path, os.W_OK):  # SQLite would say so only at the end
        raise StoreError("the file is read-only")
    kept = None
    try:
        with database.writing() as connection:
            # Whoever waited for the lock finds that another process has migrated meanwhile.
            if _look_through(connection).version != version:
                return
            kept = None if path is None else keep_copy(path, version)
            migrate(connection, version)
            _sign(connection)
    except StoreError:
        if kept is not None:
            kept.unlink()  # a copy of what has not changed
        raise
    beside = "" if kept is None else f"; the file as it was is kept as {kept}"
    _log.warning(
        "the cache %s was brought from schema %s to %s%s",
        database.location,
        version,
        SCHEMA_VERSION,
        beside,
    )


def _sign(connection: Connection) -> None:
    """Mark a file as ours in its header."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
