"""The rows of an export file: values as plain data, and plain data checked and read back.

A row that cannot be taken raises `RefusedRowError` with the field, what was expected and what was
found. Unknown fields of a row are ignored, for a later version may have added them; unknown fields
of a key or a config are not, for they would make it a different one.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tunekit.cache.fields import (
    ContradictionError,
    RefusedRowError,
    choice_of,
    flag_of,
    member_of,
    object_of,
    part_of,
    ratio_of,
    text_of,
    time_of,
    whole,
    whole_of,
)
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
from tunekit.key import ITEMSIZE, LAYOUTS, MAX_SIZE, PRECISIONS, SCALINGS, TuningKey
from tunekit.trial import (
    Best,
    Choice,
    Distance,
    Fingerprint,
    Measurement,
    Origin,
    Provenance,
    Status,
    Trial,
)

_MARKS = tuple(field.name for field in fields(Measurement) if field.default is False)
"""What is marked on a measurement: absent is false, so that older files need not have it."""

_MAX_NAME = 200
_MAX_ROW_COUNT = (1 << 31) - 1
_DATE = re.compile(
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"T([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9]+)?(Z|\+00:00)?"
)
_NAMED = {
    "dtype": tuple(ITEMSIZE),
    "out_dtype": tuple(ITEMSIZE),
    "precision": PRECISIONS,
    "layout": LAYOUTS,
    "scaling": SCALINGS,
}


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
        "distance": _distance_to_plain(best.distance),
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
    row = object_of(row, "a device")
    slug = text_of(row, "slug")
    device = DeviceInfo(
        name=text_of(row, "name"),
        backend=text_of(row, "backend"),
        arch=text_of(row, "arch"),
        multiprocessors=whole_of(row, "multiprocessors", 1, 1 << 20),
        shared_bytes=whole_of(row, "shared_bytes"),
        l2_bytes=whole_of(row, "l2_bytes"),
        memory_bytes=whole_of(row, "memory_bytes"),
        warp_size=whole_of(row, "warp_size", 1, 1 << 10),
    )
    if slug != device.slug:
        raise ContradictionError(f"slug: expected {device.slug!r}, found {reprlib.repr(slug)}")
    return device


def best_from_plain(row: Any) -> Best:
    """Read a best.

    Raises:
        RefusedRowError: a field is missing or wrong, its result was never verified, or its choice
            contradicts its times.
    """
    row = object_of(row, "a best")
    choice = member_of(row, "choice", Choice)
    vendor = _vendor(row)
    if choice is Choice.VENDOR and vendor is None:
        raise RefusedRowError("choice: it is the vendor's call, which was not measured")
    measurement = _right(_measurement(row, "measurement"))
    if measurement.error_ratio is None:
        raise RefusedRowError("error_ratio: expected that of a verified result, found None")
    best = Best(
        key=_key(row),
        choice=choice,
        config=_config(row),
        measurement=measurement,
        vendor=vendor,
        trials=whole_of(row, "trials", 0, _MAX_ROW_COUNT),
        space_size=whole_of(row, "space_size"),
        provenance=_provenance(row),
        count=whole_of(row, "count", 1) if "count" in row else 1,
        distance=_distance(row),
    )
    if choice is Choice.TRITON and vendor is not None and vendor.high_us < measurement.low_us:
        raise ContradictionError("choice: it is Triton's kernel, but the vendor's call is faster")
    return best


def trial_from_plain(row: Any) -> tuple[TuningKey, Trial, Provenance]:
    """Read a trial with its key.

    Raises:
        RefusedRowError: a field is missing or wrong, or its status contradicts the rest.
    """
    row = object_of(row, "a trial")
    status = member_of(row, "status", Status)
    absent = row.get("measurement") is None
    if (status is Status.OK) == absent:
        raise RefusedRowError(
            f"measurement: it is there exactly if ok, but status is {status.value}"
        )
    measured = None if absent else _right(_measurement(row, "measurement"))
    error = row.get("error")
    if error is not None:  # a compiler's words, of many lines and colours; no table shows them
        error = text_of(row, "error", MAX_ERROR_TEXT, lines=True)
    return _key(row), Trial(_config(row), status, measured, error), _provenance(row)


def baseline_from_plain(row: Any) -> tuple[TuningKey, Measurement, Provenance]:
    """Read a vendor measurement with its key.

    Raises:
        RefusedRowError: a field is missing or wrong.
    """
    row = object_of(row, "a baseline")
    return _key(row), _measurement(row, "vendor"), _provenance(row)


def _measurement_to_plain(measurement: Measurement | None) -> dict[str, Any] | None:
    if measurement is None:
        return None
    return {name: getattr(measurement, name) for name in MEASUREMENT_FIELDS}


def _distance_to_plain(distance: Distance | None) -> dict[str, float] | None:
    if distance is None:
        return None
    return {"expected": distance.expected, "bound": distance.bound}


def _provenance_to_plain(provenance: Provenance) -> dict[str, Any]:
    return {
        "source": provenance.fingerprint.source,
        "compiler": provenance.fingerprint.compiler,
        **{name: getattr(provenance, name) for name in VERSION_FIELDS},
        "created_at": provenance.created_at,
        "origin": provenance.origin.value,
    }


def _key(row: Mapping[str, Any]) -> TuningKey:
    plain = {name: whole(value) for name, value in object_of(row.get("key"), "key").items()}
    unknown = sorted(name for name in plain if name not in KEY_FIELDS)
    if unknown:
        raise RefusedRowError(f"key has the unknown field {reprlib.repr(unknown[0])}")
    for name in ("family", "gpu"):
        text_of(plain, name, _MAX_NAME, least=1)
    for name in ("m", "n", "k", *({"batch"} & plain.keys())):
        whole_of(plain, name, 1, MAX_SIZE - 1)
    for name, allowed in _NAMED.items():
        if name in plain or name == "dtype":
            choice_of(plain, name, allowed)
    try:
        return TuningKey(**plain)
    except ProblemError as error:
        raise RefusedRowError(f"key: {error}") from error


def _config(row: Mapping[str, Any]) -> Config:
    plain = {name: whole(value) for name, value in object_of(row.get("config"), "config").items()}
    if "variant" in plain:
        text_of(plain, "variant", 64, least=1)
    if isinstance(switches := plain.get("switches"), dict):
        for name in switches:
            text_of({"switch": name}, "switch", 64)
        plain["switches"] = {name: whole(value) for name, value in switches.items()}
    try:
        return Config.from_dict(plain)
    except ConfigError as error:
        raise RefusedRowError(str(error)) from error


def _vendor(row: Mapping[str, Any]) -> Measurement | None:
    return None if row.get("vendor") is None else _measurement(row, "vendor")


def _distance(row: Mapping[str, Any]) -> Distance | None:
    if row.get("distance") is None:
        return None
    plain = object_of(row["distance"], "distance")
    expected, bound = part_of(plain, "expected"), part_of(plain, "bound")
    if expected > bound:
        raise ContradictionError("distance: more is expected than its bound")
    return Distance(expected, bound)


def _measurement(row: Mapping[str, Any], field: str) -> Measurement:
    plain = object_of(row.get(field), field)
    times: dict[str, Any] = {name: time_of(plain, name) for name in TIME_FIELDS}
    marks: dict[str, Any] = {name: flag_of(plain, name) for name in _MARKS}
    measurement = Measurement(
        **times,
        repetitions=whole_of(plain, "repetitions", 1),
        protocol=text_of(plain, "protocol"),
        error_ratio=ratio_of(plain, "error_ratio"),
        **marks,
    )
    if not measurement.low_us <= measurement.median_us <= measurement.high_us:
        raise ContradictionError(f"{field}: median_us lies outside low_us to high_us")
    if measurement.p20_us > measurement.p80_us or measurement.min_us > measurement.median_us:
        raise ContradictionError(f"{field}: min_us, p20_us, median_us and p80_us are out of order")
    return measurement


def _right(measurement: Measurement) -> Measurement:
    """Return a measurement whose result was right, or was not looked at."""
    if measurement.error_ratio is not None and measurement.error_ratio > 1:
        raise RefusedRowError(
            f"error_ratio: a right result has at most 1, found {measurement.error_ratio}"
        )
    return measurement


def _provenance(row: Mapping[str, Any]) -> Provenance:
    plain = object_of(row.get("provenance"), "provenance")
    created_at, origin = text_of(plain, "created_at"), member_of(plain, "origin", Origin)
    if not _DATE.fullmatch(created_at):
        raise RefusedRowError(
            f"created_at: expected UTC as ISO 8601, found {reprlib.repr(created_at)}"
        )
    if origin is Origin.IMPORTED:
        raise RefusedRowError("origin: expected where the row was made, found 'imported'")
    fingerprint = Fingerprint(text_of(plain, "source"), text_of(plain, "compiler"))
    versions = {name: text_of(plain, name) for name in VERSION_FIELDS}
    return Provenance(fingerprint, **versions, created_at=created_at, origin=origin)
