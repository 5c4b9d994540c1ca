"""The questions put to the tables.

Each statement is built once, of tables and not of their mapped classes: building one takes longer
than running it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    any_,
    bindparam,
    column,
    distinct,
    func,
    select,
    table,
)
from sqlalchemy.sql.compiler import SQLCompiler

from tunekit.cache.models import (
    BaselineRow,
    BestRow,
    ConfigRow,
    DeviceRow,
    EnvironmentRow,
    LeaseRow,
    MissRow,
    ProblemRow,
    SchemaVersion,
    TrialRow,
)
from tunekit.cache.rows import DEVICE_FIELDS, ENVIRONMENT_FIELDS, KEY_FIELDS, MEASUREMENT_FIELDS
from tunekit.key import TuningKey

_BEST, _TRIAL, _BASELINE = BestRow.__table__, TrialRow.__table__, BaselineRow.__table__
_DEVICE, _PROBLEM, _CONFIG = DeviceRow.__table__, ProblemRow.__table__, ConfigRow.__table__
_ENVIRONMENT, _MISS = EnvironmentRow.__table__, MissRow.__table__
_LEASE = LeaseRow.__table__
_VENDOR = _BASELINE.alias("vendor")

_KEY_COLUMNS = [_DEVICE.c.slug if name == "gpu" else _PROBLEM.c[name] for name in KEY_FIELDS]
_PROVENANCE_COLUMNS = ("source", "origin", "created_at", "environment_id", "imported")
KEY_END = len(KEY_FIELDS)
MEASUREMENT_END = KEY_END + len(MEASUREMENT_FIELDS)
RESULT_END = MEASUREMENT_END + len(_PROVENANCE_COLUMNS)
"""Where in a row its key, its measurement and its provenance end, and a table's own begin."""


def _of_keys(table: FromClause, *own: ColumnElement[Any]) -> Select[Any]:
    """Select the key of a table's rows, then the table's own columns."""
    return (
        select(*_KEY_COLUMNS, *own)
        .join_from(table, _PROBLEM, table.c.problem_id == _PROBLEM.c.id)
        .join(_DEVICE, table.c.device_id == _DEVICE.c.id)
    )


def _results(table: FromClause, *own: ColumnElement[Any]) -> Select[Any]:
    """Select what the rows of bests, trials and baselines all have, then the table's own."""
    names = (*MEASUREMENT_FIELDS, *_PROVENANCE_COLUMNS)
    return _of_keys(table, *(table.c[name] for name in names), *own)


BESTS = (
    _results(
        _BEST,
        *(_BEST.c.choice, _CONFIG.c.text, _BEST.c.trials, _BEST.c.space_size, _BEST.c.count),
        *(_BEST.c.expected_distance, _BEST.c.distance_bound),
        *(_VENDOR.c[name] for name in ("id", *MEASUREMENT_FIELDS)),
    )
    .join(_CONFIG, _BEST.c.config_id == _CONFIG.c.id)
    .outerjoin(_VENDOR, _BEST.c.baseline_id == _VENDOR.c.id)
)
TRIALS = (
    _results(_TRIAL, _TRIAL.c.status, _CONFIG.c.text, _TRIAL.c.error)
    .join(_CONFIG, _TRIAL.c.config_id == _CONFIG.c.id)
    .join(_ENVIRONMENT, _TRIAL.c.environment_id == _ENVIRONMENT.c.id)
    .order_by(_TRIAL.c.id)
)
RECENT_TRIALS = TRIALS.order_by(None).order_by(_TRIAL.c.id.desc()).limit(bindparam("most"))
_PLACE = select(_TRIAL.c.problem_id, _TRIAL.c.device_id).distinct().subquery("place")
PLACES = _of_keys(_PLACE, _PLACE.c.problem_id, _PLACE.c.device_id)
"""The keys that have trials, each with the ids by which `OUTCOMES` knows it."""

OUTCOMES = (
    select(
        *(_TRIAL.c.problem_id, _TRIAL.c.device_id, _ENVIRONMENT.c.compiler),
        *(_TRIAL.c.status, _CONFIG.c.text, _TRIAL.c.median_us, _TRIAL.c.error),
    )
    .join_from(_TRIAL, _DEVICE, _TRIAL.c.device_id == _DEVICE.c.id)
    .join(_CONFIG, _TRIAL.c.config_id == _CONFIG.c.id)
    .join(_ENVIRONMENT, _TRIAL.c.environment_id == _ENVIRONMENT.c.id)
    .where(_TRIAL.c.problem_id.between(bindparam("first"), bindparam("last")))
    .order_by(_TRIAL.c.problem_id, _TRIAL.c.device_id, _TRIAL.c.id)
)
"""Trials of many keys in brief: to join the key to each would take longer than all the rest."""

BASELINES = _results(_BASELINE, _BEST.c.id).outerjoin(_BEST, _BEST.c.baseline_id == _BASELINE.c.id)
MISSES = _of_keys(_MISS, _MISS.c.count)
TRIED = _of_keys(_TRIAL, func.count()).group_by(*_KEY_COLUMNS)
LEASES = _of_keys(
    _LEASE,
    *(_LEASE.c[name] for name in ("holder", "host", "pid", "started", "expires_at")),
)
ENVIRONMENTS = select(_ENVIRONMENT.c.id, *(_ENVIRONMENT.c[name] for name in ENVIRONMENT_FIELDS))
ANY_TRIAL = select(_TRIAL.c.id).limit(1)
VERSIONS = select(SchemaVersion.__table__.c.version_num)
TABLES: Select[Any] = (
    select(column("name"))
    .select_from(table("sqlite_master", column("type")))
    .where(column("type") == "table")
)
"""The names of an SQLite file's tables."""

