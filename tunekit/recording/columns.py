"""Trials and measurements as columns of plain values, and back with every value checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunekit.config import Config
from tunekit.trial import Measurement, Status, Trial

_TIMES = ("median_us", "low_us", "high_us", "p20_us", "p80_us", "min_us")
_MEASURED = (*_TIMES, "repetitions", "protocol", "error_ratio", "contended")


def is_recordable(measurement: Measurement | None) -> bool:
    """Say whether there is no measurement, or one of times that are positive numbers."""
    if measurement is None:
        return True
    times = [getattr(measurement, name) for name in _TIMES]
    return all(math.isfinite(time) and round(time, 3) > 0 for time in times)


def round_trial(trial: Trial, *, final: bool) -> Trial:
    """Return a trial as a recording holds it, marked as final or as screening."""
    if trial.measurement is None:
        return trial
    return replace(trial, measurement=round_measurement(trial.measurement, final=final))


def round_measurement(measurement: Measurement, *, final: bool) -> Measurement:
    """Round times to a nanosecond and the error ratio to four digits."""
    times = {name: round(getattr(measurement, name), 3) for name in _TIMES}
    ratio = measurement.error_ratio
    short = None if ratio is None else float(f"{ratio:.4g}")
    return replace(measurement, **times, error_ratio=short, final=final)


def encode_measurement(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement as plain values by name."""
    row = {name: getattr(measurement, name) for name in _MEASURED}
    return row | {"throttled": True} if measurement.throttled else row


def encode_trials(
    trials: Mapping[Config, Trial], place: Mapping[Config, int]
) -> dict[str, list[Any]]:
    """Return trials as columns, ordered by the place of their configs."""
    order = sorted(trials, key=place.__getitem__)
    table: dict[str, list[Any]] = {
        "config": [place[config] for config in order],
        "status": [trials[config].status.value for config in order],
        "error": [trials[config].error for config in order],
    }
    for name in _MEASURED:
        found = (trials[config].measurement for config in order)
        table[name] = [None if m is None else getattr(m, name) for m in found]
    throttled = [m is not None and m.throttled for m in (trials[c].measurement for c in order)]
    if any(throttled):  # older readers know no such column
        table["throttled"] = throttled
    return table


def decode_trials(
    table: Mapping[str, Any], configs: Sequence[Config], *, final: bool
) -> dict[Config, Trial]:
    """Read trials from columns.

    Raises:
        ValueError, TypeError, KeyError: a column is missing, or a value is not what it stands for.
    """
    if len({len(table[name]) for name in ("config", "status", "error", *_MEASURED)}) != 1:
        raise ValueError("the columns of a table differ in length")
    throttled = {i for i, mark in enumerate(table.get("throttled", ())) if mark is True}
    trials = {}
    for i, place in enumerate(table["config"]):
        if not 0 <= place < len(configs):
            raise ValueError(f"there is no config {place}")
        status = Status(table["status"][i])
        error = table["error"][i]
        found = None
        if status is Status.OK:
            row = {name: table[name][i] for name in _MEASURED}
            row["throttled"] = i in throttled
            found = decode_measurement(row, final=final)
        message = None if error is None else as_text(error)
        trials[configs[place]] = Trial(configs[place], status, found, message)
    return trials


def decode_measurement(row: Mapping[str, Any], *, final: bool) -> Measurement:
    """Read a measurement from its values by name."""
    ratio = row["error_ratio"]
    return Measurement(
        **{name: as_number(row[name]) for name in _TIMES},
        repetitions=as_whole(row["repetitions"]),
        protocol=as_text(row["protocol"]),
        error_ratio=None if ratio is None else as_number(ratio, above=-1.0),
        final=final,
        contended=row["contended"] is True,
        throttled=row.get("throttled") is True,
    )


def as_number(value: Any, above: float = 0.0) -> float:
    """Return a finite number above a bound."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    if not (math.isfinite(value) and value > above):
        raise ValueError(f"{value!r} is out of range")
    return float(value)


def as_whole(value: Any) -> int:
    """Return a whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def as_text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
