"""Many processes that write bests to one file at once, and a count of what is missing after."""

from __future__ import annotations

import json
import multiprocessing
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import diskcache
import made_up_store
from store_peers import name_of, sqlite_dict, text_of

from tunekit.cache import Store
from tunekit.trial import Best

SHARED = 50
"""Of a writer's upserts, those to keys that all writers write."""


def written(kind: str, folder: Path, writers: int, upserts: int) -> dict[str, Any]:
    """Let processes write to one new file at once, and count what is missing afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(writers + 1)
        jobs = [
            context.Process(target=write, args=(kind, Path(place), number, upserts, barrier))
            for number in range(writers)
        ]
        for job in jobs:
            job.start()
        barrier.wait()
        start = time.perf_counter()
        for job in jobs:
            job.join()
        seconds = time.perf_counter() - start
        failed = sum(job.exitcode != 0 for job in jobs)
        lost = missing(kind, Path(place), writers, upserts)
    total = writers * upserts
    return {
        "writers": writers,
        "upserts": total,
        "failed_writers": failed,
        "lost": lost,
        "seconds": round(seconds, 1),
        "per_second": round(total / seconds),
    }


def best_of(writer: int, number: int) -> Best:
    """Return a writer's best; the first keys are those of all writers, and each has its time."""
    shared = number < SHARED
    size = 1 + number if shared else 1000 + writer * 10_000 + number
    time_us = 100.0 + (writer * 7 + number) % 64
    return made_up_store.best(m=size, median_us=time_us, config=writer)


def write(kind: str, place: Path, writer: int, upserts: int, barrier: Any) -> None:
    """Be one writer: put every best unless what is stored is faster."""
    rows = [best_of(writer, number) for number in range(upserts)]
    random.Random(writer).shuffle(rows)
    barrier.wait()
    if kind == "tunekit":
        with Store.open(place / "store.db") as store:
            store.put_device(made_up_store.own_gpu())
            for row in rows:
                store.put_best(row)
    elif kind == "diskcache":
        with diskcache.Cache(str(place / "disk"), timeout=600) as cache:
            for row in rows:
                with cache.transact():
                    stored = cache.get(name_of(row.key))
                    if stored is None or json.loads(stored)[2] > row.measurement.median_us:
                        cache[name_of(row.key)] = text_of(row)
    else:
        connection = sqlite_dict(place)
        connection.execute("PRAGMA busy_timeout = 600000")
        for row in rows:
            connection.execute("BEGIN IMMEDIATE")
            stored = connection.execute(
                "SELECT value FROM rows WHERE key = ?", (name_of(row.key),)
            ).fetchone()
            if stored is None or json.loads(stored[0])[2] > row.measurement.median_us:
                item = (name_of(row.key), text_of(row))
                connection.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", item)
            connection.execute("COMMIT")
        connection.close()


def missing(kind: str, place: Path, writers: int, upserts: int) -> int:
    """Count the keys that do not hold the fastest of what was written to them."""
    fastest: dict[str, float] = {}
    for writer in range(writers):
        for number in range(upserts):
            row = best_of(writer, number)
            name, time_us = name_of(row.key), row.measurement.median_us
            fastest[name] = min(time_us, fastest.get(name, time_us))
    found: dict[str, float] = {}
    if kind == "tunekit":
        with Store.open(place / "store.db", create=False) as store:
            found = {name_of(b.key): b.measurement.median_us for b in store.bests()}
    elif kind == "diskcache":
        with diskcache.Cache(str(place / "disk")) as cache:
            found = {name: json.loads(cache[name])[2] for name in cache}
    else:
        rows = sqlite_dict(place).execute("SELECT key, value FROM rows")
        found = {name: json.loads(text)[2] for name, text in rows}
    return sum(found.get(name) != time_us for name, time_us in fastest.items())
