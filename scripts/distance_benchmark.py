"""How often the stated bound on the distance from the best holds, on the recordings.

    python scripts/distance_benchmark.py [--seeds S] [--dtype float16] [--jobs N] > distance.json
    python scripts/distance_benchmark.py --table distance.json

Every recorded problem is searched in a replay by `transfer`, and after 12, 24, 48 and 80 trials the
distance that the search states is held against the true one. Nothing derived from a problem's
(M, N, K) is known to its search, in any dtype (`search_benchmark.check_unseen`). The other problems
are known in full (`store`) or by the portfolio alone (`portfolio`).

The bound has one constant. So that it is not judged by what it was fitted to, it is also fitted
anew for each size, to the searches of all other sizes, and judged by that size's own.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from search_benchmark import SUITE, Bench, Search, check_unseen, known_to

from tunekit.key import Problem
from tunekit.replay import shipped_recordings

AT = (12, 24, 48, 80)
CONFIDENCE = 0.9
KNOWN = ("store", "portfolio")

Case = dict[str, Any]


def cases_of(bench: Bench, problem: Problem, known: str, seed: int) -> list[Case]:
    """Search a problem and return what was stated and what was true at each count of trials."""
    experience = known_to(bench, [problem], portfolio=known == "portfolio", seed=seed)
    check_unseen(experience, bench, problem)
    search = Search(bench, problem, "transfer", seed=seed, experience=experience)
    cases = []
    for trials in AT:
        search.run(trials)
        stated = search.searcher.distance()
        if len(search.curve) < trials or stated is None or not search.searcher.remaining:
            break
        cases.append(
            {
                "problem": str(problem),
                "known": known,
                "seed": seed,
                "trials": trials,
                "regret": round(search.curve[-1], 6),
                "expected": round(stated.expected, 6),
                "bound": round(stated.bound, 6),
            }
        )
    return cases


def fitted_anew(cases: Sequence[Case]) -> dict[str, float]:
    """Return for each size by how much the bound's constant would change without its searches.

    It is the least that makes the bound hold in nine of ten of the other searches, at every count.
    """
    return {
        size: fit([case for case in cases if _size(case) != size])
        for size in {_size(case) for case in cases}
    }


def fit(cases: Sequence[Case]) -> float:
    """Return by how much the bound's constant would change to hold as stated in these searches."""
    at: dict[int, list[float]] = defaultdict(list)
    for case in cases:
        at[case["trials"]].append(_needed(case))
    return max(
        sorted(ratios)[min(math.ceil(CONFIDENCE * len(ratios)), len(ratios)) - 1]
        for ratios in at.values()
    )


def _size(case: Case) -> str:
    return str(case["problem"]).split()[0]


def _needed(case: Case) -> float:
    """Return what the bound would have to be multiplied by to hold exactly (in logarithms)."""
    return math.log1p(case["regret"]) / max(math.log1p(case["bound"]), 1e-9)


def summary(cases: Sequence[Case]) -> dict[str, Any]:
    """Return how often the bound held, as it is and fitted anew, and how wide it was."""
    factors = fitted_anew(cases)
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[f"{case['known']}, {case['trials']} trials"].append(case)
    groups["all"] = list(cases)
    return {name: _figures(group, factors) for name, group in groups.items()}


def _figures(cases: Sequence[Case], factors: dict[str, float]) -> dict[str, float]:
    held = [case["regret"] <= case["bound"] for case in cases]
    anew = [_needed(case) <= factors[_size(case)] for case in cases]
    return {
        "searches": len(cases),
        "held": round(statistics.mean(held), 4),
        "held_fitted_without_it": round(statistics.mean(anew), 4),
        "mean_bound": round(statistics.mean(case["bound"] for case in cases), 5),
        "mean_expected": round(statistics.mean(case["expected"] for case in cases), 5),
        "mean_regret": round(statistics.mean(case["regret"] for case in cases), 5),
    }


def table(found: dict[str, Any]) -> str:
    """Return a summary as a Markdown table."""
    lines = [
        "| known of other problems | searches | bound held | fitted without the size | mean bound |"
        " mean expected | mean true |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in found.items():
        lines.append(
            f"| {name} | {row['searches']} | {row['held']:.0%}"
            f" | {row['held_fitted_without_it']:.0%}"
            f" | {row['mean_bound']:.2%} | {row['mean_expected']:.2%} | {row['mean_regret']:.2%} |"
        )
    return "\n".join(lines)


def _job(job: tuple[Bench, Problem, str, int]) -> list[Case]:
    return cases_of(*job)


def main() -> int:
    """Search all problems and print one JSON document, or the table of one."""
    parser = argparse.ArgumentParser(description="does the stated bound hold")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dtype", help="only problems of this dtype")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--recording", type=Path, default=shipped_recordings()[0])
    parser.add_argument("--table", type=Path, help="print the table of an earlier run")
    chosen = parser.parse_args()
    if chosen.table is not None:
        print(table(json.loads(chosen.table.read_text())["summary"]))
        return 0
    bench = Bench.open(chosen.recording, SUITE)
    problems = [p for p in sorted(bench.recording.problems) if chosen.dtype in (None, p.dtype)]
    work = [
        (bench, problem, known, seed)
        for known in KNOWN
        for seed in range(chosen.seeds)
        for problem in problems
    ]
    with multiprocessing.get_context("spawn").Pool(chosen.jobs) as pool:
        cases = [case for found in pool.imap(_job, work) for case in found]
    found = summary(cases)
    whole = {"schema": 1, "recording": chosen.recording.name, "summary": found}
    whole["columns"] = list(cases[0])
    rows = ",\n  ".join(json.dumps(list(case.values())) for case in cases)
    print(json.dumps(whole, indent=1)[:-2] + f',\n "cases": [\n  {rows}\n ]\n}}')
    print(table(found), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
