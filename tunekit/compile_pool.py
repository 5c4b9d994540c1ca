"""Compiles configs on all cores while the device is busy with others.

Workers are forks of one process that has loaded what they need (`nursery`). They never touch a GPU
and leave what they build in Triton's own cache, where the launch finds it under the key it would
have used itself. Kernels do not depend on sizes, only on what Triton specialises on, so configs of
many problems share one compilation. A compiler that aborts or hangs takes one worker along, with
the assembler it may have started, and nothing else. Where several runs or the workers of one share
the cache, what one builds another leaves for later, and then finds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tunekit.build_claims import build_number
from tunekit.child import Child, ChildError
from tunekit.compiler import Build, Compiled, Elsewhere, Unwritable, compile_config, prepare, serve
from tunekit.config import Config
from tunekit.cores import cores
from tunekit.device import DeviceInfo
from tunekit.errors import TuneError, TunekitError
from tunekit.kernels import family
from tunekit.key import Problem
from tunekit.nursery import Nursery
from tunekit.space import Space
from tunekit.trial import Status

_log = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 60.0
MOST_DEATHS = 3
"""How many workers may die in a row without a compilation to blame before the pool gives up."""

AGAIN_S = 0.05
"""How long a build that another process is at is left before it is asked for again."""

_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


_HUGE_PAGES = "glibc.malloc.hugetlb"


def _huge_pages() -> dict[str, str]:
    """Return what has glibc ask for huge pages, unless the user has settled that.

    A compiler walks through far more memory than the processor knows the addresses of. On two H200s
    with 32 virtual cores all at work a compilation took 0.51 s with them and 0.60 s without.
    """
    wish = os.environ.get("GLIBC_TUNABLES", "")
    if _HUGE_PAGES in wish:
        return {}
    return {"GLIBC_TUNABLES": ":".join(filter(None, (wish, f"{_HUGE_PAGES}=1")))}


@dataclass(slots=True)
class _Task:
    problem: Problem
    config: Config | None
    """None asks for the problem's space."""
    device: DeviceInfo
    number: int
    future: Future[Any]


@dataclass(slots=True)
class _Worker:
    child: Child
    ready: bool = False
    task: _Task | None = None
    begun: bool = False
    """Whether the worker is at its task: one that died before that is not the task's fault."""
    started: float = 0.0


