"""Compare tuned kernels with cuBLAS, Inductor and fixed lists, in one process.

    python scripts/kernel_benchmark.py --cache FILE --shapes FILE [--inductor 3] > kernels.json

The cache holds a tuned suite. For each problem these are timed in the same interleaved rounds, with
a cold L2 and random operands: the best config, the best of each variant (by its screening), the
best of a fixed list of 15, of the 8 of Triton's matmul tutorial, and the vendor's call; for every
third problem also what Inductor's `max-autotune` compiles. The configs of the lists run in
the pointer-tile kernel and are chosen by screening here, as Triton's autotuner would. Every config
is verified before it is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import torch
import triton

import tunekit
from tunekit.bench.fixed_lists import TUTORIAL, list_of_15
from tunekit.bench.on_gpu import ROUNDS, compiled, copying
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import driver_version
from tunekit.gpu_runner import GpuRunner
from tunekit.kernels import Launch, family
from tunekit.kernels.matmul_family import MATMUL
from tunekit.key import Problem, TuningKey
from tunekit.shapes import load_shapes
from tunekit.timing import Timer, summarize
from tunekit.trial import PROTOCOL, Status, Trial

COPY_BYTES = 1 << 30


def main() -> int:
    """Run the comparison and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--shapes", required=True)
    parser.add_argument("--inductor", type=int, default=0, help="every how many problems, 0: none")
    parser.add_argument("--seconds", type=float, default=600.0, help="start no problem after this")
    arguments = parser.parse_args()
    started = time.monotonic()
    runner = GpuRunner(0)
    timer = Timer(runner.device, 0)
    problems = [shape.problem for shape in load_shapes(arguments.shapes)]
    runner.announce([(p, config) for p in problems for config in list_of_15()])
    rows = []
    with Store.open(arguments.cache, create=False) as store:
        for number, problem in enumerate(problems):
            if time.monotonic() - started > arguments.seconds:
                print(f"out of time before {problem}", file=sys.stderr)
                break
            key = TuningKey.of(problem, runner.device.slug)
            trials = [trial for trial, _ in store.trials(key) if trial.status is Status.OK]
            inductor = arguments.inductor and number % arguments.inductor == 0
            rows.append(compare(problem, trials, runner, timer, inductor=bool(inductor)))
            print(describe(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(document(runner, timer, rows), indent=1))
    runner.close()
    return 0


def compare(
    problem: Problem, trials: list[Trial], runner: GpuRunner, timer: Timer, *, inductor: bool
) -> dict[str, Any]:
    """Time everything that competes on one problem."""
    entrants = contenders(problem, trials, runner)
    prepared = family(problem.family).prepare(problem, runner.device, index=0, seed=1)
    launches: dict[str, Launch] = {
        name: MATMUL.launch(config, prepared) for name, config in entrants.items()
    }
    errors = {}
    for name, launch in launches.items():
        MATMUL.poison(prepared)
        launch()
        errors[name] = MATMUL.error_ratio(prepared)
        if errors[name] > 1:
            raise SystemExit(f"{name} {entrants[name]} is wrong for {problem}")
    launches["vendor"] = MATMUL.vendor(prepared)
    if inductor:
        launches["inductor"] = compiled(prepared.a, prepared.b)
    timer.warm_up(launches["vendor"], 30)
    names = list(launches)
    times = timer.rounds([launches[name] for name in names], ROUNDS)
    timed = {
        name: summarize(row, error_ratio=errors.get(name), final=True)
        for name, row in zip(names, times, strict=True)
    }
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype,
        "layout": problem.layout, "min_bytes": problem.min_bytes, "flops": problem.flops,
        "entrants": {name: config.to_dict() for name, config in entrants.items()},
        "us": {
            name: [round(m.median_us, 3), round(m.low_us, 3), round(m.high_us, 3)]
            for name, m in timed.items()
        },
        "error_ratio": {name: round(error, 3) for name, error in errors.items()},
    }  # fmt: skip


def contenders(problem: Problem, trials: list[Trial], runner: GpuRunner) -> dict[str, Config]:
    """Return the best config of all, of each variant, and of each list."""

    def median(trial: Trial) -> float:
        return trial.measurement.median_us if trial.measurement else math.inf

    ordered = sorted(trials, key=median)
    found: dict[str, Config] = {}
    for trial in ordered:
        found.setdefault(f"variant {trial.config.variant}", trial.config)
    for place, trial in enumerate(ordered[:3]):
        found[f"candidate {place + 1}"] = trial.config
    by_config = {t.config: t for _, t in runner.screen([(problem, c) for c in list_of_15()])}
    screened = [by_config[config] for config in list_of_15()]
    for name, places in (("list of 15", range(15)), ("tutorial's 8", TUTORIAL)):
        found[name] = min((screened[place] for place in places), key=median).config
    return found


def best_us(row: dict[str, Any]) -> float:
    """Return the time of the best Triton config: of those chosen by screening, the fastest now."""
    ours = [us[0] for name, us in row["us"].items() if name.startswith(("variant", "candidate"))]
    return min(ours)


def describe(row: dict[str, Any]) -> str:
    """Return one line on a problem."""
    vendor = row["us"]["vendor"][0]
    against = {name: vendor / us[0] for name, us in row["us"].items() if name != "vendor"}
    shown = "  ".join(f"{name} {ratio:.3f}" for name, ratio in sorted(against.items()))
    return f"{row['m']}x{row['n']}x{row['k']} vendor {vendor:.2f} us: {shown}"


def ceilings(timer: Timer) -> dict[str, float]:
    """Measure the copy bandwidth and the time of a kernel that does nothing."""
    one = torch.empty(1, device="cuda")

    def nothing() -> None:
        empty_kernel[(132,)](one)

    nothing()
    copy = copying(torch.device("cuda", 0), COPY_BYTES)
    times = [sorted(row)[ROUNDS // 2] for row in timer.rounds([copy, nothing], ROUNDS)]
    return {"copy_gb_per_s": 2 * COPY_BYTES / times[0] / 1e3, "empty_kernel_us": times[1]}


@triton.jit
def empty_kernel(x):  # noqa: ANN001, ANN201
    """Do nothing."""


def pairs(rows: list[dict[str, Any]], name: str) -> Iterator[float]:
    """Yield, for each problem that has it, its time over our best."""
    for row in rows:
        if name in row["us"]:
            yield row["us"][name][0] / best_us(row)


def document(runner: GpuRunner, timer: Timer, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return everything that was measured, with what it was measured on."""
    ratios = {}
    for name in ("vendor", "list of 15", "tutorial's 8", "inductor"):
        values = list(pairs(rows, name))
        if values:
            ratios[name] = {
                "geomean": math.exp(sum(map(math.log, values)) / len(values)),
                "least": min(values),
                "problems": len(values),
            }
    return {
        "what": "tuned kernels against cuBLAS, Inductor and fixed lists, interleaved, cold L2",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": runner.device.name,
        "driver": driver_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "tunekit": tunekit.__version__,
        "protocol": PROTOCOL,
        "rounds": ROUNDS,
        "batches_queued_late": timer.late,
        **ceilings(timer),
        "time_over_ours": ratios,
        "problems": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
