"""Workers that are Ray's actors: one for each GPU of a cluster, whichever hosts it has and gets.

Ray starts them, says which GPU each has, and notices when one or its host is gone. Everything else
is as with processes: the same worker, the same messages.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tunekit.cores import cores
from tunekit.errors import TuneError
from tunekit.fleet.crews import Hear
from tunekit.fleet.messages import Broke, Gone, Message
from tunekit.fleet.post import Post, serve

if TYPE_CHECKING:
    from tunekit.runner import Runner

LOCAL = "local"
"""In place of an address: a cluster of this host alone, which ends with the run."""

POLL_S = 5.0
"""How long an actor may have nothing to say before it is asked again."""

REACH_S = 10.0
"""How long a cluster may take to answer at all."""

GROW_S = 2.0
"""How often the leader looks whether hosts have joined."""


class RayCrew:
    """Workers on a cluster, which is joined, or is started on this host and ends with the run."""

    is_local = False

    def __init__(
        self,
        open_runner: Callable[..., Runner],
        device: str,
        place: str,
        *,
        address: str,
        workers: int | None = None,
        seed: int = 0,
    ) -> None:
        """Join the cluster, or start one.

        Raises:
            TuneError: Ray is not installed, or there is no such cluster.
        """
        self._ray: Any = _ray()
        self._owns_ray = not self._ray.is_initialized()
        if self._owns_ray:
            self._connect(address, workers)
        gpus = self._total("GPU")
        on_gpus = device == "cuda" or (device == "auto" and gpus > 0)
        self.device = "cuda:0" if on_gpus else "replay" if device == "auto" else device
        self._kind = "GPU" if on_gpus else "CPU"
        self._workers = workers
        cpus = self._cpus_each() if on_gpus else 1
        self._options = {"num_gpus": 1, "num_cpus": cpus} if on_gpus else {"num_cpus": 1}
        self._post = Post(open_runner, self.device, place, seed, cpus if on_gpus else None)
        self._numbers = itertools.count(1)
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, int] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if on_gpus and not gpus:
            self.close()
            raise TuneError(f"the Ray cluster {address} has no GPU: add a host, or --device replay")

    @property
    def planned(self) -> int:
        """How many workers there are to be at the start."""
        return self._workers or max(1, self._total(self._kind))

    @property
    def pids(self) -> list[int]:
        """The processes of the actors there are now."""
        with self._lock:
            actors = list(self._actors.values())
        return [int(pid) for pid in self._ray.get([actor.pid.remote() for actor in actors])]

    def start(self, hear: Hear) -> None:
        """Start the workers. Those that there is no room for begin when a host joins."""
        for _ in range(self.planned):
            self._start()
        self._thread = threading.Thread(
            target=self._attend, args=(hear,), name="tunekit-crew", daemon=True
        )
        self._thread.start()

    def send(self, worker: int, message: Message) -> None:
        """Send a message to a worker, if it is there."""
        with self._lock:
            actor = self._actors.get(worker)
        if actor is not None:
            actor.tell.options(concurrency_group="inbox").remote(message)

    def replace(self, worker: int) -> None:
        """Start another worker where one has ended, or on any host with room."""
        if not self._stopping.is_set():
            self._start()

    def end(self, worker: int) -> None:
        """Kill a worker that does not answer."""
        with self._lock:
            actor = self._actors.get(worker)
        if actor is not None:
            self._ray.kill(actor)

    def lacking(self) -> str:
        """Say what workers that have not started yet wait for."""
        free = int(self._ray.available_resources().get(self._kind, 0))
        return f"of {self._total(self._kind)} {self._kind}s in the cluster {free} are free"

    def close(self) -> None:
        """Kill what still runs, and the cluster if it is the run's own."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        for actor in self._actors.values():
            self._ray.kill(actor)
        if self._owns_ray:
            self._ray.shutdown()

    def _connect(self, address: str, workers: int | None) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            _reach(address)
            if address != LOCAL:
                self._ray.init(address=address, **quiet)
                return
            # What is started here is this run's alone: it tells nobody that it is used.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            count = max(cores(), workers or 0)
            self._ray.init(address=LOCAL, num_cpus=count, include_dashboard=False, **quiet)
        except (OSError, ValueError, RuntimeError, self._ray.exceptions.RayError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise TuneError(
                f"cannot use the Ray cluster {address}: {reason}; see whether `ray status` shows it"
            ) from error

    def _start(self) -> None:
        actor = _actor_class(self._ray).options(**self._options).remote(self._post)
        with self._lock:
            worker = next(self._numbers)
            self._actors[worker] = actor
            self._asked[_hear(actor)] = worker

    def _attend(self, hear: Hear) -> None:
        try:
            self._listen(hear)
        finally:
            if not self._stopping.is_set():  # whoever waits for a worker must not wait for ever
                hear(0, Broke("the thread that hears the workers has failed"))

    def _listen(self, hear: Hear) -> None:
        looked = time.monotonic()
        while not self._stopping.is_set():
            asked = list(self._asked)
            if not asked:
                self._stopping.wait(GROW_S)
                continue
            for reference in self._ray.wait(asked, timeout=GROW_S / 4)[0]:
                self._hear(reference, hear)
            if self._workers is None and time.monotonic() - looked > GROW_S:
                looked = time.monotonic()
                for _ in range(self._total(self._kind) - len(self._actors)):
                    self._start()

    def _hear(self, reference: Any, hear: Hear) -> None:
        worker = self._asked.pop(reference)
        actor = self._actors[worker]
        try:
            messages = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            messages = [Gone(f"was lost to Ray: {why_lost(str(error))}")]
        for message in messages:
            if isinstance(message, Gone):
                with self._lock:
                    del self._actors[worker]
                self._ray.kill(actor)  # one that only cannot be reached must not go on
            hear(worker, message)
        if worker in self._actors:
            self._asked[_hear(actor)] = worker

    def _total(self, kind: str) -> int:
        return int(self._ray.cluster_resources().get(kind, 0))

    def _cpus_each(self) -> int:
        """Return how many cores there are for each GPU, on the host that has the fewest."""
        found = [
            int(node["Resources"].get("CPU", 1) // node["Resources"]["GPU"])
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("GPU", 0) >= 1
        ]
        return max(1, min(found, default=1))


def why_lost(text: str) -> str:
    """Return what Ray says of an actor that has ended, in one line.

    Of one that could not begin it is the exception there: as where tunekit is not installed.
    """
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    lines = [line for line in lines if line]
    if lines and "creation task" in lines[0]:
        return f"it could not begin: {lines[-1]}"[:300]
    return " ".join(lines)[:200]


def _reach(address: str) -> None:
    """Make sure that something listens at `HOST:PORT`: Ray itself would try for minutes.

    Raises:
        OSError: nothing does.
        ValueError: it is an address of another kind.
    """
    if "://" in address:
        raise ValueError("an address is HOST:PORT, as `ray start --head` prints it, or auto")
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        _missing(error)


def _missing(error: ImportError) -> NoReturn:
    raise TuneError(
        "--ray needs Ray, which is not installed: pip install 'tunekit-triton[ray]'"
    ) from error


def _hear(actor: Any) -> Any:
    return actor.hear.options(concurrency_group="outbox").remote(POLL_S)


def _actor_class(ray: Any) -> Any:
    """Return the actor, whose calls in either direction wait only for those in the same one."""
    return ray.remote(concurrency_groups={"inbox": 1, "outbox": 1}, max_restarts=0)(Actor)


class Actor:
    """One worker, in a thread of the actor's process; its methods are the other end of its link."""

    def __init__(self, post: Post) -> None:
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(post,), name="tunekit-worker").start()

    def tell(self, message: Message) -> None:
        """Take a message for the worker."""
        self._inbox.put(message)

    def hear(self, timeout_s: float) -> list[Message]:
        """Wait for what the worker says, at most so long."""
        found: list[Message] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._outbox.get(timeout=timeout_s))
            while True:
                found.append(self._outbox.get_nowait())
        return found

    def pid(self) -> int:
        """Return the actor's process."""
        return os.getpid()

    def send(self, message: Any) -> None:
        """Say something, for the worker."""
        self._outbox.put(message)

    def recv(self) -> Any:
        """Wait for a message, for the worker."""
        return self._inbox.get()

    def _work(self, post: Post) -> None:
        serve(self, post)
        self._outbox.put(Gone("has ended"))
