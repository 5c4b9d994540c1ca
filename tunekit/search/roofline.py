"""The least time that a problem can take on a GPU: a search that comes near it may end.

Of a GPU that is not listed no such time is known: a guess would end searches too early. The search
itself learns with the rougher `features.roofline_us`, which is there for all.
"""

from __future__ import annotations

from tunekit.device import DeviceInfo
from tunekit.key import ITEMSIZE, Problem

PEAKS = {
    "nvidia-h200-sm90-132": (989.4e12, 4.8e12),
    "nvidia-h100-80gb-hbm3-sm90-132": (989.4e12, 3.35e12),
}
"""Operations a second on 16-bit tensor cores, and bytes a second of memory, as its maker states
them, by slug."""


def least_us(problem: Problem, device: DeviceInfo) -> float | None:
    """Return a time in microseconds that no kernel can be below, or None if nobody knows one.

    Every operand is read once and every operation runs at the peak of the tensor cores, which is
    also assumed where they are not used.
    """
    peaks = PEAKS.get(device.slug)
    if peaks is None:
        return None
    operations, memory = peaks
    of_dtype = operations * 2 / ITEMSIZE[problem.dtype]
    return 1e6 * max(problem.flops / of_dtype, problem.min_bytes / memory)
