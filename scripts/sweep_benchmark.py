"""Hold what a tune finds against a fresh sweep of the same problems, on the same GPU.

    python scripts/sweep_benchmark.py [--device cuda] [--seeds 2] [--output sweep.json]
    python scripts/sweep_benchmark.py --device replay --output sweep.json

Six problems of the suite whose spaces are small enough are swept, whole. Then each is tuned by
`transfer` with 12 and with 24 trials, from an empty cache and with a portfolio made without their
sizes. What the tunes chose and the five fastest of the sweep are timed again in the same
interleaved rounds: the regret is a choice's time over the lowest of these, less 1. The figures are
written as they come, so that what is measured survives a limit on the time.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from allocation_benchmark import portfolio_without
from interleaved import ROUNDS, Interleaved
from tune_benchmark import say, write

import tunekit
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import driver_version
from tunekit.key import Problem
from tunekit.ranking import ranked
from tunekit.recording import Recording
from tunekit.replay import shipped_recordings
from tunekit.runner import Runner
from tunekit.search import Budget
from tunekit.shapes import parse_shape
from tunekit.tuner import Task, TuneReport, open_runner, run

SHAPES = (
    "16,28672,4096", "256,256,256", "512,6144,4096", "512,28672,4096", "4096,4096,4096",
    "5120,5120,5120",
)  # fmt: skip
AT = (12, 24)
FASTEST = 5
"""Of the sweep so many are timed again."""


def main() -> int:
    """Sweep, tune, time again and write one JSON document."""
    parser = argparse.ArgumentParser(description="a tune against a fresh sweep")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, replay or replay:FILE")
    parser.add_argument("--shape", action="append", metavar="M,N,K", help="other problems")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, help="instead of stdout")
    chosen = parser.parse_args()
    problems = [parse_shape(text).problem for text in chosen.shape or SHAPES]
    found: dict[str, Any] = {
        "schema": 1,
        "what": "what a tune chooses against a fresh sweep",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "driver": driver_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "tunekit": tunekit.__version__,
        "rounds": ROUNDS,
        "problems": [str(problem) for problem in problems],
    }
    runner = open_runner(chosen.device)
    try:
        found["device"] = runner.device.name
        measure(found, problems, runner, chosen)
    finally:
        runner.close()
    if chosen.output is None:
        print(json.dumps(found, indent=1))
    return 0


def measure(
    found: dict[str, Any], problems: list[Problem], runner: Runner, chosen: argparse.Namespace
) -> None:
    """Do everything, writing what there is after each part."""
    swept = sweep(found, problems, runner)
    write(found, chosen.output)
    choices: dict[tuple[Problem, int, int], Config] = {}
    found["tunes"] = []
    for trials in AT:
        for seed in range(chosen.seeds):
            report = tune(problems, runner, trials, seed)
            choices |= {(b.key.problem, trials, seed): b.config for b in report.bests}
            found["tunes"].append(
                {"trials": trials, "seed": seed, "seconds": round(report.seconds, 1)}
            )
            say(f"{trials} trials, seed {seed}: {report.seconds:.1f} s")
    write(found, chosen.output)
    timing = Interleaved(chosen.device, runner)
    found["regrets"] = []
    for problem in problems:
        mine = {place[1:]: config for place, config in choices.items() if place[0] == problem}
        found["regrets"].append(regrets(timing, problem, swept[problem], mine))
        write(found, chosen.output)
    found["summary"] = {str(trials): figures(found["regrets"], trials) for trials in AT}
    write(found, chosen.output)
    say(json.dumps(found["summary"]))


def sweep(
    found: dict[str, Any], problems: list[Problem], runner: Runner
) -> dict[Problem, list[Config]]:
    """Try every legal config of the problems; return the fastest of each."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "sweep.db") as store:
        tasks = [Task(problem) for problem in problems]
        report = run(tasks, runner=runner, store=store, sampler="exhaustive", budget=Budget())
        fastest = {}
        for best in report.bests:
            trials = [trial for trial, _ in store.trials(best.key)]
            order = [trial.config for trial in ranked(trials)]
            front = [best.config, *(config for config in order if config != best.config)]
            fastest[best.key.problem] = front[:FASTEST]
    found["sweep"] = {
        "seconds": round(time.perf_counter() - began, 1),
        "configs": {str(b.key.problem): b.trials for b in report.bests},
        "whole_spaces": all(b.trials == b.space_size for b in report.bests),
    }
    say(f"swept {report.trials_run} configs in {found['sweep']['seconds']} s")
    return fastest


def tune(problems: list[Problem], runner: Runner, trials: int, seed: int) -> TuneReport:
    """Tune the problems from an empty cache, with a portfolio that knows none of their sizes."""
    experience = portfolio_without(Recording.load(shipped_recordings()[0]), problems)
    sizes = {(p.m, p.n, p.k) for p in problems}
    if any((p.m, p.n, p.k) in sizes for p in experience(0).problems):
        raise SystemExit("the portfolio knows what the tune is to find")
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(Path(folder) / "cache.db") as store,
        patch("tunekit.tuner.experience.shipped_experience", experience),
    ):
        tasks = [Task(problem) for problem in problems]
        budget = Budget(trials=trials, least=trials)
        return run(tasks, runner=runner, store=store, budget=budget, seed=seed)


def regrets(
    timing: Interleaved,
    problem: Problem,
    fastest: list[Config],
    choices: dict[tuple[int, int], Config],
) -> dict[str, Any]:
    """Time the fastest of the sweep and all choices together, and say how far they are apart."""
    us, vendor_us = timing.us(problem, list(dict.fromkeys([*fastest, *choices.values()])))
    least = min(us.values())
    return {
        "problem": str(problem),
        "best_us": least,
        "vendor_us": vendor_us,
        "best": str(min(us, key=lambda config: us[config])),
        "sweeps_first_regret": us[fastest[0]] / least - 1,
        "tuned": [
            {"trials": trials, "seed": seed, "regret": us[config] / least - 1}
            for (trials, seed), config in sorted(choices.items())
        ],
    }


def figures(rows: list[dict[str, Any]], trials: int) -> dict[str, float]:
    """Return the mean, the worst and the share within 2 % of the regrets after so many trials."""
    found = [t["regret"] for row in rows for t in row["tuned"] if t["trials"] == trials]
    return {
        "tunes": len(found),
        "regret_geomean": round(math.expm1(statistics.fmean(map(math.log1p, found))), 5),
        "regret_worst": round(max(found), 5),
        "within_2pct": round(statistics.fmean(r <= 0.02 for r in found), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
