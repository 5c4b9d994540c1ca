"""Checked rows put beside those of a store: what is taken is decided first, then written.

So a dry run, which only decides, counts what an import then does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

from sqlalchemy import Connection

from tunekit.cache.checking import (
    FileRows,
    KeyedBaseline,
    KeyedTrial,
    baseline_place,
    best_place,
    environment_place,
    trial_place,
)
from tunekit.cache.queries import Where
from tunekit.cache.reading import find_baselines, find_bests, find_trials
from tunekit.cache.rules import Policy, policy_takes
from tunekit.cache.writing import RowWriter
from tunekit.errors import ExchangeError
from tunekit.key import TuningKey
from tunekit.trial import Best, Measurement, Provenance, Trial


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


def decide(connection: Connection, rows: FileRows, policy: Policy) -> tuple[FileRows, ImportReport]:
    """Return the rows of a file for which there is a place in a store, and the report.

    Raises:
        ExchangeError: `Policy.FAIL` met a place that is taken by another row.
    """
    report = ImportReport(refused=rows.refused)
    decision = _Decision(connection, policy, report)
    bests, standing = decision.bests(rows.bests)
    baselines = decision.baselines(rows.baselines, standing)
    taken = FileRows(bests=bests, baselines=baselines, trials=decision.trials(rows.trials))
    keys = [best.key for _, best in rows.bests]
    keys += [key for _, (key, *_) in (*rows.baselines, *rows.trials)]
    used = {key.gpu for key in keys}
    taken.devices = {slug: rows.devices[slug] for slug in sorted(used & rows.devices.keys())}
    return taken, report


def write_rows(connection: Connection, rows: FileRows) -> None:
    """Write rows that were decided for, and mark them as imported."""
    writer = RowWriter(connection)
    for device in rows.devices.values():
        writer.device(device, keep=True)
    for _, best in rows.bests:
        writer.best(best, imported=True)
    for _, (key, vendor, provenance) in rows.baselines:
        writer.baseline(key, vendor, provenance, imported=True)
    for key, trials in groupby(rows.trials, key=lambda numbered: numbered[1][0]):
        writer.trials(key, [(trial, where) for _, (_, trial, where) in trials], imported=True)


class _Decision:
    """Decides about rows one by one, and counts."""

    def __init__(self, connection: Connection, policy: Policy, report: ImportReport) -> None:
        self._connection = connection
        self._policy = policy
        self._report = report

    def bests(self, bests: list[tuple[int, Best]]) -> tuple[list[tuple[int, Best]], set[object]]:
        """Return the bests to take, and the places of vendor measurements that bests stand on."""
        stored = {best_place(s.best): s.best for s in find_bests(self._connection)}
        taken = [
            (number, best)
            for number, best in bests
            if self._wants(number, best.key, best, stored.get(best_place(best)))
        ]
        after = stored | {best_place(best): best for _, best in taken}
        standing: set[object] = {
            environment_place(best.key, best.provenance) for best in after.values() if best.vendor
        }
        return taken, standing

    def baselines(
        self, baselines: list[tuple[int, KeyedBaseline]], standing: set[object]
    ) -> list[tuple[int, KeyedBaseline]]:
        """Return the vendor measurements to take: none that a best was chosen against."""
        found = find_baselines(self._connection) if baselines else []
        stored = {environment_place(b.key, b.provenance): b for b in found}
        taken = []
        for number, baseline in baselines:
            key, place = baseline[0], baseline_place(baseline)
            known = stored.get(place)
            old = None if known is None else (key, known.measurement, known.provenance)
            if place in standing:
                self._keep(number, key, same=old == baseline)
            elif self._wants(number, key, baseline, old):
                taken.append((number, baseline))
        return taken

    def trials(self, trials: list[tuple[int, KeyedTrial]]) -> list[tuple[int, KeyedTrial]]:
        """Return the trials to take, by key."""
        taken = []
        in_order = sorted(trials, key=lambda numbered: numbered[1][0])
        for key, group in groupby(in_order, key=lambda numbered: numbered[1][0]):
            found = find_trials(self._connection, Where(key=key))
            stored = {
                trial_place(row): row for row in ((t.key, t.trial, t.provenance) for t in found)
            }
            for number, trial in group:
                if self._wants(number, key, trial, stored.get(trial_place(trial))):
                    taken.append((number, trial))
        return taken

    def _wants(
        self,
        number: int,
        key: TuningKey,
        new: Best | KeyedBaseline | KeyedTrial,
        old: Best | KeyedBaseline | KeyedTrial | None,
    ) -> bool:
        """Decide about a row, and count it."""
        if old is None:
            self._report.added += 1
            return True
        if new != old and policy_takes(self._policy, _evidence(new), _evidence(old)):
            self._report.replaced += 1
            return True
        self._keep(number, key, same=new == old)
        return False

    def _keep(self, number: int, key: TuningKey, *, same: bool) -> None:
        """Leave a place as it is, which `Policy.FAIL` does not stand for."""
        if self._policy is Policy.FAIL and not same:
            raise ExchangeError(
                f"row {number} ({key}) differs from the one in the cache: nothing was imported"
            )
        self._report.kept += 1


def _evidence(row: Best | KeyedBaseline | KeyedTrial) -> tuple[Measurement | None, Provenance]:
    if isinstance(row, Best):
        return row.measurement, row.provenance
    _, value, provenance = row
    return (value.measurement if isinstance(value, Trial) else value), provenance
