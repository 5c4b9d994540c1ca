"""Write docs/benchmarks/thirds.md: other dtypes and layouts, each against the vendor's call.

    tunekit tune --device cuda --shapes docs/benchmarks/thirds/NAME.yaml --sampler exhaustive \\
        --record docs/benchmarks/thirds/NAME.json.gz
    python scripts/thirds_table.py

A table for each recording that lies beside its shapes file; those that are not there are named.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.recording.recording import RecordedProblem
from tunekit.replay import ReplayRunner

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
TARGETS = {
    "nn-tn": 1.0, "fp16": 1.0, "tf32 nt": 1.0, "tf32 nn": 0.85, "tf32 tn": 0.85, "ieee": 0.9,
    "fp8-tensor": 0.97, "fp8-row": 0.97, "int8": 1.15, "batched": 0.97,
}  # fmt: skip
"""What the geometric mean should reach, by shapes file, and by layout where that decides."""


@dataclass(frozen=True)
class Line:
    """One problem: the vendor's time, if it has a call, and the fastest of the finals."""

    problem: Problem
    vendor_us: float | None
    best_us: float
    config: str
    configs: int

    @property
    def ratio(self) -> float | None:
        """The vendor's time over ours."""
        return None if self.vendor_us is None else self.vendor_us / self.best_us


def line_of(problem: Problem, found: RecordedProblem) -> Line:
    """Return what was recorded of a problem."""
    finals = {c: t.measurement.median_us for c, t in found.finals.items() if t.measurement}
    best = min(finals, key=lambda config: finals[config])
    vendor = None if found.vendor is None else found.vendor.median_us
    return Line(problem, vendor, finals[best], str(best), len(found.screening))


def mean_of(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def table(lines: Iterable[Line]) -> list[str]:
    """Return the table of some problems."""
    rows = ["| problem | vendor, us | ours, us | ratio | best config | configs |"]
    rows.append("|---|---:|---:|---:|---|---:|")
    for line in lines:
        vendor = "none" if line.vendor_us is None else f"{line.vendor_us:.2f}"
        ratio = "" if line.ratio is None else f"{line.ratio:.3f}"
        rows.append(
            f"| {line.problem} | {vendor} | {line.best_us:.2f} | {ratio} | {line.config}"
            f" | {line.configs} |"
        )
    return rows


def means(name: str, lines: list[Line]) -> list[str]:
    """Return the geometric mean of each layout, beside what it should be."""
    told = []
    for layout in dict.fromkeys(line.problem.layout for line in lines):
        ratios = [x.ratio for x in lines if x.problem.layout == layout and x.ratio is not None]
        wanted = TARGETS.get(f"{name} {layout}", TARGETS.get(name))
        if ratios:
            goal = "" if wanted is None else f", of {wanted:.2f} aimed at"
            told.append(f"{layout}: **{mean_of(ratios):.3f}**, least {min(ratios):.3f}{goal}")
    return ["Geometric means of the vendor's time over ours: " + "; ".join(told) + "."]


def section(path: Path) -> list[str]:
    """Return the page's part on one recording."""
    recording = Recording.load(path)
    stale = ReplayRunner(recording).stale
    if stale:
        raise SystemExit(f"{path} is older than the kernels of {', '.join(stale)}")
    name = path.name.removesuffix(".json.gz")
    lines = [line_of(problem, found) for problem, found in recording.problems.items()]
    device = recording.device.name
    return [f"## {name}", "", f"{device}. {means(name, lines)[0]}", "", *table(lines), ""]


def page(folder: Path) -> str:
    """Return the whole page."""
    parts = [
        "# Other dtypes and layouts against the vendor's library", "",
        "A third of [the suite](suite.yaml) each: `torch.mm`, `torch._scaled_mm`, `torch._int_mm`",
        "and `torch.bmm` in the same interleaved rounds as ours, device time with a cold L2,",
        "medians. Above 1 is faster than the vendor, and what is below is served by its call.", "",
    ]  # fmt: skip
    missing = []
    for shapes in sorted(folder.glob("*.yaml")):
        recording = shapes.with_suffix(".json.gz")
        if recording.exists():
            parts += section(recording)
        else:
            missing.append(shapes.stem)
    if missing:
        parts += [f"Not recorded yet: {', '.join(missing)}.", ""]
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER / "thirds")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER / "thirds.md")
    arguments = parser.parse_args()
    arguments.output.write_text(page(arguments.folder))


if __name__ == "__main__":
    main()
