"""How many trials a search needs: regret over trials for each sampler, on the recordings.

    python scripts/search_benchmark.py [--samplers transfer,tpe] [--trials N] [--seeds S] [--json]

Every sampler searches each problem of the suite in a replay, 8 configs at a time. The regret is the
best time found over the best time recorded, less 1. `transfer` has three more rows:

- `transfer`: the other problems' recorded trials are in its store.
- `transfer-alone`: its store is empty; it has the portfolio alone.
- `transfer-together`: the same, and the suite is tuned together, in rounds of 8 a key.
- `transfer-family`: as `transfer`, but of a layer of the transformer nothing is known for any M.

What is derived from a problem's (M, N, K), in any dtype, is in nothing the search of it is given:
it is taken out, and then looked for by `check_unseen`, which ends the run if it finds some.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.search import Experience, Searcher
from tunekit.search.portfolio import add_recording, portfolio_of
from tunekit.shapes import load_shapes

SUITE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "suite.yaml"
SAMPLERS = (
    "transfer", "transfer-alone", "transfer-together", "transfer-family", "tpe", "gp", "random",
)  # fmt: skip
AT = (12, 24, 32, 80)
BATCH = 8
SAME_TIMES = 3
"""So many configs with the very same time are the same measurements under another name, if they are
most of those that both have: a few agree by chance."""

Curve = list[float]
"""Regret after each trial."""


class LeakError(Exception):
    """A search was given what it is to find out."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A recording and the problems of it that are searched."""

    recording: Recording
    problems: tuple[Problem, ...]

    @staticmethod
    def open(path: Path, suite: Path) -> Bench:
        """Load a recording and those problems of the suite that it holds."""
        recording = Recording.load(path)
        wanted = [shape.problem for shape in load_shapes(suite)]
        return Bench(recording, tuple(p for p in wanted if p in recording.problems))

    def best_us(self, problem: Problem) -> float:
        """Return the lowest recorded time."""
        trials = self.recording.problems[problem].screening.values()
        return min(t.measurement.median_us for t in trials if t.measurement is not None)


def known_to(
    bench: Bench, held_out: Iterable[Problem], *, portfolio: bool, seed: int
) -> Experience:
    """Return an experience of the recording, or of its portfolio, without some problems' sizes."""
    sizes = {(p.m, p.n, p.k) for p in held_out}
    problems = bench.recording.problems
    rest = Recording(
        bench.recording.device,
        bench.recording.environment,
        bench.recording.sources,
        {p: found for p, found in problems.items() if (p.m, p.n, p.k) not in sizes},
    )
    known = Experience(seed=seed)
    add_recording(known, portfolio_of(rest) if portfolio else rest)
    return known


def check_unseen(known: Experience, bench: Bench, problem: Problem) -> None:
    """Make sure that nothing derived from a problem's (M, N, K) is known.

    Raises:
        LeakError: a problem of these sizes is, or its measurements are under another name.
    """
    size = (problem.m, problem.n, problem.k)
    secret = {
        (config, trial.measurement.median_us)
        for other, found in bench.recording.problems.items()
        if (other.m, other.n, other.k) == size
        for config, trial in found.screening.items()
        if trial.measurement is not None
    }
    configs = {config for config, _ in secret}
    same, shared = defaultdict[Problem, int](int), defaultdict[Problem, int](int)
    for other, config, median_us in known.times():
        if (other.m, other.n, other.k) == size:
            raise LeakError(f"the search of {problem} was given {other}")
        shared[other] += config in configs
        same[other] += (config, median_us) in secret
    for other, count in same.items():
        if count >= SAME_TIMES and count > shared[other] / 2:
            raise LeakError(f"the search of {problem} was given its times as those of {other}")


class Search:
    """One problem searched in a replay."""

    def __init__(self, bench: Bench, problem: Problem, sampler: str, **how: Any) -> None:
        self._answers = bench.recording.problems[problem].screening
        self._best = bench.best_us(problem)
        space = ReplayRunner(bench.recording).space(problem)
        self.searcher = Searcher(space, sampler, **how)
        self._batch: list[Any] = []
        self.seconds = 0.0
        self.curve: Curve = []

    def ask(self, count: int) -> None:
        """Propose a batch."""
        started = time.perf_counter()
        self._batch = self.searcher.ask(count)
        self.seconds += time.perf_counter() - started

    def tell(self) -> list[Any]:
        """Answer the batch from the recording and note the regret; returns its trials."""
        told = [self._answers[config] for config in self._batch]
        for trial in told:
            self.searcher.tell(trial)
            regret = self.curve[-1] if self.curve else math.inf
            if trial.measurement is not None:
                regret = min(regret, trial.measurement.median_us / self._best - 1)
            self.curve.append(regret)
        return told

    def run(self, trials: int) -> Search:
        """Search until the trials are spent or the space is."""
        before = -1
        while before < len(self.curve) < trials:
            before = len(self.curve)
            self.ask(min(BATCH, trials - before))
            self.tell()
        return self


