"""Write what a store holds to one file, the same for the same rows, whichever store they are in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tunekit.cache.document import write_document
from tunekit.cache.plain import (
    baseline_to_plain,
    best_to_plain,
    device_to_plain,
    trial_to_plain,
)
from tunekit.cache.queries import Where
from tunekit.cache.reading import (
    StoredBaseline,
    StoredTrial,
    find_baselines,
    find_bests,
    find_devices,
    find_trials,
)
from tunekit.cache.rows import config_text, environment_values
from tunekit.cache.snapshot import SnapshotRows, write_snapshot
from tunekit.cache.store import Store
from tunekit.errors import StoreError


def export_json(store: Store, *, gpu: str | None = None, all_trials: bool = False) -> str:
    """Return the bests and baselines of a store (of one GPU kind) as an export file's text.

    `all_trials` adds every trial. Each row keeps its original provenance, and nothing in the text
    says when or where it was exported, so two exports of the same rows are equal byte for byte.

    Raises:
        StoreError: the store cannot be read, or holds nothing to export.
    """
    rows = _collect(store, gpu, all_trials)
    sections: dict[str, list[Any]] = {
        "devices": [device_to_plain(device) for device in rows.devices],
        "bests": [best_to_plain(best) for best in rows.bests],
        "baselines": [
            baseline_to_plain(b.key, b.measurement, b.provenance) for b in rows.baselines
        ],
    }
    if all_trials:
        sections["trials"] = [trial_to_plain(t.key, t.trial, t.provenance) for t in rows.trials]
    return write_document(sections)


def export_sqlite(
    store: Store, path: Path, *, gpu: str | None = None, all_trials: bool = False
) -> None:
    """Write what `export_json` returns as a cache of its own, whole or not at all.

    The file is like any cache and can be used as one. Two exports of the same rows by one version
    of SQLite are equal byte for byte.

    Raises:
        StoreError: the store cannot be read, or holds nothing to export, or the file cannot be
            written.
    """
    write_snapshot(path, _collect(store, gpu, all_trials))


def _collect(store: Store, gpu: str | None, all_trials: bool) -> SnapshotRows:
    """Return the rows to export, sorted, as one state of the store has them."""
    where = Where(gpu=gpu)
    with store.database.reading() as connection:
        devices = find_devices(connection)
        bests = [stored.best for stored in find_bests(connection, where)]
        baselines = [b for b in find_baselines(connection, where) if not b.in_use]
        trials = find_trials(connection, where) if all_trials else []
    used = {row.key.gpu for rows in (bests, baselines, trials) for row in rows}
    if not used:
        raise StoreError(_nothing_to_export(store, gpu, all_trials=all_trials))
    return SnapshotRows(
        devices=[device for device in devices if device.slug in used],
        bests=bests,
        baselines=sorted(baselines, key=_place),
        trials=sorted(trials, key=lambda t: (*_place(t), config_text(t.trial.config))),
    )


def _nothing_to_export(store: Store, gpu: str | None, *, all_trials: bool) -> str:
    with store.database.reading() as connection:
        here = {stored.best.key.gpu for stored in find_bests(connection)}
        tried = _gpus(find_trials(connection))
    if gpu is not None and gpu not in here | tried and here | tried:
        others = ", ".join(sorted(here | tried))
        return f"the cache {store.location} has no rows of the GPU {gpu!r}: it has {others}"
    wanted = "" if gpu is None else f" for the GPU {gpu}"
    cure = "fill it with `tunekit tune`"
    if not all_trials and (tried if gpu is None else gpu in tried):
        cure = "it has trials without a best, which --all-trials exports"
    return f"the cache {store.location} holds nothing to export{wanted}: {cure}"


def _gpus(trials: Iterable[StoredTrial]) -> set[str]:
    return {trial.key.gpu for trial in trials}


def _place(stored: StoredBaseline | StoredTrial) -> tuple[Any, ...]:
    """Return what sorts a row: its key, then its environment and source."""
    environment = environment_values(stored.provenance).values()
    source = stored.provenance.fingerprint.source
    return (*stored.key.to_dict().values(), *environment, source)
