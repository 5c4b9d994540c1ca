"""Print the page of the records that `scale_benchmark.py` and `fleet_kills.py` made, as Markdown.

python scripts/scale_table.py docs/benchmarks > docs/benchmarks/scale.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD = """# Many workers

What is measured is what workers wait for, not what they measure: each replays a recording, and
sleeps for {trial_s} s where a trial would run. The search draws at random. {trials_a_key} trials
a key, {keys_a_worker} keys a worker, on {cpu_cores} CPU cores that leader, workers and database
share, on a machine that others used at the same time.
"""

COLUMNS = (
    ("workers", "workers", "{:,}"),
    ("trials a second", "trials_per_second", "{:.1f}"),
    ("measuring", "share_measuring", "{:.1%}"),
    ("of it from first trial to last", "share_measuring_from_first_to_last", "{:.1%}"),
    ("in the store", "share_storing", "{:.1%}"),
    ("a write, ms", "write_ms_median", "{:.1f}"),
    ("p99, ms", "write_ms_p99", "{:.1f}"),
    ("leader, CPU ms a trial", "leader_cpu_ms_a_trial", "{:.2f}"),
    ("worker, CPU ms a trial", "workers_cpu_ms_a_trial", "{:.2f}"),
)


def page(folder: Path) -> str:
    """Return what was measured as Markdown."""
    parts = [(folder / f"scale-{name}.json") for name in ("postgresql", "postgresql-64", "sqlite")]
    records = [json.loads(part.read_text()) for part in parts if part.exists()]
    lines = [HEAD.format(**records[0])]
    for record in records:
        lines += scaled(record)
    tunes = sorted(folder.glob("workers-*.json"), key=lambda path: len(path.name))
    lines += on_gpus([json.loads(path.read_text()) for path in tunes]) if tunes else []
    lines += needed(records[0])
    kills = sorted(folder.glob("fleet-kills-*.json"))
    lines += killed([json.loads(path.read_text()) for path in kills]) if kills else []
    return "\n".join(lines)


def scaled(record: dict[str, Any]) -> list[str]:
    """Return the table of one database."""
    again = ", once more" if len(record["runs"]) == 1 else ""
    lines = [
        "",
        f"## {record['database']}{again}",
        "",
        "| " + " | ".join(c[0] for c in COLUMNS) + " |",
    ]
    lines.append("|" + "---:|" * len(COLUMNS))
    for run in sorted(record["runs"], key=lambda run: run["workers"]):
        lines.append("| " + " | ".join(form.format(run[name]) for _, name, form in COLUMNS) + " |")
    lines += ["", f"`{record['command']}`, {record['date'][:10]}, Python {record['python']}."]
    if "load_of_the_machine_before" in record:
        lines[-1] += f" Load of the machine before: {record['load_of_the_machine_before'][0]}."
    return lines


def on_gpus(records: list[dict[str, Any]]) -> list[str]:
    """Return the table of whole tunes on one GPU and on several of a host."""
    first = records[0]
    lines = [
        "",
        f"## {len(first['devices'])} GPUs of one host",
        "",
        f"{first['devices'][0]}, driver {first['driver']}, torch {first['torch']}, Triton"
        f" {first['triton']}, {first['cpu_cores']} CPU cores, all of them for whichever number of"
        " workers unless fewer are given. The suite, from empty caches and with nothing compiled."
        " Seconds of a worker: busy is verifying and timing, waiting is for a compilation.",
        "",
        "| trials a key | workers | cores | wall, s | of the first | busy | waiting | search, s"
        " | cuBLAS over ours |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for record in records:
        alone = record["runs"][0]["wall_s"]
        for run in record["runs"]:
            spent, workers = run["spent"], run["workers"]
            busy = (spent["verify_s"] + spent["time_s"]) / workers
            lines.append(
                f"| {record['trials_each']} | {workers}"
                f" | {run.get('cpu_cores', record['cpu_cores'])} | {run['wall_s']:.1f}"
                f" | {run['wall_s'] / alone:.2f} | {busy:.1f} | {spent['compile_s'] / workers:.1f}"
                f" | {spent['search_s']:.1f} | {run['ratio_geomean']:.3f} |"
            )
    commands = [f"`{record['command']}`, {record['date'][:10]}" for record in records]
    notes = dict.fromkeys(record["note"] for record in records if "note" in record)
    return [*lines, "", "; ".join(commands) + ".", *notes]


def needed(record: dict[str, Any]) -> list[str]:
    """Return what follows for many GPUs from the run with the most workers."""
    many, run = record["for_many"], max(record["runs"], key=lambda run: run["workers"])
    leader_s = run["leader_cpu_ms_a_trial"] / 1e3
    return [
        "",
        f"## {many['gpus']:,} GPUs, by calculation",
        "",
        f"At one trial in {record['trial_s']} s each, {many['gpus']:,} GPUs end"
        f" {many['trials_per_second']:,.0f} trials a second. The leader of {run['workers']}"
        f" workers computed for {run['leader_cpu_ms_a_trial']} ms a trial, so one leader, which is"
        f" one Python process, stands {1 / leader_s:,.0f} trials a second at most:"
        f" {many['gpus']:,} GPUs need {many['runs_side_by_side']} runs at half of that, each with"
        " its part of the shapes, on one store. That store ends"
        f" {many['transactions_per_second']:,.0f} small transactions a second from"
        f" {many['connections']:,} connections: a PostgreSQL server with `max_connections`"
        " raised, or a pooler before it (in session mode), and a disk that can flush as often, or"
        " `synchronous_commit=off`. With the default sampler the leader computes more for each"
        " trial; `search_s` of `tune --json` says how much.",
    ]


def killed(records: list[dict[str, Any]]) -> list[str]:
    """Return the table of the kills."""
    lines = ["", "## Kills", ""]
    lines.append(
        "| through | database | workers killed | leader killed | lost or done twice | free after |"
    )
    lines.append("|---|---|---:|---:|---:|---:|")
    for found in records:
        lines.append(
            f"| {found['crew']} | {found['database']} | {found['kills_of_a_worker']}"
            f" | {found['kills_of_the_leader']} | {len(found['failures'])}"
            f" | {found['longest_until_free_s']} s |"
        )
    lines += [
        "",
        "`kill -9` at random moments (`scripts/fleet_kills.py`). After a leader is killed the"
        " same command starts again; at the end each key has one row and the trials of its"
        " budget, what was tried in vain is at most what was in flight, and no lease is left. The"
        " last column is the longest that a lease of the dead held: it would be over after"
        f" {records[0]['lease_seconds']:.0f} s in any case.",
    ]
    return lines


if __name__ == "__main__":
    print(page(Path(sys.argv[1])))
