"""Time configs of a problem against each other and the vendor, all in the same rounds.

The finals of a tune let go of who is beaten; where times are compared by a percent or less, all
have to run as often and as late. For the other scripts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tunekit.config import Config
from tunekit.device import detect
from tunekit.kernels import Launch, family
from tunekit.key import Problem
from tunekit.replay import ReplayRunner
from tunekit.runner import Runner
from tunekit.timing import Timer, quantile

ROUNDS = 101
WARM_UP_MS = 30.0


class Interleaved:
    """Times what it is given on the GPU of that name; in a replay it says what was recorded."""

    def __init__(self, device: str, runner: Runner) -> None:
        self._runner = runner
        self._index = int(device.partition(":")[2] or 0) if device.startswith("cuda") else 0
        self._timer: Timer | None = None

    def us(
        self, problem: Problem, configs: Sequence[Config]
    ) -> tuple[dict[Config, float], float | None]:
        """Return the median time of each config, in microseconds, and of the vendor's call.

        Raises:
            SystemExit: one of them fails, or gives a wrong result.
        """
        if isinstance(self._runner, ReplayRunner):
            return self._recorded(problem, configs)
        with torch.cuda.device(self._index):
            return self._timed(problem, configs)

    def _timed(
        self, problem: Problem, configs: Sequence[Config]
    ) -> tuple[dict[Config, float], float | None]:
        info = detect(self._index)
        kernels = family(problem.family)
        prepared = kernels.prepare(problem, info, index=self._index, seed=1)
        launches: list[Launch] = []
        for config in configs:
            kernels.poison(prepared)
            launch = kernels.launch(config, prepared)
            launch()
            if not kernels.error_ratio(prepared) <= 1:
                raise SystemExit(f"{config} is wrong for {problem}")
            launches.append(launch)
        launches.append(kernels.vendor(prepared))
        if self._timer is None:
            self._timer = Timer(info, self._index)
        self._timer.warm_up(launches[-1], WARM_UP_MS)
        rows = self._timer.rounds(launches, ROUNDS)
        medians = [quantile(sorted(row), 0.5) for row in rows]
        return dict(zip(configs, medians, strict=False)), medians[-1]

    def _recorded(
        self, problem: Problem, configs: Sequence[Config]
    ) -> tuple[dict[Config, float], float | None]:
        found = {}
        for _, trial in self._runner.screen([(problem, config) for config in configs]):
            if trial.measurement is None:
                raise SystemExit(f"{trial.config} failed for {problem}: {trial.error}")
            found[trial.config] = trial.measurement.median_us
        vendor = self._runner.vendor(problem)
        return found, None if vendor is None else vendor.median_us
