"""The store of what was tuned: SQLite by default, PostgreSQL by URL, and one JSON file between.

Nothing here imports a kernel or touches a GPU. Where configs must be judged, the function that
judges them is handed in.
"""

from __future__ import annotations

from tunekit.cache.claims import Claims
from tunekit.cache.exporting import export_json
from tunekit.cache.importing import ImportReport, import_json
from tunekit.cache.leases import Holder, Lease
from tunekit.cache.location import default_location
from tunekit.cache.rules import Policy
from tunekit.cache.store import Store

__all__ = [
    "Claims",
    "Holder",
    "ImportReport",
    "Lease",
    "Policy",
    "Store",
    "default_location",
    "export_json",
    "import_json",
]
