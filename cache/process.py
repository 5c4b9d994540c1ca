"""Which process this is, so that another can tell later whether it still runs."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

_PROC = Path("/proc")


@cache
def host_name() -> str:
    """Return the name of this host that no other shares, and no earlier boot or other container.

    Process numbers mean the same only to those whose host name is equal.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        space = str((_PROC / "self/ns/pid").readlink())
    except OSError:  # no Linux, or a /proc that shows little
        boot, space = "", ""
    return f"{platform.node()} {boot} {space}"


def started_at(pid: int) -> int | None:
    """Return when a process of this host began, in clock ticks since boot, or None if it has ended.

    A process that has ended and that nobody has waited for has ended. Where /proc does not show a
    process that is there, the answer is 0.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0 if _is_there(pid) else None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    if len(fields) < 20 or fields[0] in ("Z", "X", "x"):
        return None
    return int(fields[19])


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
