"""Take the rows of an export file into a store: each one checked, all in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from sqlalchemy import Connection

from tunekit.cache.document import read_document
from tunekit.cache.plain import (
    RefusedRowError,
    baseline_from_plain,
    best_from_plain,
    device_from_plain,
    trial_from_plain,
)
from tunekit.cache.queries import Where
from tunekit.cache.reading import find_baselines, find_bests, find_trials
from tunekit.cache.rows import config_text, environment_values
from tunekit.cache.rules import Policy, policy_takes
from tunekit.cache.store import Store
from tunekit.cache.writing import RowWriter
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import ExchangeError, TunekitError
from tunekit.key import TuningKey
from tunekit.space import Legality
from tunekit.trial import Best, Measurement, Provenance, Trial

_T = TypeVar("_T")
_MAX_REASON = 300
_KeyedTrial = tuple[TuningKey, Trial, Provenance]
_Baseline = tuple[TuningKey, Measurement, Provenance]


@dataclass(slots=True)
class ImportReport:
    """What became of a file's rows.

    `refused` gives the number and the reason of each row that was not taken. Rows are numbered from
    1 through the file's bests, then its baselines, trials and devices.
    """

    added: int = 0
    replaced: int = 0
    kept: int = 0
    """Rows whose place in the store is taken by one that stays, or by the same."""
    refused: list[tuple[int, str]] = field(default_factory=list)


def import_json(
    store: Store,
    text: str,
    *,
    policy: Policy = Policy.KEEP,
    legality: Legality,
    dry_run: bool = False,
) -> ImportReport:
    """Add the rows of an export file to a store, all together, and mark them as imported.

    `policy` decides where a row's place is taken. A row that is damaged, or whose config `legality`
    finds illegal on its device, is refused and the rest is taken. A device that the store knows is
    believed before the file's word on it. `dry_run` only counts.

    Raises:
        ExchangeError: the text is not a whole export file, or `Policy.FAIL` met a taken place.
            Nothing was written.
        StoreError: the store cannot be read or written.
    """
    sections = read_document(text)
    known = {device.slug: device for device in store.devices()}
    rows = _Checker(sections, known, legality).check()
    report = ImportReport(refused=sorted(rows.refused))
    if dry_run:
        with store.database.reading() as connection:
            _Merge(connection, policy, report, writer=None).take(rows)
    else:
        with store.database.writing() as connection:
            _Merge(connection, policy, report, writer=RowWriter(connection)).take(rows)
    return report


@dataclass(slots=True)
class _FileRows:
    """The rows of a file that may be taken, with their numbers, and why the others may not."""

    devices: dict[str, DeviceInfo] = field(default_factory=dict)
    bests: list[tuple[int, Best]] = field(default_factory=list)
    baselines: list[tuple[int, _Baseline]] = field(default_factory=list)
    trials: list[tuple[int, _KeyedTrial]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


class _Checker:
    """Checks the rows of a file one by one."""

    def __init__(
        self, sections: Mapping[str, list[Any]], known: Mapping[str, DeviceInfo], legality: Legality
    ) -> None:
        self._sections = sections
        self._known = known
        self._legality = legality
        self._rows = _FileRows()
        self._first, number = {}, 1
        for section in ("bests", "baselines", "trials", "devices"):
            self._first[section] = number
            number += len(sections[section])

    def check(self) -> _FileRows:
        """Return the rows that may be taken, and why the others may not."""
        rows = self._rows
        devices = self._take("devices", device_from_plain, lambda device: device.slug)
        rows.devices = {device.slug: device for _, device in devices}
        rows.bests = self._take("bests", self._best, _best_place)
        beside = [_environment_place(b.key, b.provenance) for _, b in rows.bests if b.vendor]
        rows.baselines = self._take("baselines", self._baseline, _baseline_place, beside)
        rows.trials = self._take("trials", self._trial, _trial_place)
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
        for index, row in enumerate(self._sections[section]):
            number = self._first[section] + index
            try:
                value = read(row)
                if place(value) in places:
                    raise RefusedRowError("an earlier row of the file has the same place")
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

    def _trial(self, row: Any) -> _KeyedTrial:
        key, trial, provenance = trial_from_plain(row)
        self._check_fit(key, trial.config)
        return key, trial, provenance

    def _baseline(self, row: Any) -> _Baseline:
        key, vendor, provenance = baseline_from_plain(row)
        self._check_fit(key)
        return key, vendor, provenance

    def _check_fit(self, key: TuningKey, config: Config | None = None) -> None:
        """Refuse a row whose device is unknown or whose config is not legal there."""
        device = self._known.get(key.gpu) or self._rows.devices.get(key.gpu)
        if device is None:
            raise RefusedRowError(f"key: the file does not describe its device {key.gpu!r}")
        violation = None if config is None else self._legality(config, key.problem, device)
        if violation is not None:
            raise RefusedRowError(f"the config is not legal for {key}: {violation}")


class _Merge:
    """Puts checked rows beside those of the store, or only counts, without a writer."""

    def __init__(
        self,
        connection: Connection,
        policy: Policy,
        report: ImportReport,
        *,
        writer: RowWriter | None,
    ) -> None:
        self._connection = connection
        self._policy = policy
        self._report = report
        self._writer = writer

    def take(self, rows: _FileRows) -> None:
        """Take every row for which there is a place."""
        keys = [best.key for _, best in rows.bests]
        keys += [key for _, (key, *_) in (*rows.baselines, *rows.trials)]
        if self._writer is not None:
            for gpu in sorted({key.gpu for key in keys} & set(rows.devices)):
                self._writer.device(rows.devices[gpu], keep=True)
        self._take_bests(rows.bests)
        self._take_baselines(rows.baselines)
        in_order = sorted(rows.trials, key=lambda numbered: numbered[1][0])
        for key, trials in groupby(in_order, key=lambda numbered: numbered[1][0]):
            self._take_trials(key, list(trials))

    def _take_bests(self, bests: list[tuple[int, Best]]) -> None:
        stored = {_best_place(s.best): s.best for s in find_bests(self._connection)}
        for number, best in bests:
            old = stored.get(_best_place(best))
            if self._wants(number, best.key, best, old) and self._writer is not None:
                self._writer.best(best, imported=True)

    def _take_baselines(self, baselines: list[tuple[int, _Baseline]]) -> None:
        if not baselines:
            return
        found = find_baselines(self._connection)
        stored = {_environment_place(b.key, b.provenance): b for b in found}
        for number, (key, vendor, provenance) in baselines:
            old = stored.get(_environment_place(key, provenance))
            if old is not None and old.in_use:  # a best was chosen against it
                self._report.kept += 1
                continue
            before = None if old is None else (key, old.measurement, old.provenance)
            wanted = self._wants(number, key, (key, vendor, provenance), before)
            if wanted and self._writer is not None:
                self._writer.baseline(key, vendor, provenance, imported=True)

    def _take_trials(self, key: TuningKey, trials: list[tuple[int, _KeyedTrial]]) -> None:
        found = find_trials(self._connection, Where(key=key))
        stored = {_trial_place(old): old for old in ((t.key, t.trial, t.provenance) for t in found)}
        wanted = [
            (trial, provenance)
            for number, (_, trial, provenance) in trials
            if self._wants(
                number,
                key,
                (key, trial, provenance),
                stored.get(_trial_place((key, trial, provenance))),
            )
        ]
        if self._writer is not None:
            self._writer.trials(key, wanted, imported=True)

    def _wants(
        self,
        number: int,
        key: TuningKey,
        new: Best | _Baseline | _KeyedTrial,
        old: Best | _Baseline | _KeyedTrial | None,
    ) -> bool:
        """Decide about a row, and count it."""
        if old is None:
            self._report.added += 1
            return True
        if new != old:
            if self._policy is Policy.FAIL:
                raise ExchangeError(
                    f"row {number} ({key}) differs from the one in the cache: nothing was imported"
                )
            if policy_takes(self._policy, _evidence(new), _evidence(old)):
                self._report.replaced += 1
                return True
        self._report.kept += 1
        return False


def _evidence(row: Best | _Baseline | _KeyedTrial) -> tuple[Measurement | None, Provenance]:
    if isinstance(row, Best):
        return row.measurement, row.provenance
    _, value, provenance = row
    return (value.measurement if isinstance(value, Trial) else value), provenance


def _best_place(best: Best) -> tuple[Any, ...]:
    return best.key, best.provenance.fingerprint.compiler


def _environment_place(key: TuningKey, provenance: Provenance) -> tuple[Any, ...]:
    return (key, *environment_values(provenance).values())


def _baseline_place(baseline: _Baseline) -> tuple[Any, ...]:
    return _environment_place(baseline[0], baseline[2])


def _trial_place(row: _KeyedTrial) -> tuple[Any, ...]:
    key, trial, provenance = row
    source = provenance.fingerprint.source
    return (*_environment_place(key, provenance), source, config_text(trial.config))
