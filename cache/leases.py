"""Who is tuning a key: leases, so that two tuners never tune one key at the same time.

A lease ends when it is given back, when its time is over, or, for those on its host, at once when
its holder's process is gone; a process that later gets the same number began at another time. Its
time is read from one clock: the server's for PostgreSQL, this host's for a file, which processes of
one host are meant to share.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, update

from tunekit.cache.holder import Holder
from tunekit.cache.models import LeaseRow
from tunekit.cache.queries import LEASES
from tunekit.cache.rows import DamagedRowError, read_key
from tunekit.cache.writing import RowWriter
from tunekit.key import TuningKey

CREDIBLE_SECONDS = 7200.0
"""No lease is taken for longer than this, so one that is has an end by another clock."""

_LEASE = LeaseRow.__table__
_SERVER_TIME = select(func.extract("epoch", func.clock_timestamp()))


@dataclass(frozen=True, slots=True)
class Lease:
    """A key, who holds it, and until when (seconds of Unix time by the database's clock)."""

    key: TuningKey
    holder: Holder
    expires_at: float


def find_leases(connection: Connection) -> dict[TuningKey, Lease]:
    """Return the leases that hold: not over, not from the future, and no holder known to be gone.

    Where the clock was set back, the lease of a container that is gone would hold until that time
    comes again. A live holder's next renewal is by the clock as it is now.
    """
    now, found = _now(connection), {}
    for row in connection.execute(LEASES):
        *key_values, name, host, pid, started, expires_at = row
        try:
            key = read_key(key_values)
        except DamagedRowError:  # nobody can ask for such a key
            continue
        lease = Lease(key, Holder(name, host, pid, started), expires_at)
        if now < expires_at <= now + CREDIBLE_SECONDS and not lease.holder.is_gone():
            found[key] = lease
    return found


def take_leases(
    connection: Connection, keys: Collection[TuningKey], holder: Holder, seconds: float
) -> set[TuningKey]:
    """Give the holder those of the keys that nobody else holds, and return them."""
    held = find_leases(connection)
    free = {key for key in keys if key not in held or held[key].holder.name == holder.name}
    RowWriter(connection).leases(
        free,
        holder=holder.name,
        host=holder.host,
        pid=holder.pid,
        started=holder.started,
        expires_at=_now(connection) + seconds,
    )
    return free


def renew_leases(connection: Connection, holder: Holder, seconds: float) -> set[TuningKey]:
    """Let the holder's leases begin again, and return the keys that it holds."""
    own = _LEASE.c.holder == holder.name
    connection.execute(update(LeaseRow).where(own).values(expires_at=_now(connection) + seconds))
    rows = connection.execute(LEASES.where(own)).all()
    return {read_key(row[:-5]) for row in rows}


def drop_leases(connection: Connection, holder: Holder, keys: Collection[TuningKey] | None) -> None:
    """Give back the holder's leases: of these keys, or all."""
    statement = delete(LeaseRow).where(_LEASE.c.holder == holder.name)
    if keys is None:
        connection.execute(statement)
        return
    places = [RowWriter(connection).place(key) for key in keys]
    if places:
        names: dict[str, Any] = {name: bindparam(f"of_{name}") for name in places[0]}
        statement = statement.where(*(_LEASE.c[name] == value for name, value in names.items()))
        connection.execute(
            statement, [{f"of_{name}": value for name, value in p.items()} for p in places]
        )


def _now(connection: Connection) -> float:
    """Return the time by the one clock that all holders' leases are read from."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(_SERVER_TIME).scalar_one())
    return time.time()
