"""Take the rows of a file into a store: each one checked, all in one transaction."""

from __future__ import annotations

from pathlib import Path

from tunekit.cache.checking import check_rows
from tunekit.cache.document import Sections, read_document
from tunekit.cache.merging import ImportReport, decide, write_rows
from tunekit.cache.rules import Policy
from tunekit.cache.snapshot import read_snapshot
from tunekit.cache.store import Store
from tunekit.space import Legality


def import_json(
    store: Store,
    text: str,
    *,
    policy: Policy = Policy.KEEP,
    legality: Legality,
    dry_run: bool = False,
) -> ImportReport:
    """Add the rows of an export file to a store; see `import_sections`.

    Raises:
        ExchangeError: the text is not a whole export file, or `Policy.FAIL` met a taken place.
            Nothing was written.
        StoreError: the store cannot be read or written.
    """
    sections = read_document(text)
    return import_sections(store, sections, policy=policy, legality=legality, dry_run=dry_run)


def import_sqlite(
    store: Store,
    path: Path,
    *,
    policy: Policy = Policy.KEEP,
    legality: Legality,
    dry_run: bool = False,
) -> ImportReport:
    """Add the rows of an exported SQLite file to a store; see `import_sections`.

    Raises:
        ExchangeError: the file is damaged or no cache, or `Policy.FAIL` met a taken place. Nothing
            was written.
        StoreError: the store cannot be read or written.
    """
    sections = read_snapshot(path)
    return import_sections(store, sections, policy=policy, legality=legality, dry_run=dry_run)


def import_sections(
    store: Store,
    sections: Sections,
    *,
    policy: Policy = Policy.KEEP,
    legality: Legality,
    dry_run: bool = False,
) -> ImportReport:
    """Add the rows of a file that was read, all together, and mark them as imported.

    `policy` decides where a row's place is taken. A row that is damaged, or whose config `legality`
    finds illegal on its device, is refused and the rest is taken. A device that the store knows is
    believed before the file's word on it. `dry_run` only counts.

    Raises:
        ExchangeError: `Policy.FAIL` met a taken place. Nothing was written.
        StoreError: the store cannot be read or written.
    """
    known = {device.slug: device for device in store.devices()}
    rows = check_rows(sections, known=known, legality=legality)
    if dry_run:
        with store.database.reading() as connection:
            return decide(connection, rows, policy)[1]
    with store.database.writing() as connection:
        taken, report = decide(connection, rows, policy)
        write_rows(connection, taken)
    return report
