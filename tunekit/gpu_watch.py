"""Whether something disturbed the GPU while it measured, as NVML tells.

Contention is another process that computed meanwhile. Throttling is a clock held down by heat or by
the hardware's own brakes. A software power cap is neither: every large product on a hot card runs
under one, the vendor's as ours. Without nvidia-ml-py, on other vendors' GPUs, and where the driver
refuses an answer, that check is left out: nothing is then said to be disturbed.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger(__name__)

BUSY_PERCENT = 2
"""Another process's share of the multiprocessors from which it counts: a desktop takes less."""

STALE_S = 0.1

SLOWDOWNS = (
    "nvmlClocksEventReasonHwSlowdown",
    "nvmlClocksEventReasonSwThermalSlowdown",
    "nvmlClocksEventReasonHwThermalSlowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown",
)
"""What counts as throttled. Idle, application clocks, sync boost and the power cap do not."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What was seen while something was measured."""

    contended: bool = False
    throttled: bool = False

    def __bool__(self) -> bool:
        """Say whether there was any."""
        return self.contended or self.throttled

    def __or__(self, other: Disturbance) -> Disturbance:
        """Return what was seen in either of two windows."""
        return Disturbance(self.contended or other.contended, self.throttled or other.throttled)


CALM = Disturbance()


class GpuWatch:
    """Watches one GPU for one process, from `begin` to `seen`.

    `nvml` is the module pynvml, or None; it is asked only from the process that measures. Make this
    before the process has a context on the GPU: in a container NVML may know processes by other
    numbers than they do, so ours is the one that is new when there is a context.
    """

    def __init__(
        self, uuid: str, nvml: Any | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml: Any = nvml
        self._clock = clock
        self._last, self._asked_at = CALM, -math.inf
        self._handle: Any = None
        self._newest = 0
        self._ours: set[int] = set()
        self._before: set[int] = set()
        if nvml is None:
            return
        try:
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError as error:
            _log.debug("NVML does not know this GPU: %s", error)
        self._before = self._processes()

    def has_context(self) -> None:
        """Learn our own number: call this once the process has made its context."""
        now = self._processes()
        self._ours = (now - self._before) | (now & {os.getpid()})
        self.begin()

    def begin(self) -> None:
        """Forget what was so far."""
        self._others_computed()

    def seen(self, *, fresh: bool = True) -> Disturbance:
        """Return what happened since the last `begin` or `seen`.

        Unless it has to be `fresh`, an answer serves for a tenth of a second: the driver does not
        look more often, and asking it takes as long as some trials do.
        """
        if fresh or self._clock() - self._asked_at > STALE_S:
            self._last = Disturbance(self._others_computed(), self._throttled())
            self._asked_at = self._clock()
        return self._last

    def close(self) -> None:
        """Let NVML go."""
        if self._handle is not None:
            self._handle = None
            self._nvml.nvmlShutdown()

    def _processes(self) -> set[int]:
        if self._handle is None:
            return set()
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return set()
        return {process.pid for process in found}

    def _others_computed(self) -> bool:
        """Say whether a sample newer than the last we saw has another process computing."""
        if self._handle is None or not self._ours:  # else we would take ourselves for another
            return False
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._newest)
        except self._nvml.NVMLError:  # none since then, or none are kept for this GPU
            return False
        new = [sample for sample in samples if sample.timeStamp > self._newest]
        self._newest = max((sample.timeStamp for sample in new), default=self._newest)
        busy = {sample.pid for sample in new if sample.smUtil >= BUSY_PERCENT} - self._ours
        # Drivers may number processes otherwise here than there: who is in one list only may be us.
        return bool(busy and busy & self._processes())

    def _throttled(self) -> bool:
        if self._handle is None:
            return False
        try:
            reasons = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except (self._nvml.NVMLError, AttributeError):  # refused, or a pynvml before 12.535
            return False
        counted = 0
        for name in SLOWDOWNS:
            counted |= getattr(self._nvml, name, 0)
        return bool(reasons & counted)


def nvml_module() -> Any | None:
    """Return pynvml, or None where nvidia-ml-py is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
