"""Measure a whole tune on one GPU and on several, each from an empty cache, and compare.

    python scripts/workers_benchmark.py --workers 1 2 --output docs/benchmarks/workers-h200.json
    python scripts/workers_benchmark.py --workers 1 2 --ray --output docs/benchmarks/ray-h200.json
    python scripts/workers_benchmark.py --workers 1 2 --device replay --shapes shapes.yaml

`tunekit tune` runs as a user runs it, in a process of its own, with no cache of rows and none of
compiled kernels. Every run has the same seed and budget. Of each key the vendor's time over that of
its best is given, and how both runs compare; `kernels_built` counts what there is in Triton's cache
at the end, so that what two workers built twice would show. The document is written after each
run, so that a limit on the time leaves what was measured. With `--cores-each N` one worker has N
cores and two have twice as many, as where each GPU comes with so many; else all cores are there for
whichever number of workers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import triton

import tunekit
from tunekit.device import driver_version

KEY = ("m", "n", "k", "dtype", "layout")


def main() -> int:
    """Run each number of workers and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", default="docs/benchmarks/suite.yaml")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ray", action="store_true", help="through Ray instead of processes")
    parser.add_argument("--device", default="cuda", help="cuda, replay or replay:FILE")
    parser.add_argument("--cores-each", type=int, help="CPU cores for each worker, else all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="first without --workers as well")
    parser.add_argument("--output", type=Path, help="instead of stdout")
    chosen = parser.parse_args()
    runs: list[dict[str, Any]] = []
    found: dict[str, Any] = {
        "what": "a whole tune from empty caches, by the number of workers",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "devices": devices() if chosen.device == "cuda" else [chosen.device],
        "driver": driver_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "tunekit": tunekit.__version__,
        "trials_each": chosen.trials,
        "through": "ray" if chosen.ray else "processes",
        "runs": runs,
    }
    for count in [0, *chosen.workers] if chosen.plain else chosen.workers:
        runs.append(tuned(chosen, count))
        found["compared"] = [compared(runs[0], run) for run in runs[1:]]
        say({name: runs[-1][name] for name in ("workers", "wall_s", "kernels_built", "spent")})
        if chosen.output is not None:
            chosen.output.write_text(json.dumps(found, indent=1) + "\n")
    say(found["compared"])
    if chosen.output is None:
        print(json.dumps(found, indent=1))
    return 0


def devices() -> list[str]:
    """Return the names of the GPUs that are here."""
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def tuned(chosen: argparse.Namespace, workers: int) -> dict[str, Any]:
    """Tune from empty caches with so many workers, or with 0 without `--workers`."""
    command = [
        sys.executable, "-m", "tunekit", "tune", "--shapes", chosen.shapes, "--json", "--quiet",
        "--device", chosen.device, "--trials", str(chosen.trials), "--seed", str(chosen.seed),
    ]  # fmt: skip
    if workers:
        command += ["--workers", str(workers)]
    if workers and chosen.ray:
        command += ["--ray"]
    with tempfile.TemporaryDirectory(prefix="tunekit-benchmark-") as folder:
        kernels = Path(folder) / "triton"
        environ = {**os.environ, "TRITON_CACHE_DIR": str(kernels)}
        command += ["--cache", str(Path(folder) / "tuned.db")]
        cores = sorted(os.sched_getaffinity(0))
        mine = cores[: chosen.cores_each * max(workers, 1)] if chosen.cores_each else cores
        command = ["taskset", "--cpu-list", ",".join(map(str, mine)), *command]
        began = time.perf_counter()
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        wall_s = time.perf_counter() - began
        built = sum(1 for _ in kernels.glob("*/*.cubin"))
    if done.returncode:
        raise SystemExit(done.stderr)
    printed = json.loads(done.stdout)
    return {
        "workers": workers,
        "cpu_cores": len(mine),
        "command": "tunekit " + " ".join(command[command.index("tunekit") + 1 : -2]),
        "wall_s": round(wall_s, 2),
        "run_s": round(printed["seconds"], 2),
        "trials": sum(printed["trial_counts"].values()),
        "trial_counts": printed["trial_counts"],
        "kernels_built": built,
        "spent": printed["spent"],
        "ratio_geomean": geomean([key["ratio"] for key in printed["keys"] if key["ratio"]]),
        "messages": done.stderr.splitlines(),
        "keys": [
            {
                **{name: key[name] for name in KEY},
                **{name: key[name] for name in ("choice", "triton_us", "vendor_us", "ratio")},
                "trials": key["trials"],
            }
            for key in printed["keys"]
        ],
    }


def compared(one: dict[str, Any], many: dict[str, Any]) -> dict[str, Any]:
    """Compare a run of several workers with the first run."""
    before = {tuple(key[name] for name in KEY): key for key in one["keys"]}
    changes = [
        key["triton_us"] / before[place]["triton_us"]
        for key in many["keys"]
        if (place := tuple(key[name] for name in KEY)) in before
    ]
    return {
        "workers": many["workers"],
        "of_the_first_runs_wall_time": round(many["wall_s"] / one["wall_s"], 3),
        "ratio_geomean": many["ratio_geomean"],
        "first_runs_ratio_geomean": one["ratio_geomean"],
        "time_of_bests_over_the_first_runs_geomean": geomean(changes),
        "the_worst": round(max(changes), 4),
    }


def geomean(values: Sequence[float]) -> float | None:
    """Return the geometric mean, or None of nothing."""
    return round(math.exp(statistics.fmean(map(math.log, values))), 4) if values else None


def say(found: Any) -> None:
    """Write a line on stderr."""
    print(json.dumps(found), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
