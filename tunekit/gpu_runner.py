"""Implements `Runner` on a GPU: compilers on all cores, and a process of its own that measures.

This process makes no CUDA context. While it stores a trial or searches, the others go on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tunekit.child import Child
from tunekit.compile_pool import CompilePool
from tunekit.compiler import Build
from tunekit.config import Config
from tunekit.device import DeviceInfo, nvidia_gpus, require, torch_version
from tunekit.errors import TuneError, TunekitError
from tunekit.gpu_lock import GpuLock
from tunekit.kernels import family
from tunekit.key import Problem
from tunekit.measuring import Died, Limits, MeasuringProcess
from tunekit.nursery import too_much
from tunekit.ranking import FINALISTS
from tunekit.runner import Finals
from tunekit.schedule import Schedule, Work, culprit_of
from tunekit.space import Space
from tunekit.spent import Spent
from tunekit.trial import PROTOCOL, Measurement, Origin, Provenance, Status, Trial, timestamp
from tunekit.version import VERSION
from tunekit.worker import Answer, Kind, Opened, Ready, open_gpu, serve

MOST_ATTEMPTS = 2
"""How often finals are tried that end the process while all finalists run in turn."""


class GpuRunner:
    """Tries configs on one GPU.

    What it starts loads torch while the caller, which need not have done so yet, goes on.
    """

    origin = Origin.MEASURED

    def __init__(
        self,
        index: int = 0,
        *,
        workers: int | None = None,
        seed: int = 0,
        limits: Limits | None = None,
        open_device: Callable[..., Opened] | None = None,
        build: Build | None = None,
        lock_folder: Path | None = None,
    ) -> None:
        """Start the processes. `open_device`, `build` and `lock_folder` are for tests.

        Raises:
            DeviceError: there is no GPU with this index.
            TuneError: this host allows no more files, memory or processes.
        """
        environ: dict[str, str] = {}
        if open_device is None:
            require(index)
            environ, index = _only(index)
        opened = open_device or open_gpu
        self._pool = CompilePool(workers=workers, build=build)
        self._schedule = Schedule()
        start = partial(_measuring, opened, index, seed, environ)
        try:
            self._process = MeasuringProcess(start, self._schedule, limits=limits)
        except TuneError:
            self._pool.close()
            raise
        self._schedule.ring = self._process.ring
        self._lock_folder = lock_folder
        self._lock: GpuLock | None = None
        self._vendor: dict[Problem, Measurement | None] = {}
        self._untaken: list[tuple[Problem, Trial]] = []
        self._spaces: dict[Problem, Future[Space]] = {}
        self._preparing: threading.Thread | None = None
        self._screening = 0
        """Trials of the screening under way that were not taken yet."""

    @property
    def device(self) -> DeviceInfo:
        """The GPU as its process sees it; waits until that is up."""
        return self._ready.device

    @property
    def pids(self) -> list[int]:
        """The processes this runner has started: the one that measures, then the compilers."""
        return [self._process.pid, *self._pool.pids]

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Have the compilers enumerate spaces side by side, once the GPU's process is up."""

        def ask() -> None:
            with suppress(TunekitError):  # `space` raises it again
                device = self.device
                for problem in problems:
                    self._spaces[problem] = self._pool.space(problem, device)

        self._preparing = threading.Thread(target=ask, name="tunekit-spaces", daemon=True)
        self._preparing.start()

    def space(self, problem: Problem) -> Space:
        """Return every legal config of the problem on this GPU."""
        if self._preparing is not None:
            self._preparing.join()
        if problem in self._spaces:
            return self._spaces[problem].result()
        return family(problem.family).space(problem, self.device)

    def provenance(self, problem: Problem, config: Config) -> Provenance:
        """Say where a result of this config for this problem comes from."""
        import triton

        return Provenance(
            fingerprint=family(problem.family).fingerprint(config.variant),
            protocol=PROTOCOL,
            tunekit=VERSION,
            triton=triton.__version__,
            torch=torch_version(),
            driver=self._ready.driver,
            device_name=self.device.name,
            created_at=timestamp(),
        )

    def announce(self, work: Sequence[Work]) -> None:
        """Start compiling what will be tried soon."""
        for problem, config in work:
            self._pool.submit(problem, config, self.device)

    def vendor(self, problem: Problem) -> Measurement | None:
        """Time the vendor's call alone, as a first yardstick; the finals measure it again."""
        if problem not in self._vendor:
            self._take_gpu()
            outcome = self._schedule.ask(Kind.VENDOR, problem)
            self._vendor[problem] = outcome.vendor if isinstance(outcome, Answer) else None
        return self._vendor[problem]

    def screen(self, work: Sequence[Work]) -> Iterator[tuple[Problem, Trial]]:
        """Try configs, giving each trial as it ends: whatever is compiled first comes first."""
        self._take_gpu()
        self._schedule.begin()
        self._screening = 0
        try:
            self.add(work)
            while self._screening:
                self._screening -= 1
                yield self._schedule.next_trial()
        finally:
            self._untaken = self._schedule.give_up()

    def add(self, work: Sequence[Work]) -> None:
        """Have the screening that is under way try more."""
        for problem, config in work:
            self._screening += 1
            self._schedule.add((problem, config), self._pool.submit(problem, config, self.device))

    def untaken(self) -> list[tuple[Problem, Trial]]:
        """Give up a screening, and return the trials that had ended and nobody had taken."""
        untaken, self._untaken = [*self._untaken, *self._schedule.give_up()], []
        return untaken

    def has_time(self) -> bool:
        """Say whether the GPU has nothing to try before a compilation ends."""
        return self._schedule.waiting()

    def finals(self, problem: Problem, configs: Sequence[Config]) -> Finals:
        """Measure the finalists against each other and the vendor, in interleaved rounds.

        One that ends the process is left out and the others are measured again.
        """
        self._take_gpu()
        outlawed = [self._schedule.outlawed(config) for config in configs]
        failed = [trial for trial in outlawed if trial is not None]
        left = [c for c, trial in zip(configs, outlawed, strict=True) if trial is None]
        attempts = 0
        while left:
            outcome = self._schedule.ask(Kind.FINALS, problem, tuple(left))
            if isinstance(outcome, Answer) and not outcome.lost:
                self._vendor[problem] = outcome.vendor or self._vendor.get(problem)
                return Finals((*failed, *outcome.trials), outcome.vendor)
            culprit = culprit_of(outcome)
            if culprit is not None:
                failed.append(culprit)
                left.remove(culprit.config)
                continue
            attempts += 1
            if attempts == MOST_ATTEMPTS:
                status = outcome.status if isinstance(outcome, Died) else Status.LAUNCH_ERROR
                text = "the measuring process died while this ran in turn with other configs"
                return Finals((*failed, *(Trial(c, status, error=text) for c in left)), None)
            left = left[: FINALISTS[0]]  # without a heat each is tried by itself first
        return Finals(tuple(failed), None)

    def spent(self) -> Spent:
        """Return where the time went since the runner was opened."""
        return replace(
            self._process.spent(),
            compiling_s=self._pool.seconds,
            compilations=self._pool.compilations,
        )

    def close(self) -> None:
        """End all processes, whatever they are at, and let the GPU go."""
        self._schedule.broke(TuneError("the runner was closed"))
        self._pool.close()  # first: what it finishes rings at the other
        self._process.close()
        if self._lock is not None:
            self._lock.release()

    @property
    def _ready(self) -> Ready:
        return self._schedule.when_ready()

    def _take_gpu(self) -> None:
        """Wait until no other run measures on this GPU."""
        if self._lock is None:
            lock = GpuLock(self._ready.uuid, self._lock_folder)
            lock.acquire()
            self._lock = lock


def _measuring(
    opened: Callable[..., Opened], index: int, seed: int, environ: dict[str, str]
) -> Child:
    """Start a process that measures."""
    try:
        return Child(serve, opened, index, seed, environ=environ)
    except OSError as error:
        raise too_much("process that measures", error) from error


def _only(index: int) -> tuple[dict[str, str], int]:
    """Return what makes a process see this GPU alone, and its index there.

    So nothing the process does can touch another. Elsewhere than on CUDA it sees all, as we do.
    """
    if nvidia_gpus() is None:
        import torch

        if torch.version.cuda is None:
            return {}, index
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else []
    return {"CUDA_VISIBLE_DEVICES": names[index].strip() if names else str(index)}, 0
