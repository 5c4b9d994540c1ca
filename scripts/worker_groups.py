"""Workers that are threads of a few processes, for a benchmark of what many of them wait for."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from slow_replay import SlowReplay

from tunekit.cache import Store
from tunekit.child import Child
from tunekit.fleet.crews import Hear
from tunekit.fleet.messages import Gone, Message
from tunekit.fleet.post import Post, serve
from tunekit.key import Problem
from tunekit.recording import Recording

CLOSE_S = 10.0


class Groups:
    """Implements `Crew`: each process has its share of the workers."""

    def __init__(self, posts: Sequence[Post], processes: int) -> None:
        self._planned = posts
        self._processes = min(processes, len(posts))
        self._children: list[Child] = []
        self._locks: list[threading.Lock] = []
        self._gone = threading.Semaphore(0)

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
            threading.Thread(target=self._listen, args=(child, hear), daemon=True).start()

    def send(self, worker: int, message: Message) -> None:
        """Send a message to a worker."""
        group = worker % self._processes
        with self._locks[group]:
            self._children[group].send((worker, message))

    def replace(self, worker: int) -> None:
        """Do nothing: none of them is killed."""

    def close(self) -> None:
        """End the processes, once their workers have."""
        for _ in self._planned:
            self._gone.acquire(timeout=CLOSE_S)
        for child in self._children:
            child.kill()

    def _listen(self, child: Child, hear: Hear) -> None:
        while True:
            try:
                worker, message = child.recv()
            except (EOFError, OSError, TypeError):  # it was ended, maybe while this waited
                return
            hear(worker, message)
            if isinstance(message, Gone):
                self._gone.release()


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


class TimedReplay(SlowReplay):
    """A slow replay that notes what its worker's time was spent on."""

    def __init__(self, recording: Recording, seconds: float, folder: Path) -> None:
        super().__init__(recording, seconds, None)
        self._folder = folder
        self._slept = 0.0
        self._cpu = time.thread_time()
        self._times: list[float] = []

    def screen(self, work: Sequence[Any]) -> Iterator[Any]:
        """Give the recorded trials, slowly."""
        self._times.append(time.time())
        for found in super().screen(work):
            self._slept += self.seconds
            self._times.append(time.time())
            yield found

    def finals(self, problem: Problem, configs: Sequence[Any]) -> Any:
        """Give the recorded finals, slowly."""
        self._slept += self.seconds
        found = super().finals(problem, configs)
        self._times.append(time.time())
        return found

    def close(self) -> None:
        """Leave a note."""
        note = {
            "slept_s": self._slept,
            "first": min(self._times, default=0.0),
            "last": max(self._times, default=0.0),
            "writes_ms": WRITES.pop(threading.get_ident(), []),
            "cpu_s": time.thread_time() - self._cpu,
        }
        name = f"worker-{os.getpid()}-{threading.get_ident()}.json"
        (self._folder / name).write_text(json.dumps(note))


WRITES: dict[int, list[float]] = {}
"""How long each transaction with trials took, in milliseconds, by thread."""


def open_timed(
    device: str, *, seed: int = 0, compilers: int | None = None, seconds: float, folder: str
) -> TimedReplay:
    """Open a replay, and time the transactions of this process."""
    if not hasattr(Store.add_trials, "timed"):
        plain = Store.add_trials

        def add_trials(self: Store, *arguments: Any) -> None:
            began = time.perf_counter()
            plain(self, *arguments)
            spent_ms = 1e3 * (time.perf_counter() - began)
            WRITES.setdefault(threading.get_ident(), []).append(spent_ms)

        add_trials.timed = True  # type: ignore[attr-defined]
        Store.add_trials = add_trials  # type: ignore[method-assign]
    return TimedReplay(loaded(device.partition(":")[2]), seconds, Path(folder))


_LOADED: dict[str, Recording] = {}
_LOADING = threading.Lock()


def loaded(file: str) -> Recording:
    """Load a recording once for all workers of a process."""
    with _LOADING:
        if file not in _LOADED:
            _LOADED[file] = Recording.load(file)
        return _LOADED[file]
