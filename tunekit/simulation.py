"""A GPU simulated from a recording: true times, noise upon them, and a clock of its own.

The recorded median of a config is taken for its true time. Every launch then takes that time,
disturbed as on a card: by noise of its own, by a drift that all launches of the moment share, and
now and then by something else that ran. These times go through `measure.Measure`, the code that
measures on a GPU, so what is tested with it is the protocol itself: when it cuts a loser, how many
rounds it takes, how it interleaves, what interval it states. Nothing waits: the clock counts what
the launches would have taken. It is for tests and benchmarks, and no device name opens it.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.gpu_watch import GpuWatch
from tunekit.kernels import Family, Launch, Prepared
from tunekit.key import Problem
from tunekit.measure import Measure
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner
from tunekit.runner import Finals
from tunekit.timing import FLUSH_US, Gpu, Timer
from tunekit.trial import Measurement, Provenance, Status, Trial


@dataclass(frozen=True, slots=True)
class Noise:
    """How launches vary. The shares are standard deviations of the logarithm of a time.

    Each launch is off by a draw of `launch`. `drift` is a course that all launches share and that
    forgets itself in about `drift_s` seconds: two configs measured apart find different ones, two
    that are interleaved find the same. One launch in `outlier_every` takes up to twice as long
    again, if that is not 0.
    """

    launch: float = 0.05
    drift: float = 0.0
    drift_s: float = 0.05
    outlier_every: int = 0


QUIET = Noise(launch=0.0)


class SimulatedRunner(ReplayRunner):
    """Implements `Runner` by measuring the configs of a recording on a simulated GPU.

    The same recording, noise and seed give the same times, whatever is asked for in between, as
    long as it is asked for in the same order. `clock` counts simulated seconds: give it to
    `tuner.run` and a budget of seconds is one of simulated seconds. `trial_s` is added for each
    trial, for what is not launches: compiling, operands, comparing.
    """

    def __init__(
        self, recording: Recording, *, noise: Noise = QUIET, seed: int = 0, trial_s: float = 0.0
    ) -> None:
        super().__init__(recording)
        self._trial_s = trial_s
        self._gpu = SimulatedGpu(recording.device, noise, seed)
        self._measure = Measure(
            self._gpu, GpuWatch(""), seed=seed, families=lambda name: cast(Family, self._kernels)
        )
        self._kernels = _RecordedKernels(self)

    def clock(self) -> float:
        """Return the simulated seconds since the start."""
        return self._gpu.now_s

    def true_us(self, problem: Problem, config: Config) -> float:
        """Return what a config takes without noise: its median when it was screened, in us.

        Not that of the finals, which ran on a hotter card and knew but a few configs.

        Raises:
            RecordingError: it was not recorded.
            ValueError: it was recorded as failing.
        """
        trial = self._trial(self.recorded(problem), config)
        if trial.measurement is None:
            raise ValueError(f"{config} has no recorded time for {problem}")
        return trial.measurement.median_us

    def vendor_us(self, problem: Problem) -> float | None:
        """Return what the vendor's call takes without noise, or None if it was not recorded.

        It was recorded in the finals, so it is brought to what it had taken when the finalists were
        screened.
        """
        found = self.recorded(problem)
        if found.vendor is None:
            return None
        heated = [
            trial.measurement.median_us / self.true_us(problem, config)
            for config, trial in found.finals.items()
            if trial.measurement is not None and found.screening[config].measurement is not None
        ]
        return found.vendor.median_us / (statistics.median(heated) if heated else 1.0)

    def provenance(self, problem: Problem, config: Config) -> Provenance:
        """Say where the times come from; the protocol says that they are simulated."""
        found = super().provenance(problem, config)
        return replace(found, protocol=f"simulated {found.protocol}")

    def vendor(self, problem: Problem) -> Measurement | None:
        """Measure the vendor's call alone."""
        return None if self.vendor_us(problem) is None else self._measure.vendor(problem)

    def screen(self, work: Sequence[tuple[Problem, Config]]) -> Iterator[tuple[Problem, Trial]]:
        """Screen configs in the order asked for; those recorded as failing fail as they did."""
        self._work = deque(work)
        while self._work:
            problem, config = self._work.popleft()
            self._gpu.wait(self._trial_s)
            recorded = self._trial(self.recorded(problem), config)
            works = recorded.status is Status.OK
            yield problem, self._measure.screen(problem, config) if works else recorded

    def untaken(self) -> list[tuple[Problem, Trial]]:
        """Return nothing: each trial is simulated when it is asked for."""
        return []

    def finals(self, problem: Problem, configs: Sequence[Config]) -> Finals:
        """Measure the finalists together, with the vendor's call if that was recorded."""
        self._gpu.wait(self._trial_s)
        known = self.recorded(problem)
        failed = [
            trial
            for config in configs
            if (trial := known.finals.get(config, known.screening[config])).status is not Status.OK
        ]
        bad = {trial.config for trial in failed}
        measured = self._measure.finals(problem, [c for c in configs if c not in bad])
        vendor = measured.vendor if known.vendor is not None else None
        return Finals((*failed, *measured.trials), vendor)


