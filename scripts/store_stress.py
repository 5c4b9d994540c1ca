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
import multiprocessing
import os
import platform
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sqlalchemy

import tunekit
from tunekit.cache import Holder, Store
from tunekit.cache.models import Base
from tunekit.cache.process import started_at
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import NoStoreError, StoreError
from tunekit.key import TuningKey
from tunekit.trial import Best, Choice, Fingerprint, Measurement, Provenance, Status, Trial

FORK = multiprocessing.get_context("fork")
DEVICE = KNOWN_DEVICES["sm_90"]
PROVENANCE = Provenance(
    Fingerprint("5eed", "triton-3.9"), "cold-1", "0", "3.9", "2", "1", "GPU", "2026-01-01T00:00:00Z"
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything."""

    opening_processes: int = 16
    opening_rounds: int = 100
    writers: int = 8
    keys_each: int = 200
    lock_seconds: float = 3.0
    kills: int = 200
    threads: int = 16
    thread_seconds: float = 5.0
    children: int = 4
    lease_processes: int = 16
    leased_keys: int = 200

    def short(self) -> Load:
        """Return about a hundredth of it."""
        return replace(
            self, opening_rounds=1, keys_each=5, lock_seconds=0.3, kills=3, thread_seconds=0.3,
            lease_processes=4, leased_keys=20,
        )  # fmt: skip


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
        for part in (cold_open, writers_wait, kills, threads, children, leases):
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


def cold_open(place: str, load: Load) -> dict[str, Any]:
    """Let processes meet at a place where nothing is, each to open it and write its row."""
    failures: list[str] = []
    lost = 0
    for _ in range(load.opening_rounds):
        clear(place)

        def first_use(number: int) -> None:
            with Store.open(place) as store:
                store.put_device(DEVICE)
                store.put_best(best(key(m=number + 1), 10.0))

        failures += together(load.opening_processes, first_use)
        with Store.open(place) as store:
            lost += load.opening_processes - len(store.bests())
    return {
        "processes": load.opening_processes,
        "rounds": load.opening_rounds,
        "failures": len(failures) + lost,
        "rows_lost": lost,
        "messages": sorted(set(failures))[:5],
    }


def writers_wait(place: str, load: Load) -> dict[str, Any]:
    """Let writers and a reader meet one process that sits on the write lock."""
    with Store.open(place) as store:
        store.put_device(DEVICE)
    slowest_read = FORK.Value("d", 0.0)

    def work(number: int) -> None:
        with Store.open(place) as store:
            if number == load.writers:
                with store.database.writing():
                    time.sleep(load.lock_seconds)
            elif number == load.writers + 1:
                until = time.monotonic() + load.lock_seconds
                while time.monotonic() < until:
                    began = time.monotonic()
                    store.bests()
                    slowest_read.value = max(slowest_read.value, time.monotonic() - began)
            else:
                for n in range(load.keys_each):
                    store.put_best(best(key(m=number + 1, n=n + 1), 10.0))

    failures = together(load.writers + 2, work)
    with Store.open(place) as store:
        rows = len(store.bests())
    wanted = load.writers * load.keys_each
    return {
        "writers": load.writers,
        "keys_each": load.keys_each,
        "lock_held_s": load.lock_seconds,
        "rows": rows,
        "slowest_read_s": round(slowest_read.value, 3),
        "failures": len(failures) + abs(wanted - rows),
        "messages": sorted(set(failures))[:5],
    }


def kills(place: str, load: Load) -> dict[str, Any]:
    """Kill a writer at random moments. Every row read, then and after, has to be of one write."""
    moments, mixed, reads, unsound = random.Random(0), 0, 0, 0
    stop = threading.Event()
    with Store.open(place) as store:
        store.put_device(DEVICE)
        store.put_best(step_best(1))

        def read_on() -> None:
            nonlocal mixed, reads
            while not stop.is_set():
                mixed += sum(found != step_best(found.trials) for found in store.bests())
                reads += 1
                time.sleep(0.002)

        begun = FORK.Event()

        def write_for_ever() -> None:
            with Store.open(place) as own:
                step = own.bests()[0].trials
                while True:
                    step += 1
                    own.put_best(step_best(step), force=True)
                    trial = Trial(CONFIG, Status.OK, measurement(float(step)))
                    own.add_trials(key(), [(trial, PROVENANCE)])
                    begun.set()

        reader = threading.Thread(target=read_on)
        reader.start()
        for _ in range(load.kills):
            writer = FORK.Process(target=write_for_ever)
            writer.start()
            begun.wait(60)
            begun.clear()
            time.sleep(moments.uniform(0.0, 0.1))
            os.kill(writer.pid or 0, signal.SIGKILL)
            writer.join()
            unsound += not is_sound(place)
        stop.set()
        reader.join()
        steps, rows = store.bests()[0].trials, len(store.bests())
    return {
        "kills": load.kills,
        "writes": steps,
        "reads": reads,
        "mixed_rows": mixed,
        "failed_integrity_checks": unsound,
        "failures": mixed + unsound + (rows != 1),
    }


def threads(place: str, load: Load) -> dict[str, Any]:
    """Let threads share a store, reading and writing."""
    failures: list[str] = []
    written = [0] * load.threads
    with Store.open(place) as store:
        store.put_device(DEVICE)

        def work(number: int) -> None:
            until = time.monotonic() + load.thread_seconds
            try:
                while time.monotonic() < until:
                    mine = key(m=number + 1, n=written[number] + 1)
                    store.put_best(best(mine, 10.0))
                    written[number] += 1
                    if store.best(mine) != [best(mine, 10.0)]:
                        failures.append("a row just written was not found")
            except StoreError as error:
                failures.append(str(error))

        running = [threading.Thread(target=work, args=(n,)) for n in range(load.threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        lost = sum(written) - len(store.bests())
    return {
        "threads": load.threads,
        "rows": sum(written),
        "rows_lost": lost,
        "failures": len(failures) + abs(lost),
        "messages": sorted(set(failures))[:5],
    }


def children(place: str, load: Load) -> dict[str, Any]:
    """Let forked children go on with their parent's store, beside the parent."""
    with Store.open(place) as store:
        store.put_device(DEVICE)
        store.put_best(best(key(), 10.0))

        def work(number: int) -> None:
            for n in range(load.keys_each // 4):
                store.put_best(best(key(m=number + 1, n=n + 1), 10.0))
                if best(key(), 10.0) not in store.bests():
                    raise StoreError("the parent's row was not found")

        failures = together(load.children, work, beside=lambda: work(load.children))
        rows = len(store.bests())
    wanted = 1 + (load.children + 1) * (load.keys_each // 4)
    return {
        "children": load.children,
        "rows": rows,
        "sound": is_sound(place),
        "failures": len(failures) + abs(wanted - rows) + (not is_sound(place)),
        "messages": sorted(set(failures))[:5],
    }


def leases(place: str, load: Load) -> dict[str, Any]:
    """Let processes race for leases; one in four is killed, and others get what it held."""
    wanted = [key(m=m + 1) for m in range(load.leased_keys)]
    owners = FORK.Array("i", len(wanted))
    with Store.open(place) as store:
        store.put_device(DEVICE)

    def take(number: int) -> None:
        picks, holder, held = random.Random(number), Holder.here(), 0
        deadline = time.monotonic() + 120
        with Store.open(place) as own:
            while 0 in owners[:]:
                if time.monotonic() > deadline:
                    raise StoreError("the leases of killed processes never passed on")
                for one in own.acquire(picks.sample(wanted, 3), holder, seconds=3600):
                    with owners.get_lock():
                        owner = owners[one.m - 1]
                        if owner not in (0, os.getpid()) and started_at(owner) is not None:
                            raise StoreError("two processes had one key at the same time")
                        held += owner == 0
                        dies = number % 4 == 3 and held > 2
                        owners[one.m - 1] = 0 if dies else os.getpid()
                    if dies:  # with its leases, and with a key that is not done
                        os.kill(os.getpid(), signal.SIGKILL)

    failures = together(load.lease_processes, take)
    killed = [failure for failure in failures if "-9" in failure]
    others = [failure for failure in failures if "-9" not in failure]
    return {
        "processes": load.lease_processes,
        "killed": len(killed),
        "keys": sum(owner != 0 for owner in owners),
        "failures": len(others) + sum(owner == 0 for owner in owners),
        "messages": sorted(set(others))[:5],
    }


def together(
    count: int, work: Callable[[int], None], beside: Callable[[], None] = lambda: None
) -> list[str]:
    """Run processes that start at once; return how each that failed did."""
    barrier, messages = FORK.Barrier(count), FORK.SimpleQueue()

    def meet(number: int) -> None:
        barrier.wait(60)
        try:
            work(number)
        except StoreError as error:
            messages.put(str(error))
            os._exit(1)

    processes = [FORK.Process(target=meet, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    beside()
    for process in processes:
        process.join()
    ended = [str(process.exitcode) for process in processes if process.exitcode]
    said = []
    while not messages.empty():
        said.append(messages.get())
    return said + [f"exit code {code}" for code in ended[len(said) :] if code != "1"]


CONFIG = Config("pointer", 64, 64, 32)


def key(m: int = 512, n: int = 1024) -> TuningKey:
    """Return a key of the device."""
    return TuningKey("matmul", m, n, 256, "bfloat16", DEVICE.slug)


def measurement(median_us: float) -> Measurement:
    """Return a measurement whose every time tells which it is."""
    factors = (1.0, 0.9, 1.1, 0.95, 1.05, 0.8)
    times = [median_us * factor for factor in factors]
    return Measurement(*times, repetitions=100, protocol="cold-1", error_ratio=0.25, final=True)


def best(of: TuningKey, median_us: float) -> Best:
    """Return a best of a key."""
    vendor = replace(measurement(median_us), error_ratio=None)
    return Best(of, Choice.TRITON, CONFIG, measurement(median_us), vendor, 40, 900, PROVENANCE)


def step_best(step: int) -> Best:
    """Return a best whose count of trials says what its times have to be."""
    return replace(best(key(), float(step)), trials=step)


def is_sound(place: str) -> bool:
    """Ask SQLite whether the file is whole; a server sees to that itself."""
    if "://" in place:
        return True
    connection = sqlite3.connect(place)
    try:
        whole = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return whole and connection.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        connection.close()


def check_empty(place: str) -> None:
    """Make sure that nobody's rows are where this is going to write."""
    try:
        Store.open(place, create=False)
    except NoStoreError:
        return
    raise SystemExit("the database holds a cache: name an empty one")


def clear(place: str) -> None:
    """Remove what was written."""
    if "://" not in place:
        for path in Path(place).parent.glob("tunekit.db*"):
            path.unlink()
        return
    with Store.open(place) as store, store.database.writing() as connection:
        Base.metadata.drop_all(connection)


def server_version(url: str) -> str:
    """Return what a server says it is."""
    with Store.open(url) as store, store.database.reading() as connection:
        found = str(connection.exec_driver_sql("SHOW server_version").scalar_one())
    clear(url)
    return f"PostgreSQL {found}"


if __name__ == "__main__":
    sys.exit(main())
