"""The bests of a store as others would keep them: in a diskcache, in a table of key and text."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import diskcache

from tunekit.cache import Store
from tunekit.key import TuningKey
from tunekit.trial import Best


def name_of(key: TuningKey) -> str:
    """Return a key as one text, its GPU first."""
    return f"{key.gpu}/{json.dumps(key.to_dict(), sort_keys=True)}"


def text_of(best: Best) -> str:
    """Return what a best says as JSON, its provenance left out."""
    vendor = None if best.vendor is None else best.vendor.median_us
    return json.dumps(
        [best.config.to_dict(), best.choice.value, best.measurement.median_us, vendor]
    )


def sqlite_dict(folder: Path) -> sqlite3.Connection:
    """Open the table of keys and texts."""
    connection = sqlite3.connect(folder / "dict.db", timeout=60, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, value TEXT)")
    return connection


def make_peers(folder: Path) -> None:
    """Put every best of the store into the other two."""
    with Store.open(folder / "store.db", create=False) as store:
        rows = {name_of(best.key): text_of(best) for best in store.bests()}
    connection = sqlite_dict(folder)
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO rows VALUES (?, ?)", rows.items())
    connection.execute("COMMIT")
    connection.close()
    with diskcache.Cache(str(folder / "disk")) as cache, cache.transact():
        for name, text in rows.items():
            cache[name] = text


def names_in(folder: Path) -> list[str]:
    """Return the names of every best."""
    connection = sqlite_dict(folder)
    names = [name for (name,) in connection.execute("SELECT key FROM rows ORDER BY key")]
    connection.close()
    return names
