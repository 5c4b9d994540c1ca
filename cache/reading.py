"""The rows of a store as values, read within a transaction.

What is read keeps its original provenance; that a row was imported stands beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import Connection

from tunekit.cache.queries import (
    BASELINES,
    BESTS,
    COUNTS,
    DEVICES,
    ENVIRONMENTS,
    EVERYWHERE,
    KEY_END,
    MEASUREMENT_END,
    MISSES,
    RESULT_END,
    TRIALS,
    Where,
    select_rows,
)
from tunekit.cache.rows import (
    DamagedRowError,
    read_config,
    read_device,
    read_key,
    read_measurement,
    read_provenance,
)
from tunekit.device import DeviceInfo
from tunekit.key import TuningKey
from tunekit.trial import Best, Choice, Measurement, Origin, Provenance, Status, Trial

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StoredBest:
    """A best, and whether it came from a file."""

    best: Best
    imported: bool

    def shown(self) -> Best:
        """Return the best with the origin it has for this store."""
        if not self.imported:
            return self.best
        return replace(
            self.best,
            provenance=_imported(self.best.provenance),
            imported_replay=self.best.replayed,
        )


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A trial of a key, and whether it came from a file."""

    key: TuningKey
    trial: Trial
    provenance: Provenance
    imported: bool

    def shown(self) -> tuple[Trial, Provenance]:
        """Return the trial with the origin it has for this store."""
        return self.trial, _imported(self.provenance) if self.imported else self.provenance


@dataclass(frozen=True, slots=True)
class StoredBaseline:
    """A vendor measurement, and whether a best stands on it."""

    key: TuningKey
    measurement: Measurement
    provenance: Provenance
    in_use: bool


def find_devices(connection: Connection) -> list[DeviceInfo]:
    """Return the devices, by slug."""
    rows = connection.execute(DEVICES).all()
    return sorted(_readable("device", rows, read_device), key=lambda device: device.slug)


def find_bests(connection: Connection, where: Where = EVERYWHERE) -> list[StoredBest]:
    """Return bests, sorted by key, then by compiler."""
    rows = select_rows(connection, BESTS, where)
    environments = _environments(connection)

    def read(row: Sequence[Any]) -> StoredBest:
        key, measurement, provenance, imported = _read_result(row, environments)
        choice, text, trials, space_size, count, vendor_id, *vendor = row[RESULT_END:]
        best = Best(
            key=key,
            choice=_named(Choice, choice),
            config=read_config(text),
            measurement=read_measurement(measurement),
            vendor=None if vendor_id is None else read_measurement(vendor),
            trials=trials,
            space_size=space_size,
            provenance=provenance,
            count=count,
        )
        return StoredBest(best, imported)

    return sorted(_readable("best", rows, read), key=_best_order)


def find_trials(connection: Connection, where: Where = EVERYWHERE) -> list[StoredTrial]:
    """Return trials in the order they were first stored."""
    rows = select_rows(connection, TRIALS, where)
    environments = _environments(connection)

    def read(row: Sequence[Any]) -> StoredTrial:
        key, measurement, provenance, imported = _read_result(row, environments)
        status_name, text, error = row[RESULT_END:]
        status = _named(Status, status_name)
        measured = read_measurement(measurement) if status is Status.OK else None
        trial = Trial(read_config(text), status, measured, error)
        return StoredTrial(key, trial, provenance, imported)

    return _readable("trial", rows, read)


def find_baselines(connection: Connection, where: Where = EVERYWHERE) -> list[StoredBaseline]:
    """Return vendor measurements, in no particular order."""
    rows = select_rows(connection, BASELINES, where)
    environments = _environments(connection)

    def read(row: Sequence[Any]) -> StoredBaseline:
        key, measurement, provenance, _ = _read_result(row, environments)
        return StoredBaseline(
            key, read_measurement(measurement), provenance, row[RESULT_END] is not None
        )

    return _readable("baseline", rows, read)


def find_misses(connection: Connection) -> dict[TuningKey, int]:
    """Return how often each key was missed, sorted by key."""
    rows = connection.execute(MISSES).all()
    return dict(sorted(_readable("miss", rows, lambda row: (read_key(row[:-1]), row[-1]))))


def count_trials(connection: Connection, key: TuningKey) -> dict[Status, int]:
    """Return how many trials of a key ended how."""
    rows = connection.execute(COUNTS, Where(key=key).parameters()).all()
    return dict(_readable("trial", rows, lambda row: (_named(Status, row[0]), int(row[1]))))


def _read_result(
    row: Sequence[Any], environments: Mapping[int, Sequence[str]]
) -> tuple[TuningKey, Sequence[Any], Provenance, bool]:
    """Read what all results have; the measurement stays columns, for it may be absent."""
    source, origin, created_at, environment_id, imported = row[MEASUREMENT_END:RESULT_END]
    provenance = read_provenance(source, origin, created_at, environments.get(environment_id))
    return read_key(row[:KEY_END]), row[KEY_END:MEASUREMENT_END], provenance, imported


def _environments(connection: Connection) -> dict[int, Sequence[str]]:
    """Return every environment by number: few, and read after the rows that name them."""
    return {row[0]: row[1:] for row in connection.execute(ENVIRONMENTS)}


def _imported(provenance: Provenance) -> Provenance:
    return replace(provenance, origin=Origin.IMPORTED)


def _named(kind: Callable[[str], _T], name: str) -> _T:
    try:
        return kind(name)
    except ValueError as error:
        raise DamagedRowError(str(error)) from error


def _readable(
    kind: str, rows: Iterable[Sequence[Any]], read: Callable[[Sequence[Any]], _T]
) -> list[_T]:
    """Read rows, leaving out those that are damaged."""
    values = []
    for row in rows:
        try:
            values.append(read(row))
        except DamagedRowError as error:
            _log.warning("a %s row of the cache is damaged and left out: %s", kind, error)
    return values


def _best_order(stored: StoredBest) -> tuple[Any, ...]:
    key = stored.best.key
    sizes = (key.family, key.m, key.n, key.k, key.dtype, key.gpu, key.out_dtype, key.precision)
    compiler = stored.best.provenance.fingerprint.compiler
    return (*sizes, key.layout, key.aligned, key.scaling, key.batch, compiler)
