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
        self._closed = False
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
        """Return what `Forest.grow` returns for the same arguments: here if the process is gone.

        Raises:
            RuntimeError: it was closed, so nobody wants the forest any more.
        """
        with self._lock:
            child = self._child
            if child is not None:
                try:
                    child.send((args, settings))
                    grown: Forest = child.recv()
                    return grown
                except (EOFError, OSError):
                    self._child = None
                    if not self._closed:
                        _log.debug("the process that grows forests %s", child.ended())
                        child.kill()
        if self._closed:
            raise RuntimeError("the process that grows forests was ended")
        from tunekit.search.forest import Forest

        return Forest.grow(*args, **settings)

    def close(self) -> None:
        """End the process, whatever it is at."""
        self._closed = True
        child = self._child
        if child is not None:
            child.end()  # so nobody waits for it, who may hold the lock
            with self._lock:
                self._child = None
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
