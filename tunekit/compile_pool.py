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

from tunekit.build_claims import CoreClaims, build_number
from tunekit.child import Child, ChildError
from tunekit.compile_order import Durations
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

LOOK_S = 0.01
"""How often it is looked whether a core has become idle that could be borrowed."""

_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


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
    core: int | None = None
    """The core that is claimed for its task, where cores are shared."""


class CompilePool:
    """A pool of compiler processes. They start at once, or it is a `TuneError`.

    There are `workers` of them, and up to `borrowed` more while other pools of this host, whose
    share they are, leave cores idle.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        borrowed: int = 0,
        timeout_s: float = COMPILE_TIMEOUT_S,
        build: Build | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.seconds = 0.0
        """Time that compilations took, of all workers together."""
        self._build = build or compile_config
        self._nursery = Nursery(prepare, self._build, environ=_NO_GPU)
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
        self._share = workers or cores()
        self._most = self._share + borrowed
        self._cores = CoreClaims(cores()) if borrowed else None
        self._durations = Durations()
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
        if self._cores is not None:
            self._cores.close()
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
        there = len(self._workers)
        lacking = there < self._share or (there < self._most and self._wants_more)
        if not (lacking and self._nursery.is_ready):
            return False
        child = self._nursery.fork(serve, self._build)
        if child is not None:
            self._workers.append(_Worker(child))
        return True

    @property
    def _wants_more(self) -> bool:
        """Whether something waits that no worker is there for."""
        return bool(self._queue) and all(w.ready and w.task is not None for w in self._workers)

    def _listen(self, *, waiting: bool) -> None:
        """Hear who answers or ends; if there is nothing else to do until one does or is late."""
        busy = [w for w in self._workers if w.task is not None and w.task.config is not None]
        ends = [worker.started + self.timeout_s for worker in busy]
        ends += [self._later[0][0]] if self._later else []
        if self._queue and any(w.ready and w.task is None for w in self._workers):
            ends.append(time.monotonic() + LOOK_S)  # for a core
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
        at_work = sum(worker.task is not None for worker in self._workers)
        for worker in self._workers:
            if worker.ready and worker.task is None:
                core = None if self._cores is None else self._cores.take()
                task = self._next_task() if core is not None or at_work < self._share else None
                if task is None:
                    self._give_back(core)
                    return
                worker.core, at_work = core, at_work + 1
                worker.task, worker.begun, worker.started = task, False, time.monotonic()
                worker.child.send((task.problem, task.config, task.device, task.number))

    def _give_back(self, core: int | None) -> None:
        if core is not None and self._cores is not None:
            self._cores.give_back(core)

    def _free(self, worker: _Worker) -> _Task | None:
        """Take from a worker what it was at, and give back its core."""
        task, worker.task, worker.begun = worker.task, None, False
        core, worker.core = worker.core, None
        self._give_back(core)
        return task

    def _next_task(self) -> _Task | None:
        """Return what nobody was found to be building, then what may be built by now."""
        with self._lock:
            if self._queue:
                place = self._durations.first([(t.problem, t.config) for t in self._queue])
                task = self._queue[place]
                del self._queue[place]
                return task
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
            task = self._free(worker)
            if task is not None:
                self._later.append((time.monotonic() + AGAIN_S, task))
        else:
            worker.ready, worker.begun = True, worker.task is not None

    def _take_space(self, worker: _Worker, found: Space | TunekitError) -> None:
        task = self._free(worker)
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
            if self._deaths > max(MOST_DEATHS, self._most):
                raise TuneError(f"nothing can be compiled here: {how}")
        self._remove(worker)

    def _remove(self, worker: _Worker) -> None:
        self._free(worker)
        worker.child.kill()
        self._workers.remove(worker)

    def _finish(self, worker: _Worker, outcome: Compiled) -> None:
        took = time.monotonic() - worker.started
        self.seconds += took
        task = self._free(worker)
        if task is not None:
            self._durations.learn(task.problem, task.config, took)
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