def search_one(bench: Bench, problem: Problem, sampler: str, seed: int, trials: int) -> Search:
    """Search one problem alone."""
    how: dict[str, Any] = {"seed": seed, "trials": trials}
    kind, _, variety = sampler.partition("-")
    if kind == "transfer":
        held_out = [problem]
        if variety == "family":
            held_out = [p for p in bench.recording.problems if (p.n, p.k) == (problem.n, problem.k)]
        known = known_to(bench, held_out, portfolio=variety == "alone", seed=seed)
        for other in held_out:
            check_unseen(known, bench, other)
        how["experience"] = known
    return Search(bench, problem, kind, **how).run(trials)


def search_together(bench: Bench, seed: int, trials: int) -> list[Search]:
    """Search all problems in rounds: each knows the portfolio, and what the others tried before.

    Every problem has an experience of its own, since the portfolio is made without it.
    """
    known = [known_to(bench, [p], portfolio=True, seed=seed) for p in bench.problems]
    searches = [
        Search(bench, p, "transfer", seed=seed, trials=trials, experience=own)
        for p, own in zip(bench.problems, known, strict=True)
    ]
    for start in range(0, trials, BATCH):
        for own, search in zip(known, searches, strict=True):
            own.settle()
            search.ask(min(BATCH, trials - start))
        for i, (problem, search) in enumerate(zip(bench.problems, searches, strict=True)):
            told = search.tell()
            for j, other in enumerate(known):
                sizes = {(p.m, p.n, p.k) for p in (problem, bench.problems[j])}
                if i != j and len(sizes) == 2:
                    other.note(problem, bench.recording.device, told)
    return searches


def _job(job: tuple[Bench, str, Problem | None, int, int]) -> tuple[str, list[Curve], float]:
    bench, sampler, problem, seed, trials = job
    if problem is None:
        done = search_together(bench, seed, trials)
    else:
        done = [search_one(bench, problem, sampler, seed, trials)]
    return sampler, [search.curve for search in done], sum(search.seconds for search in done)


def measure(
    bench: Bench,
    samplers: Sequence[str],
    *,
    seeds: int,
    trials: int,
    jobs: int = 1,
) -> dict[str, Any]:
    """Run every sampler on every problem and seed; returns the figures of each."""
    curves: dict[str, list[Curve]] = defaultdict(list)
    seconds: dict[str, float] = defaultdict(float)
    work: list[tuple[Bench, str, Problem | None, int, int]] = [
        (bench, sampler, problem, seed, trials)
        for sampler in samplers
        for seed in range(seeds)
        for problem in ((None,) if sampler == "transfer-together" else bench.problems)
    ]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for sampler, found, took in pool.imap(_job, work):
            curves[sampler] += found
            seconds[sampler] += took
    return {
        name: figures(found, trials) | {"seconds_asking": round(seconds[name], 1)}
        for name, found in curves.items()
    }


def figures(curves: Sequence[Curve], trials: int) -> dict[str, Any]:
    """Return the regret of some searches at each count of trials."""
    found: dict[str, Any] = {
        "searches": len(curves),
        "curve_geomean": [round(_geomean(_at(curves, n)), 6) for n in range(1, trials + 1)],
    }
    for n in (n for n in AT if n <= trials):
        regrets = _at(curves, n)
        row = {
            "regret_geomean": _geomean(regrets),
            "regret_worst": max(regrets),
            "within_2pct": statistics.mean(r <= 0.02 for r in regrets),
            "within_5pct": statistics.mean(r <= 0.05 for r in regrets),
        }
        for name, value in row.items():
            found.setdefault(name, {})[str(n)] = round(value, 5)
    return found


def _at(curves: Sequence[Curve], trials: int) -> list[float]:
    return [curve[min(trials, len(curve)) - 1] for curve in curves]


def _geomean(regrets: Sequence[float]) -> float:
    return math.expm1(statistics.mean(map(math.log1p, regrets)))


def main() -> None:
    """Run the benchmark and print its table, or with `--json` the figures."""
    parser = argparse.ArgumentParser(description="regret over trials of each sampler")
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--recording", type=Path, default=shipped_recordings()[0])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    samplers = chosen.samplers.split(",")
    unknown = set(samplers) - set(SAMPLERS)
    if unknown:
        parser.error(f"unknown sampler {min(unknown)}: use some of {', '.join(SAMPLERS)}")
    bench = Bench.open(chosen.recording, SUITE)
    found = measure(bench, samplers, seeds=chosen.seeds, trials=chosen.trials, jobs=chosen.jobs)
    if chosen.json:
        whole = {
            "schema": 1, "recording": chosen.recording.name, "problems": len(bench.problems),
            "seeds": chosen.seeds, "samplers": found,
        }  # fmt: skip
        print(json.dumps(whole, indent=1))
    else:
        print(table(found))


def table(found: dict[str, Any]) -> str:
    """Return the figures as a Markdown table, in percent."""
    counts = [n for n in AT if all(str(n) in row["regret_geomean"] for row in found.values())]
    lines = [
        "| sampler | " + " | ".join(f"{n} trials" for n in counts) + " |",
        "|---|" + "---|" * len(counts),
    ]
    for name, row in found.items():
        cells = [
            f"{row['regret_geomean'][str(n)]:.2%}, worst {row['regret_worst'][str(n)]:.1%},"
            f" {row['within_2pct'][str(n)]:.0%} within 2 %"
            for n in counts
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
