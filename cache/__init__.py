"""The store of what was tuned: SQLite by default, PostgreSQL by URL, and files between.

Nothing here imports a kernel or touches a GPU. Where configs must be judged, the function that
judges them is handed in. Each name is loaded at first use: what reads and writes files the run
time has no need of, and to know where the store is takes no database.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tunekit.cache.location import default_location, shown_location

if TYPE_CHECKING:
    from tunekit.cache.claims import Claims as Claims
    from tunekit.cache.document import exchange_schema as exchange_schema
    from tunekit.cache.exporting import export_json as export_json
    from tunekit.cache.exporting import export_sqlite as export_sqlite
    from tunekit.cache.health import FileHealth as FileHealth
    from tunekit.cache.health import examine as examine
    from tunekit.cache.health import file_of as file_of
    from tunekit.cache.holder import Holder as Holder
    from tunekit.cache.importing import import_json as import_json
    from tunekit.cache.importing import import_sections as import_sections
    from tunekit.cache.importing import import_sqlite as import_sqlite
    from tunekit.cache.leases import Lease as Lease
    from tunekit.cache.merging import ImportReport as ImportReport
    from tunekit.cache.opening import place_of as place_of
    from tunekit.cache.rules import Policy as Policy
    from tunekit.cache.store import Store as Store

_HOME = {
    "Policy": "tunekit.cache.rules",
    "Store": "tunekit.cache.store",
    "Claims": "tunekit.cache.claims",
    "Holder": "tunekit.cache.holder",
    "Lease": "tunekit.cache.leases",
    "FileHealth": "tunekit.cache.health",
    "examine": "tunekit.cache.health",
    "file_of": "tunekit.cache.health",
    "place_of": "tunekit.cache.opening",
    "ImportReport": "tunekit.cache.merging",
    "exchange_schema": "tunekit.cache.document",
    "export_json": "tunekit.cache.exporting",
    "export_sqlite": "tunekit.cache.exporting",
    "import_json": "tunekit.cache.importing",
    "import_sections": "tunekit.cache.importing",
    "import_sqlite": "tunekit.cache.importing",
}

__all__ = [
    "default_location",
    "shown_location",
    *_HOME,
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
