"""Time every step of the ladder, tunekit and the vendor over M = N = K, in one job.

    python scripts/ladder.py -o docs/benchmarks/ladder-h200.json

The loops in Python are timed at 26 and 64. Then tunekit tunes every dtype and size into a cache of
this job's own, and the Triton steps, what tunekit found and the vendor's call are timed in the same
interleaved rounds, each verified first. Triton's own autotuner picks from the fixed list. The plan,
with its estimated time, goes to stderr before anything is measured. Rows of other dtypes that the
file has already are kept, so that a job may be cut by `--dtypes`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import triton
from ladder_steps import COMPILERS, compile_steps, loop_times, quick_bench, say, step_launch

import tunekit
from tunekit.cache import Store
from tunekit.device import DeviceInfo, driver_version
from tunekit.gpu_runner import GpuRunner
from tunekit.kernels import Launch
from tunekit.kernels.ladder import BLOCK, LIST_OF_15, blockwise, grouped, listed
from tunekit.kernels.ladder.listed import listed_kernel
from tunekit.kernels.matmul_family import MATMUL
from tunekit.key import Problem, TuningKey
from tunekit.search import Budget
from tunekit.timing import Timer, summarize
from tunekit.trial import PROTOCOL, Best
from tunekit.tuner import Task, run

SIZES = tuple(range(256, 4097, 128))
ARITHMETIC = {
    "ieee": ("float32", "ieee"),
    "tf32": ("float32", "tf32"),
    "float16": ("float16", "ieee"),
    "bfloat16": ("bfloat16", "ieee"),
}
ROUNDS = 31


@dataclass(frozen=True)
class Plan:
    """How much is to be done."""

    problems: int
    dtypes: int
    trials: int
    tune_seconds: float

    def seconds(self) -> dict[str, float]:
        """Estimate the parts of the job, from what such parts took on an H200."""
        tuned = 20 + self.problems * (self.trials / 20 + 0.4)
        return {
            "compile the steps": 10 + 2.5 * self.dtypes * (len(LIST_OF_15) + 2) / COMPILERS,
            "tune": min(tuned, self.tune_seconds + 20 + 0.4 * self.problems),
            "the fixed list": 0.4 * self.problems,
            "time everything": 0.4 * self.problems,
        }


def main() -> int:
    """Measure the ladder and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument(
        "--dtypes", default=",".join(ARITHMETIC), help="of " + ", ".join(ARITHMETIC)
    )
    parser.add_argument("--every", type=int, default=1, help="take every so many of the sizes")
    parser.add_argument("--trials", type=int, default=24, help="of a key, on average")
    parser.add_argument("--tune-seconds", type=float, default=240.0, help="end the search then")
    parser.add_argument("--seconds", type=float, default=560.0, help="time no problem after this")
    parser.add_argument("--plan", action="store_true", help="print the estimate and end")
    arguments = parser.parse_args()
    problems = ladder_problems(arguments.dtypes.split(","), SIZES[:: arguments.every])
    named = len(arguments.dtypes.split(","))
    plan = Plan(len(problems), named, arguments.trials, arguments.tune_seconds)
    for name, seconds in plan.seconds().items():
        say(f"{name}: about {seconds:.0f} s")
    say(f"{len(problems)} problems: about {sum(plan.seconds().values()):.0f} s in all")
    if not arguments.plan:
        measure(problems, plan, arguments.output, deadline=time.monotonic() + arguments.seconds)
    return 0


def ladder_problems(names: Sequence[str], sizes: Sequence[int]) -> list[Problem]:
    """Return the squares of each kind of arithmetic, both operands row-major."""
    unknown = [name for name in names if name not in ARITHMETIC]
    if unknown:
        raise SystemExit(f"unknown dtype {unknown[0]!r}: use one of {', '.join(ARITHMETIC)}")
    return [
        Problem("matmul", size, size, size, dtype, precision=precision, layout="nn")
        for dtype, precision in (ARITHMETIC[name] for name in names)
        for size in sizes
    ]


def measure(problems: Sequence[Problem], plan: Plan, output: Path, *, deadline: float) -> None:
    """Do everything that the plan says, and write the document after each part."""
    loops = loop_times()
    runner = GpuRunner(0)
    try:
        compile_steps(runner.device, problems)
        bests, tune_s = tuned(problems, runner, plan)
        timer = Timer(runner.device, 0)
        listed_kernel.do_bench = quick_bench
        rows = []
        for problem in problems:
            if time.monotonic() > deadline:
                say(f"out of time before {problem}")
                break
            best = bests.get(TuningKey.of(problem, runner.device.slug))
            if best is None:
                say(f"{problem} was not tuned in time")
                continue
            rows.append(compare(problem, best, runner, timer))
            say(described(rows[-1]))
    finally:
        runner.close()
    found = document(runner.device, rows, loops, plan, tune_s, timer.late)
    output.write_text(json.dumps(merged(found, output), indent=1) + "\n")


