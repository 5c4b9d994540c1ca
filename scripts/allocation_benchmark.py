"""Measure what it gains to move trials between the keys of a run, on a replay.

    python scripts/allocation_benchmark.py [--trials 24] [--seeds 3] [--recording FILE]

The bfloat16 problems of a recording are tuned in one run, whose trials move, and each in a run of
its own, whose trials cannot. The best config tried is compared with the best recorded. One JSON
document on stdout. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tunekit.cache import Store
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.search import Budget
from tunekit.tuner import Task, run


def outcome(recording: Recording, trials: int, seed: int, *, together: bool) -> dict[str, float]:
    """Tune all problems and say how far their best trials are from the best recorded."""
    tasks = [Task(p) for p in sorted(recording.problems) if p.dtype == "bfloat16"]
    runner = ReplayRunner(recording)
    found_us, best_us, counts = [], [], []
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "cache.db") as store:
        for group in [tasks] if together else [[task] for task in tasks]:
            report = run(group, runner=runner, store=store, budget=Budget(trials=trials), seed=seed)
            for best in report.bests:
                known = recording.problems[best.key.problem].screening
                us = {c: t.measurement.median_us for c, t in known.items() if t.measurement}
                tried = [us[t.config] for t, _ in store.trials(best.key) if t.config in us]
                found_us.append(min(tried))
                best_us.append(min(us.values()))
                counts.append(best.trials)
    losses = [math.log(found / best) for found, best in zip(found_us, best_us, strict=True)]
    return {
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
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recording", default=str(shipped_recordings()[0]))
    arguments = parser.parse_args()
    recording = Recording.load(arguments.recording)
    document: dict[str, Any] = {"moved": [], "not moved": []}
    for seed in range(arguments.seeds):
        for name, together in (("moved", True), ("not moved", False)):
            found = outcome(recording, arguments.trials, seed, together=together)
            document[name].append(found)
            print(name, seed, found, file=sys.stderr, flush=True)
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
