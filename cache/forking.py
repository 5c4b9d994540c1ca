"""Keep forks and SQLite's connections apart.

A child that is forked while another thread has a transaction open inherits what SQLite noted of its
locks, without the locks: it would read unlocked, and never be able to write. So a fork waits until
the other threads' transactions are over, and none begins meanwhile. What databases keep open is
closed then.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet

LONGEST_SECONDS = 60.0
"""After this long a fork waits no more. A transaction waits for its turn for less than that."""

_changed = threading.Condition(threading.RLock())
_open: Counter[int] = Counter()
"""Transactions by the number of their thread."""

_forking: set[int] = set()
"""The threads that are about to fork."""


class Closes(Protocol):
    """What keeps something open that must not come into a child."""

    def close(self) -> None:
        """Close it; it may be opened anew."""


_keeping: WeakSet[Closes] = WeakSet()


def drop_before_forks(keeper: Closes) -> None:
    """Close what this keeps open whenever the process is about to fork."""
    with _changed:
        _keeping.add(keeper)


@contextmanager
def unforked() -> Iterator[None]:
    """Let no other thread fork inside the block."""
    thread = threading.get_ident()
    with _changed:
        while _forking - {thread} and not _open[thread]:
            _changed.wait()
        _open[thread] += 1
    try:
        yield
    finally:
        with _changed:
            _open[thread] -= 1
            if _open[thread] <= 0:  # below it in a child that was forked inside the block
                del _open[thread]
            _changed.notify_all()


def _before() -> None:
    _changed.acquire()
    _forking.add(threading.get_ident())
    give_up = time.monotonic() + LONGEST_SECONDS
    while (+_open).keys() - _forking and time.monotonic() < give_up:
        _changed.wait(give_up - time.monotonic())
    for keeper in list(_keeping):
        keeper.close()


def _in_parent() -> None:
    _forking.discard(threading.get_ident())
    _changed.notify_all()
    _changed.release()


def _in_child() -> None:
    global _changed
    _changed = threading.Condition(threading.RLock())
    _open.clear()
    _forking.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
