"""Write docs/benchmarks/thirds.md: other dtypes and layouts, each against the vendor's call.

    tunekit tune --device cuda --shapes docs/benchmarks/thirds/NAME.yaml --trials 120 \\
        --record NAME.json.gz
    python scripts/merge_recordings.py tunekit/recordings/nvidia-h200.json.gz NAME.json.gz
    python scripts/make_portfolio.py
    python scripts/thirds_table.py

A table for each shapes file, of what the shipped recording holds of it; what it lacks is named.
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
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.shapes import load_shapes

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
TARGETS = {
    "nn-tn": 1.0, "fp16": 1.0, "tf32 nt": 1.0, "tf32 nn": 0.85, "tf32 tn": 0.85, "ieee": 0.9,
    "fp8-tensor": 0.97, "fp8-row": 0.97, "int8": 1.15, "batched": 0.97,
}  # fmt: skip
"""What the geometric mean should reach, by shapes file, and by layout where that decides."""


BEHIND = """\
## What is behind, and why

- float8, large products (0.78 to 0.90): after 128 products a sum goes on in float32, as
  `torch._scaled_mm` does unless it is told to be fast. Triton waits for the tensor cores before
  each of these additions, so those two take turns. Products that memory limits do not feel it.
- float8, 512 x 4096 x 14336: the same, and few tiles make whole waves. 64 x 6144 x 4096 (0.95):
  not known.
- Scores of attention, batched (0.88): K is 128, two steps a tile, and C is eight times as large
  as both operands. What is left is the store, which does not overlap with the next tile's as the
  vendor's does; so we suppose, it was not taken apart.
- tf32 in nn, 512 x 4096 x 14336 (0.62): B is copied to lie along K, 235 MB read and written for
  512 rows, which at the bandwidth of a copy is 110 of the 277 us. 64 rows (0.94, in tn 0.90) are
  not worth a copy, and are read across K by the threads; at 2048 cubed (0.90) the copy of B is,
  at that bandwidth, a seventh of the time.
- Full float32, large products (0.80 to 0.91): no tensor core multiplies it, and the threads reach
  44 of the vendor's 50 TFLOP/s: Triton does not schedule their reads of shared memory by hand. In
  nt the copy that `turned-pointer` makes is, at that bandwidth, 1 (4096 rows) to 8 % (512 rows)
  of the time; without it these stood at 0.38 to 0.58 (recorded the same day, before it was
  there). 64 rows and 512 cubed (0.94 to 0.97): there it is a larger part of a short product.
- 512 x 4096 x 14336 in bfloat16: the power limit, as in nt ([kernels.md](kernels.md)).
"""
"""What is known of the products below 1, as of the recording of 2026-11-30."""


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


def section(name: str, lines: list[Line]) -> list[str]:
    """Return the page's part on one shapes file."""
    return [f"## {name}", "", *means(name, lines), "", *table(lines), ""]


def page(folder: Path, recording: Recording) -> str:
    """Return the whole page."""
    stale = ReplayRunner(recording).stale
    if stale:
        raise SystemExit(f"the recording is older than the kernels of {', '.join(stale)}")
    made = recording.environment
    assert made is not None  # a recording that was loaded has one
    parts = [
        "# Other dtypes and layouts against the vendor's library", "",
        f"{made.device_name}, driver {made.driver}, torch {made.torch}, Triton {made.triton}; from",
        "the recording that ships. A third of [the suite](suite.yaml) each: `torch.mm`,",
        "`torch._scaled_mm`, `torch._int_mm` and `torch.bmm` in the same interleaved rounds as",
        "ours, device time with a cold L2, medians. Above 1 is faster than the vendor, and what is",
        "below is served by its call.", "",
    ]  # fmt: skip
    missing = []
    for shapes in sorted(folder.glob("*.yaml")):
        wanted = [shape.problem for shape in load_shapes(shapes)]
        lines = [line_of(p, recording.problems[p]) for p in wanted if p in recording.problems]
        parts += section(shapes.stem, lines) if lines else []
        if len(lines) < len(wanted):
            missing.append(f"{len(wanted) - len(lines)} of {shapes.stem}")
    if missing:
        parts += [f"Not recorded yet: {', '.join(missing)}.", ""]
    return "\n".join([*parts, BEHIND])


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER / "thirds")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER / "thirds.md")
    arguments = parser.parse_args()
    recording = Recording.load(shipped_recordings()[0])
    arguments.output.write_text(page(arguments.folder, recording))


if __name__ == "__main__":
    main()
