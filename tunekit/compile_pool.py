"""Compiles configs on all cores while the device is busy with others.

Workers are spawned, never touch a GPU, and leave what they build in Triton's own cache, where the
launch finds it under the key it would have used itself. Kernels do not depend on sizes, only on
what Triton specialises on, so configs of many problems share one compilation. A compiler that
aborts or hangs takes one worker along and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Hashable
from concurrent.futures import CancelledError, Future, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from pebble import ProcessExpired, ProcessPool

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import family
from tunekit.key import Problem
from tunekit.trial import Status

COMPILE_TIMEOUT_S = 60.0
MOST_RESTARTS = 20
"""How often the whole pool is started anew in a run before its compilations count as failed."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """How a compilation ended."""

    status: Status
    error: str | None = None


_GIVEN_UP = Compiled(Status.COMPILE_ERROR, "the compiler's processes keep dying")


def _succeeded(future: Future[Compiled]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


class CompilePool:
    """A pool of compiler processes for one device kind."""

    def __init__(
        self,
        device: DeviceInfo,
        *,
        workers: int | None = None,
        timeout_s: float = COMPILE_TIMEOUT_S,
    ) -> None:
        self._device = device
        self._timeout_s = timeout_s
        self._workers = workers or os.cpu_count() or 1
        self._pending: dict[Hashable, Future[Compiled]] = {}
        self._restarts = 0
        self._pool = self._start()

    def submit(self, problem: Problem, config: Config) -> Hashable:
        """Queue a compilation unless the same one is known. Returns what names it."""
        key = family(problem.family).compile_key(config, problem, self._device)
        if key not in self._pending:
            self._pending[key] = self._pool.schedule(
                _compile, args=(problem, config, self._device), timeout=self._timeout_s
            )
        return key

    def wait(self, problem: Problem, config: Config) -> Compiled:
        """Wait for a config's compilation and say how it ended."""
        key = self.submit(problem, config)
        try:
            return self._pending[key].result()
        except (BrokenProcessPool, CancelledError):
            # A worker died between two compilations, and the pool with it.
            self.close()
            self._pool = self._start()
            self._pending = {k: f for k, f in self._pending.items() if _succeeded(f)}
            return self.wait(problem, config) if self._restarts_left() else _GIVEN_UP
        except TimeoutError:
            return Compiled(Status.TIMEOUT, f"the compiler ran over {self._timeout_s:g} s")
        except ProcessExpired as expired:
            return Compiled(
                Status.COMPILE_ERROR, f"the compiler aborted with exit code {expired.exitcode}"
            )

    def _start(self) -> ProcessPool:
        return ProcessPool(
            max_workers=self._workers,
            initializer=_start_worker,
            context=multiprocessing.get_context("spawn"),
        )

    def _restarts_left(self) -> bool:
        self._restarts += 1
        return self._restarts <= MOST_RESTARTS

    @property
    def compilations(self) -> int:
        """How many distinct compilations were asked for."""
        return len(self._pending)

    def close(self) -> None:
        """End the workers, finished or not."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()


def _start_worker() -> None:
    # A compiler needs no GPU, and a worker that opened one would hold memory on it.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["HIP_VISIBLE_DEVICES"] = ""


def _compile(problem: Problem, config: Config, device: DeviceInfo) -> Compiled:
    kernels = family(problem.family)
    try:
        shared = kernels.compile(config, problem, device)
    except Exception as error:
        failure = kernels.failure(error)
        if failure is None:
            raise
        return Compiled(*failure)
    if shared > device.shared_bytes:
        text = f"{shared} bytes of shared memory, {device.shared_bytes} there"
        return Compiled(Status.OUT_OF_RESOURCES, text)
    return Compiled(Status.OK)
