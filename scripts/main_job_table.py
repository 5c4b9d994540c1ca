"""Write the README's table and docs/benchmarks/main-job.md from the recorded run.

    python scripts/main_job_table.py

The record is docs/benchmarks/main-job-h200.json: what `tunekit tune --json` and
`scripts/check_served.py` printed, with the commands, versions and date. The README's table is what
stands between its two `table` markers.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "benchmarks" / "main-job-h200.json"
MARKERS = re.compile(r"(<!-- table: main job -->\n).*?(<!-- end of table -->)", re.DOTALL)


def rows(record: dict[str, Any]) -> list[str]:
    """Return the table, a line a problem."""
    lines = [
        "| M x N x K | best Triton config | Triton, us (95 %) | cuBLAS, us | ratio | runs |",
        "|---|---|---:|---:|---:|---|",
    ]
    for key in record["tune"]["keys"]:
        config = key["config"]
        tile = f"{config['block_m']}x{config['block_n']}x{config['block_k']}"
        lines.append(
            f"| {key['m']} x {key['n']} x {key['k']} | {key['variant']} {tile} "
            f"| {key['triton_us']:.2f} ({key['triton_low_us']:.2f}-{key['triton_high_us']:.2f}) "
            f"| {key['vendor_us']:.2f} | {key['ratio']:.3f} | {key['choice']} |"
        )
    return lines


def summary(record: dict[str, Any]) -> str:
    """Say in a sentence what was measured and how it came out."""
    keys = record["tune"]["keys"]
    mean = math.exp(sum(math.log(key["ratio"]) for key in keys) / len(keys))
    trials = sum(record["tune"]["trial_counts"].values())
    return (
        f"{record['device']}, driver {record['driver']}, torch {record['torch']}, Triton "
        f"{record['triton']}, {record['date'][:10]}: {len(keys)} problems in bfloat16, layout nt, "
        f"{trials} trials in {record['tune']['seconds']:.0f} s from an empty cache. Geometric mean "
        f"of cuBLAS's time over the best Triton kernel's: {mean:.3f}."
    )


def main() -> None:
    """Write both tables."""
    record = json.loads(RECORD.read_text())
    table = "\n".join([summary(record), "", *rows(record)])
    served = record["served"]
    right = sum(key["right"] and key["as_shown"] for key in served["keys"])
    page = f"""# The main job on a GPU

{table}

`runs` is what `tunekit.matmul` launches: where cuBLAS was as fast or faster, it is called.

Then, in a new process, `tunekit.matmul` multiplied every key: {right} of {len(served["keys"])} were
right and ran what `tunekit show` names; {served["kernels_compiled"]} kernels were compiled,
{served["device_events_created"]} device events created,
{len(served["tuner_modules_loaded"])} modules of the tuner loaded.

Commands: {", ".join(f"`{command}`" for command in record["commands"])}. Record:
[main-job-h200.json](main-job-h200.json). Protocol: device events, cold L2, medians of interleaved
rounds; `tunekit/timing.py` describes it.
"""
    (RECORD.parent / "main-job.md").write_text(page)
    readme = ROOT / "README.md"
    text, found = MARKERS.subn(lambda m: f"{m[1]}{table}\n{m[2]}", readme.read_text())
    if found != 1:
        raise SystemExit("README.md: there must be one pair of markers for the table")
    readme.write_text(text)


if __name__ == "__main__":
    main()
