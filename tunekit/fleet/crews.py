"""Where workers run: what the leader of a run needs of processes, threads or Ray."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from tunekit.child import Child, ChildError
from tunekit.errors import TuneError
from tunekit.fleet.messages import Broke, Gone, Message
from tunekit.fleet.post import Post, serve

Hear = Callable[[int, Message], None]
"""Takes what a worker, by its number, says. Its last message is `Gone`."""


class Crew(Protocol):
    """Workers, each known by a number that no other ever has."""

    is_local: bool
    """Whether they run what is installed here, as this process does."""

    @property
    def planned(self) -> int:
        """How many workers there are to be at the start."""

    def start(self, hear: Hear) -> None:
        """Start the workers.

        Raises:
            TuneError: this host cannot have so many.
        """

    def send(self, worker: int, message: Message) -> None:
        """Send a message. That a worker has died is told by `Gone`."""

    def replace(self, worker: int) -> None:
        """Start another worker where one has ended. Only while its `Gone` is being heard."""

    def end(self, worker: int) -> None:
        """Kill a worker that does not answer. That it is gone is told by `Gone`."""

    def lacking(self) -> str:
        """Say what workers that have not started yet wait for."""

    def close(self) -> None:
        """Kill what still runs."""


class Processes:
    """Workers that are processes of this host, and end with this one however it ends."""

    is_local = True

    def __init__(self, posts: Sequence[Post]) -> None:
        self._planned = posts
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._posts: dict[int, Post] = {}
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def planned(self) -> int:
        """How many workers there are to be at the start."""
        return len(self._planned)

    @property
    def pids(self) -> list[int]:
        """The processes there are now."""
        with self._lock:
            return [child.pid for child in self._children.values()]

    def begin(self) -> None:
        """Start the workers, which have nobody to hear them yet.

        Raises:
            TuneError: this host cannot have so many.
        """
        try:
            for post in self._planned:
                self._start(post)
        except OSError as error:  # no more files, processes or memory
            there = len(self._children)
            self.close()
            raise TuneError(
                f"this host started {there} of {self.planned} workers, and then:"
                f" {error.strerror}: ask for fewer with --workers, or raise its limits (ulimit -a)"
            ) from error
        except BaseException:  # Ctrl-C
            self.close()
            raise

    def start(self, hear: Hear) -> None:
        """Start the workers, if they have not begun, and hear them."""
        if not self._children:
            self.begin()
        self._thread = threading.Thread(
            target=self._attend, args=(hear,), name="tunekit-crew", daemon=True
        )
        self._thread.start()

    def send(self, worker: int, message: Message) -> None:
        """Send a message to a worker, if it is there."""
        with self._lock:
            child = self._children.get(worker)
            if child is not None:
                with contextlib.suppress(OSError):  # closed: its end is told of
                    child.send(message)

    def replace(self, worker: int) -> None:
        """Start another worker where one has ended."""
        if not self._stopping:
            self._start(self._posts[worker])

    def end(self, worker: int) -> None:
        """Kill a worker that does not answer."""
        with self._lock:
            child = self._children.get(worker)
            if child is not None:
                child.end()

    def lacking(self) -> str:
        """Say what workers that have not started yet wait for."""
        return "their processes are starting"

    def close(self) -> None:
        """Kill what still runs."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._bell, 1)
        if self._thread is not None:
            self._thread.join()
        for child in self._children.values():
            child.kill()
        os.close(self._bell)

    def _start(self, post: Post) -> None:
        number, child = next(self._numbers), Child(serve, post)
        with self._lock:
            self._children[number], self._posts[number] = child, post

    def _attend(self, hear: Hear) -> None:
        try:
            self._listen(hear)
        finally:
            if not self._stopping:  # whoever waits for a worker must not wait for ever
                hear(0, Broke("the thread that hears the workers has failed"))

    def _listen(self, hear: Hear) -> None:
        while not self._stopping:
            with self._lock:
                workers = {child.connection: n for n, child in self._children.items()}
            for ready in wait([self._bell, *workers]):
                if isinstance(ready, Connection) and not self._stopping:
                    self._hear(workers[ready], hear)

    def _hear(self, worker: int, hear: Hear) -> None:
        child = self._children[worker]
        try:
            hear(worker, child.recv())
        except ChildError as error:
            hear(worker, Broke(str(error)))
        except EOFError:
            how = child.ended()
            with self._lock:
                del self._children[worker]
                child.kill()
            hear(worker, Gone(how))


class Threads:
    """Workers that are threads of this process, for what waits more than it computes."""

    is_local = True

    def __init__(self, posts: Sequence[Post]) -> None:
        self._planned = posts
        self._links: dict[int, _Queues] = {}
        self._hear: Hear | None = None

    @property
    def planned(self) -> int:
        """How many workers there are to be at the start."""
        return len(self._planned)

    @property
    def size(self) -> int:
        """How many workers there have been."""
        return len(self._links)

    def start(self, hear: Hear) -> None:
        """Start the workers."""
        self._hear = hear
        for post in self._planned:
            self.add(post)

    def add(self, post: Post) -> None:
        """Start another worker, at any time."""
        number = len(self._links) + 1
        link = self._links[number] = _Queues(partial(self._say, number))
        threading.Thread(
            target=_serve_here, args=(link, post), name=f"tunekit-worker-{number}", daemon=True
        ).start()

    def send(self, worker: int, message: Message) -> None:
        """Send a message to a worker."""
        self._links[worker].inbox.put(message)

    def replace(self, worker: int) -> None:
        """Do nothing: threads are not killed."""

    def end(self, worker: int) -> None:
        """Do nothing: threads are not killed."""

    def lacking(self) -> str:
        """Say what workers that have not started yet wait for."""
        return "their threads are starting"

    def close(self) -> None:
        """Do nothing: they end when they are told to stop."""

    def _say(self, worker: int, message: Message) -> None:
        assert self._hear is not None
        self._hear(worker, message)


class _Queues:
    """A worker's end of a connection within a process."""

    def __init__(self, hear: Callable[[Message], None]) -> None:
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._hear = hear

    def send(self, message: Any) -> None:
        self._hear(message)

    def recv(self) -> Any:
        return self.inbox.get()


def _serve_here(link: _Queues, post: Post) -> None:
    serve(link, post)
    link.send(Gone("has ended"))
