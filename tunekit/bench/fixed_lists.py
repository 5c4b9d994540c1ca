"""Hand-written lists of configs, as people give them to Triton's autotuner."""

from __future__ import annotations

from tunekit.config import Config

TUTORIAL = (0, 5, 3, 4, 7, 10, 12, 13)
"""Places in the list of the 8 configs of Triton's matmul tutorial for 16-bit operands."""


def list_of_15() -> list[Config]:
    """Return the list of 15 as configs of the pointer-tile kernel, in order."""
    from tunekit.kernels.ladder import GROUP_SIZE, LIST_OF_15  # loads Triton

    return [
        Config("pointer", m, n, k, group_size=GROUP_SIZE, num_warps=warps, num_stages=stages)
        for m, n, k, stages, warps in LIST_OF_15
    ]
