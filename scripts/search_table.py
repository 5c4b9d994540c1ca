"""Write the page and the plot of the search benchmark from its figures.

    python scripts/search_table.py FIGURES.json...

Figures of several runs of `search_benchmark.py --json` are put together into
docs/benchmarks/search-h200.json; the table between the marks of docs/benchmarks/search.md and
search-h200.svg are made of that. The plot needs matplotlib (dependency group `plot`).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
AT = (12, 24, 32, 80)


def together(paths: list[str]) -> dict[str, Any]:
    """Return the figures of several runs as one document, later runs over earlier ones."""
    whole: dict[str, Any] = {"schema": 1, "samplers": {}}
    for path in paths:
        part = json.loads(Path(path).read_text())
        whole["recording"] = part["recording"]
        for name, row in part["samplers"].items():
            whole["samplers"][name] = {"problems": part["problems"], "seeds": part["seeds"], **row}
    return whole


def table(samplers: dict[str, Any]) -> str:
    """Return the figures as a Markdown table: mean, worst and share within 2 %."""
    lines = [
        "| sampler | searches | " + " | ".join(f"{n} trials" for n in AT) + " |",
        "|---|---:|" + "---:|" * len(AT),
    ]
    for name, row in samplers.items():
        cells = []
        for n in map(str, AT):
            if n in row["regret_geomean"]:
                mean, worst = row["regret_geomean"][n], row["regret_worst"][n]
                cells.append(f"{mean:.2%} ({worst:.1%}; {row['within_2pct'][n]:.0%})")
            else:
                cells.append("")
        lines.append(f"| `{name}` | {row['searches']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(samplers: dict[str, Any], path: Path) -> None:
    """Draw the mean regret over trials."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tunekit"
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, row in samplers.items():
        percent = [max(100 * value, 0.02) for value in row["curve_geomean"]]
        axes.plot(range(1, len(percent) + 1), percent, label=name)
    axes.set(xlabel="trials", ylabel="mean regret, %", yscale="log", ylim=(0.02, 100))
    axes.grid(which="both", alpha=0.2)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Put figures together and write the page's table and plot."""
    whole = together(sys.argv[1:])
    (FOLDER / "search-h200.json").write_text(json.dumps(whole, indent=1) + "\n")
    page = FOLDER / "search.md"
    marked = re.compile(r"(<!-- table -->\n).*?(<!-- end of table -->)", re.DOTALL)
    made = table(whole["samplers"])
    page.write_text(marked.sub(lambda found: found[1] + made + "\n" + found[2], page.read_text()))
    plot(whole["samplers"], FOLDER / "search-h200.svg")


if __name__ == "__main__":
    main()
