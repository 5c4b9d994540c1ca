"""Whether a cache file is in order, found out without changing or locking anything for long."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from tunekit.cache.filesystem import network_type
from tunekit.cache.models import SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class FileHealth:
    """What can be said of a cache file. Of what was not reached nothing is said."""

    path: Path
    exists: bool
    size_bytes: int = 0
    readable: bool = True
    writable: bool = True
    """Of a file that is not there: whether it could be made."""
    network: str | None = None
    """The type of the network file system it is on, if it is on one."""
    schema: str | None = None
    newest_schema: str = SCHEMA_VERSION
    fault: str | None = None
    """What is wrong with its contents."""


def file_of(location: str) -> Path | None:
    """Return the file that a path or an SQLite URL names, or None for a server or no URL at all."""
    if "://" not in location:
        return Path(location).expanduser()
    try:
        url = make_url(location)
    except (ArgumentError, ValueError):
        return None
    sqlite = url.get_backend_name() == "sqlite" and url.database
    return Path(url.database or "") if sqlite else None


def examine(path: Path) -> FileHealth:
    """Look at a cache file: permissions, file system, schema, and SQLite's own check of it all."""
    network = network_type(path)
    if not path.exists():
        return FileHealth(path, exists=False, writable=_can_make(path), network=network)
    readable = path.is_file() and os.access(path, os.R_OK)
    schema, fault = _contents(path) if readable else (None, None)
    return FileHealth(
        path,
        exists=True,
        size_bytes=path.stat().st_size,
        readable=readable,
        writable=os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK),
        network=network,
        schema=schema,
        fault=fault,
    )


def _can_make(path: Path) -> bool:
    above = next((folder for folder in path.absolute().parents if folder.exists()), None)
    return above is not None and above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def _contents(path: Path) -> tuple[str | None, str | None]:
    """Return a file's schema, and what is wrong with it."""
    beside = any(Path(f"{path}{suffix}").exists() for suffix in ("-journal", "-wal"))
    frozen = not os.access(path.parent, os.W_OK) and not beside
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if frozen else ''}"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=5)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                return None, " ".join(str(found).split())[:200]
            (schema,) = connection.execute("SELECT version_num FROM schema_version").fetchone()
            for table, *_ in connection.execute("PRAGMA foreign_key_check"):
                return str(schema), f"a row of {table} names one that is not there"
            return str(schema), None
    except (sqlite3.Error, TypeError) as error:  # TypeError: the table of the schema is empty
        text = "it says no schema" if isinstance(error, TypeError) else str(error) or "damaged"
        return None, "it is not a tunekit cache" if "no such table" in text else text
