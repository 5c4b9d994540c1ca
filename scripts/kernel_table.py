"""Write docs/benchmarks/kernels.md from the recorded comparison and the shipped recording.

python scripts/kernel_table.py
"""

# ruff: noqa: E501  (the text of a page)

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.shapes import load_shapes
from tunekit.trial import Status

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
OTHERS = ("inductor", "list of 15", "tutorial's 8")


def ours(row: dict[str, Any]) -> float:
    """Return the time of the best Triton config of a compared problem."""
    return min(us[0] for name, us in row["us"].items() if name.startswith(("variant", "candidate")))


def pairs(rows: list[dict[str, Any]], name: str) -> Iterator[float]:
    """Yield what another takes over ours, for each problem."""
    for row in rows:
        yield row["us"][name][0] / ours(row)


def compared(record: dict[str, Any]) -> list[str]:
    """Return the table of what was timed in the same rounds."""
    lines = [
        "| M x N x K | cuBLAS, us | tunekit | Inductor | list of 15 | tutorial's 8 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in record["problems"]:
        vendor = row["us"]["vendor"][0]
        cells = [f"{vendor / ours(row):.3f}"]
        cells += [f"{vendor / row['us'][o][0]:.3f}" if o in row["us"] else "" for o in OTHERS]
        size = f"{row['m']} x {row['n']} x {row['k']}"
        lines.append(f"| {size} | {vendor:.2f} | {' | '.join(cells)} |")
    return lines


def swept(
    recording: Recording, problems: Sequence[Problem]
) -> tuple[list[str], dict[Problem, float]]:
    """Return the table of the best of each variant, and the best ratio of the finals."""
    names = sorted({c.variant for p in problems for c in recording.problems[p].screening})
    lines = [
        f"| M x N x K | cuBLAS, us | best | {' | '.join(names)} | configs |",
        f"|---|---:|---:|{'---:|' * len(names)}---:|",
    ]
    ratios = {}
    for problem in problems:
        found = recording.problems[problem]
        assert found.vendor is not None
        best: dict[str, float] = {}
        for config, trial in found.screening.items():
            if trial.status is Status.OK and trial.measurement is not None:
                time = trial.measurement.median_us
                best[config.variant] = min(time, best.get(config.variant, math.inf))
        finals = [t.measurement.median_us for t in found.finals.values() if t.measurement]
        vendor, least = found.vendor.median_us, min(finals)
        ratios[problem] = vendor / least
        cells = [f"{vendor / best[name]:.2f}" if name in best else "" for name in names]
        size = f"{problem.m} x {problem.n} x {problem.k}"
        lines.append(
            f"| {size} | {vendor:.2f} | {vendor / least:.3f} | {' | '.join(cells)}"
            f" | {len(found.screening)} |"
        )
    return lines, ratios


def mean_of(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def main() -> None:
    """Write the page."""
    record = json.loads((FOLDER / "kernels-h200.json").read_text())
    recording = Recording.load(shipped_recordings()[0])
    stale = ReplayRunner(recording).stale
    if stale:
        raise SystemExit(f"the recording is older than the kernels of {', '.join(stale)}")
    suite = {shape.problem for shape in load_shapes(FOLDER / "suite.yaml")}
    recorded = list(recording.problems)
    table, ratios = swept(recording, [p for p in recorded if p in suite])
    halves, half_ratios = swept(recording, [p for p in recorded if p.dtype == "float16"])
    further = {shape.problem for shape in load_shapes(FOLDER / "further.yaml")}
    beside, further_ratios = swept(recording, [p for p in recorded if p in further])
    alike = [replace(p, dtype="bfloat16", out_dtype="bfloat16") for p in half_ratios]
    shown = [*ratios, *half_ratios, *further_ratios]
    trials = sum(len(recording.problems[problem].screening) for problem in shown)
    shallow = [row for row in record["problems"] if row["k"] < 1 << 16]
    ratio = record["time_over_ours"]
    page = f"""# The kernels against cuBLAS, Inductor and fixed lists

{record["device"]}, driver {record["driver"]}, torch {record["torch"]}, Triton {record["triton"]},
{record["date"][:10]}; bfloat16, layout nt, [the suite](suite.yaml). Device time with a cold, clean L2,
medians; ratios are cuBLAS's time over the other's, so above 1 is faster than cuBLAS. Measured copy
bandwidth {record["copy_gb_per_s"]:.0f} GB/s; an empty kernel takes {record["empty_kernel_us"]:.2f} us.

## The whole suite

From the recording that ships with tunekit, of 2026-11-30: {trials} configs, with the problems further down,
each verified, none of them wrong. `best` is the fastest of the finals, measured in the same interleaved rounds
as cuBLAS; its geometric mean is **{mean_of(ratios.values()):.3f}**, the least {min(ratios.values()):.3f}. The columns of the variants are
their best by screening, against the same cuBLAS time: they say which variant suits which problem, and are
up to a few per cent off the finals.

{chr(10).join(table)}

What is still behind: products of 512 rows, of which few tiles make whole waves, and the largest squares, which
are limited by power.

Rows of 2000 bytes cross a line of the cache at each step along K. All 1462 legal configs of 1000 x 1000 x 1000
were tried: of those that take rows as they come the best needs 13.2 us, with a copy in whole lines (`padded`) it
is 13.3 us, and `phased`, which takes those rows together that start at the same place of a line, needs 10.6 us.
Of the 1462 the recording has 400: the finals, the twelve fastest of each variant, and others by lot.

A small product is over before its code has come from memory, for in these rounds other kernels run in between,
as they do in a model. What stood before the first load was therefore cut on 2026-11-30: two divisions for the
tile's place (up to 3 % of 256 to 1024 cubed and of 64 rows), and parts that share a sum no longer wait for each
other on leaving (9 % of 64 x 64 x 65536). Loading B straight into the registers of a warp's product, past
shared memory, was tried for 16 and 64 rows: right, and 9 to 44 % slower than the best of the others.

Letting two blocks load what
they share once (a cluster with TMA multicast, written in Gluon, which has it from Triton 3.8 on) was tried on
eleven of these problems on 2026-11-30: right everywhere, as fast as the best other variant on 1000 x 1000 x
1000 (0.878 of cuBLAS against 0.877) and 1 to 15 % slower on the others. So there is no such variant.

## float16, a third of the suite

The geometric mean is {mean_of(half_ratios.values()):.3f}; in bfloat16 the same problems have {mean_of(ratios[p] for p in alike):.3f}.

{chr(10).join(halves)}

## Beside the suite

[Fourteen more problems](further.yaml), with fewer configs each; geometric mean {mean_of(further_ratios.values()):.3f}. Few rows beside a long K
(300 x 3584 x 18944) and 128 rows are where most is left: without the suite's care in what was tried, and
cuBLAS divides such products among blocks that share what they load.

{chr(10).join(beside)}

## Random products

On the GPU 20,000 random examples on 300 kernels of eleven variants, of all dtypes, layouts, strides, offsets and batches (2026-11-30,
[the record](random-products-h200.json)): no result is wrong and nothing was written outside the output, for
A of 70001 x 32771 and B of 32771 x 66000 as well, which have over 2^31 elements each. The first run, earlier that
day, had found persistent kernels that wrote a 1 x 1 result of bfloat16 outside it; a described output now has rows
of whole 16 bytes.


Triton's interpreter ran 2,080 random cases, 260 for each of eight variants (sizes, layouts, dtypes, aligned
or not, any legal config; seed 20261129), with NaN around every operand: no kernel was wrong. The check
itself was, once: it called a right float16 product of 2.8e-5 wrong, for it allowed less than the last bit of
such a small number; it does no longer. `pytest tests/kernels --hypothesis-profile full` runs 1,000 of each.

## In one process

With the kernels of {record["date"][:10]}. Everything in a row was timed in the same {record["rounds"]} interleaved rounds.
{len(record["problems"])} of the 32 problems fit the time there was. tunekit's time against the others',
geometric means: cuBLAS {ratio["vendor"]["geomean"]:.3f} (least {ratio["vendor"]["least"]:.3f}),
a fixed list of 15 configs {ratio["list of 15"]["geomean"]:.2f}, the 8 of Triton's matmul tutorial
{ratio["tutorial's 8"]["geomean"]:.2f}, Inductor's `max-autotune` {ratio["inductor"]["geomean"]:.3f}
(on {ratio["inductor"]["problems"]}). The lists run in the pointer-tile kernel; without the deep-K problem,
which they do not split, they are {mean_of(pairs(shallow, "list of 15")):.2f} and {mean_of(pairs(shallow, "tutorial's 8")):.2f} times slower.

{chr(10).join(compared(record))}

Command: `{record["command"]}`. Record: [kernels-h200.json](kernels-h200.json).
"""
    (FOLDER / "kernels.md").write_text(page)


if __name__ == "__main__":
    main()
