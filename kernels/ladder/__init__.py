"""The ladder: one product, from three nested loops to a tuned kernel, a runnable step each.

They are there to be read and compared (`docs/ladder.md`, `scripts/ladder.py`); nothing serves them.
"""

from __future__ import annotations

from tunekit.kernels.ladder.blockwise import BLOCK, blockwise
from tunekit.kernels.ladder.grouped import GROUP_SIZE, grouped
from tunekit.kernels.ladder.listed import LIST_OF_15, listed, listed_config
from tunekit.kernels.ladder.loops import blocked_loops, three_loops

__all__ = [
    "BLOCK",
    "GROUP_SIZE",
    "LIST_OF_15",
    "blocked_loops",
    "blockwise",
    "grouped",
    "listed",
    "listed_config",
    "three_loops",
]
