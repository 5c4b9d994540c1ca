"""The rows of a store as plain data, unchecked: what `plain` then reads as it reads a file's.

A column may hold anything, for SQLite keeps any value in any column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, select

from tunekit.cache.models import DeviceRow
from tunekit.cache.queries import (
    BASELINES,
    BESTS,
    ENVIRONMENTS,
    EVERYWHERE,
    KEY_END,
    MEASUREMENT_END,
    RESULT_END,
    TRIALS,
    select_rows,
)
from tunekit.cache.rows import DEVICE_FIELDS, ENVIRONMENT_FIELDS, KEY_FIELDS, MEASUREMENT_FIELDS
from tunekit.trial import Measurement

_MARKS = tuple(field.name for field in fields(Measurement) if field.default is False)
_DEVICE_COLUMNS = ("slug", *DEVICE_FIELDS)
_DEVICES = select(*(DeviceRow.__table__.c[name] for name in _DEVICE_COLUMNS))
_Environments = Mapping[int, Sequence[Any]]


def read_sections(connection: Connection) -> dict[str, list[Any]]:
    """Return every row that an export would hold, section by section, in the order of storing."""
    environments = {row[0]: row[1:] for row in connection.execute(ENVIRONMENTS)}
    devices = connection.execute(_DEVICES).all()
    bests = select_rows(connection, BESTS, EVERYWHERE)
    baselines = select_rows(connection, BASELINES, EVERYWHERE)
    trials = select_rows(connection, TRIALS, EVERYWHERE)
    return {
        "devices": [dict(zip(_DEVICE_COLUMNS, row, strict=True)) for row in devices],
        "bests": [_best(row, environments) for row in bests],
        "baselines": [
            {**_result(row, environments), "vendor": _measurement(row[KEY_END:MEASUREMENT_END])}
            for row in baselines
            if row[RESULT_END] is None  # a best holds those it stands on
        ],
        "trials": [_trial(row, environments) for row in trials],
    }


def _best(row: Sequence[Any], environments: _Environments) -> dict[str, Any]:
    choice, text, trials, space_size, count, expected, bound, vendor_id, *vendor = row[RESULT_END:]
    return {
        **_result(row, environments),
        "measurement": _measurement(row[KEY_END:MEASUREMENT_END]),
        "choice": choice,
        "config": _config(text),
        "trials": trials,
        "space_size": space_size,
        "count": count,
        "distance": None
        if expected is None and bound is None
        else {"expected": expected, "bound": bound},
        "vendor": None if vendor_id is None else _measurement(vendor) or {},
    }


def _trial(row: Sequence[Any], environments: _Environments) -> dict[str, Any]:
    status, text, error = row[RESULT_END:]
    return {
        **_result(row, environments),
        "measurement": _measurement(row[KEY_END:MEASUREMENT_END]),
        "status": status,
        "config": _config(text),
        "error": error,
    }


def _result(row: Sequence[Any], environments: _Environments) -> dict[str, Any]:
    source, origin, created_at, environment_id, _ = row[MEASUREMENT_END:RESULT_END]
    environment = environments.get(environment_id, ())
    key = dict(zip(KEY_FIELDS, row[:KEY_END], strict=True))
    return {
        "key": {**key, "aligned": _flag(key["aligned"])},
        "provenance": {
            "source": source,
            "origin": origin,
            "created_at": created_at,
            **dict(zip(ENVIRONMENT_FIELDS, environment, strict=False)),
        },
    }


def _measurement(values: Sequence[Any]) -> dict[str, Any] | None:
    """Return a measurement, or None where there is nothing; a mark that is null is no mark."""
    if all(value is None for value in values):
        return None
    plain = dict(zip(MEASUREMENT_FIELDS, values, strict=True))
    marks = {name: _flag(plain.pop(name)) for name in _MARKS}
    return plain | {name: mark for name, mark in marks.items() if mark is not None}


def _flag(value: Any) -> Any:
    """Return true or false for the 1 or 0 that SQLite holds, and anything else as it is."""
    return bool(value) if value in (0, 1) else value


def _config(text: Any) -> Any:
    """Return a config's object, or what stands in its place."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text
