"""Write what a store holds to one text, the same for the same rows, whichever store they are in."""

from __future__ import annotations

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
from tunekit.cache.store import Store
from tunekit.errors import StoreError


def export_json(store: Store, *, gpu: str | None = None, all_trials: bool = False) -> str:
    """Return the bests and baselines of a store (of one GPU kind) as an export file's text.

    `all_trials` adds every trial. Each row keeps its original provenance, and nothing in the text
    says when or where it was exported, so two exports of the same rows are equal byte for byte.

    Raises:
        StoreError: the store cannot be read, or holds nothing to export.
    """
    where = Where(gpu=gpu)
    with store.database.reading() as connection:
        devices = find_devices(connection)
        bests = [stored.best for stored in find_bests(connection, where)]
        baselines = [b for b in find_baselines(connection, where) if not b.in_use]
        trials = find_trials(connection, where) if all_trials else []
    keys = [row.key for rows in (bests, baselines, trials) for row in rows]
    if not keys:
        wanted = "" if gpu is None else f" for the GPU {gpu}"
        raise StoreError(
            f"the cache {store.location} holds nothing to export{wanted}:"
            " fill it with `tunekit tune`"
        )
    used = {key.gpu for key in keys}
    sections = {
        "devices": [device_to_plain(device) for device in devices if device.slug in used],
        "bests": [best_to_plain(best) for best in bests],
        "baselines": [
            baseline_to_plain(b.key, b.measurement, b.provenance)
            for b in sorted(baselines, key=_place)
        ],
    }
    if all_trials:
        sections["trials"] = [
            trial_to_plain(t.key, t.trial, t.provenance)
            for t in sorted(trials, key=lambda t: (*_place(t), config_text(t.trial.config)))
        ]
    return write_document(sections)


def _place(stored: StoredBaseline | StoredTrial) -> tuple[Any, ...]:
    """Return what sorts a row: its key, then its environment and source."""
    environment = environment_values(stored.provenance).values()
    source = stored.provenance.fingerprint.source
    return (*stored.key.to_dict().values(), *environment, source)