class SimulatedGpu(Gpu):
    """A device on which a launch is a number of microseconds."""

    def __init__(self, device: DeviceInfo, noise: Noise, seed: int) -> None:
        super().__init__(device, 0)
        self.now_s = 0.0
        self._noise = noise
        self._random = random.Random(seed)
        self._drift = self._random.gauss(0.0, noise.drift)

    def use(self) -> AbstractContextManager[object]:
        """Do nothing: there is no current device."""
        return nullcontext()

    def timer(self) -> Timer:
        """Return a timer that asks this device how long launches take."""
        return cast(Timer, _SimulatedTimer(self))

    def synchronize(self) -> None:
        """Do nothing: nothing is queued."""

    def allocated_bytes(self) -> int:
        """Say that no memory is taken."""
        return 0

    def release(self) -> None:
        """Do nothing: nothing is held."""

    def wait(self, seconds: float) -> None:
        """Let the clock go on, and the drift with it."""
        self.now_s += seconds
        if self._noise.drift:
            kept = math.exp(-seconds / self._noise.drift_s)
            spread = self._noise.drift * math.sqrt(1 - kept * kept)
            self._drift = kept * self._drift + self._random.gauss(0.0, spread)

    def launch_us(self, true_us: float) -> float:
        """Return what one launch takes now, and let the clock go on by it and its flush."""
        noise, chance = self._noise, self._random
        factor = math.exp(self._drift + chance.gauss(0.0, noise.launch))
        if noise.outlier_every and chance.random() * noise.outlier_every < 1:
            factor *= 1 + chance.random()
        self.wait((true_us * factor + FLUSH_US) / 1e6)
        return true_us * factor


class _SimulatedTimer:
    """What `Timer` does, on a simulated device."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self.late = 0

    def rounds(
        self, launches: Sequence[_RecordedLaunch], rounds: int, *, seed: int = 0
    ) -> list[list[float]]:
        order = random.Random(seed)
        times: list[list[float]] = [[] for _ in launches]
        for _ in range(rounds):
            for which in order.sample(range(len(launches)), len(launches)):
                times[which].append(self._gpu.launch_us(launches[which].us))
        return times

    def warm_up(self, launch: _RecordedLaunch, milliseconds: float) -> None:
        end_s = self._gpu.now_s + milliseconds / 1000
        while self._gpu.now_s < end_s:
            self._gpu.launch_us(launch.us)


@dataclass(frozen=True, slots=True)
class _RecordedLaunch:
    us: float
    error_ratio: float
    kernels: _RecordedKernels

    def __call__(self) -> None:
        self.kernels.ratio = self.error_ratio


class _RecordedKernels:
    """What `Measure` asks of a kernel family, answered from the recording."""

    def __init__(self, runner: SimulatedRunner) -> None:
        self._runner = runner
        self.ratio = 0.0

    def prepare(self, problem: Problem, device: DeviceInfo, *, index: int, seed: int) -> Prepared:
        nothing = torch.zeros(())
        return Prepared(problem, device, nothing, nothing, nothing, nothing, nothing)

    def launch(self, config: Config, prepared: Prepared) -> Launch:
        trial = self._runner.recorded(prepared.problem).screening[config]
        assert trial.measurement is not None
        ratio = trial.measurement.error_ratio or 0.0
        return _RecordedLaunch(self._runner.true_us(prepared.problem, config), ratio, self)

    def vendor(self, prepared: Prepared) -> Launch:
        us = self._runner.vendor_us(prepared.problem)
        if us is None:  # a stand-in: what it takes is shown to nobody
            us = min(map(self._time, self._runner.recorded(prepared.problem).screening.values()))
        return _RecordedLaunch(us, 0.0, self)

    def poison(self, prepared: Prepared) -> None:
        self.ratio = math.nan

    def error_ratio(self, prepared: Prepared) -> float:
        return self.ratio

    def failure(self, error: BaseException) -> Any:
        return None

    @staticmethod
    def _time(trial: Trial) -> float:
        return math.inf if trial.measurement is None else trial.measurement.median_us
