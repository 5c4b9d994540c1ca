"""Measure the host's time per call: what a call costs before the GPU has anything to do.

    python scripts/host_time.py [--calls 200] [--rounds 60] [--flat 1000000] > host-time.json

For each kernel variant, on a problem small enough that the GPU is never the one waited for:
`tunekit.matmul` with a config of that variant pinned, the same with descriptors encoded anew at
each launch where the variant has any, `torch.matmul`, a plain launch of the variant's kernel by
Triton's JIT, and one through `@triton.autotune` once it has chosen. Rounds are shuffled, so that
all see the same clocks; a round is some calls without waiting, then one wait that is not timed.
Given are the median over rounds and its 10 % and 90 % quantiles, in microseconds per call.

Then one of them is called a million times: the time per call must not grow, and no database may be
opened after the first call. Prints one JSON document; exits 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import Any

import torch
import triton

import tunekit
from tunekit.config import Config
from tunekit.device import DeviceInfo, detect, driver_version
from tunekit.kernels.launching import prepared
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import dense_operands
from tunekit.kernels.protocol import KernelCall
from tunekit.key import Problem

Call = Callable[[], Any]

PROBLEMS = {
    "pointer": Problem("matmul", 64, 256, 256, "bfloat16"),
    "pointer, split": Problem("matmul", 64, 256, 1024, "bfloat16"),
    "tma": Problem("matmul", 128, 256, 256, "bfloat16"),
    "tma, split": Problem("matmul", 128, 256, 1024, "bfloat16"),
    "persistent": Problem("matmul", 128, 256, 256, "bfloat16"),
    "streamk": Problem("matmul", 1024, 2304, 1024, "bfloat16"),
    "composite": Problem("matmul", 128, 384, 256, "bfloat16"),
    "swapped": Problem("matmul", 16, 256, 256, "bfloat16"),
    "gemv": Problem("matmul", 1, 256, 256, "bfloat16"),
    "padded": Problem("matmul", 128, 256, 255, "bfloat16", aligned=False),
    "phased": Problem("matmul", 1000, 256, 1000, "bfloat16"),
    "gluon": Problem("matmul", 128, 256, 256, "bfloat16"),
}
"""A small problem for each variant; `split` asks for a config with a workspace.

The turned ones launch what `padded` does: a copy, then a product.
"""

GOALS = {"torch": 0.90, "torch, with descriptors or a workspace": 1.00, "autotuned": 0.30}
"""The largest part of another call's time that a call may take."""


def config_for(name: str, device: DeviceInfo) -> Config | None:
    """Return the first legal config of a variant on a GPU, or None if it has none."""
    variant, _, split = name.partition(", ")
    if variant not in {one.name for one in MATMUL.variants}:
        return None
    for config in MATMUL.variant(variant).space.candidates():
        parts_fit = variant == "streamk" or (config.split_k > 1) == bool(split)
        if parts_fit and MATMUL.violation(config, PROBLEMS[name], device) is None:
            return config
    return None


def candidates(name: str, config: Config) -> dict[str, Call]:
    """Return the calls to compare for a variant."""
    problem, device = PROBLEMS[name], detect(0)
    a, b = dense_operands(problem, torch.device("cuda"))
    out = torch.empty(problem.m, problem.n, dtype=a.dtype, device=a.device)
    variant = MATMUL.variant(config.variant)

    def launched(*operands: torch.Tensor) -> Any:
        return variant.call(config, problem, device, *operands)

    def by_jit() -> None:
        for one in launched(a, b, torch.empty_like(out)).sequence():
            one.kernel[one.grid](*one.args, **one.options)

    made: dict[str, Call] = {
        "tunekit": partial(tunekit.matmul, a, b),
        "torch": partial(torch.matmul, a, b),
        "jit": by_jit,
    }
    if any(_describes(one) for one in launched(a, b, out).args):
        anew = prepared(launched, a, b, out, keep_maps=False)
        made["tunekit, descriptors anew"] = lambda: anew(a, b, torch.empty_like(out))
    if config.variant == "pointer":
        made["autotuned"] = partial(_autotuned(launched(a, b, out)), a, b, out)
    return made


def _describes(argument: Any) -> bool:
    return type(argument).__name__ == "TensorDescriptor"


def _autotuned(one: KernelCall) -> Callable[..., None]:
    """Return a product by a launch's kernel under `@triton.autotune`, as people write it."""
    configs = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 32}, num_warps=4, num_stages=3)
        for m, n in ((32, 32), (64, 64), (64, 128))
    ]
    tuned = triton.autotune(configs, key=["M", "N", "K"])(one.kernel)
    chosen = {name for config in configs for name in config.all_kwargs()}
    rest = {name: value for name, value in one.options.items() if name not in chosen}

    def call(a: torch.Tensor, b: torch.Tensor, like: torch.Tensor) -> None:
        out = torch.empty_like(like)
        m, n = out.shape

        def grid(meta: dict[str, int]) -> tuple[int, int, int]:
            tiles_m, tiles_n = triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"])
            return (tiles_n, tiles_m, 1) if one.options["ON_AXES"] else (tiles_m * tiles_n, 1, 1)

        tuned[grid](*(out if argument is like else argument for argument in one.args), **rest)

    return call


