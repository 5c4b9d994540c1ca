"""Measure what a store and one leader stand: many workers whose every trial takes half a second.

    python scripts/scale_benchmark.py --output docs/benchmarks/scale-sqlite.json
    python scripts/scale_benchmark.py --database postgresql://user@host/empty --output pg.json

Nothing computes: a worker replays a recording and sleeps for what a trial would take, and the
search draws at random. So what is measured is everything else: leases, transactions, messages, the
leader. Workers are threads, each with a connection of its own to the store, spread over a few
processes, because one interpreter could not run them all. Of each number of workers it is told
which share of their time they slept, that is measured; how long a transaction of theirs took; and
how much the leader computed. From the last figures follows what 1,000 GPUs would need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from store_values import clear
from worker_groups import Groups, open_timed

import tunekit
from tunekit.cache import Store
from tunekit.fleet.leading import Lead
from tunekit.fleet.post import Post
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.search import Budget
from tunekit.tuner import Task, run

COUNTS = (1, 2, 4, 8, 16, 64)
KEYS_EACH = 2
TRIALS = 80
TRIAL_S = 0.5
MANY = 1000
"""GPUs whose needs are calculated."""


def main() -> int:
    """Measure each number of workers and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--database", help="URL of an empty PostgreSQL database; default: a file")
    parser.add_argument("--workers", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--seconds", type=float, default=TRIAL_S, help="what a trial takes")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--processes", type=int, default=4, help="that the workers are spread over")
    parser.add_argument("--output", type=Path, help="instead of stdout")
    chosen = parser.parse_args()
    runs: list[dict[str, Any]] = []
    found: dict[str, Any] = {
        "what": "workers that sleep for each trial, one leader and one store",
        "command": "python " + " ".join(part.split("://")[0] for part in sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "database": "SQLite" if chosen.database is None else "PostgreSQL",
        "python": platform.python_version(),
        "load_of_the_machine_before": [round(load, 1) for load in os.getloadavg()],
        "cpu_cores": len(os.sched_getaffinity(0)),
        "tunekit": tunekit.__version__,
        "trial_s": chosen.seconds,
        "trials_a_key": chosen.trials,
        "keys_a_worker": KEYS_EACH,
        "processes": chosen.processes,
        "runs": runs,
    }
    for count in chosen.workers:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(measured(chosen, count, Path(folder)))
        found["for_many"] = needs(runs[-1], chosen.seconds)
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        if chosen.output is not None:
            chosen.output.write_text(json.dumps(found, indent=1) + "\n")
    if chosen.output is None:
        print(json.dumps(found, indent=1))
    return 0


def measured(chosen: argparse.Namespace, count: int, folder: Path) -> dict[str, Any]:
    """Run so many workers on a recording of as many problems as they need."""
    file = folder / "many.json.gz"
    tasks = [Task(problem) for problem in recorded(file, KEYS_EACH * count)]
    place = chosen.database or str(folder / "cache.db")
    post = Post(
        partial(open_timed, seconds=chosen.seconds, folder=str(folder)), f"replay:{file}", place
    )
    crew = Groups([post] * count, chosen.processes)
    lead = Lead(crew, place, ground=ReplayRunner(Recording.load(file)))
    try:
        (runner,) = lead.runners(120)
        with Store.open(place) as store:
            lead.attach(store)
            began, computed = time.time(), time.process_time()
            report = run(
                tasks, runner=runner, store=store, sampler="random",
                budget=Budget(trials=chosen.trials),
            )  # fmt: skip
            wall_s, leader_s = time.time() - began, time.process_time() - computed
            stored = sum(store.tried().values())
    finally:
        lead.close()
        clear(place)
    notes = [json.loads(path.read_text()) for path in folder.glob("worker-*.json")]
    assert len(notes) == count, "a worker has left no note"
    assert stored == report.trials_run == chosen.trials * len(tasks)
    return summary(notes, began, wall_s, leader_s, report.trials_run)


def summary(
    notes: list[dict[str, Any]], began: float, wall_s: float, leader_s: float, trials: int
) -> dict[str, Any]:
    """Return what came of a run, from what its workers noted."""
    first, last = min(note["first"] for note in notes), max(note["last"] for note in notes)
    writes = sorted(ms for note in notes for ms in note["writes_ms"])
    slept = sum(note["slept_s"] for note in notes)
    return {
        "workers": len(notes),
        "trials": trials,
        "wall_s": round(wall_s, 2),
        "trials_per_second": round(trials / wall_s, 2),
        "share_measuring": round(slept / (len(notes) * wall_s), 4),
        "begins_after_s": round(first - began, 2),
        "share_measuring_from_first_to_last": round(slept / len(notes) / (last - first), 4),
        "share_storing": round(sum(writes) / 1e3 / (len(notes) * wall_s), 4),
        "write_ms_median": round(statistics.median(writes), 2),
        "write_ms_p99": round(writes[int(len(writes) * 0.99)], 2),
        "write_ms_most": round(writes[-1], 2),
        "leader_cpu_ms_a_trial": round(1e3 * leader_s / trials, 2),
        "workers_cpu_ms_a_trial": round(1e3 * sum(n["cpu_s"] for n in notes) / trials, 2),
    }


def needs(run: dict[str, Any], trial_s: float) -> dict[str, Any]:
    """Calculate from a run what many GPUs would need, at its rate of trials for each."""
    rate = MANY / trial_s
    leaders = rate * run["leader_cpu_ms_a_trial"] / 1e3
    return {
        "gpus": MANY,
        "trials_per_second": rate,
        "cores_for_leaders": round(leaders, 1),
        "runs_side_by_side": max(1, round(leaders / 0.5)),
        "transactions_per_second": rate,
        "writes_in_flight": round(rate * run["write_ms_median"] / 1e3, 1),
        "connections": MANY,
    }


def recorded(path: Path, count: int) -> list[Problem]:
    """Write a recording of so many problems, all with the trials of one, and return them."""
    whole = Recording.load(shipped_recordings()[0])
    first = whole.problems[sorted(whole.problems)[0]]
    made = {}
    for number in range(count):
        problem = replace(first.problem, m=first.problem.m + number)
        made[problem] = replace(first, problem=problem)
    replace(whole, problems=made).save(path)
    return list(made)


if __name__ == "__main__":
    sys.exit(main())
