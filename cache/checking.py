"""The rows of a file, each one checked: those that may be taken, and why the others may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tunekit.cache.document import Sections
from tunekit.cache.fields import ContradictionError, RefusedRowError
from tunekit.cache.plain import (
    baseline_from_plain,
    best_from_plain,
    device_from_plain,
    trial_from_plain,
)
from tunekit.cache.rows import config_text, environment_values
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import TunekitError
from tunekit.key import TuningKey
from tunekit.space import Legality
from tunekit.trial import Best, Measurement, Provenance, Trial

_T = TypeVar("_T")
_MAX_REASON = 300

KeyedTrial = tuple[TuningKey, Trial, Provenance]
KeyedBaseline = tuple[TuningKey, Measurement, Provenance]


def environment_place(key: TuningKey, provenance: Provenance) -> tuple[Any, ...]:
    """Return what no two vendor measurements share."""
    return (key, *environment_values(provenance).values())


def best_place(best: Best) -> tuple[Any, ...]:
    """Return what no two bests share."""
    return best.key, best.provenance.fingerprint.compiler


def baseline_place(baseline: KeyedBaseline) -> tuple[Any, ...]:
    """Return what no two vendor measurements share."""
    return environment_place(baseline[0], baseline[2])


def trial_place(row: KeyedTrial) -> tuple[Any, ...]:
    """Return what no two trials share."""
    key, trial, provenance = row
    source = provenance.fingerprint.source
    return (*environment_place(key, provenance), source, config_text(trial.config))


@dataclass(slots=True)
class FileRows:
    """The rows of a file that may be taken, with their numbers, and why the others may not."""

    devices: dict[str, DeviceInfo] = field(default_factory=dict)
    bests: list[tuple[int, Best]] = field(default_factory=list)
    baselines: list[tuple[int, KeyedBaseline]] = field(default_factory=list)
    trials: list[tuple[int, KeyedTrial]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


def check_rows(
    sections: Sections, *, known: Mapping[str, DeviceInfo], legality: Legality
) -> FileRows:
    """Check every row of a file, of devices that the store knows or the file describes.

    A device that the store knows is believed before the file's word on it.
    """
    return _Checker(sections, known, legality).check()


class _Checker:
    """Checks the rows of a file one by one."""

    def __init__(
        self, sections: Sections, known: Mapping[str, DeviceInfo], legality: Legality
    ) -> None:
        self._sections = sections
        self._known = known
        self._legality = legality
        self._rows = FileRows()
        self._first, number = {}, 1
        for section in ("bests", "baselines", "trials", "devices"):
            self._first[section] = number
            number += len(sections.get(section, ()))

    def check(self) -> FileRows:
        """Return the rows that may be taken, and why the others may not."""
        rows = self._rows
        devices = self._take("devices", device_from_plain, lambda device: device.slug)
        rows.devices = {device.slug: device for _, device in devices}
        rows.bests = self._take("bests", self._best, best_place)
        beside = [environment_place(b.key, b.provenance) for _, b in rows.bests if b.vendor]
        rows.baselines = self._take("baselines", self._baseline, baseline_place, beside)
        rows.trials = self._take("trials", self._trial, trial_place)
        rows.refused.sort()
        return rows

    def _take(
        self,
        section: str,
        read: Callable[[Any], _T],
        place: Callable[[_T], Any],
        taken: Iterable[Any] = (),
    ) -> list[tuple[int, _T]]:
        """Return the rows of a section that can be read and have a place of their own."""
        places, values = set(taken), []
        for index, row in enumerate(self._sections.get(section, ())):
            number = self._first[section] + index
            try:
                if isinstance(row, RefusedRowError):
                    raise row
                value = read(row)
                if place(value) in places:
                    raise ContradictionError("an earlier row of the file has the same place")
            except (RefusedRowError, TunekitError, RecursionError) as error:
                reason = f"{section.removesuffix('s')} {index + 1}: {error}"
                self._rows.refused.append((number, reason[:_MAX_REASON]))
            else:
                places.add(place(value))
                values.append((number, value))
        return values

    def _best(self, row: Any) -> Best:
        best = best_from_plain(row)
        self._check_fit(best.key, best.config)
        return best

    def _trial(self, row: Any) -> KeyedTrial:
        key, trial, provenance = trial_from_plain(row)
        self._check_fit(key, trial.config)
        return key, trial, provenance

    def _baseline(self, row: Any) -> KeyedBaseline:
        key, vendor, provenance = baseline_from_plain(row)
        self._check_fit(key)
        return key, vendor, provenance

    def _check_fit(self, key: TuningKey, config: Config | None = None) -> None:
        """Refuse a row whose device is unknown or whose config is not legal there."""
        device = self._known.get(key.gpu) or self._rows.devices.get(key.gpu)
        if device is None:
            raise ContradictionError(f"key: the file does not describe its device {key.gpu!r}")
        violation = None if config is None else self._legality(config, key.problem, device)
        if violation is not None:
            raise ContradictionError(f"the config is not legal for {key}: {violation}")
