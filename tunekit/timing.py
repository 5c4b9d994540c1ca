"""Device time of a launch: cold L2, device events, order statistics.

Each launch is preceded by a read of a buffer larger than the L2 cache, so that it finds its
operands in memory, as it would in a model. A write would leave the cache full of lines that are
still to be written back, and the launch would pay for it: 60 MB, as long as reading 60 MB of
weights. Launches are queued behind a gate, a kernel that only waits: if the gate opened before
everything was queued, the times may hold waiting for the host, and they are taken again behind a
longer one. The interval of a median is that of its order statistics (binomial, 95 %), which
assumes nothing of the distribution.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from tunekit.device import DeviceInfo
from tunekit.kernels import Launch
from tunekit.trial import PROTOCOL, Measurement

_LEAST_FLUSH = 128 << 20
"""Bytes, for devices with a small cache."""


def flush_bytes(device: DeviceInfo, free_bytes: int) -> int:
    """Return the size of the flush: over twice the L2 if that takes at most half of what is free.

    It is never smaller than the L2: what does not fit then is out of memory, not timed warm.
    """
    wanted = max(2 * device.l2_bytes, _LEAST_FLUSH)
    return max(min(wanted, free_bytes // 2), device.l2_bytes, 1 << 20)


_QUEUE = 120
"""Launches queued at a time: with flush and events about half of what a stream can hold."""

_ATTEMPTS = 6


class Gate:
    """How long the device is held while launches are queued: for as long as it would overtake.

    It follows the host. One that is late for a moment, as beside compilers on all cores, gets a
    longer gate at once; as soon as it keeps up again the gate shrinks back. If it stayed as long
    as at the worst moment, nearly all the time of a tune would be waiting for it.
    """

    LEAST_US, MOST_US = 1.0, 800.0
    """For each launch."""
    EXTRA_US = 100.0
    """For all together: the first must be queued before the gate opens."""
    MARGIN = 1.5
    CYCLES_PER_US = 2000

    def __init__(self) -> None:
        self.us = self.LEAST_US
        """What it is held for each launch."""

    def cycles(self, launches: int) -> int:
        """Return the device cycles that it is held for so many launches."""
        return int(self.CYCLES_PER_US * (self.us * launches + self.EXTRA_US))

    def learn(self, host_us: float, flush_us: float, launches: int, *, held: bool) -> None:
        """Take in what queueing so many launches took, and a flush, and if all were in time."""
        short_us = self.MARGIN * host_us - flush_us * (launches - 1) - self.EXTRA_US
        wanted = min(max(short_us / launches, self.LEAST_US), self.MOST_US)
        if held:
            self.us = max(wanted, (self.us + wanted) / 2)
        else:
            self.us = min(max(wanted, 2 * self.us, self.EXTRA_US / launches), self.MOST_US)


class Timer:
    """Times launches on one device. Holds the flush buffer while it lives."""

    def __init__(self, device: DeviceInfo, index: int) -> None:
        free, _ = torch.cuda.mem_get_info(index)
        size = flush_bytes(device, free)
        place = torch.device("cuda", index)
        self._flush = torch.zeros(size // 4, dtype=torch.float32, device=place)
        self._sink = torch.empty((), dtype=torch.float32, device=place)
        self._index = index
        self._gate = Gate()
        self._opened = _event()
        self._pairs = [(_event(), _event()) for _ in range(_QUEUE)]
        self._flush_us = 0.0
        self.late = 0
        """Launches that the host queued too slowly, however long the gate was held."""

    def rounds(
        self, launches: Sequence[Launch], rounds: int, *, seed: int = 0
    ) -> list[list[float]]:
        """Time every launch once a round, in an order shuffled each round.

        Returns:
            For each launch its times in microseconds, one a round.
        """
        order = random.Random(seed)
        plan = [
            which
            for _ in range(rounds)
            for which in order.sample(range(len(launches)), len(launches))
        ]
        times: list[list[float]] = [[] for _ in launches]
        for first in range(0, len(plan), _QUEUE):
            chunk = plan[first : first + _QUEUE]
            timed = self._timed([launches[which] for which in chunk])
            for which, time_us in zip(chunk, timed, strict=True):
                times[which].append(time_us)
        return times

    def _timed(self, launches: Sequence[Launch]) -> list[float]:
        """Return the time of each launch in microseconds: taken again if the host was late."""
        times = [0.0] * len(launches)
        left = list(range(len(launches)))
        for _ in range(_ATTEMPTS):
            late = self._queue([launches[place] for place in left])
            for place, (start, end) in zip(left, self._pairs, strict=False):
                times[place] = 1000 * start.elapsed_time(end)
            left = [left[number] for number in late]
            if not left:
                return times
        self.late += len(left)
        return times

    def _queue(self, launches: Sequence[Launch]) -> list[int]:
        """Run launches back to back behind a gate; return those that were queued too late.

        A launch is in time if the one before it had not ended when all of it was queued.
        """
        stream = torch.cuda.current_stream(self._index)
        flush, sink, before = self._flush, self._sink, self._opened
        late: list[int] = []
        began = time.perf_counter()
        torch.cuda._sleep(self._gate.cycles(len(launches)))  # type: ignore[no-untyped-call]
        before.record(stream)
        for number, (launch, (start, end)) in enumerate(zip(launches, self._pairs, strict=False)):
            torch.sum(flush, dim=0, out=sink)
            start.record(stream)
            launch()
            end.record(stream)
            if before.query():  # type: ignore[no-untyped-call]
                late.append(number)
            before = end
        host_us = 1e6 * (time.perf_counter() - began)
        torch.cuda.synchronize(self._index)
        if len(launches) > 1 and not late:
            self._flush_us = 1000 * self._pairs[0][1].elapsed_time(self._pairs[1][0])
        self._gate.learn(host_us, self._flush_us, len(launches), held=not late)
        return late

    def warm_up(self, launch: Launch, milliseconds: float) -> None:
        """Launch for about this long, so that clocks and caches settle."""
        spent, batch = 0.0, 1
        while spent < milliseconds:
            spent += sum(self.rounds([launch], batch)[0]) / 1000 + 0.05 * batch
            batch = min(2 * batch, 64)


class Gpu:
    """What measuring needs of torch for one device. Tests put another in its place."""

    def __init__(self, device: DeviceInfo, index: int) -> None:
        self.device = device
        self.index = index

    def use(self) -> AbstractContextManager[object]:
        """Make this the current device inside a block."""
        return torch.cuda.device(self.index)

    def timer(self) -> Timer:
        """Return what times launches; it holds the flush buffer while it lives."""
        return Timer(self.device, self.index)

    def synchronize(self) -> None:
        """Wait for what is queued.

        Raises:
            RuntimeError: a fault has made the context unusable.
        """
        torch.cuda.synchronize(self.index)

    def allocated_bytes(self) -> int:
        """Return what tensors take of the device's memory."""
        return torch.cuda.memory_allocated(self.index)

    def release(self) -> None:
        """Give memory that no tensor uses back to the device."""
        torch.cuda.empty_cache()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


