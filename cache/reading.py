"""The rows of a store as values, read within a transaction.

What is read keeps its original provenance; that a row was imported stands beside it.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Connection

from tunekit.cache.queries import (
    BASELINES,
    BESTS,
    COUNTS,
    DEVICES,
    ENVIRONMENTS,
    EVERYWHERE,
    FAILURES,
    KEY_END,
    MEASUREMENT_END,
    MISSES,
    RECENT_TRIALS,
    RESULT_END,
    TRIALS,
    TRIED,
    Where,
    select_rows,
)
from tunekit.cache.rows import (
    KEY_FIELDS,
    DamagedRowError,
    read_config,
    read_count,
    read_device,
    read_distance,
    read_flag,
    read_key,
    read_measurement,
    read_provenance,
    read_status,
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
    rows = select_rows(connection, DEVICES)
    return sorted(readable("device", rows, read_device), key=lambda device: device.slug)


class UnreadBest:
    """A best as it stands in its row. A process that loads thousands asks for few of them."""

    __slots__ = ("_reader", "_row")

    def __init__(self, reader: _ResultReader, row: Sequence[Any]) -> None:
        self._reader = reader
        self._row = row

    @property
    def place(self) -> tuple[Any, ...]:
        """The fields of the key, unchecked, in the order of `TuningKey`."""
        return tuple(self._row[:KEY_END])

    def read(self) -> Best | None:
        """Return the row as a best, or None (and log why) if it is damaged."""
        for stored in readable("best", [self._row], self._reader.best):
            return stored.shown()
        return None


def find_unread(connection: Connection, where: Where = EVERYWHERE) -> list[UnreadBest]:
    """Return bests that are decoded when they are asked for, in no particular order."""
    with uncollected():
        rows = select_rows(connection, BESTS, where)
        reader = _ResultReader(connection)
        return [UnreadBest(reader, row) for row in rows]


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector from going through rows as they come: they make no cycles, only work."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def find_bests(connection: Connection, where: Where = EVERYWHERE) -> list[StoredBest]:
    """Return bests, sorted by key, then by compiler."""
    rows = select_rows(connection, BESTS, where)
    return sorted(readable("best", rows, _ResultReader(connection).best), key=_best_order)


def find_trials(connection: Connection, where: Where = EVERYWHERE) -> list[StoredTrial]:
    """Return trials in the order they were first stored."""
    rows = select_rows(connection, TRIALS, where)
    return readable("trial", rows, _ResultReader(connection).trial)


def find_recent_trials(connection: Connection, gpu: str, most: int) -> list[StoredTrial]:
    """Return the trials of a GPU kind that were stored last, the latest first."""
    rows = select_rows(connection, RECENT_TRIALS, Where(gpu=gpu, most=most))
    return readable("trial", rows, _ResultReader(connection).trial)


def find_baselines(connection: Connection, where: Where = EVERYWHERE) -> list[StoredBaseline]:
    """Return vendor measurements, in no particular order."""
    rows = select_rows(connection, BASELINES, where)
    return readable("baseline", rows, _ResultReader(connection).baseline)


def find_misses(connection: Connection) -> dict[TuningKey, int]:
    """Return how often each key was missed, sorted by key."""
    rows = select_rows(connection, MISSES)
    return dict(
        sorted(readable("miss", rows, lambda row: (read_key(row[:-1]), read_count(row[-1]))))
    )


def find_tried(connection: Connection, where: Where = EVERYWHERE) -> dict[TuningKey, int]:
    """Return how many trials each key has that has any, sorted by key."""
    rows = select_rows(connection, TRIED, where)
    return dict(
        sorted(readable("trial", rows, lambda row: (read_key(row[:-1]), read_count(row[-1]))))
    )


def count_trials(connection: Connection, key: TuningKey) -> dict[Status, int]:
    """Return how many trials of a key ended how."""
    rows = connection.execute(COUNTS, Where(key=key).parameters()).all()
    return dict(readable("trial", rows, lambda row: (_named(Status, row[0]), int(row[1]))))


def find_failures(
    connection: Connection, where: Where = EVERYWHERE
) -> dict[tuple[TuningKey, str], dict[Status, int]]:
    """Return how many configs of each key failed how under each compiler, where any did."""

    def read(row: Sequence[Any]) -> tuple[TuningKey, str, Status, int]:
        compiler, status, count = row[KEY_END:]
        if not isinstance(compiler, str):
            raise DamagedRowError(f"the compiler {compiler!r:.80}")
        return read_key(row[:KEY_END]), compiler, _named(Status, status), read_count(count)

    found: dict[tuple[TuningKey, str], dict[Status, int]] = {}
    for key, compiler, status, count in readable(
        "trial", select_rows(connection, FAILURES, where), read
    ):
        found.setdefault((key, compiler), {})[status] = count
    return found


class _ResultReader:
    """Decodes rows of bests, trials and baselines, which share the environments of one store."""

    def __init__(self, connection: Connection) -> None:
        # Few, and read after the rows that name them.
        self._environments = {row[0]: row[1:] for row in select_rows(connection, ENVIRONMENTS)}
        self._provenances: dict[Sequence[Any], tuple[Provenance, bool]] = {}

    def best(self, row: Sequence[Any]) -> StoredBest:
        provenance, imported = self._provenance(row)
        choice, text, trials, space_size, count, expected, bound, vendor_id, *vendor = row[
            RESULT_END:
        ]
        best = Best(
            key=read_key(row[:KEY_END]),
            choice=_named(Choice, choice),
            config=read_config(text),
            measurement=read_measurement(row[KEY_END:MEASUREMENT_END]),
            vendor=None if vendor_id is None else read_measurement(vendor),
            trials=read_count(trials),
            space_size=read_count(space_size),
            provenance=provenance,
            count=read_count(count),
            distance=read_distance(expected, bound),
        )
        return StoredBest(best, imported)

    def trial(self, row: Sequence[Any]) -> StoredTrial:
        provenance, imported = self._provenance(row)
        status_name, text, error = row[RESULT_END:]
        status, measured = read_status(status_name, error), None
        if status is Status.OK:
            measured = read_measurement(row[KEY_END:MEASUREMENT_END])
        trial = Trial(read_config(text), status, measured, error)
        return StoredTrial(read_key(row[:KEY_END]), trial, provenance, imported)

    def baseline(self, row: Sequence[Any]) -> StoredBaseline:
        provenance, _ = self._provenance(row)
        measurement = read_measurement(row[KEY_END:MEASUREMENT_END])
        in_use = row[RESULT_END] is not None
        return StoredBaseline(read_key(row[:KEY_END]), measurement, provenance, in_use)

    def _provenance(self, row: Sequence[Any]) -> tuple[Provenance, bool]:
        """Return where a row comes from, and whether by a file."""
        columns = row[MEASUREMENT_END:RESULT_END]
        found = self._provenances.get(columns)
        if found is None:
            source, origin, created_at, environment_id, imported = columns
            environment = self._environments.get(environment_id)
            provenance = read_provenance(source, origin, created_at, environment)
            found = self._provenances[columns] = provenance, read_flag(imported)
        return found


def _imported(provenance: Provenance) -> Provenance:
    return replace(provenance, origin=Origin.IMPORTED)


def _named(kind: Callable[[str], _T], name: str) -> _T:
    try:
        return kind(name)
    except ValueError as error:
        raise DamagedRowError(str(error)) from error


def readable(
    kind: str, rows: Iterable[Sequence[Any]], read: Callable[[Sequence[Any]], _T]
) -> list[_T]:
    """Read rows, leaving out those that are damaged, and logging why."""
    values = []
    for row in rows:
        try:
            values.append(read(row))
        except DamagedRowError as error:
            _log.warning("a %s row of the cache is damaged and left out: %s", kind, error)
    return values


def _best_order(stored: StoredBest) -> tuple[Any, ...]:
    return (*_fields_of(stored.best.key), stored.best.provenance.fingerprint.compiler)


_fields_of = attrgetter(*KEY_FIELDS)  # comparing keys would make a tuple at each comparison
