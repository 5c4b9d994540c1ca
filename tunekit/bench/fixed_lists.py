"""Hand-written lists of configs, as people give them to Triton's autotuner."""

from __future__ import annotations

from tunekit.config import Config

_LIST_OF_15 = (
    (128, 256, 64, 3, 8), (256, 128, 64, 3, 8), (128, 128, 64, 3, 8), (128, 128, 32, 4, 4),
    (128, 64, 32, 4, 4), (64, 256, 32, 4, 4), (256, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (64, 64, 64, 3, 4), (64, 64, 32, 4, 4), (128, 32, 32, 4, 4), (32, 128, 32, 4, 4),
    (64, 32, 32, 5, 2), (32, 64, 32, 5, 2), (32, 32, 32, 5, 2),
)  # fmt: skip
"""BLOCK_M, BLOCK_N, BLOCK_K, stages, warps; GROUP_SIZE 8."""

TUTORIAL = (0, 5, 3, 4, 7, 10, 12, 13)
"""Places in the list of the 8 configs of Triton's matmul tutorial for 16-bit operands."""


def list_of_15() -> list[Config]:
    """Return the list of 15 as configs of the pointer-tile kernel, in order."""
    return [
        Config("pointer", m, n, k, group_size=8, num_warps=warps, num_stages=stages)
        for m, n, k, stages, warps in _LIST_OF_15
    ]