def interleaved(
    calls: dict[str, Call],
    *,
    rounds: int,
    repeat: int,
    wait: Call,
    clock: Callable[[], float] = time.perf_counter,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Time each call in shuffled rounds; returns microseconds per call, one number a round."""
    rng = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
        wait()
    for _ in range(rounds):
        for name in rng.sample(sorted(calls), len(calls)):
            call = calls[name]
            started = clock()
            for _ in range(repeat):
                call()
            times[name].append((clock() - started) / repeat * 1e6)
            wait()
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Return the median and the spread of some rounds."""
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return {
        "median_us": round(statistics.median(times), 3),
        "p10_us": round(tenths[0], 3),
        "p90_us": round(tenths[-1], 3),
    }


def flatness(
    call: Call, calls: int, *, wait: Call, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Call many times, and compare the last quarter's time per call with the first's."""
    chunks = 40
    times = []
    for _ in range(chunks):
        spent = 0.0
        for _ in range(max(1, calls // chunks // 200)):  # a GPU takes about a thousand launches
            started = clock()
            for _ in range(200):
                call()
            spent += clock() - started
            wait()
        times.append(spent)
    quarter = chunks // 4
    first, last = (statistics.median(part) for part in (times[:quarter], times[-quarter:]))
    return {"calls": calls, "last_over_first": round(last / first, 3)}


@contextmanager
def databases_opened() -> Iterator[list[str]]:
    """Note every SQLite database that is opened from now on, and all the SQL that is run."""
    seen: list[str] = []
    watching = [True]

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if watching[0] and event.startswith("sqlite3."):
            seen.append(f"{event} {arguments[:1]}")

    sys.addaudithook(note)  # which cannot be taken off again
    try:
        yield seen
    finally:
        watching[0] = False


def ratios(times: dict[str, list[float]], *, prepared_more: bool) -> dict[str, Any]:
    """Return tunekit's time as parts of the others', and whether each goal is met.

    A part is the median over rounds of the two times' ratio in one round: a host that is slower for
    a while is so for both.
    """
    made: dict[str, Any] = {}
    for other in ("torch", "jit", "autotuned"):
        if other in times:
            goal = GOALS.get(other)
            if other == "torch" and prepared_more:
                goal = GOALS["torch, with descriptors or a workspace"]
            pairs = zip(times["tunekit"], times[other], strict=True)
            part = statistics.median(ours / theirs for ours, theirs in pairs)
            made[other] = {
                "part": round(part, 3),
                "goal": goal,
                "met": goal is None or part <= goal,
            }
    return made


def main() -> int:
    """Measure every variant and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="calls in a round")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--flat", type=int, default=1_000_000, help="calls to show flatness")
    arguments = parser.parse_args()
    wait = torch.cuda.synchronize
    variants: dict[str, Any] = {}
    for name in PROBLEMS:
        config = config_for(name, detect(0))
        if config is None:
            continue
        with tunekit.policy(config=config):
            calls = candidates(name, config)
            times = interleaved(calls, rounds=arguments.rounds, repeat=arguments.calls, wait=wait)
        found = {call: summary(each) for call, each in times.items()}
        more = name == "padded" or "split" in name or "tunekit, descriptors anew" in found
        variants[name] = {
            "problem": str(PROBLEMS[name]), "config": str(config), **found,
            "parts": ratios(times, prepared_more=more),
        }  # fmt: skip
    a, b = dense_operands(PROBLEMS["pointer"], torch.device("cuda"))
    tunekit.matmul(a, b, on_miss="fallback")
    with databases_opened() as opened:
        config = config_for("pointer", detect(0))
        assert config is not None
        with tunekit.policy(config=config):
            flat = flatness(partial(tunekit.matmul, a, b), arguments.flat, wait=wait)
        tunekit.matmul(a, b, on_miss="fallback")
    parts = [part for one in variants.values() for part in one["parts"].values()]
    good = flat["last_over_first"] <= 1.1 and not opened and all(part["met"] for part in parts)
    document = {
        "what": "host time per call, in microseconds",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": torch.cuda.get_device_name(0), "driver": driver_version(),
        "python": platform.python_version(), "torch": torch.__version__,
        "triton": triton.__version__, "rounds": arguments.rounds, "calls": arguments.calls,
        "variants": variants, "flat": flat, "databases_opened": opened, "goals_met": good,
    }  # fmt: skip
    print(json.dumps(document, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