class CompilePool:
    """A pool of compiler processes. They start at once, or it is a `TuneError`."""

    def __init__(
        self,
        *,
        workers: int | None = None,
        timeout_s: float = COMPILE_TIMEOUT_S,
        build: Build | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.seconds = 0.0
        """Time that compilations took, of all workers together."""
        self._build = build or compile_config
        self._nursery = Nursery(prepare, self._build, environ=_NO_GPU | _huge_pages())
        self._known: dict[Hashable, Future[Compiled]] = {}
        self._spaces: dict[tuple[Problem, DeviceInfo], Future[Space]] = {}
        self._queue: deque[_Task] = deque()
        self._later: deque[tuple[float, _Task]] = deque()
        """What others are building, and when to ask for it again; the first is due first."""
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._broken: Exception | None = None
        self._deaths = 0
        self._wanted = workers or cores()
        self._workers: list[_Worker] = []
        self._thread = threading.Thread(target=self._run, name="tunekit-compile", daemon=True)
        self._thread.start()

    def submit(self, problem: Problem, config: Config, device: DeviceInfo) -> Future[Compiled]:
        """Queue a compilation unless the same one is known; return what will hold its result.

        The result is a `TuneError` where nothing can be compiled here any more.
        """
        name = family(problem.family).compile_key(config, problem, device)
        key = (device, problem.family, name)
        with self._lock:
            future = self._known.get(key)
            if future is None:
                future = self._known[key] = Future()
                number = build_number(key, os.environ.get("TRITON_CACHE_DIR"))
                self._ask(_Task(problem, config, device, number, future))
        return future

    def space(self, problem: Problem, device: DeviceInfo) -> Future[Space]:
        """Have a problem's space enumerated, a part of a second's work that needs no compiler.

        The result is a `TunekitError` where the problem has none.
        """
        with self._lock:
            future = self._spaces.get((problem, device))
            if future is None:
                future = self._spaces[problem, device] = Future()
                self._ask(_Task(problem, None, device, -1, future))
        return future

    def _ask(self, task: _Task) -> None:
        if self._broken is not None:
            task.future.set_exception(self._broken)
            return
        self._queue.append(task)
        os.eventfd_write(self._bell, 1)

    @property
    def compilations(self) -> int:
        """How many distinct compilations were asked for."""
        return len(self._known)

    @property
    def pids(self) -> list[int]:
        """The process that forks workers, and those it has forked by now."""
        return [self._nursery.pid, *(worker.child.pid for worker in self._workers)]

    def close(self) -> None:
        """End the workers, finished or not. What is still pending is cancelled."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        os.close(self._bell)
        for worker in self._workers:
            worker.child.end()  # all at once, before the first is waited for
        for worker in self._workers:
            if not worker.child.kill():
                self._nursery.kill()  # it hangs: nobody is to wait for it once for each worker
        self._nursery.kill()
        asked: list[Future[Any]] = [*self._known.values(), *self._spaces.values()]
        for future in asked:
            future.cancel()

    def _run(self) -> None:
        try:
            while not self._stopping:
                grown = self._grow()
                self._assign()
                self._listen(waiting=not grown)
                self._end_late()
        except (TuneError, ChildError) as error:
            self._broken = error
        finally:
            if not self._stopping:  # whoever waits for a result must not wait for ever
                self._break(self._broken or ChildError("the compile pool's own thread failed"))

    def _grow(self) -> bool:
        """Start one worker if any is lacking, and say so. It gets work before the next starts."""
        if not self._nursery.is_ready or len(self._workers) == self._wanted:
            return False
        child = self._nursery.fork(serve, self._build)
        if child is not None:
            self._workers.append(_Worker(child))
        return True

    def _listen(self, *, waiting: bool) -> None:
        """Hear who answers or ends; if there is nothing else to do until one does or is late."""
        busy = [w for w in self._workers if w.task is not None and w.task.config is not None]
        ends = [worker.started + self.timeout_s for worker in busy]
        ends += [self._later[0][0]] if self._later else []
        left = max(0.0, min(ends) - time.monotonic()) if ends else None
        left = left if waiting else 0.0
        by_connection = {worker.child.connection: worker for worker in self._workers}
        for ready in wait([self._bell, self._nursery.connection, *by_connection], left):
            if ready is self._nursery.connection:
                self._nursery.hear()
            elif isinstance(ready, Connection):
                self._hear(by_connection[ready])
            else:
                os.eventfd_read(self._bell)

    def _assign(self) -> None:
        for worker in self._workers:
            if worker.ready and worker.task is None:
                task = self._next_task()
                if task is None:
                    return
                worker.task, worker.begun, worker.started = task, False, time.monotonic()
                worker.child.send((task.problem, task.config, task.device, task.number))

    def _next_task(self) -> _Task | None:
        """Return what nobody was found to be building, then what may be built by now."""
        with self._lock:
            if self._queue:
                return self._queue.popleft()
        if self._later and self._later[0][0] <= time.monotonic():
            return self._later.popleft()[1]
        return None

    def _hear(self, worker: _Worker) -> None:
        try:
            message = worker.child.recv()
        except EOFError:
            self._died(worker, f"the compiler {worker.child.ended()}")
            return
        if isinstance(message, Unwritable):
            raise TuneError(message.reason)
        if isinstance(message, Compiled):
            self._deaths = self._nursery.deaths = 0
            self._finish(worker, message)
        elif isinstance(message, (Space, TunekitError)):
            self._take_space(worker, message)
        elif isinstance(message, Elsewhere):
            if worker.task is not None:
                self._later.append((time.monotonic() + AGAIN_S, worker.task))
            worker.task = None
        else:
            worker.ready, worker.begun = True, worker.task is not None

    def _take_space(self, worker: _Worker, found: Space | TunekitError) -> None:
        task, worker.task, worker.begun = worker.task, None, False
        if task is not None:
            with suppress(InvalidStateError):  # it was cancelled
                if isinstance(found, Space):
                    task.future.set_result(found)
                else:
                    task.future.set_exception(found)

    def _end_late(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._workers if w.task is not None]:
            if worker.task is not None and worker.task.config is None:
                continue  # as long as it takes
            if now - worker.started >= self.timeout_s:
                text = f"the compiler ran over {self.timeout_s:g} s"
                self._finish(worker, Compiled(Status.TIMEOUT, text))
                self._remove(worker)

    def _died(self, worker: _Worker, how: str) -> None:
        if worker.begun and worker.task is not None and worker.task.config is not None:
            self._finish(worker, Compiled(Status.COMPILE_ERROR, how))
        else:
            self._deaths += 1
            if worker.task is not None:
                with self._lock:
                    self._queue.appendleft(worker.task)
            _log.debug("an idle worker died: %s", how)
            if self._deaths > max(MOST_DEATHS, self._wanted):
                raise TuneError(f"nothing can be compiled here: {how}")
        self._remove(worker)

    def _remove(self, worker: _Worker) -> None:
        worker.child.kill()
        self._workers.remove(worker)

    def _finish(self, worker: _Worker, outcome: Compiled) -> None:
        task, worker.task, worker.begun = worker.task, None, False
        self.seconds += time.monotonic() - worker.started
        if task is not None:
            with suppress(InvalidStateError):  # it was cancelled
                task.future.set_result(outcome)

    def _break(self, error: Exception) -> None:
        """Fail everything pending: no config is to blame for it."""
        with self._lock:
            self._broken = error
            asked: list[Future[Any]] = [*self._known.values(), *self._spaces.values()]
            pending = [future for future in asked if not future.done()]
        for future in pending:
            with suppress(InvalidStateError):
                future.set_exception(error)