FLUSH_US = 60.0
"""What a launch costs beside its own time: the flush, two events, the gate."""

MOST_MS = (500.0, 5000.0)
"""What screening and finals may take however slow the launches are, but for the first of each."""

WIDE_RATIO = 1.5
WIDE_US = 3.0
"""Launches of a row whose middle ones lie this far apart were not alone on the GPU."""


def rounds_for(once_us: float, budget_ms: float, bounds: tuple[int, int], *, most_ms: float) -> int:
    """Return how many rounds fill a budget, within bounds, unless even the fewest take too long."""
    least, most = bounds
    wanted = max(least, min(most, int(budget_ms * 1000 / (once_us + FLUSH_US))))
    return max(1, min(wanted, int(most_ms * 1000 / once_us)))


def is_wide(times_us: Sequence[float]) -> bool:
    """Say whether the middle launches lie too far apart for a GPU of one's own."""
    ordered = sorted(times_us)
    low, high = quantile(ordered, 0.2), quantile(ordered, 0.8)
    return high > WIDE_RATIO * low and high - low > WIDE_US


def summarize(
    times_us: Sequence[float],
    *,
    error_ratio: float | None,
    final: bool = False,
    contended: bool = False,
    throttled: bool = False,
) -> Measurement:
    """Turn the times of single launches, in microseconds, into a measurement."""
    ordered = sorted(times_us)
    n = len(ordered)
    spread = 0.98 * math.sqrt(n)  # 1.96 standard deviations of a binomial count at 1/2
    low = max(0, math.floor(n / 2 - spread) - 1)
    high = min(n - 1, math.ceil(n / 2 + spread))
    return Measurement(
        median_us=quantile(ordered, 0.5),
        low_us=ordered[low],
        high_us=ordered[high],
        p20_us=quantile(ordered, 0.2),
        p80_us=quantile(ordered, 0.8),
        min_us=ordered[0],
        repetitions=n,
        protocol=PROTOCOL,
        error_ratio=error_ratio,
        final=final,
        contended=contended,
        throttled=throttled,
    )
