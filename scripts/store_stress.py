"""Put a store under the load that its promises are about, and count what broke.

    python scripts/store_stress.py > stress.json
    python scripts/store_stress.py --database postgresql://user@host/empty > stress.json
    python scripts/store_stress.py --short

The database of a URL has to be empty, and is left empty. Prints one JSON document; exits 1 if
anything failed. `--short` is a hundredth of the full load, for a look.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sqlalchemy
from store_loads import LOADS
from store_values import Load, clear

import tunekit
from tunekit.cache import Store
from tunekit.errors import NoStoreError


def main() -> int:
    """Run every part and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--database", help="URL of an empty database; default: a temporary file")
    parser.add_argument("--short", action="store_true", help="a hundredth of the load")
    arguments = parser.parse_args()
    load = Load().short() if arguments.short else Load()
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.database or str(Path(folder) / "cache" / "tunekit.db")
        check_empty(place)
        parts = {}
        for part in LOADS:
            began = time.monotonic()
            try:
                parts[part.__name__] = part(place, load)
            finally:
                clear(place)
            parts[part.__name__]["seconds"] = round(time.monotonic() - began, 2)
    failures = sum(part["failures"] for part in parts.values())
    print(json.dumps({**about(arguments.database), "failures": failures, "parts": parts}, indent=1))
    return 1 if failures else 0


def about(url: str | None) -> dict[str, Any]:
    """Say what was run, and on what."""
    return {
        "what": "a store under concurrent load",
        "command": "python " + " ".join(part.split("://")[0] for part in sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "database": f"SQLite {sqlite3.sqlite_version}" if url is None else server_version(url),
        "sqlalchemy": sqlalchemy.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "tunekit": tunekit.__version__,
    }


def check_empty(place: str) -> None:
    """Make sure that nobody's rows are where this is going to write."""
    try:
        Store.open(place, create=False)
    except NoStoreError:
        return
    raise SystemExit("the database holds a cache: name an empty one")


def server_version(url: str) -> str:
    """Return what a server says it is."""
    with Store.open(url) as store, store.database.reading() as connection:
        found = str(connection.exec_driver_sql("SHOW server_version").scalar_one())
    clear(url)
    return f"PostgreSQL {found}"


if __name__ == "__main__":
    sys.exit(main())
