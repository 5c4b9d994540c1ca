"""Forests grown in a process of their own.

What grows them takes a second to load. A process that is started first does so while the caller
loads what else it needs, and the caller's threads keep their interpreter while a forest grows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from tunekit.child import Child

if TYPE_CHECKING:
    from tunekit.search.forest import Forest, Grow

_log = logging.getLogger(__name__)


class Grower:
    """Grows forests as `Forest.grow` does, elsewhere. Any thread may ask."""

    def __init__(self) -> None:
        """Start the process. Where none can be started, forests are grown in this one."""
        self._lock = threading.Lock()
        self._child: Child | None = None
        try:
            self._child = Child(serve)
        except OSError as error:
            _log.debug("forests are grown in this process: %s", error)

    @property
    def pid(self) -> int | None:
        """The process there is."""
        return None if self._child is None else self._child.pid

    def grow(self, *args: Any, **settings: Any) -> Forest:
        """Return what `Forest.grow` returns for the same arguments: here if the process is gone."""
        with self._lock:
            if self._child is not None:
                try:
                    self._child.send((args, settings))
                    grown: Forest = self._child.recv()
                    return grown
                except EOFError:
                    _log.debug("the process that grows forests %s", self._child.ended())
                    self._end()
        from tunekit.search.forest import Forest

        return Forest.grow(*args, **settings)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


@contextmanager
def growing(sampler: str, *, measures: bool) -> Iterator[Grow | None]:
    """Give what grows a search's forests in a process of its own, or None where it is not worth it.

    It is for a sampler that has forests, and a run that lasts as long as measuring does.
    """
    if sampler != "transfer" or not measures:
        yield None
        return
    with closing(Grower()) as grower:
        yield grower.grow


def serve(connection: Connection) -> None:
    """Be the process: grow what is asked for until the connection closes."""
    from tunekit.search.forest import Forest, load_forests

    load_forests()
    while True:
        args, settings = connection.recv()
        connection.send(Forest.grow(*args, **settings))
