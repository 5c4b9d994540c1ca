"""Write the figures of docs/ladder.md and its plot from the recorded ladder.

    python scripts/ladder_table.py

The record is docs/benchmarks/ladder-h200.json, which `scripts/ladder.py` writes. The tables are
what stands between the page's two markers; without matplotlib the plot is left as it is.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKERS = re.compile(r"(<!-- table: ladder -->\n).*?(<!-- end of table -->)", re.DOTALL)
STEPS = ("blockwise", "grouped", "list of 15", "tunekit", "vendor")
SHOWN = (256, 512, 1024, 1536, 2048, 3072, 4096)
GAINS = (
    ("group order", "grouped", "blockwise"),
    ("the fixed list", "list of 15", "grouped"),
    ("the search", "tunekit", "list of 15"),
    ("against the vendor", "tunekit", "vendor"),
)


def kinds(record: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each kind of arithmetic, by size."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(record["rows"], key=lambda row: row["size"]):
        name = f"float32 {row['precision']}" if row["dtype"] == "float32" else row["dtype"]
        found.setdefault(name, []).append(row)
    return found


def rate(row: dict[str, Any], step: str) -> float:
    """Return a step's TFLOP/s."""
    return float(row["flops"] / row["us"][step][0] / 1e6)


def gain(rows: list[dict[str, Any]], step: str, before: str) -> tuple[float, float, int]:
    """Return the geometric mean and the least of a step over another, and the size of that."""
    ratios = {row["size"]: row["us"][before][0] / row["us"][step][0] for row in rows}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    least = min(ratios, key=lambda size: ratios[size])
    return mean, ratios[least], least


def below_the_list(rows: list[dict[str, Any]]) -> list[int]:
    """Return the sizes at which tunekit is slower than the list beyond both intervals."""
    return [
        row["size"]
        for row in rows
        if row["us"]["tunekit"][1] > row["us"]["list of 15"][2]
        and (row["choice"] != "vendor" or row["us"]["vendor"][1] > row["us"]["list of 15"][2])
    ]


def tables(record: dict[str, Any]) -> str:
    """Return everything between the markers."""
    tried = [row["trials"] for row in record["rows"]]
    parts = [
        f"{record['device']}, driver {record['driver']}, torch {record['torch']}, Triton"
        f" {record['triton']}, {record['date'][:10]}. Device time with a cold L2, medians of"
        f" {record['rounds']} interleaved rounds; steps 3 and 4 have blocks of {record['block']}."
        f" tunekit's choices come from tunes in the same jobs, {min(tried)} to {max(tried)} trials"
        " a key.",
        "",
        "| loops in Python | size | seconds | MFLOP/s |",
        "|---|---:|---:|---:|",
    ]
    for loop in record["loops"]:
        per_s = 2 * loop["size"] ** 3 / loop["seconds"] / 1e6
        parts.append(f"| {loop['step']} | {loop['size']} | {loop['seconds']:.4f} | {per_s:.1f} |")
    for name, rows in kinds(record).items():
        parts += ["", f"**{name}**, TFLOP/s:", "", f"| M = N = K | {' | '.join(STEPS)} |"]
        parts.append(f"|---:|{'---:|' * len(STEPS)}")
        for row in rows:
            if row["size"] in SHOWN:
                cells = " | ".join(f"{rate(row, step):.1f}" for step in STEPS)
                parts.append(f"| {row['size']} | {cells} |")
    parts += ["", "What each step brings, over all sizes (least in brackets, with its size):", ""]
    found = kinds(record)
    parts.append(f"| | {' | '.join(found)} |")
    parts.append(f"|---|{'---:|' * len(found)}")
    for label, step, before in GAINS:
        cells = [
            f"{mean:.3f} ({least:.2f} at {size})"
            for mean, least, size in (gain(rows, step, before) for rows in found.values())
        ]
        parts.append(f"| {label} | {' | '.join(cells)} |")
    slower = {name: below_the_list(rows) for name, rows in found.items()}
    told = [f"{name} at {sizes}" for name, sizes in slower.items() if sizes]
    parts += ["", "Sizes at which tunekit is behind the fixed list beyond noise: "]
    parts[-1] += "; ".join(told) + "." if told else "none."
    parts += ["", "Commands: " + "; ".join(f"`{c}`" for c in record["commands"]) + "."]
    return "\n".join(parts)


def plot(record: dict[str, Any], target: Path) -> None:
    """Draw TFLOP/s over size, a panel for each kind of arithmetic."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        print("no matplotlib: the plot is left as it is", file=sys.stderr)
        return
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "ladder"  # the same record gives the same file
    from matplotlib import pyplot

    found = kinds(record)
    figure, panels = pyplot.subplots(1, len(found), figsize=(4.2 * len(found), 3.6), squeeze=False)
    for panel, (name, rows) in zip(panels[0], found.items(), strict=True):
        for step in STEPS:
            sizes = [row["size"] for row in rows]
            panel.plot(sizes, [rate(row, step) for row in rows], label=step, marker=".")
        panel.set(title=name, xlabel="M = N = K", ylabel="TFLOP/s", ylim=(0, None))
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    """Fill the page in, and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", type=Path, default=DOCS / "benchmarks" / "ladder-h200.json")
    parser.add_argument("--page", type=Path, default=DOCS / "ladder.md")
    arguments = parser.parse_args()
    record = json.loads(arguments.record.read_text())
    page = arguments.page.read_text()
    filled, places = MARKERS.subn(lambda found: found[1] + tables(record) + "\n" + found[2], page)
    if places != 1:
        raise SystemExit(f"{arguments.page} has no place for the table")
    arguments.page.write_text(filled)
    plot(record, arguments.record.with_suffix(".svg"))


if __name__ == "__main__":
    main()