def tuned(
    problems: Sequence[Problem], runner: GpuRunner, plan: Plan
) -> tuple[dict[TuningKey, Best], float]:
    """Tune every problem into a cache of this job's own; return the bests and the seconds."""
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="ladder-") as folder,
        Store.open(str(Path(folder, "ladder.db"))) as store,
    ):
        budget = Budget(trials=plan.trials, seconds=plan.tune_seconds)
        run([Task(p) for p in problems], runner=runner, store=store, budget=budget)
        bests = {best.key: best for best in store.bests(gpu=runner.device.slug)}
    return bests, time.monotonic() - started


def compare(problem: Problem, best: Best, runner: GpuRunner, timer: Timer) -> dict[str, Any]:
    """Verify and time the Triton steps, tunekit's config and the vendor's call on one problem."""
    prepared = MATMUL.prepare(problem, runner.device, index=0, seed=1)
    launches: dict[str, Launch] = {
        name: step_launch(step, prepared)
        for name, step in (("blockwise", blockwise), ("grouped", grouped), ("list of 15", listed))
    }
    launches["tunekit"] = MATMUL.launch(best.config, prepared)
    errors = {}
    for name, launch in launches.items():
        MATMUL.poison(prepared)
        launch()
        errors[name] = MATMUL.error_ratio(prepared)
        if not errors[name] <= 1:
            raise SystemExit(f"{name} is wrong for {problem}: {errors[name]:.3g} of the tolerance")
    vendor = MATMUL.vendor(prepared)
    launches["vendor"] = vendor
    timer.warm_up(vendor, 20)
    times = timer.rounds(list(launches.values()), ROUNDS)
    summaries = {
        name: summarize(row, error_ratio=errors.get(name), final=True)
        for name, row in zip(launches, times, strict=True)
    }
    chosen = listed_kernel.best_config
    return {
        "size": problem.m, "dtype": problem.dtype, "precision": problem.precision,
        "layout": problem.layout, "flops": problem.flops,
        "config": best.config.to_dict(), "choice": best.choice.value, "trials": best.trials,
        "listed": {**chosen.kwargs, "num_warps": chosen.num_warps, "num_stages": chosen.num_stages},
        "us": {
            name: [round(m.median_us, 3), round(m.low_us, 3), round(m.high_us, 3)]
            for name, m in summaries.items()
        },
        "error_ratio": {name: round(error, 3) for name, error in errors.items()},
    }  # fmt: skip


def described(row: dict[str, Any]) -> str:
    """Return one line on a problem, in TFLOP/s."""
    rates = "  ".join(f"{name} {row['flops'] / us[0] / 1e6:.1f}" for name, us in row["us"].items())
    return f"{row['size']} {row['dtype']} {row['precision']}, TFLOP/s: {rates}"


def document(
    device: DeviceInfo, rows: list[dict[str, Any]], loops: list[dict[str, Any]], plan: Plan,
    tune_s: float, late: int,
) -> dict[str, Any]:  # fmt: skip
    """Return everything that was measured, with what it was measured on."""
    return {
        "what": "the ladder: loops, Triton steps, tunekit and the vendor, interleaved, cold L2",
        "commands": ["python " + " ".join(sys.argv)],
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": device.name,
        "driver": driver_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "tunekit": tunekit.__version__,
        "protocol": PROTOCOL,
        "rounds": ROUNDS,
        "block": BLOCK,
        "trials": plan.trials,
        "tune_seconds": round(tune_s, 1),
        "batches_queued_late": late,
        "loops": loops,
        "rows": rows,
    }


def merged(found: dict[str, Any], output: Path) -> dict[str, Any]:
    """Keep the rows that an earlier part of the same ladder left in the file."""
    if not output.exists():
        return found
    before = json.loads(output.read_text())
    for name in ("device", "torch", "triton", "protocol", "block"):
        if before[name] != found[name]:
            raise SystemExit(f"{output} has {name} {before[name]}, not {found[name]}: remove it")
    measured = {(row["dtype"], row["precision"], row["size"]) for row in found["rows"]}
    kept = [r for r in before["rows"] if (r["dtype"], r["precision"], r["size"]) not in measured]
    commands = [c for c in before["commands"] if c not in found["commands"]]
    return {
        **found,
        "commands": commands + found["commands"],
        "tune_seconds": round(before["tune_seconds"] + found["tune_seconds"], 1),
        "rows": kept + found["rows"],
    }


if __name__ == "__main__":
    sys.exit(main())
