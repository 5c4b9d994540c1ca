"""The loads that `store_stress.py` puts a store under, each a function that counts what broke."""

from __future__ import annotations

import multiprocessing
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from store_values import (
    CONFIG,
    DEVICE,
    PROVENANCE,
    Load,
    best,
    clear,
    is_sound,
    key,
    measurement,
    step_best,
)

from tunekit.cache import Holder, Store
from tunekit.cache.process import started_at
from tunekit.errors import StoreError
from tunekit.trial import Status, Trial

FORK = multiprocessing.get_context("fork")


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


def reopen(place: str, load: Load) -> dict[str, Any]:
    """Let processes meet at a store that is there, each to open it and read its row."""
    with Store.open(place) as store:
        store.put_device(DEVICE)
        store.put_best(best(key(), 10.0))

    def read(number: int) -> None:
        with Store.open(place) as own:
            if own.bests() != [best(key(), 10.0)]:
                raise StoreError("the row was not found")

    failures: list[str] = []
    for _ in range(load.reopening_rounds):
        failures += together(load.opening_processes, read)
    return {
        "processes": load.opening_processes,
        "rounds": load.reopening_rounds,
        "failures": len(failures),
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
    failed_reads: list[str] = []
    stop = threading.Event()
    with Store.open(place) as store:
        store.put_device(DEVICE)
        store.put_best(step_best(1))

        def read_on() -> None:
            nonlocal mixed, reads
            while not stop.is_set():
                try:
                    mixed += sum(found != step_best(found.trials) for found in store.bests())
                    reads += 1
                except StoreError as error:
                    failed_reads.append(str(error))
                time.sleep(0.002)

        # A pipe, for whoever is killed at an event's lock leaves it held for ever.
        told, telling = os.pipe()

        def write_for_ever() -> None:
            with Store.open(place) as own:
                step = first = own.bests()[0].trials
                while True:
                    step += 1
                    own.put_best(step_best(step), force=True)
                    trial = Trial(CONFIG, Status.OK, measurement(float(step)))
                    own.add_trials(key(), [(trial, PROVENANCE)])
                    if step == first + 1:
                        os.write(telling, b".")

        reader = threading.Thread(target=read_on)
        reader.start()
        for _ in range(load.kills):
            writer = FORK.Process(target=write_for_ever)
            writer.start()
            if select.select([told], [], [], 60)[0]:
                os.read(told, 1)
            time.sleep(moments.uniform(0.0, 0.1))
            os.kill(writer.pid or 0, signal.SIGKILL)
            writer.join()
            unsound += not is_sound(place)
        stop.set()
        reader.join()
        os.close(told)
        os.close(telling)
        steps, rows = store.bests()[0].trials, len(store.bests())
    return {
        "kills": load.kills,
        "writes": steps,
        "reads": reads,
        "mixed_rows": mixed,
        "failed_integrity_checks": unsound,
        "failures": mixed + unsound + (rows != 1) + len(failed_reads),
        "messages": sorted(set(failed_reads))[:5],
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


LOADS = (cold_open, reopen, writers_wait, kills, threads, children, leases)
