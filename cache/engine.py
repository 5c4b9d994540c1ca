"""Transactions on one database, whichever it is, from any thread and after any fork.

How SQLite's begin, `sqlite_file` says. PostgreSQL: a write takes one advisory lock first, so it too
waits for its turn before it reads what it will change, and a read is one snapshot. Trials are
written by many at once: each of their statements says what is to happen if another made the row.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    QueuePool,
    Select,
    create_engine,
    func,
    select,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tunekit.cache.forking import drop_before_forks, unforked
from tunekit.cache.location import shown_location
from tunekit.cache.models import APPLICATION_ID
from tunekit.errors import DamagedStoreError, StoreError

SQL_ERRORS = (SQLAlchemyError,)
"""What a database that another library opens through SQLAlchemy, as Optuna does, may raise."""

BUSY_SECONDS = 30.0
"""How long a transaction waits for another's lock."""

CONNECT_SECONDS = 10
"""How long a server may take to answer at all."""

_ADVISORY_LOCK = APPLICATION_ID  # any number, as long as every tunekit takes the same

_SILENT_SECONDS = 15.0
"""How long a server keeps a transaction, and its locks, for a client that says nothing: less than
others wait for it. Its host may have gone, or its link."""

_LINK = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}
"""When a client gives up a server that says nothing, in seconds and times: the system would wait
for hours. What a URL says goes before."""

_HELD = f"another process held it for {BUSY_SECONDS:.0f} s: end that one, or try later"
_CURES = (
    ("locked", _HELD),
    ("lock timeout", _HELD),
    ("readonly", "it is read-only: make it writable, or name another with --cache"),
    ("not a database", "move it away, or name another with --cache"),
    ("malformed", "it is damaged: tune or import-cache moves it aside and starts a new one"),
    ("unable to open", "check that its folder exists and may be written, or name another"),
    ("full", "free some space"),
    ("disk I/O error", "if it is on a network file system, name a local path or postgresql://..."),
)

_PASSING = ("disk I/O error", "unable to open")
"""What SQLite says where a network file system is busy, or a file was replaced meanwhile."""


