"""Trying configs on a real GPU: compile ahead, verify, then time.

A config is compared with the reference on a poisoned output before it is timed, and one that is
wrong is never timed at all. Screening stops early on losers. The finalists are measured again in
rounds shared with the vendor's call, after three runs whose results must agree bit by bit.
"""

from __future__ import annotations

import platform
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

import torch
import triton

from tunekit.compile_pool import CompilePool
from tunekit.config import Config
from tunekit.device import DeviceInfo, detect, driver_version
from tunekit.errors import TuneError
from tunekit.kernels import Family, Launch, Prepared, family
from tunekit.key import Problem
from tunekit.runner import Finals
from tunekit.space import Space
from tunekit.timing import PROTOCOL, Timer, summarize
from tunekit.trial import Measurement, Origin, Provenance, Status, Trial
from tunekit.version import VERSION

CUT_RATIO = 1.25
"""Screening ends after the first few launches of a config this much slower than the best so far."""

CUT_AFTER = 3
SCREEN_MS = 12.0
SCREEN_ROUNDS = (5, 21)
FINAL_MS = 250.0
FINAL_ROUNDS = (21, 81)
WARM_UP_MS = 30.0
PREPARED_SHARE = 4
"""Operands of several problems stay on the device, up to one part in this many of its memory."""


