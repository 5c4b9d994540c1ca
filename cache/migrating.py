"""Bring the tables of an older schema to the newest, with a copy of the file kept beside it.

A file that may not be written is migrated in a private copy in memory, which its reader then reads.

Alembic is loaded here and only when there is something to migrate: an open has no time for it.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

from sqlalchemy import Connection, StaticPool, create_engine

from tunekit.cache.models import SCHEMA_VERSION, Base, SchemaVersion
from tunekit.errors import StoreError

_log = logging.getLogger(__name__)

_SCRIPTS = Path(__file__).with_name("migrations")
_lock = threading.Lock()  # Alembic's `op` is one for the whole process


def _after_fork() -> None:
    """Give a forked child a lock of its own: the parent's may have been taken in the fork."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def migrate(connection: Connection, version: str) -> None:
    """Run the scripts from a version to the newest within the transaction that is open."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(_SCRIPTS, version_locations=[_SCRIPTS])
    steps = list(scripts.iterate_revisions(SCHEMA_VERSION, version))
    options = {"version_table": SchemaVersion.__tablename__, "target_metadata": Base.metadata}
    context = MigrationContext.configure(connection, opts=options)
    with _lock, Operations.context(context):
        for step in reversed(steps):
            step.module.upgrade()
    context.stamp(scripts, SCHEMA_VERSION)


def keep_copy(path: Path, version: str) -> Path:
    """Copy a database file to a name that says its version, and return that. Older copies stay.

    Raises:
        StoreError: the copy cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        try:
            copy_database(path, unfinished)
            shutil.copymode(path, unfinished)
            return _link_unused(unfinished, f"{path}.schema-{version}")
        finally:
            unfinished.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"cannot copy the cache {path} before its tables are changed: {error}:"
            " make room beside it, or name another with --cache"
        ) from error


def copy_database(path: Path, target: Path) -> None:
    """Copy the committed state of a database file, also while others use it."""
    source = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    with closing(source), closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def _link_unused(file: Path, name: str) -> Path:
    """Give a file a further name, numbered if it is taken."""
    for number in count(1):
        target = Path(f"{name}.backup" if number == 1 else f"{name}.backup-{number}")
        try:
            os.link(file, target)
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            if target.exists():
                continue
            file.rename(target)
        return target
    raise AssertionError("there is always another number")


def private_copy(
    connect: Callable[[], sqlite3.Connection], version: str
) -> Callable[[], sqlite3.Connection]:
    """Return what makes a copy in memory of a database, in the newest schema."""

    def copied() -> sqlite3.Connection:
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        with closing(connect()) as source:
            source.backup(memory)
        engine = create_engine("sqlite+pysqlite://", creator=lambda: memory, poolclass=StaticPool)
        with engine.begin() as connection:
            migrate(connection, version)
        memory.execute("PRAGMA query_only = ON")
        return memory

    return copied
