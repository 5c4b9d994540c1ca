"""Measure what it gains to move trials between the keys of a run, on a replay.

    python scripts/allocation_benchmark.py [--trials 12,24] [--seeds 4] [--recording FILE]

The bfloat16 problems of a recording are tuned in one run, whose trials move, and each in a run of
its own, whose trials cannot. Half of the problems are tuned at a time, and the portfolio that the
search starts from is made of what has none of their sizes. The best config tried is compared with
the best recorded. One JSON document on stdout. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tunekit.cache import Store
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.search import Budget, Experience, Grow
from tunekit.search.portfolio import add_recording, portfolio_of
from tunekit.tuner import Task, run


def halves(recording: Recording) -> list[list[Problem]]:
    """Return the problems as two halves of like sizes."""
    plain = ("bfloat16", "nt", 1)
    problems = [p for p in sorted(recording.problems) if (p.dtype, p.layout, p.batch) == plain]
    return [problems[0::2], problems[1::2]]


def portfolio_without(recording: Recording, problems: list[Problem]) -> Callable[..., Experience]:
    """Return what makes the experience of a search that knows nothing of some sizes."""
    sizes = {(p.m, p.n, p.k) for p in problems}
    rest = {p: f for p, f in recording.problems.items() if (p.m, p.n, p.k) not in sizes}
    thin = portfolio_of(Recording(recording.device, recording.environment, recording.sources, rest))

    def experience(seed: int = 0, *, grow: Grow | None = None) -> Experience:
        known = Experience(seed=seed, grow=grow)
        add_recording(known, thin)
        return known

    return experience


def outcome(recording: Recording, trials: int, seed: int, *, together: bool) -> dict[str, Any]:
    """Tune all problems and say how far their best trials are from the best recorded."""
    runner = ReplayRunner(recording)
    found_us, best_us, counts = [], [], []
    for problems in halves(recording):
        experience = portfolio_without(recording, problems)
        with (
            tempfile.TemporaryDirectory() as folder,
            Store.open(Path(folder) / "cache.db") as store,
            patch("tunekit.tuner.experience.shipped_experience", experience),
        ):
            for group in [problems] if together else [[problem] for problem in problems]:
                tasks = [Task(problem) for problem in group]
                budget = Budget(trials=trials)
                report = run(tasks, runner=runner, store=store, budget=budget, seed=seed)
                for best in report.bests:
                    known = recording.problems[best.key.problem].screening
                    us = {c: t.measurement.median_us for c, t in known.items() if t.measurement}
                    tried = [us[t.config] for t, _ in store.trials(best.key) if t.config in us]
                    found_us.append(min(tried))
                    best_us.append(min(us.values()))
                    counts.append(best.trials)
    losses = [math.log(found / best) for found, best in zip(found_us, best_us, strict=True)]
    return {
        "trials_each": trials,
        "trials": sum(counts),
        "fewest": min(counts),
        "most": max(counts),
        "mean_loss_percent": round(100 * math.expm1(statistics.mean(losses)), 2),
        "worst_loss_percent": round(100 * math.expm1(max(losses)), 2),
        "summed_time_loss_percent": round(100 * (sum(found_us) / sum(best_us) - 1), 2),
    }


def main() -> int:
    """Run every seed both ways and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", default="12,24", help="counts, separated by commas")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--recording", default=str(shipped_recordings()[0]))
    arguments = parser.parse_args()
    recording = Recording.load(arguments.recording)
    document: dict[str, Any] = {"moved": [], "not moved": []}
    for trials in map(int, arguments.trials.split(",")):
        for seed in range(arguments.seeds):
            for name, together in (("moved", True), ("not moved", False)):
                found = outcome(recording, trials, seed, together=together)
                document[name].append({"seed": seed, **found})
                print(name, seed, found, file=sys.stderr, flush=True)
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
