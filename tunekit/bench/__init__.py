"""Comparison of what tunekit runs with torch, Inductor and a fixed list of Triton configs.

Everything of a problem is timed in the same interleaved rounds on a GPU, or read from a recording.
"""

from __future__ import annotations

from tunekit.bench.comparing import Entry, Times, compare
from tunekit.bench.replayed import ReplayTimes
from tunekit.bench.results import AGAINST, SCHEMA, BenchReport, Ceilings, Compared, Timed

__all__ = [
    "AGAINST",
    "SCHEMA",
    "BenchReport",
    "Ceilings",
    "Compared",
    "Entry",
    "ReplayTimes",
    "Timed",
    "Times",
    "compare",
]