class _NoInterrupts(logging.Filter):
    """Drops what a pool logs, with its traceback, when Ctrl-C comes while it closes a connection.

    The interrupt itself goes on, and whoever catches it says so.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            if isinstance(error, KeyboardInterrupt):
                return False
            error = error.__context__
        return True


_NO_INTERRUPTS = _NoInterrupts()
for _pool in (NullPool, QueuePool):  # those that `sqlite_file` and servers have
    logging.getLogger(f"{_pool.__module__}.{_pool.__name__}").addFilter(_NO_INTERRUPTS)


class Database:
    """A database that transactions can be had on. Threads may share one."""

    def __init__(
        self,
        location: str,
        make_engine: Callable[[], Engine],
        *,
        folder: Path | None = None,
        unwritable: str | None = None,
        on_damage: Callable[[], str | None] | None = None,
    ) -> None:
        """Make transactions of an engine.

        `folder` is where SQLite makes its journal; `unwritable` says why nothing can be written.
        `on_damage` is called when the database turns out to be damaged, and says what it did.
        """
        self.location = location
        self.on_damage = on_damage
        self._folder = folder
        self._unwritable = unwritable
        self._make_engine = make_engine
        self._engine = make_engine()
        self._pid = os.getpid()
        if folder is not None:
            drop_before_forks(self)

    @property
    def on_server(self) -> bool:
        """Whether it is a server's, and not a file that could be moved aside meanwhile."""
        return self._folder is None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database throughout.

        Raises:
            StoreError: the database cannot be read.
        """
        engine = self._own_engine()
        if engine.dialect.name == "postgresql":
            engine = engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        with self._guarded("read"), self._apart(), engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, *, alone: bool = True) -> Iterator[Connection]:
        """Give a connection that alone may write; its changes are kept together or not at all.

        If it need not be alone, a server lets others of its kind write at the same time.

        Raises:
            StoreError: the database cannot be written.
        """
        if self._unwritable is not None:
            raise StoreError(f"cannot write the cache {self.location}: {self._unwritable}")
        # SQLite would find out only at the first page that changes.
        if self._folder is not None and not os.access(self._folder, os.W_OK | os.X_OK):
            raise StoreError(
                f"cannot write the cache {self.location}: its folder is not writable,"
                " and a journal has to be made there: make it so, or name another with --cache"
            )
        engine = self._own_engine().execution_options(tunekit_writes=True)
        with self._guarded("write"), self._apart(), engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(_lock(alone))
            yield connection

    def close(self) -> None:
        """Let go of every connection that no transaction has."""
        self._own_engine().dispose()

    def _own_engine(self) -> Engine:
        """Return this process's engine: a forked child must not touch its parent's."""
        if self._pid != os.getpid():
            self._engine.dispose(close=False)
            self._engine = self._make_engine()
            self._pid = os.getpid()
        return self._engine

    def _apart(self) -> AbstractContextManager[None]:
        """Keep forks out of a transaction on a file."""
        return nullcontext() if self._folder is None else unforked()

    @contextmanager
    def _guarded(self, verb: str) -> Iterator[None]:
        """Turn what the database library raises into one line; the only place where that happens.

        Raises:
            DamagedStoreError: the file is damaged; the text says where it went, if it was moved.
            StoreError: anything else.
        """
        try:
            with _translated(verb, self.location):
                yield
        except DamagedStoreError as error:
            done = None if self.on_damage is None else self.on_damage()
            if done is None:
                raise
            raise DamagedStoreError(f"{done}: the same command again starts a new one") from error


def _lock(alone: bool) -> Select[Any]:
    """Return what takes the lock: of one who writes alone, or of many who do not mind others."""
    take = func.pg_advisory_xact_lock if alone else func.pg_advisory_xact_lock_shared
    silent = f"{_SILENT_SECONDS:.0f}s"
    return select(
        func.set_config("lock_timeout", f"{BUSY_SECONDS:.0f}s", True),
        func.set_config("idle_in_transaction_session_timeout", silent, True),
        take(_ADVISORY_LOCK),
    )


def server_database(url: URL) -> Database:
    """Return the database behind a PostgreSQL URL, whose driver is psycopg if it names none.

    Raises:
        StoreError: the URL's driver is not installed.
    """

    location = shown_location(url.render_as_string(hide_password=True))
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if "psycopg" in url.drivername:
        plain = {
            "connect_timeout": str(CONNECT_SECONDS),
            "tcp_user_timeout": f"{BUSY_SECONDS * 1e3:.0f}",
            **_LINK,
        }
        url = url.update_query_dict({n: v for n, v in plain.items() if n not in url.query})

    def make_engine() -> Engine:
        return create_engine(url, pool_pre_ping=True)

    try:
        with _translated("open", location):
            return Database(location, make_engine)
    except ImportError as error:
        driver = url.get_backend_name() if error.name is None else error.name
        other = "" if driver == "psycopg" else ", and write postgresql://..."
        raise StoreError(
            f"the cache {location} needs the driver {driver}:"
            f" pip install 'tunekit-triton[postgres]'{other}"
        ) from error


@contextmanager
def _translated(verb: str, location: str) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raised = error.orig if isinstance(error, DBAPIError) else error
        reason = " ".join(str(raised).split())
        if not reason and isinstance(raised, sqlite3.DatabaseError):  # what Python 3.10 makes of it
            raise _garbled(verb, location) from error
        cure = next((f": {cure}" for needle, cure in _CURES if needle in reason), "")
        text = f"cannot {verb} the cache {location}: {reason}{cure}"
        if "malformed" in reason or "file is not a database" in reason:
            raise DamagedStoreError(text) from error
        raise StoreError(text, passing=any(fault in reason for fault in _PASSING)) from error
    except UnicodeDecodeError as error:  # SQLite's own words, about a name that was damaged
        raise _garbled(verb, location) from error
    except OSError as error:
        raise file_error(verb, location, error) from error


def _garbled(verb: str, location: str) -> DamagedStoreError:
    cure = f"its tables are malformed: {dict(_CURES)['malformed']}"
    return DamagedStoreError(f"cannot {verb} the cache {location}: {cure}")


def file_error(verb: str, location: str, error: OSError) -> StoreError:
    """Return what the file system raised as one line."""
    reason = error.strerror or str(error)
    return StoreError(f"cannot {verb} the cache {location}: {reason}", passing=is_passing(error))


def is_passing(error: Exception) -> bool:
    """Say whether a fault is one of those with which network file systems come and go."""
    return isinstance(error, OSError) and error.errno in (errno.ESTALE, errno.EBUSY, errno.ENOENT)
