"""What no message tells: that a worker has stopped answering, though its process is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tunekit.cache import Holder

LOOK_S = 20.0
"""How often the leader looks: as often as a worker renews its leases."""

STALLED_S = 60.0
"""How long a worker's leases may be over. After the whole host has slept, it renews them sooner."""

NOTE_S = 30.0
"""How long a run may have no worker before it says what it waits for."""

ALONE_S = 900.0
"""How long a run that has lost all its workers waits for one: a cluster that scales itself may
need minutes for a host."""


class Watch:
    """Which workers have let all their leases run out. Not thread-safe."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def stalled(
        self, leasing: Mapping[int, Holder], holding: Collection[str], now: float
    ) -> list[int]:
        """Return who is to be given up.

        `leasing` are the workers that have keys, `holding` the names of those whose leases hold.
        """
        over = {worker for worker, holder in leasing.items() if holder.name not in holding}
        self._since = {worker: self._since.get(worker, now) for worker in over}
        return [worker for worker, since in self._since.items() if now - since >= STALLED_S]
