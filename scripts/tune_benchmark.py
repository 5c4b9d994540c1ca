"""Measure a whole tune from an empty cache: where its time goes, and how well it repeats.

    python scripts/tune_benchmark.py --shapes docs/benchmarks/suite.yaml --trials 24 \\
        [--least 24] [--repeat 5] [--inductor] [--output tune.json]

`tunekit tune` runs as a user runs it, in a process of its own, with no cache of rows and none of
compiled kernels. `--inductor` then has Inductor's max-autotune search the same problems, with empty
caches too. `--repeat N` tunes N times with other seeds (compiled kernels kept) and measures all the
choices of a problem again in the same interleaved rounds. With `--output` the document is written
after each part, so that a limit on the time leaves what was measured; else it goes to stdout.
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
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import triton
from interleaved import Interleaved

import tunekit
from tunekit.config import Config
from tunekit.device import driver_version
from tunekit.key import Problem
from tunekit.shapes import load_shapes
from tunekit.tuner import open_runner

SAMPLE_S = 0.2


def main() -> int:
    """Run what is asked for and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", required=True)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--least", type=int, help="trials that every problem has; half otherwise")
    parser.add_argument("--sampler", default="transfer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, replay or replay:FILE")
    parser.add_argument("--repeat", type=int, default=1, help="tunes with different seeds")
    parser.add_argument("--inductor", action="store_true", help="time max-autotune as well")
    parser.add_argument("--output", type=Path, help="instead of stdout")
    parser.add_argument("--only-inductor", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    problems = list(dict.fromkeys(shape.problem for shape in load_shapes(arguments.shapes)))
    if arguments.only_inductor:
        print(json.dumps(inductor_seconds(problems)))
        return 0
    with tempfile.TemporaryDirectory(prefix="tunekit-benchmark-") as folder:
        found = document(arguments, problems, Path(folder))
    if arguments.output is None:
        print(json.dumps(found, indent=1))
    return 0


def document(
    arguments: argparse.Namespace, problems: Sequence[Problem], folder: Path
) -> dict[str, Any]:
    """Measure, and return everything with what it was measured on."""
    tunes: list[dict[str, Any]] = []
    found: dict[str, Any] = {
        "what": "a whole tune from an empty cache",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "driver": driver_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "tunekit": tunekit.__version__,
        "problems": len(problems),
        "trials_each": arguments.trials,
        "tunes": tunes,
    }
    for number in range(arguments.repeat):
        seed = arguments.seed + number
        tunes.append(tune(arguments, folder, seed))
        say(f"seed {seed}: {tunes[-1]['wall_s']:.1f} s, {tunes[-1]['spent']}")
        if arguments.inductor and number == 0:
            found["inductor"] = inductor(arguments, folder)
            found["inductor"]["over_ours"] = found["inductor"]["wall_s"] / tunes[0]["wall_s"]
            say(f"Inductor: {found['inductor']['wall_s']:.1f} s")
        write(found, arguments.output)
    if arguments.repeat > 1:
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        found["repeated"] = measured_again(arguments, problems, tunes)
        say(str({name: v for name, v in found["repeated"].items() if name != "problems"}))
        write(found, arguments.output)
    return found


def tune(arguments: argparse.Namespace, folder: Path, seed: int) -> dict[str, Any]:
    """Run `tunekit tune` from an empty cache and return what it printed, with the wall time."""
    command = [
        sys.executable, "-m", "tunekit", "tune", "--shapes", arguments.shapes, "--json", "--quiet",
        "--device", arguments.device, "--sampler", arguments.sampler,
        "--trials", str(arguments.trials), "--seed", str(seed),
        "--cache", str(folder / f"seed-{seed}.db"),
    ]  # fmt: skip
    if arguments.least is not None:
        command += ["--least", str(arguments.least)]
    kernels = folder / "triton"
    fresh = not kernels.exists()
    busy = Utilization()
    with busy:
        wall_s, done = timed(command, {"TRITON_CACHE_DIR": str(kernels)})
    if done.returncode:
        raise SystemExit(done.stderr)
    printed = json.loads(done.stdout)
    trials = sum(printed["trial_counts"].values())
    return {
        "seed": seed,
        "no_kernel_was_compiled_before": fresh,
        "wall_s": round(wall_s, 2),
        "run_s": round(printed["seconds"], 2),
        "spent": printed["spent"],
        "trials": trials,
        "trials_per_second": round(trials / wall_s, 2),
        "fewest_trials_of_a_problem": min(key["trials"] for key in printed["keys"]),
        "trial_counts": printed["trial_counts"],
        "gpu_utilization_by_nvml": busy.mean(),
        "warnings": done.stderr.splitlines(),
        "keys": printed["keys"],
    }


def timed(
    command: list[str], environ: dict[str, str]
) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a command and return its wall time in seconds and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    return time.perf_counter() - began, done


class Utilization:
    """Samples how much of the time the GPU runs kernels, as NVML says, inside a `with` block."""

    def __init__(self) -> None:
        self._samples: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def mean(self) -> float | None:
        """Return the mean share of the time, or None where NVML cannot say."""
        return round(statistics.mean(self._samples) / 100, 3) if self._samples else None

    def _sample(self) -> None:
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._stop.wait(SAMPLE_S):
                self._samples.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except pynvml.NVMLError as error:
            say(f"no utilization: {error}")

    def __enter__(self) -> Utilization:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


def inductor(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Have Inductor search the same problems with empty caches; return its times in seconds."""
    command = [sys.executable, __file__, "--shapes", arguments.shapes, "--only-inductor"]
    empty = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "inductor-triton"),
    }
    wall_s, done = timed(command, empty)
    if done.returncode:
        raise SystemExit(done.stderr)
    return {"wall_s": round(wall_s, 2), "problems": json.loads(done.stdout.splitlines()[-1])}


def inductor_seconds(problems: Sequence[Problem]) -> dict[str, float]:
    """Compile the product of each problem with max-autotune; return the seconds each took."""
    from tunekit.kernels.operands import torch_dtype
    from tunekit.kernels.stand_ins import operand_strides

    seconds = {}
    for problem in problems:
        strides_a, strides_b, _ = operand_strides(problem)
        dtype = torch_dtype(problem.dtype)
        shapes = (((problem.m, problem.k), strides_a), ((problem.k, problem.n), strides_b))
        a, b = (
            torch.empty_strided(size, strides, dtype=dtype, device="cuda").normal_()
            for size, strides in shapes
        )
        torch.compiler.reset()
        product: Callable[..., Any] = torch.compile(
            torch.mm, mode="max-autotune-no-cudagraphs", dynamic=False
        )
        began = time.perf_counter()
        product(a, b)
        torch.cuda.synchronize()
        seconds[str(problem)] = round(time.perf_counter() - began, 3)
    return seconds


def measured_again(
    arguments: argparse.Namespace, problems: Sequence[Problem], tunes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Measure what all tunes chose for a problem in the same rounds; say how far it is apart."""
    runner = open_runner(arguments.device)
    try:
        timing = Interleaved(arguments.device, runner)
        rows = [compared(timing, problem, tunes) for problem in problems]
    finally:
        runner.close()
    spreads = [row["slowest_over_fastest"] for row in rows]
    over_best = [us / min(row["us"]) for row in rows for us in row["us"]]
    return {
        "tunes": len(tunes),
        "same_config_in_all": sum(row["distinct"] == 1 for row in rows),
        "same_choice_of_vendor_or_triton_in_all": sum(
            len(set(row["choices"])) == 1 for row in rows
        ),
        "slowest_over_fastest_geomean": round(geomean(spreads), 4),
        "slowest_over_fastest_worst": round(max(spreads), 4),
        "over_the_best_of_all_geomean": round(geomean(over_best), 4),
        "problems": rows,
    }


def compared(timing: Interleaved, problem: Problem, tunes: list[dict[str, Any]]) -> dict[str, Any]:
    """Measure the configs that the tunes chose for one problem against each other."""
    keys = [next(k for k in tune["keys"] if is_for(k, problem)) for tune in tunes]
    chosen = [Config.from_dict(key["config"]) for key in keys]
    distinct = list(dict.fromkeys(chosen))
    us, vendor_us = timing.us(problem, distinct)
    times = [us[config] for config in chosen]
    return {
        "problem": str(problem),
        "distinct": len(distinct),
        "us": times,
        "vendor_us": vendor_us,
        "choices": [key["choice"] for key in keys],
        "slowest_over_fastest": max(times) / min(times),
        "configs": [str(config) for config in chosen],
    }


def is_for(key: dict[str, Any], problem: Problem) -> bool:
    """Say whether a row that `tune --json` printed is for this problem."""
    names = ("m", "n", "k", "dtype", "layout", "out_dtype", "precision", "aligned", "batch")
    return all(key[name] == getattr(problem, name) for name in names)


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def write(found: dict[str, Any], path: Path | None) -> None:
    """Write what there is so far."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


def say(text: str) -> None:
    """Write a line on stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
