"""Databases in SQLite: how one is connected to, how its transactions begin, and what is kept open.

A write begins with `BEGIN IMMEDIATE`: it waits for its turn before it reads what it will change. A
read begins plainly and does not wait for a writer until that one commits. The journal stays the
rollback journal: a WAL file cannot be read from a folder one may not write, and switching to WAL
fails on a cold file when others open it.

To connect, and to read the schema, takes longer than to find a row. So one connection that nobody
uses is kept, for whichever transaction comes next, as long as the file is just as it was left: any
change of it, and any other file in its place, is met with a new connection. No transaction shares
one, and none is there when the process forks.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from tunekit.cache.engine import BUSY_SECONDS, Database

LOOK_SECONDS = (0.002, 0.02)
"""How long a writer sleeps, at least and at most, before it looks again whether it may begin."""

_STATE = "tunekit_state"
"""Under what name a connection that is kept has the state of its file."""

_State = tuple[int, ...]


class _FileConnection(sqlite3.Connection):
    """A connection that knows which file it opened, if that is certain."""

    opened: _State | None = None

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, *arguments: Any, **settings: Any) -> Any:
        """Make a cursor, and remember it."""
        cursor = super().cursor(*arguments, **settings)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        """End what a Ctrl-C interrupted, and let the file go.

        The traceback that passes on still holds the cursors, and SQLite keeps a closed connection's
        locks as long as there are any: this process would wait for itself.
        """
        for cursor in list(self._cursors):
            with suppress(sqlite3.Error):
                cursor.close()
        with suppress(sqlite3.Error):
            if self.in_transaction:
                self.rollback()
        super().close()


def sqlite_connect(path: Path, mode: str) -> Callable[[], sqlite3.Connection]:
    """Return what connects to a file with this mode of SQLite's file URIs."""
    uri = f"{path.as_uri()}?mode={mode}"

    def connect() -> sqlite3.Connection:
        before = _state(path)
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False,
            factory=_FileConnection,
        )  # fmt: skip
        after = _state(path)
        if before is not None and after is not None and before[:2] == after[:2]:
            connection.opened = before[:2]
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    return connect


def sqlite_database(path: Path, mode: str) -> Database:
    """Return the database in a file, opened with this mode of SQLite's file URIs."""
    connect = sqlite_connect(path, mode)

    def make_engine() -> Engine:
        if "immutable" in mode:  # SQLite would not look whether it has changed
            engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=NullPool)
        else:
            engine = create_engine(
                "sqlite+pysqlite://",
                creator=connect,
                poolclass=QueuePool,
                pool_size=1,
                max_overflow=-1,
            )
            _keep_while_unchanged(engine, path)
        event.listen(engine, "begin", _begin)
        return engine

    return Database(str(path), make_engine, folder=path.parent)


def copied_database(
    path: Path, copy: Callable[[], sqlite3.Connection], *, unwritable: str
) -> Database:
    """Return a database that is read from a copy in memory, by one thread at a time."""

    def make_engine() -> Engine:
        return create_engine(
            "sqlite+pysqlite://",
            creator=copy,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_timeout=BUSY_SECONDS,
        )

    return Database(str(path), make_engine, unwritable=unwritable)


def _keep_while_unchanged(engine: Engine, path: Path) -> None:
    """Let a connection that was kept be used only if its file is as it was left."""

    def leave(connection: sqlite3.Connection | None, entry: ConnectionPoolEntry) -> None:
        found = _state(path)
        opened = connection.opened if isinstance(connection, _FileConnection) else None
        certain = found is not None and found[:2] == opened
        entry.info[_STATE] = found if certain else None

    def use(connection: sqlite3.Connection, entry: ConnectionPoolEntry, fairy: object) -> None:
        if _STATE not in entry.info:  # it is new
            return
        left = entry.info.pop(_STATE)
        if left is None or left != _state(path):
            raise DisconnectionError(f"{path} is not as it was left")

    event.listen(engine, "checkin", leave)
    event.listen(engine, "checkout", use)


def _state(path: Path) -> _State | None:
    """Return what tells a file from any other and from itself once changed, or None."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _begin(connection: Connection) -> None:
    """Begin a transaction; one that writes waits here for its turn.

    SQLite's own wait looks less and less often, so among many writers those who came last go first
    and some never do: of 64 that write all the time, two had no turn in 30 s. Here all look equally
    often.
    """
    cursor = connection.connection.cursor()
    if not connection.get_execution_options().get("tunekit_writes", False):
        cursor.execute("BEGIN")
        return
    cursor.execute("PRAGMA busy_timeout = 0")
    try:
        _begin_immediately(cursor)
    finally:  # the commit waits for reads
        cursor.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")


def _begin_immediately(cursor: DBAPICursor) -> None:
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
        time.sleep(random.uniform(*LOOK_SECONDS))
