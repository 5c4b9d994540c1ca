"""Trying configs on a GPU in this process: verify, then time.

A config is compared with the reference on a poisoned output before it is timed, and one that is
wrong is never timed at all. Screening stops early on losers. The finalists are measured again in
rounds shared with the vendor's call, after three runs whose results must agree bit by bit, and are
checked once more when they have run some hundred times. `tunekit.worker` runs this in a process of
its own, which a config may take along.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from tunekit.config import Config
from tunekit.finals import HEAT_PLACES, calm_rounds, heat
from tunekit.gpu_watch import GpuWatch
from tunekit.kernels import Family, Launch, Prepared, family
from tunekit.key import Problem
from tunekit.runner import DeviceLost, Finals
from tunekit.timing import MOST_MS, Gpu, Timer, quantile, rounds_for, summarize
from tunekit.trial import Measurement, Status, Trial
from tunekit.verification import changed_since, verify

CUT_RATIO = 1.25
"""Screening ends after the first few launches of a config this much slower than the best so far."""

CUT_AFTER = 3
SLOW_US = 50_000.0
"""A launch longer than this is not repeated for the sake of a count."""

SCREEN_MS = 12.0
SCREEN_ROUNDS = (5, 21)
PREPARED_SHARE = 4
"""Operands of several problems stay on the device, up to one part in this many of its memory."""

_T = TypeVar("_T")


class Measure:
    """Tries configs of problems, one at a time."""

    def __init__(
        self,
        gpu: Gpu,
        watch: GpuWatch,
        *,
        seed: int = 0,
        families: Callable[[str], Family] = family,
    ) -> None:
        self._gpu = gpu
        self._watch = watch
        self._seed = seed
        self._families = families
        self._timer: Timer | None = None
        self._prepared: OrderedDict[Problem, Prepared] = OrderedDict()
        self._fastest: dict[Problem, float] = {}
        self.time_s = 0.0
        """Seconds spent in timed launches so far."""

    def vendor(self, problem: Problem) -> Measurement | None:
        """Time the vendor's call alone; None if there is none, it fails, or memory is short."""
        kernels = self._families(problem.family)

        def timed() -> list[float] | None:
            launch = kernels.vendor(self._prepare(problem))
            if launch is None:
                return None
            launch()
            return self._screening_times(launch, None)

        try:
            with self._gpu.use():
                times = self._with_room(timed)
        except Exception as error:
            self._failed(problem, (), error)
            return None
        return None if times is None else summarize(times, error_ratio=None)

    def screen(self, problem: Problem, config: Config) -> Trial:
        """Verify a config and, if it is right, time it until it is clearly slow or well known.

        Raises:
            DeviceLost: it made the GPU unusable for this process.
        """
        kernels = self._families(problem.family)

        def tried() -> Trial | tuple[list[float], float]:
            outcome = verify(kernels, config, self._prepare(problem), runs=1)
            if isinstance(outcome, Trial):
                return outcome
            launch, error_ratio = outcome
            return self._screening_times(launch, problem), error_ratio

        try:
            with self._gpu.use():
                outcome = self._with_room(tried)
        except Exception as error:
            return self._failed(problem, (config,), error)[0]
        if isinstance(outcome, Trial):
            return outcome
        times, error_ratio = outcome
        seen = self._watch.seen(fresh=False)
        measurement = summarize(
            times, error_ratio=error_ratio, contended=seen.contended, throttled=seen.throttled
        )
        return Trial(config, Status.OK, measurement)

    def finals(
        self,
        problem: Problem,
        configs: Sequence[Config],
        *,
        trying: Callable[[Config | None], None] = lambda config: None,
    ) -> Finals:
        """Measure configs against each other and the vendor, in interleaved rounds.

        The configs come best first. Of more than a few, only those take part that are the fastest
        in a heat; of the others nothing is said.

        `trying` is told which config runs next, and None when all of them are timed together. What
        was disturbed is measured again once; if it is again, the measurements say so.

        Raises:
            DeviceLost: one of them made the GPU unusable for this process.
        """
        try:
            with self._gpu.use():
                return self._finals(problem, configs, trying)
        except DeviceLost:
            raise
        except Exception as error:
            return Finals(tuple(self._failed(problem, configs, error)), None)

    def close(self) -> None:
        """Free the device's memory."""
        self._prepared.clear()
        self._timer = None
        self._gpu.release()

    def _finals(
        self,
        problem: Problem,
        configs: Sequence[Config],
        trying: Callable[[Config | None], None],
    ) -> Finals:
        prepared = self._with_room(lambda: self._prepare(problem))
        ready: list[tuple[Config, Launch, float]] = []
        trials: list[Trial] = []
        for config in self._heat(configs, prepared, trials, trying):
            trying(config)
            outcome = self._own(config, prepared, verify, runs=3)
            if isinstance(outcome, Trial):
                trials.append(outcome)
            else:
                ready.append((config, *outcome))
        if not ready:
            return Finals(tuple(trials), None)
        trying(None)
        vendor = self._families(problem.family).vendor(prepared)
        launches = [launch for _, launch, _ in ready] + ([] if vendor is None else [vendor])
        rows, seen = self._timed(calm_rounds, self._watch, launches)
        marks = {"contended": seen.contended, "throttled": seen.throttled}
        for (config, launch, error_ratio), row in zip(ready, rows, strict=False):
            trying(config)
            failure = self._own(config, prepared, changed_since, launch, error_ratio)
            measurement = summarize(row, error_ratio=error_ratio, final=True, **marks)
            trials.append(failure or Trial(config, Status.OK, measurement))
        if vendor is None:
            return Finals(tuple(trials), None)
        return Finals(tuple(trials), summarize(rows[-1], error_ratio=None, final=True, **marks))

    def _heat(
        self,
        configs: Sequence[Config],
        prepared: Prepared,
        failed: list[Trial],
        trying: Callable[[Config | None], None],
    ) -> list[Config]:
        """Return the configs that go on, and add to `failed` what cannot be launched any more."""
        if len(configs) <= HEAT_PLACES:
            return list(configs)
        ready: list[tuple[Config, Launch]] = []
        for config in configs:
            trying(config)
            launch = self._own(config, prepared, _launched)
            if isinstance(launch, Trial):
                failed.append(launch)
            else:
                ready.append((config, launch))
        trying(None)
        places = self._timed(heat, [launch for _, launch in ready])
        return [ready[place][0] for place in places]

    def _timed(self, rounds: Callable[..., _T], *what: Any) -> _T:
        """Return what the rounds of a heat or of finals say, and book the time they take."""
        began = time.perf_counter()
        found = rounds(self._clock(), *what, seed=self._seed)
        self.time_s += time.perf_counter() - began
        return found

    def _own(
        self,
        config: Config,
        prepared: Prepared,
        check: Callable[..., _T],
        *rest: Any,
        **settings: Any,
    ) -> _T | Trial:
        """Return what a check of a config says, or its failed trial if it raised."""
        kernels = self._families(prepared.problem.family)
        try:
            return check(kernels, config, prepared, *rest, **settings)
        except Exception as error:
            return self._failed(prepared.problem, (config,), error)[0]

    def _failed(self, problem: Problem, configs: Sequence[Config], error: Exception) -> list[Trial]:
        """Turn an error that is configs' own into their trials; raise any other again.

        Raises:
            DeviceLost: the error left the context unusable.
        """
        failure = self._families(problem.family).failure(error)
        if failure is None:
            raise error
        trials = [Trial(config, failure[0], error=failure[1]) for config in configs]
        if failure[0] is Status.LAUNCH_ERROR:
            try:
                self._gpu.synchronize()
            except RuntimeError:
                raise DeviceLost(trials[0] if len(trials) == 1 else None) from error
        return trials

    def _screening_times(self, launch: Launch, problem: Problem | None) -> list[float]:
        """Time a launch a few times, and more often if it may be the problem's fastest."""
        began = time.perf_counter()
        timer = self._clock()
        times = timer.rounds([launch], 1)[0]
        if times[0] <= SLOW_US:
            times += timer.rounds([launch], CUT_AFTER - 1)[0]
        median = quantile(sorted(times), 0.5)
        fastest = float("inf") if problem is None else self._fastest.get(problem, float("inf"))
        if median <= CUT_RATIO * fastest:
            more = rounds_for(median, SCREEN_MS, SCREEN_ROUNDS, most_ms=MOST_MS[0])
            times += timer.rounds([launch], more)[0]
            if problem is not None:
                self._fastest[problem] = min(quantile(sorted(times), 0.5), fastest)
        self.time_s += time.perf_counter() - began
        return times

    def _clock(self) -> Timer:
        if self._timer is None:
            self._timer = self._gpu.timer()
            self._watch.has_context()
        return self._timer

    def _with_room(self, work: Callable[[], _T]) -> _T:
        """Do something that takes memory; if there is too little, free all there is and try again.

        So a problem that fits is tried, and one that does not is out of memory on its own account.
        """
        try:
            return work()
        except torch.cuda.OutOfMemoryError:
            pass  # leave the handler first: its traceback holds the tensors
        self._prepared.clear()
        self._gpu.release()
        return work()

    def _prepare(self, problem: Problem) -> Prepared:
        self._clock()  # the flush is small and comes first, so that no problem leaves it no room
        prepared = self._prepared.pop(problem, None)
        if prepared is None:
            limit = self._gpu.device.memory_bytes // PREPARED_SHARE
            while self._prepared and self._gpu.allocated_bytes() > limit:
                self._prepared.popitem(last=False)
            prepared = self._families(problem.family).prepare(
                problem, self._gpu.device, index=self._gpu.index, seed=self._seed
            )
        self._prepared[problem] = prepared
        return prepared


def _launched(kernels: Family, config: Config, prepared: Prepared) -> Launch:
    launch = kernels.launch(config, prepared)
    launch()
    return launch
