"""Time the store at the size of a large fleet, beside diskcache and a plain dict in SQLite.

    python scripts/store_benchmark.py [--folder DIR] > docs/benchmarks/store-speed.json
    python scripts/store_table.py docs/benchmarks/store-speed.json

Makes a cache of a million trials and 100,000 keys on ten kinds of GPU (kept in --folder), and
measures: opening it and loading one GPU's bests, one lookup in a store just opened, and 64
processes that write to one new file. The same bests go into a `diskcache.Cache` (pip install
diskcache) and into a table of a key and a JSON text: they check nothing and say what SQLite and the
machine take by themselves. Every load is in a process of its own, after its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import diskcache
import made_up_store
import sqlalchemy
from store_peers import make_peers, names_in, sqlite_dict
from store_writers import written

import tunekit
from tunekit.cache import Store
from tunekit.key import Problem, TuningKey
from tunekit.lookup import RowTable
from tunekit.trial import Fingerprint

KINDS = ("tunekit", "diskcache", "sqlite3")
LOADS, LOOKUPS = 15, 2000


def main() -> int:
    """Build, measure, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--writers", type=int, default=64, help="0 leaves that part out")
    parser.add_argument("--upserts", type=int, default=500)
    parser.add_argument("--folder", help="where the files go and stay; default: a temporary one")
    parser.add_argument("--child", choices=LOADERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(LOADERS[arguments.child](Path(arguments.folder))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        document = measured(folder, arguments)
    print(json.dumps(document, indent=1))
    return 0 if all(row["lost"] == 0 for row in document["writers"].values()) else 1


def measured(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return everything that was measured, with what it was measured on."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "store.db"
    if not path.exists():
        made_up_store.build(path, trials=arguments.trials, keys=arguments.keys)
        make_peers(folder)
    loads = load_times(folder)
    lookups = {name: lookup_times(name, folder) for name in KINDS}
    crowd = arguments.writers, arguments.upserts
    return {
        "what": "the store at scale, beside diskcache and a table of keys and texts in SQLite",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "sqlalchemy": sqlalchemy.__version__,
        "diskcache": diskcache.__version__,
        "tunekit": tunekit.__version__,
        "trials": arguments.trials,
        "keys": arguments.keys,
        "gpus": made_up_store.GPUS,
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "store_mb": round(path.stat().st_size / 1e6, 1),
        "load": loads,
        "lookup": lookups,
        "writers": {name: written(name, folder, *crowd) for name in KINDS if crowd[0]},
    }


def percentiles(times_ms: list[float]) -> dict[str, float]:
    """Return the least, the median, the 99th percentile and the most, in milliseconds."""
    order = sorted(times_ms)
    places = {"min": 0, "median": len(order) // 2, "p99": len(order) * 99 // 100, "max": -1}
    return {f"{name}_ms": round(order[place], 3) for name, place in places.items()}


Times = tuple[float, float]
"""Milliseconds by the clock, and of this process's work on a processor."""


def now() -> Times:
    """Return both times."""
    return time.perf_counter() * 1e3, time.process_time() * 1e3


def since(start: Times) -> Times:
    """Return what passed since a `now`."""
    end = now()
    return end[0] - start[0], end[1] - start[1]


def both(times: list[Times]) -> dict[str, float]:
    """Return percentiles by the clock, and the median and 99th percentile of the work."""
    wall, work = zip(*times, strict=True)
    of_work = percentiles(list(work))
    marks = {f"cpu_{name}": of_work[name] for name in ("median_ms", "p99_ms")}
    return {**percentiles(list(wall)), **marks}


# Opening, and loading one GPU's bests.


def load_for_serving(folder: Path) -> tuple[Times, int]:
    """Load what `tunekit.matmul` loads; return how long it took and how many rows."""
    device = made_up_store.own_gpu()
    start = now()
    with Store.open(folder / "store.db", create=False) as store:
        devices = {info.slug: info for info in store.devices()}
        rows = store.unread_bests(gpu=device.slug)
    served = RowTable(
        rows,
        devices,
        device=device,
        fingerprint=lambda family, variant: Fingerprint("", made_up_store.COMPILER),
        legality=lambda *_: None,
    )
    took = since(start)
    assert list(served.answers(Problem("matmul", 1, 4096, 4096, "bfloat16"))) == []
    return took, len(rows)


def load_decoded(folder: Path) -> tuple[Times, int]:
    """Load every best as a value, checked and sorted, as `show` and `export-cache` do."""
    start = now()
    with Store.open(folder / "store.db", create=False) as store:
        rows = store.bests(gpu=made_up_store.own_gpu().slug)
    return since(start), len(rows)


def load_diskcache(folder: Path) -> tuple[Times, int]:
    """Get one GPU's rows from a diskcache, which knows no question but one key at a time."""
    slug = made_up_store.own_gpu().slug
    names = [name for name in names_in(folder) if name.startswith(f"{slug}/")]
    start = now()
    with diskcache.Cache(str(folder / "disk")) as cache:
        rows = {name: json.loads(cache[name]) for name in names}
    return since(start), len(rows)


def load_sqlite_dict(folder: Path) -> tuple[Times, int]:
    """Select one GPU's keys and texts."""
    slug = made_up_store.own_gpu().slug
    start = now()
    connection = sqlite_dict(folder)
    wanted = "SELECT key, value FROM rows WHERE key > ? AND key < ?"
    found = connection.execute(wanted, (f"{slug}/", f"{slug}0"))
    rows = {name: json.loads(text) for name, text in found}
    connection.close()
    return since(start), len(rows)


LOADERS: dict[str, Callable[[Path], tuple[Times, int]]] = {
    "tunekit": load_for_serving,
    "tunekit, all decoded": load_decoded,
    "diskcache": load_diskcache,
    "sqlite3": load_sqlite_dict,
}


def load_times(folder: Path) -> dict[str, Any]:
    """Load in fresh processes, each way in turn, and return what they took."""
    runs: dict[str, list[Times]] = {name: [] for name in LOADERS}
    rows: dict[str, int] = {}
    for _ in range(LOADS):
        for name in LOADERS:
            command = [sys.executable, __file__, "--child", name, "--folder", str(folder)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            took, rows[name] = json.loads(done.stdout)
            runs[name].append((took[0], took[1]))
    return {name: {"rows": rows[name], **both(runs[name])} for name in LOADERS}


# One lookup in a store just opened.


def lookup_times(kind: str, folder: Path) -> dict[str, Any]:
    """Look random keys up, each in a store opened for it alone; the file is in the page cache."""
    names = random.Random(7).choices(names_in(folder), k=LOOKUPS)
    alone: list[Times] = []
    with_open: list[Times] = []
    for name in names:
        key = TuningKey(**json.loads(name.split("/", 1)[1]))
        begun = now()
        if kind == "tunekit":
            store: Any = Store.open(folder / "store.db", create=False)
            start = now()
            found: Any = store.best(key)
        elif kind == "diskcache":
            store = diskcache.Cache(str(folder / "disk"))
            start = now()
            found = json.loads(store[name])
        else:
            store = sqlite_dict(folder)
            start = now()
            row = store.execute("SELECT value FROM rows WHERE key = ?", (name,)).fetchone()
            found = json.loads(row[0])
        alone.append(since(start))
        with_open.append(since(begun))
        assert found
        store.close()
    return {"lookup": both(alone), "open_and_lookup": both(with_open)}


if __name__ == "__main__":
    sys.exit(main())
