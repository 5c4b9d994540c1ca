"""Who holds leases."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass

from tunekit.cache.process import host_name, started_at


@dataclass(frozen=True, slots=True)
class Holder:
    """One who holds leases: a run, in a process, on a host."""

    name: str
    host: str
    pid: int
    started: int
    """When the process began, in its host's ticks."""

    @classmethod
    def here(cls) -> Holder:
        """Return a new holder in this process."""
        pid = os.getpid()
        return cls(uuid.uuid4().hex, host_name(), pid, started_at(pid) or 0)

    def is_gone(self) -> bool:
        """Say whether its process is known to have ended. Of another host's nothing is known."""
        if self.host != host_name():
            return False
        started = started_at(self.pid)
        if started is None:
            return True
        return started != self.started and 0 not in (started, self.started)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition(' ')[0]}"
