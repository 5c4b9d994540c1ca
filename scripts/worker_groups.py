"""Workers that are threads of a few processes, for a benchmark of what many of them wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from tunekit.child import Child
from tunekit.fleet.crews import Hear
from tunekit.fleet.member import serve
from tunekit.fleet.messages import Gone, Message, Post


class Groups:
    """Implements `Crew`: each process has its share of the workers."""

    def __init__(self, posts: Sequence[Post], processes: int) -> None:
        self._planned = posts
        self._processes = min(processes, len(posts))
        self._children: list[Child] = []
        self._locks: list[threading.Lock] = []

    @property
    def planned(self) -> int:
        """How many workers there are to be."""
        return len(self._planned)

    def start(self, hear: Hear) -> None:
        """Start the processes, and hear each in a thread."""
        for group in range(self._processes):
            numbers = range(group, len(self._planned), self._processes)
            child = Child(serve_all, {number: self._planned[number] for number in numbers})
            self._children.append(child)
            self._locks.append(threading.Lock())
            threading.Thread(target=_listen, args=(child, hear), daemon=True).start()

    def send(self, worker: int, message: Message) -> None:
        """Send a message to a worker."""
        group = worker % self._processes
        with self._locks[group]:
            self._children[group].send((worker, message))

    def replace(self, worker: int) -> None:
        """Do nothing: none of them is killed."""

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.kill()


def _listen(child: Child, hear: Hear) -> None:
    while True:
        try:
            worker, message = child.recv()
        except (EOFError, OSError, TypeError):  # it was ended, maybe while this waited
            return
        hear(worker, message)


def serve_all(connection: Connection, posts: dict[int, Post]) -> None:
    """Be several workers."""
    links = {number: _Link(number, connection) for number in posts}
    for number, post in posts.items():
        threading.Thread(target=_serve, args=(links[number], post), daemon=True).start()
    while True:
        number, message = connection.recv()
        links[number].inbox.put(message)


class _Link:
    saying = threading.Lock()

    def __init__(self, number: int, connection: Connection) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._number = number
        self._connection = connection

    def send(self, message: Any) -> None:
        with self.saying:
            self._connection.send((self._number, message))

    def recv(self) -> Any:
        return self.inbox.get()


def _serve(link: _Link, post: Post) -> None:
    serve(link, post)
    link.send(Gone("has ended"))
