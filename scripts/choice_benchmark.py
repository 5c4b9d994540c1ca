"""Measure how good the choice of a run is when times are noisy, on simulated GPUs.

    python scripts/choice_benchmark.py [--seeds 100] [--recording FILE] > choice.json
    python scripts/choice_benchmark.py --seeds 10 --landscape lone --noise drift

Each landscape has 200 configs whose true times are known: made-up ones, from easy to hard, and
those of a recording. For every seed all of them are screened with noise, the finals are held, and
what is chosen is compared with the true best. No GPU is needed. One JSON document on stdout, a
table on stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem
from tunekit.ranking import contenders, pick, ranked
from tunekit.recording import Recording
from tunekit.replay import shipped_recordings
from tunekit.simulation import Noise, SimulatedRunner
from tunekit.trial import Fingerprint, Measurement, Provenance, Status, Trial

CONFIGS = 200
TRIAL_S = 0.1
"""Between two trials, in which a drift has time to become another one."""

CLOSE = 1.02
"""A choice is good if the true time is at most this many times that of the true best."""

NOISES = {
    "5 % a launch": Noise(launch=0.05),
    "and 5 % drift": Noise(launch=0.05, drift=0.05),
    "and outliers": Noise(launch=0.05, drift=0.05, outlier_every=20),
}

CHOICES = tuple(
    Config("pointer", m, n, k, group_size=g, num_warps=w, num_stages=s)
    for m in (32, 64, 128, 256)
    for n in (32, 64, 128, 256)
    for k in (32, 64)
    for g in (1, 8)
    for w in (4, 8)
    for s in (2, 4)
)[:CONFIGS]


def made_up(best_us: float) -> dict[str, list[float]]:
    """Return the true times of landscapes, each sorted."""
    steps = range(CONFIGS)
    wide = [best_us * math.exp(1.2 * i / CONFIGS) for i in steps]
    ladder = [best_us * 1.0025**i for i in steps]
    plateau = [best_us * (1 + 0.08 * i / CONFIGS) for i in steps]
    lone = [best_us * (1.0 if i == 0 else 1.03 + 0.37 * i / CONFIGS) for i in steps]
    lost = [best_us * (1.0 if i == 0 else 1.03 + 0.07 * i / CONFIGS) for i in steps]
    return {
        "wide: up to 3.3 times": wide,
        "ladder: steps of 0.25 %": ladder,
        "plateau: all within 8 %": plateau,
        "lone: the next 3 %, all within 40 %": lone,
        "lost: the next 3 %, all within 10 %": lost,
    }


def recording_of(times_us: Sequence[float], seed: int) -> Recording:
    """Return a recording of one problem whose configs take these times, dealt out by chance."""
    problem = Problem("matmul", 1024, 1024, 1024, "bfloat16")
    made = Recording(KNOWN_DEVICES["sm_90"])
    mark = Fingerprint("made-up", "made-up")
    for config in CHOICES[:1]:
        made.admit(config, Provenance(mark, "made-up", "0", "0", "0", "0", "made-up", "2020"))
    dealt = random.Random(seed).sample(list(times_us), len(times_us))
    trials = [
        Trial(config, Status.OK, Measurement(t, t, t, t, t, t, 1, "made-up", 0.1))
        for config, t in zip(CHOICES, dealt, strict=True)
    ]
    vendor = max(times_us)
    made.put(
        problem, trials, space_size=len(trials),
        vendor=Measurement(vendor, vendor, vendor, vendor, vendor, vendor, 1, "made-up"),
    )  # fmt: skip
    return made


def excerpts(recording: Recording) -> dict[str, Recording]:
    """Return each problem of a recording by itself, with at most 200 configs that work."""
    found = {}
    for problem, known in sorted(recording.problems.items()):
        works = [t for t in known.screening.values() if t.measurement is not None]
        kept = random.Random(0).sample(works, min(CONFIGS, len(works)))
        finals = [known.finals[t.config] for t in kept if t.config in known.finals]
        part = Recording(recording.device, recording.environment, recording.sources)
        part.put(problem, kept, finals=finals, vendor=known.vendor, space_size=known.space_size)
        found[str(problem)] = part
    return found


def choice(recording: Recording, noise: Noise, seed: int) -> dict[str, float]:
    """Screen all configs of a recording of one problem, choose as a run does, and judge that."""
    runner = SimulatedRunner(recording, noise=noise, seed=seed, trial_s=TRIAL_S)
    (problem,) = recording.problems
    space = runner.space(problem).configs
    work = [(problem, config) for config in random.Random(seed).sample(space, len(space))]
    order = ranked(trial for _, trial in runner.screen(work))
    entrants = [trial.config for trial in order[: contenders(order)]]
    before_s = runner.clock() + TRIAL_S
    finals = runner.finals(problem, entrants)
    chosen = pick(finals.trials, finals.vendor)
    assert chosen is not None
    best_us = min(runner.true_us(problem, config) for config in space)
    return {
        "ratio": runner.true_us(problem, chosen.config) / best_us,
        "finalists": len(entrants),
        "finals_s": runner.clock() - before_s,
    }


def summary(outcomes: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return what came of many seeds."""
    ratios = [outcome["ratio"] for outcome in outcomes]
    return {
        "seeds": len(ratios),
        "close": sum(ratio <= CLOSE for ratio in ratios),
        "median_loss_percent": round(100 * (statistics.median(ratios) - 1), 2),
        "worst_loss_percent": round(100 * (max(ratios) - 1), 2),
        "finalists": round(statistics.mean(o["finalists"] for o in outcomes), 1),
        "finals_ms": round(1000 * statistics.mean(o["finals_s"] for o in outcomes)),
    }


def main() -> int:
    """Run every landscape with every noise and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--best-us", type=float, default=50.0, help="time of the made-up best")
    parser.add_argument("--recording", default=str(shipped_recordings()[0]))
    parser.add_argument("--landscape", default="", help="only those whose name holds this")
    parser.add_argument("--noise", default="", help="only those whose name holds this")
    arguments = parser.parse_args()
    recorded = excerpts(Recording.load(arguments.recording))
    document: dict[str, Any] = {"close": CLOSE, "configs": CONFIGS, "landscapes": {}}
    for name, noise in NOISES.items():
        if arguments.noise not in name:
            continue
        for landscape, times in made_up(arguments.best_us).items():
            if arguments.landscape in landscape:
                outcomes = [
                    choice(recording_of(times, seed), noise, seed)
                    for seed in range(arguments.seeds)
                ]
                put(document, name, landscape, summary(outcomes))
        each = max(1, arguments.seeds // 33)
        title = f"recorded: {len(recorded)} problems, {each} seeds each"
        if arguments.landscape in title:
            outcomes = [
                choice(recording, noise, seed)
                for recording in recorded.values()
                for seed in range(each)
            ]
            put(document, name, title, summary(outcomes))
    print(json.dumps(document, indent=1))
    return 0


def put(document: dict[str, Any], noise: str, landscape: str, found: dict[str, float]) -> None:
    """Add a result to the document, and a line to the table."""
    document["landscapes"].setdefault(landscape, {})[noise] = found
    print(f"{landscape:40} {noise:15} {found}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
