"""How many CPU cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """Return how many CPU cores this process may use."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(allowed, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such limit: "max", or no cgroup to ask
        return allowed
