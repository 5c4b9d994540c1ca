"""The store of what was tuned: SQLite by default, PostgreSQL by URL, and files between.

Nothing here imports a kernel or touches a GPU. Where configs must be judged, the function that
judges them is handed in.
"""

from __future__ import annotations

from tunekit.cache.autotune import (
    autotune_dtype,
    check_autotune_key,
    describe_key,
    is_autotune,
    read_autotune,
)
from tunekit.cache.document import document_sections, exchange_schema, parse_json
from tunekit.cache.exporting import export_json, export_sqlite
from tunekit.cache.importing import import_json, import_sections, import_sqlite
from tunekit.cache.location import default_location
from tunekit.cache.merging import ImportReport
from tunekit.cache.rules import Policy
from tunekit.cache.snapshot import SQLITE_MAGIC, read_snapshot
from tunekit.cache.store import Store

__all__ = [
    "SQLITE_MAGIC",
    "ImportReport",
    "Policy",
    "Store",
    "autotune_dtype",
    "check_autotune_key",
    "default_location",
    "describe_key",
    "document_sections",
    "exchange_schema",
    "export_json",
    "export_sqlite",
    "import_json",
    "import_sections",
    "import_sqlite",
    "is_autotune",
    "parse_json",
    "read_autotune",
    "read_snapshot",
]
