"""The rows of an export file: values as plain data, and plain data checked and read back.

A row that cannot be taken raises `RefusedRowError` with the field, what was expected and what was
found. Unknown fields of a row are ignored, for a later version may have added them; unknown fields
of a key or a config are not, for they would make it a different one.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

from tunekit.cache.rows import (
    DEVICE_FIELDS,
    KEY_FIELDS,
    MAX_ERROR_TEXT,
    MEASUREMENT_FIELDS,
    TIME_FIELDS,
    VERSION_FIELDS,
)
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import ConfigError, ProblemError
from tunekit.key import TuningKey
from tunekit.trial import Best, Choice, Fingerprint, Measurement, Origin, Provenance, Status, Trial

_E = TypeVar("_E", Choice, Origin, Status)

_MAX_COUNT = 1 << 53
_MAX_ROW_COUNT = (1 << 31) - 1
_MAX_TIME_US = 1e15
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", re.ASCII)


class RefusedRowError(ValueError):
    """A row of a file is not one that the store may hold."""


def device_to_plain(device: DeviceInfo) -> dict[str, Any]:
    """Return a device as plain data."""
    return {"slug": device.slug, **{name: getattr(device, name) for name in DEVICE_FIELDS}}


def best_to_plain(best: Best) -> dict[str, Any]:
    """Return a best as plain data."""
    return {
        "key": best.key.to_dict(),
        "choice": best.choice.value,
        "config": best.config.to_dict(),
        "measurement": _measurement_to_plain(best.measurement),
        "vendor": _measurement_to_plain(best.vendor),
        "trials": best.trials,
        "space_size": best.space_size,
        "count": best.count,
        "provenance": _provenance_to_plain(best.provenance),
    }


def trial_to_plain(key: TuningKey, trial: Trial, provenance: Provenance) -> dict[str, Any]:
    """Return a trial of a key as plain data."""
    return {
        "key": key.to_dict(),
        "config": trial.config.to_dict(),
        "status": trial.status.value,
        "measurement": _measurement_to_plain(trial.measurement),
        "error": trial.error,
        "provenance": _provenance_to_plain(provenance),
    }


def baseline_to_plain(
    key: TuningKey, vendor: Measurement, provenance: Provenance
) -> dict[str, Any]:
    """Return a vendor measurement of a key as plain data."""
    return {
        "key": key.to_dict(),
        "vendor": _measurement_to_plain(vendor),
        "provenance": _provenance_to_plain(provenance),
    }


def device_from_plain(row: Any) -> DeviceInfo:
    """Read a device.

    Raises:
        RefusedRowError: a field is missing or wrong, or the slug is not the device's.
    """
    row = _object(row, "a device")
    device = DeviceInfo(
        name=_text(row, "name"),
        backend=_text(row, "backend"),
        arch=_text(row, "arch"),
        multiprocessors=_whole(row, "multiprocessors", 1, 1 << 20),
        shared_bytes=_whole(row, "shared_bytes"),
        l2_bytes=_whole(row, "l2_bytes"),
        memory_bytes=_whole(row, "memory_bytes"),
        warp_size=_whole(row, "warp_size", 1, 1 << 10),
    )
    slug = row.get("slug")
    if slug != device.slug:
        raise RefusedRowError(f"slug: expected {device.slug!r}, found {reprlib.repr(slug)}")
    return device


def best_from_plain(row: Any) -> Best:
    """Read a best.

    Raises:
        RefusedRowError: a field is missing or wrong, or its choice contradicts its times.
    """
    row = _object(row, "a best")
    choice = _one_of(row, "choice", Choice)
    measurement = _measurement(row, "measurement")
    _check_right(measurement)
    vendor = None if row.get("vendor") is None else _measurement(row, "vendor")
    if choice is Choice.VENDOR and vendor is None:
        raise RefusedRowError("choice: it is the vendor's call, which was not measured")
    if choice is Choice.TRITON and vendor is not None and vendor.high_us < measurement.low_us:
        raise RefusedRowError("choice: it is Triton's kernel, but the vendor's call is faster")
    return Best(
        key=_key(row),
        choice=choice,
        config=_config(row),
        measurement=measurement,
        vendor=vendor,
        trials=_whole(row, "trials", 0, _MAX_ROW_COUNT),
        space_size=_whole(row, "space_size"),
        provenance=_provenance(row),
        count=_whole(row, "count", 1) if "count" in row else 1,
    )


def trial_from_plain(row: Any) -> tuple[TuningKey, Trial, Provenance]:
    """Read a trial with its key.

    Raises:
        RefusedRowError: a field is missing or wrong, or its status contradicts the rest.
    """
    row = _object(row, "a trial")
    status = _one_of(row, "status", Status)
    measured = None if row.get("measurement") is None else _measurement(row, "measurement")
    if (status is Status.OK) != (measured is not None):
        raise RefusedRowError(
            f"measurement: it is there exactly if ok, but status is {status.value}"
        )
    if measured is not None:
        _check_right(measured)
    error = row.get("error")
    if error is not None:  # a compiler's words, of many lines and colours; no table shows them
        error = _text(row, "error", MAX_ERROR_TEXT, printable=False)
    return _key(row), Trial(_config(row), status, measured, error), _provenance(row)


def baseline_from_plain(row: Any) -> tuple[TuningKey, Measurement, Provenance]:
    """Read a vendor measurement with its key.

    Raises:
        RefusedRowError: a field is missing or wrong.
    """
    row = _object(row, "a baseline")
    return _key(row), _measurement(row, "vendor"), _provenance(row)


def _measurement_to_plain(measurement: Measurement | None) -> dict[str, Any] | None:
    if measurement is None:
        return None
    return {name: getattr(measurement, name) for name in MEASUREMENT_FIELDS}


def _provenance_to_plain(provenance: Provenance) -> dict[str, Any]:
    return {
        "source": provenance.fingerprint.source,
        "compiler": provenance.fingerprint.compiler,
        **{name: getattr(provenance, name) for name in VERSION_FIELDS},
        "created_at": provenance.created_at,
        "origin": provenance.origin.value,
    }


def _key(row: Mapping[str, Any]) -> TuningKey:
    plain = _object(row.get("key"), "key")
    unknown = sorted(name for name in plain if name not in KEY_FIELDS)
    if unknown:
        raise RefusedRowError(f"key has the unknown field {reprlib.repr(unknown[0])}")
    for name in ("family", "dtype", "gpu"):
        _text(plain, name, 200)
    try:
        return TuningKey(**plain)
    except (ProblemError, TypeError) as error:
        raise RefusedRowError(f"key: {error}") from error


def _config(row: Mapping[str, Any]) -> Config:
    try:
        return Config.from_dict(row.get("config"))
    except ConfigError as error:
        raise RefusedRowError(str(error)) from error


def _measurement(row: Mapping[str, Any], field: str) -> Measurement:
    plain = _object(row.get(field), field)
    times = {name: _number(plain, name) for name in TIME_FIELDS}
    measurement = Measurement(
        **times,
        repetitions=_whole(plain, "repetitions", 1),
        protocol=_text(plain, "protocol"),
        error_ratio=None if plain.get("error_ratio") is None else _ratio(plain),
        final=_flag(plain, "final"),
        contended=_flag(plain, "contended"),
        throttled=_flag(plain, "throttled"),
    )
    if not measurement.low_us <= measurement.median_us <= measurement.high_us:
        raise RefusedRowError(f"{field}: median_us lies outside low_us to high_us")
    if measurement.p20_us > measurement.p80_us or measurement.min_us > measurement.median_us:
        raise RefusedRowError(f"{field}: min_us, p20_us, median_us and p80_us are out of order")
    return measurement


def _check_right(measurement: Measurement) -> None:
    if measurement.error_ratio is not None and measurement.error_ratio > 1:
        raise RefusedRowError(
            f"error_ratio: a right result has at most 1, found {measurement.error_ratio}"
        )


def _provenance(row: Mapping[str, Any]) -> Provenance:
    plain = _object(row.get("provenance"), "provenance")
    created_at, origin = _text(plain, "created_at"), _one_of(plain, "origin", Origin)
    if not _DATE.fullmatch(created_at):
        raise RefusedRowError(
            f"created_at: expected UTC as ISO 8601, found {reprlib.repr(created_at)}"
        )
    if origin is Origin.IMPORTED:
        raise RefusedRowError("origin: expected where the row was made, found 'imported'")
    fingerprint = Fingerprint(_text(plain, "source"), _text(plain, "compiler"))
    versions = {name: _text(plain, name) for name in VERSION_FIELDS}
    return Provenance(fingerprint, **versions, created_at=created_at, origin=origin)


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise RefusedRowError(f"{what}: expected an object, found {reprlib.repr(value)}")


def _text(row: Mapping[str, Any], name: str, limit: int = 4000, *, printable: bool = True) -> str:
    """Read a text; a terminal would obey what is not printable."""
    text = row.get(name)
    allowed = str.isprintable if printable else _storable
    if isinstance(text, str) and len(text) <= limit and allowed(text):
        return text
    found = reprlib.repr(text)
    raise RefusedRowError(f"{name}: expected text of up to {limit} letters, found {found}")


def _storable(value: str) -> bool:
    """Say whether every database can hold a text."""
    return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _whole(row: Mapping[str, Any], name: str, low: int = 0, high: int = _MAX_COUNT) -> int:
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise RefusedRowError(
        f"{name}: expected a whole number from {low}, found {reprlib.repr(value)}"
    )


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MAX_TIME_US:
        return float(value)
    raise RefusedRowError(f"{name}: expected a positive time, found {reprlib.repr(value)}")


def _ratio(row: Mapping[str, Any]) -> float:
    value = row.get("error_ratio")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise RefusedRowError(f"error_ratio: expected a number from 0, found {reprlib.repr(value)}")
    return float(value)


def _flag(row: Mapping[str, Any], name: str) -> bool:
    value = row.get(name, False)
    if isinstance(value, bool):
        return value
    raise RefusedRowError(f"{name}: expected true or false, found {reprlib.repr(value)}")


def _one_of(row: Mapping[str, Any], name: str, kind: type[_E]) -> _E:
    value = row.get(name)
    try:
        return kind(value)
    except ValueError as error:
        found = f"{', '.join(member.value for member in kind)}, found {reprlib.repr(value)}"
        raise RefusedRowError(f"{name}: expected one of {found}") from error
