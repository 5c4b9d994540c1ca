"""How many threads the search's linear algebra takes: one, for its matrices are small.

By default a BLAS starts a thread for each core and lets it spin. While compilers have all the
cores, what takes a millisecond in one thread then takes fifty.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """Have linear algebra of this process run in one thread inside the block."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield
