"""Between values and columns: how a value is stored, and read back with suspicion.

A row that does not decode raises `DamagedRowError`, which a reader answers by leaving it out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import ConfigError, ProblemError
from tunekit.key import TuningKey
from tunekit.trial import Distance, Fingerprint, Measurement, Origin, Provenance, Status

MAX_ERROR_TEXT = 4000
"""A failed trial keeps this much of its error text."""

DEVICE_FIELDS = tuple(field.name for field in fields(DeviceInfo))
_DEVICE_TYPES = tuple(str if field.type == "str" else int for field in fields(DeviceInfo))
KEY_FIELDS = tuple(field.name for field in fields(TuningKey))
_ALIGNED = KEY_FIELDS.index("aligned")
MEASUREMENT_FIELDS = tuple(field.name for field in fields(Measurement))
TIME_FIELDS = tuple(name for name in MEASUREMENT_FIELDS if name.endswith("_us"))
VERSION_FIELDS = ("protocol", "tunekit", "triton", "torch", "driver", "device_name")
ENVIRONMENT_FIELDS = ("compiler", *VERSION_FIELDS)


_STATUSES = {status.value: status for status in Status}


class DamagedRowError(ValueError):
    """A stored row does not hold what its kind of row must."""


def config_text(config: Config) -> str:
    """Write a config as canonical JSON: equal configs have equal text."""
    return json.dumps(config.to_dict(), sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=1 << 14)
def read_config(text: str) -> Config:
    """Read a config back by field name.

    Raises:
        DamagedRowError: the text is not a config this version can follow.
    """
    try:
        return Config.from_dict(json.loads(text))
    except (ConfigError, ValueError, TypeError, RecursionError) as error:
        raise DamagedRowError(f"the config {text!r:.80}: {error}") from error


def read_key(values: Sequence[Any]) -> TuningKey:
    """Read a key from its columns, in the order of `KEY_FIELDS`.

    Raises:
        DamagedRowError: a column is not what a key may hold.
    """
    plain = list(values)
    plain[_ALIGNED] = read_flag(plain[_ALIGNED])
    try:
        return TuningKey(*plain)
    except ProblemError as error:
        raise DamagedRowError(f"the key: {error}") from error


def read_flag(value: Any) -> bool:
    """Read a yes or no, which SQLite keeps as 1 or 0.

    Raises:
        DamagedRowError: it is neither.
    """
    if value not in (0, 1):
        raise DamagedRowError(f"{value!r} where only 0 or 1 may stand")
    return bool(value)


def read_device(values: Sequence[Any]) -> DeviceInfo:
    """Read a device from its columns, in the order of `DEVICE_FIELDS`.

    Raises:
        DamagedRowError: a column is null, or not of its type.
    """
    for name, kind, value in zip(DEVICE_FIELDS, _DEVICE_TYPES, values, strict=True):
        if type(value) is not kind:
            raise DamagedRowError(f"the device: {name} is {value!r:.80}")
    return DeviceInfo(*values)


def read_count(value: Any) -> int:
    """Read a number of things.

    Raises:
        DamagedRowError: it is none.
    """
    if type(value) is not int or value < 0:
        raise DamagedRowError(f"the count {value!r:.80}")
    return value


def distance_values(distance: Distance | None) -> dict[str, float | None]:
    """Return the columns of a distance, null where there is none."""
    return {
        "expected_distance": None if distance is None else float(distance.expected),
        "distance_bound": None if distance is None else float(distance.bound),
    }


def read_distance(expected: Any, bound: Any) -> Distance | None:
    """Read a distance from its columns.

    Raises:
        DamagedRowError: they are not two parts of a time, the expected one within its bound.
    """
    if expected is None and bound is None:
        return None
    if type(expected) is not float or type(bound) is not float:
        raise DamagedRowError(f"the distance {expected!r:.80}, {bound!r:.80}")
    if not 0 <= expected <= bound < math.inf:
        raise DamagedRowError(f"the distance {expected}, {bound}")
    return Distance(expected, bound)


def device_values(device: DeviceInfo) -> dict[str, Any]:
    """Return the columns of a device."""
    return {"slug": device.slug, **asdict(device)}


def environment_values(provenance: Provenance) -> dict[str, str]:
    """Return the columns of the environment a row was made in."""
    versions = {name: getattr(provenance, name) for name in VERSION_FIELDS}
    return {"compiler": provenance.fingerprint.compiler, **versions}


def provenance_values(provenance: Provenance, *, imported: bool) -> dict[str, Any]:
    """Return the columns of a row that say where it came from, its environment aside.

    Raises:
        ValueError: the provenance is one that `Store` shows for an imported row, not an original.
    """
    if provenance.origin is Origin.IMPORTED:
        raise ValueError("a row is stored with its original origin, measured or replayed")
    return {
        "source": provenance.fingerprint.source,
        "origin": provenance.origin.value,
        "created_at": provenance.created_at,
        "imported": imported,
    }


def read_provenance(
    source: str, origin: str, created_at: str, environment: Sequence[str] | None
) -> Provenance:
    """Read a provenance from a row's columns and its environment's (see `ENVIRONMENT_FIELDS`).

    Raises:
        DamagedRowError: a column is null or no text, or the origin is not one a row may have.
    """
    if environment is None:
        raise DamagedRowError("the provenance: there is no such environment")
    if not all(isinstance(value, str) for value in (source, created_at, *environment)):
        raise DamagedRowError("the provenance: a field is null, or no text")
    if origin not in (Origin.MEASURED.value, Origin.REPLAYED.value):
        raise DamagedRowError(f"the origin {origin!r}")
    compiler, protocol, tunekit, triton, torch, driver, device_name = environment
    return Provenance(
        fingerprint=Fingerprint(source, compiler),
        protocol=protocol,
        tunekit=tunekit,
        triton=triton,
        torch=torch,
        driver=driver,
        device_name=device_name,
        created_at=created_at,
        origin=Origin(origin),
    )


def measurement_values(measurement: Measurement | None) -> dict[str, Any]:
    """Return the columns of a measurement, all null where there is none.

    Raises:
        ValueError: a time is not a positive number; such a row could never be read again.
    """
    if measurement is None:
        return dict.fromkeys(MEASUREMENT_FIELDS)
    values: dict[str, Any] = {name: getattr(measurement, name) for name in MEASUREMENT_FIELDS}
    for name in TIME_FIELDS:
        values[name] = float(values[name])
        if not 0 < values[name] < math.inf:
            raise ValueError(f"{name} must be a positive number, not {values[name]}")
    return values


def read_measurement(values: Sequence[Any]) -> Measurement:
    """Read a measurement from its columns, in the order of `MEASUREMENT_FIELDS`.

    Raises:
        DamagedRowError: a column is null or not a number that a measurement could have.
    """
    times = values[: len(TIME_FIELDS)]
    repetitions, protocol, ratio, *marks = values[len(TIME_FIELDS) :]
    for time in times:
        if type(time) is not float or not 0 < time < math.inf:
            raise DamagedRowError(f"the times {tuple(times)}")
    counted = isinstance(repetitions, int) and isinstance(protocol, str)
    if not counted or not (ratio is None or (isinstance(ratio, float) and 0 <= ratio < math.inf)):
        raise DamagedRowError(f"the measurement {tuple(values)}")
    if marks[-1] is None:  # `throttled`, in a row of before there was this mark
        marks[-1] = False
    checked = [*times, repetitions, protocol, ratio, *map(read_flag, marks)]
    return Measurement(*checked)


def read_status(name: Any, error: Any) -> Status:
    """Read how a trial ended, and see that what it says of it is text.

    Raises:
        DamagedRowError: there is no such status, or the error is no text.
    """
    status = _STATUSES.get(name)
    if status is None:
        raise DamagedRowError(f"{name!r:.80} is not a valid Status")
    if error is not None and not isinstance(error, str):
        raise DamagedRowError(f"the error text {error!r:.80}")
    return status


def clean_error(error: str | None) -> str | None:
    """Return an error text that every database and file can hold, shortened."""
    if error is None:
        return None
    encodable = error[:MAX_ERROR_TEXT].encode("utf-8", "replace").decode("utf-8")
    return encodable.replace("\0", " ")