SERVER_TABLES: Select[Any] = (
    select(column("tablename"))
    .select_from(table("pg_tables", column("schemaname")))
    .where(column("schemaname") == any_(func.current_schemas(False)))
)
"""The names of tables on a server that a connection finds, as of its transaction.

`pg_table_is_visible`, which SQLAlchemy's inspector asks, answers as of now: of a table that another
transaction has replaced since ours began, neither the old nor the new one would be there.
"""

DEVICES = select(*(_DEVICE.c[name] for name in DEVICE_FIELDS))
_COMPILER = {BESTS: _BEST.c.compiler, TRIALS: _ENVIRONMENT.c.compiler}
_KEY_IS = [
    column == bindparam(f"key_{name}")
    for name, column in zip(KEY_FIELDS, _KEY_COLUMNS, strict=True)
]

COUNTS = (
    select(_TRIAL.c.status, func.count())
    .join_from(_TRIAL, _PROBLEM, _TRIAL.c.problem_id == _PROBLEM.c.id)
    .join(_DEVICE, _TRIAL.c.device_id == _DEVICE.c.id)
    .where(*_KEY_IS)
    .group_by(_TRIAL.c.status)
)

FAILURES = (
    _of_keys(
        _TRIAL,
        _ENVIRONMENT.c.compiler,
        _TRIAL.c.status,
        func.count(distinct(_TRIAL.c.config_id)),
    )
    .join(_ENVIRONMENT, _TRIAL.c.environment_id == _ENVIRONMENT.c.id)
    .where(_TRIAL.c.status != "ok")
    .group_by(_PROBLEM.c.id, _DEVICE.c.id, _ENVIRONMENT.c.compiler, _TRIAL.c.status)
)


@dataclass(frozen=True, slots=True)
class Where:
    """Which rows to read: those that meet every condition given."""

    key: TuningKey | None = None
    gpu: str | None = None
    family: str | None = None
    compiler: str | None = None
    most: int | None = None
    """How many rows to read, where the statement has a limit."""
    first: int | None = None
    last: int | None = None
    """Between which ids of problems, where the statement has such bounds."""

    def names(self) -> tuple[str, ...]:
        """Return the names of the conditions given."""
        names = ("key", "gpu", "family", "compiler")
        return tuple(name for name in names if getattr(self, name) is not None)

    def parameters(self) -> dict[str, Any]:
        """Return what the conditions compare with."""
        parts = {} if self.key is None else self.key.to_dict()
        whole: dict[str, Any] = {"gpu": self.gpu, "family": self.family}
        whole |= {"compiler": self.compiler, "most": self.most}
        whole |= {"first": self.first, "last": self.last}
        return whole | {f"key_{name}": value for name, value in parts.items()}


EVERYWHERE = Where()


@cache
def _narrowed(statement: Select[Any], names: tuple[str, ...]) -> Select[Any]:
    """Return a statement with conditions, built once for each set of them."""
    conditions = {
        "key": _KEY_IS,
        "gpu": [_DEVICE.c.slug == bindparam("gpu")],
        "family": [_PROBLEM.c.family == bindparam("family")],
    }
    if statement in _COMPILER:
        conditions["compiler"] = [_COMPILER[statement] == bindparam("compiler")]
    return statement.where(*(condition for name in names for condition in conditions[name]))


_compiled: dict[tuple[Select[Any], tuple[str, ...]], SQLCompiler] = {}
"""What SQLite is sent. An engine compiles a statement anew, and a store just opened has a new one:
for a single row that alone would take three times as long as all the rest."""


def select_rows(
    connection: Connection, statement: Select[Any], where: Where = EVERYWHERE
) -> Sequence[Sequence[Any]]:
    """Return the rows of a statement that meet the conditions, as the database's driver has them.

    SQLite has no booleans and may hold any value in any column: a reader has to check.
    """
    names = where.names()
    if connection.dialect.name != "sqlite":
        return connection.execute(_narrowed(statement, names), where.parameters()).all()
    compiled = _compiled.get((statement, names))
    if compiled is None:
        compiled = _narrowed(statement, names).compile(dialect=connection.dialect)
        _compiled[statement, names] = compiled
    if not connection.in_transaction():
        connection.begin()
    values = compiled.construct_params(where.parameters())
    arguments = [values[name] for name in compiled.positiontup or ()]
    try:
        return _fetched(connection, compiled.string, arguments)
    except sqlite3.OperationalError as error:
        if "Could not decode" not in str(error):
            raise
        # Text that is no UTF-8 spoils its own row, which a reader drops, and not the others.
        return _fetched(connection, compiled.string, arguments, text=_or_nothing)


def _fetched(
    connection: Connection,
    statement: str,
    arguments: Sequence[Any],
    *,
    text: Callable[[bytes], str | None] = str,
) -> Sequence[Sequence[Any]]:
    raw = connection.connection.dbapi_connection
    assert isinstance(raw, sqlite3.Connection)
    before, raw.text_factory = raw.text_factory, text
    try:
        return raw.execute(statement, arguments).fetchall()
    finally:
        raw.text_factory = before


def _or_nothing(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None
