"""Print the table of a record that `store_benchmark.py` made, as Markdown.

python scripts/store_table.py docs/benchmarks/store-speed.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(record: dict[str, Any]) -> str:
    """Return what was measured as Markdown."""
    where = (
        f"{record['machine']}, Python {record['python']}, SQLite {record['sqlite']}, SQLAlchemy "
        f"{record['sqlalchemy']}, diskcache {record['diskcache']}, {record['date'][:10]}:"
        f" {record['trials']:,} trials and {record['keys']:,} keys on {record['gpus']} kinds of"
        f" GPU, {record['store_mb']:.0f} MB."
    )
    lines = [where, "", "| | median, ms | of it on a processor | least, ms | p99, ms |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name, row in record["load"].items():
        lines.append(_line(f"open and load one GPU's {row['rows']:,} bests: {name}", row))
    for name, row in record["lookup"].items():
        lines.append(_line(f"one key, in a store just opened: {name}", row["lookup"]))
    for name, row in record["lookup"].items():
        lines.append(_line(f"opening it for that and one key: {name}", row["open_and_lookup"]))
    lines += ["", "| writers of one file | upserts | a second | failed | lost |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name, row in record["writers"].items():
        counts = f"{row['per_second']:,} | {row['failed_writers']} | {row['lost']}"
        lines.append(f"| {row['writers']}: {name} | {row['upserts']:,} | {counts} |")
    return "\n".join(lines)


def _line(what: str, row: dict[str, float]) -> str:
    names = ("median_ms", "cpu_median_ms", "min_ms", "p99_ms")
    return f"| {what} | " + " | ".join(f"{row[name]:.2f}" for name in names) + " |"


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