class GpuRunner:
    """Tries configs on the GPU with this index in this process."""

    origin = Origin.MEASURED

    def __init__(self, index: int = 0, *, workers: int | None = None, seed: int = 0) -> None:
        self.device: DeviceInfo = detect(index)
        self._index = index
        self._seed = seed
        self._pool = CompilePool(self.device, workers=workers)
        self._timer: Timer | None = None
        self._prepared: OrderedDict[Problem, Prepared] = OrderedDict()
        self._vendor: dict[Problem, Measurement] = {}
        self._fastest: dict[Problem, float] = {}
        self._driver = driver_version()

    def space(self, problem: Problem) -> Space:
        """Return every legal config of the problem on this GPU."""
        return family(problem.family).space(problem, self.device)

    def provenance(self, problem: Problem, config: Config) -> Provenance:
        """Say where a result of this config for this problem comes from."""
        return Provenance(
            fingerprint=family(problem.family).fingerprint(config.variant),
            protocol=PROTOCOL,
            tunekit=VERSION,
            triton=triton.__version__,
            torch=torch.__version__,
            driver=self._driver,
            device_name=self.device.name,
            created_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    def announce(self, work: Sequence[tuple[Problem, Config]]) -> None:
        """Start compiling what will be tried soon."""
        for problem, config in work:
            self._pool.submit(problem, config)

    def vendor(self, problem: Problem) -> Measurement | None:
        """Time the vendor's call alone, as a first yardstick; the finals measure it again."""
        if problem not in self._vendor:
            with torch.cuda.device(self._index):
                prepared = self._prepare(problem)
                launch = family(problem.family).vendor(prepared)
                launch()
                times = self._clock().rounds([launch], SCREEN_ROUNDS[1])[0]
                self._vendor[problem] = summarize(times, error_ratio=None)
        return self._vendor[problem]

    def screen(self, problem: Problem, configs: Sequence[Config]) -> Iterator[Trial]:
        """Try configs one after the other, giving each trial as it ends."""
        self.announce([(problem, config) for config in configs])
        for config in configs:
            compiled = self._pool.wait(problem, config)
            if compiled.status is not Status.OK:
                yield Trial(config, compiled.status, error=compiled.error)
                continue
            with torch.cuda.device(self._index):
                trial = self._try(problem, config)
            yield trial
            if trial.status is Status.LAUNCH_ERROR:
                self._check_device(config)

    def finals(self, problem: Problem, configs: Sequence[Config]) -> Finals:
        """Measure the finalists against each other and the vendor, in interleaved rounds."""
        kernels = family(problem.family)
        with torch.cuda.device(self._index):
            prepared = self._prepare(problem)
            ready: list[tuple[Config, Launch, float]] = []
            trials: list[Trial] = []
            for config in configs:
                outcome = self._checked(config, prepared, runs=3)
                if isinstance(outcome, Trial):
                    trials.append(outcome)
                else:
                    ready.append((config, *outcome))
            launches = [launch for _, launch, _ in ready] + [kernels.vendor(prepared)]
            times = self._final_rounds(launches)
        for (config, _, error_ratio), row in zip(ready, times, strict=False):
            measurement = summarize(row, error_ratio=error_ratio, final=True)
            trials.append(Trial(config, Status.OK, measurement))
        vendor = summarize(times[-1], error_ratio=None, final=True)
        self._vendor[problem] = vendor
        return Finals(tuple(trials), vendor)

    def close(self) -> None:
        """End the compile pool and free the device's memory."""
        self._pool.close()
        self._prepared.clear()
        self._timer = None
        torch.cuda.empty_cache()

    def _try(self, problem: Problem, config: Config) -> Trial:
        kernels = family(problem.family)
        try:
            outcome = self._verify(config, self._prepare(problem), runs=1)
            if isinstance(outcome, Trial):
                return outcome
            launch, error_ratio = outcome
            times = self._screening_times(problem, launch)
        except Exception as error:
            return _failed(kernels, config, error)
        return Trial(config, Status.OK, summarize(times, error_ratio=error_ratio))

    def _checked(
        self, config: Config, prepared: Prepared, *, runs: int
    ) -> Trial | tuple[Launch, float]:
        try:
            return self._verify(config, prepared, runs=runs)
        except Exception as error:
            return _failed(family(prepared.problem.family), config, error)

    def _verify(
        self, config: Config, prepared: Prepared, *, runs: int
    ) -> Trial | tuple[Launch, float]:
        """Run a config on a poisoned output; return its launch and error, or its failed trial."""
        kernels = family(prepared.problem.family)
        launch = kernels.launch(config, prepared)
        first = None
        for _ in range(runs):
            kernels.poison(prepared)
            launch()
            if first is None:
                ratio = kernels.error_ratio(prepared)
                if ratio > 1:
                    text = f"the result is off by {ratio:.3g} times the tolerance"
                    return Trial(config, Status.WRONG_RESULT, error=text)
                first = prepared.out.clone() if runs > 1 else prepared.out
            elif not torch.equal(first, prepared.out):
                text = "two runs on the same operands gave different bits"
                return Trial(config, Status.NOT_REPEATABLE, error=text)
        return launch, ratio

    def _screening_times(self, problem: Problem, launch: Launch) -> list[float]:
        timer = self._clock()
        times = timer.rounds([launch], CUT_AFTER)[0]
        median = sorted(times)[CUT_AFTER // 2]
        if median <= CUT_RATIO * self._fastest.get(problem, float("inf")):
            times += timer.rounds([launch], _rounds(median, SCREEN_MS, SCREEN_ROUNDS))[0]
            median = sorted(times)[len(times) // 2]
            self._fastest[problem] = min(median, self._fastest.get(problem, median))
        return times

    def _final_rounds(self, launches: Sequence[Launch]) -> list[list[float]]:
        timer = self._clock()
        timer.warm_up(launches[-1], WARM_UP_MS)
        one_round = sum(times[0] for times in timer.rounds(launches, 1))
        return timer.rounds(launches, _rounds(one_round, FINAL_MS, FINAL_ROUNDS), seed=self._seed)

    def _clock(self) -> Timer:
        if self._timer is None:
            self._timer = Timer(self.device, self._index)
        return self._timer

    def _prepare(self, problem: Problem) -> Prepared:
        prepared = self._prepared.pop(problem, None)
        if prepared is None:
            limit = self.device.memory_bytes // PREPARED_SHARE
            while self._prepared and torch.cuda.memory_allocated(self._index) > limit:
                self._prepared.popitem(last=False)
            prepared = family(problem.family).prepare(
                problem, self.device, index=self._index, seed=self._seed
            )
        self._prepared[problem] = prepared
        return prepared

    def _check_device(self, config: Config) -> None:
        """Raise if a fault left the process's GPU context unusable."""
        try:
            torch.cuda.synchronize(self._index)
        except RuntimeError as error:
            raise TuneError(
                f"{config} faulted on {platform.node()}'s cuda:{self._index} ({error}): finished"
                " trials are kept and this one is marked, run the same command again to go on"
            ) from error


def _failed(kernels: Family, config: Config, error: Exception) -> Trial:
    """Turn a config's own failure into its trial; raise any other error again."""
    failure = kernels.failure(error)
    if failure is None:
        raise error
    return Trial(config, failure[0], error=failure[1])


def _rounds(once_us: float, budget_ms: float, bounds: tuple[int, int]) -> int:
    least, most = bounds
    return max(least, min(most, int(budget_ms * 1000 / (once_us + 60))))
