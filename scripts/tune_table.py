"""Print the tables of `tune_benchmark.py` and `sweep_benchmark.py` in Markdown.

    python scripts/tune_table.py [--sweep sweep.json] [tune.json...]

Several files of tunes are taken as one: the first that has Inductor's times, and the first that was
repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

PARTS = ("start_s", "compile_s", "verify_s", "time_s", "idle_s", "search_s")


def tunes_table(document: dict[str, Any]) -> str:
    """Return a line for each tune: its wall time, where that went, and its trials."""
    lines = [
        "| seed | wall, s | start | compile | verify | time | idle | search | GPU busy | trials |"
        " fewest | compiled before |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for tune in document["tunes"]:
        spent = tune["spent"]
        parts = " | ".join(f"{spent[name]:.1f}" for name in PARTS)
        before = "no" if tune["no_kernel_was_compiled_before"] else "yes"
        lines.append(
            f"| {tune['seed']} | {tune['wall_s']:.1f} | {parts} | {spent['gpu_busy_share']:.0%}"
            f" | {tune['trials']} | {tune['fewest_trials_of_a_problem']} | {before} |"
        )
    return "\n".join(lines)


def inductor_line(document: dict[str, Any]) -> str:
    """Return Inductor's time for the same problems, in words."""
    found = document["inductor"]
    slowest = max(found["problems"].items(), key=lambda item: item[1])
    return (
        f"Inductor `max-autotune`, the same {len(found['problems'])} problems, empty caches:"
        f" {found['wall_s']:.1f} s, {found['over_ours']:.2f} times as long; median"
        f" {statistics.median(found['problems'].values()):.1f} s a problem, most {slowest[1]:.1f} s"
        f" ({slowest[0]})."
    )


def repeated_lines(document: dict[str, Any]) -> str:
    """Return how well the choices repeated, in words."""
    found = document["repeated"]
    count = len(found["problems"])
    return (
        f"{found['tunes']} tunes with other seeds: the slowest choice of a problem over its"
        f" fastest, timed again together, is {found['slowest_over_fastest_geomean'] - 1:.2%} in"
        f" the geometric mean and {found['slowest_over_fastest_worst'] - 1:.2%} at worst. The same"
        f" config in all for {found['same_config_in_all']} of {count} problems, the same of Triton"
        f" and vendor for {found['same_choice_of_vendor_or_triton_in_all']}."
    )


def sweep_table(document: dict[str, Any]) -> str:
    """Return a line for each problem that was swept, and the figures of all."""
    columns = sorted(
        {(t["trials"], t["seed"]) for row in document["regrets"] for t in row["tuned"]}
    )
    heads = " | ".join(f"{trials} trials, seed {seed}" for trials, seed in columns)
    lines = [
        f"| problem | configs | best, us | vendor, us | sweep's own choice | {heads} |",
        "|---|---:|---:|---:|---:|" + "---:|" * len(columns),
    ]
    for row in document["regrets"]:
        cells = " | ".join(
            f"{t['regret']:.2%}"
            for t in sorted(row["tuned"], key=lambda t: (t["trials"], t["seed"]))
        )
        configs = document["sweep"]["configs"][row["problem"]]
        vendor = "-" if row["vendor_us"] is None else f"{row['vendor_us']:.2f}"
        lines.append(
            f"| {row['problem']} | {configs} | {row['best_us']:.2f} | {vendor} |"
            f" {row['sweeps_first_regret']:.2%} | {cells} |"
        )
    for trials, found in document["summary"].items():
        lines.append(
            f"\n{trials} trials: geometric mean {found['regret_geomean']:.2%}, worst"
            f" {found['regret_worst']:.2%}, {found['within_2pct']:.0%} within 2 %"
            f" ({found['tunes']} tunes)."
        )
    return "\n".join(lines)


def main() -> None:
    """Print what the files hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tunes", nargs="*", type=Path)
    parser.add_argument("--sweep", type=Path)
    chosen = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in chosen.tunes]
    texts = [tunes_table(document) for document in documents]
    texts += [inductor_line(document) for document in documents if "inductor" in document][:1]
    texts += [repeated_lines(document) for document in documents if "repeated" in document][:1]
    if chosen.sweep is not None:
        texts.append(sweep_table(json.loads(chosen.sweep.read_text())))
    print("\n\n".join(texts))


if __name__ == "__main__":
    main()
