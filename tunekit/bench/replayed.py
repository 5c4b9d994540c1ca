"""Times out of a recording: nothing is measured, and only what was recorded can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunekit.bench.results import TORCH, TUNEKIT, Ceilings, Timed
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import RecordingError
from tunekit.key import Problem
from tunekit.replay import ReplayRunner
from tunekit.trial import Measurement, Origin


class ReplayTimes:
    """Implements `Times` from a recording."""

    def __init__(self, runner: ReplayRunner, problems: Iterable[Problem]) -> None:
        """Take the problems that are going to be asked for.

        Raises:
            RecordingError: one of them was not recorded.
        """
        self._runner = runner
        self._recorded = {problem: runner.recorded(problem) for problem in problems}

    @property
    def device(self) -> DeviceInfo:
        """The GPU the recording was made on."""
        return self._runner.device

    @property
    def origin(self) -> Origin:
        """`REPLAYED`."""
        return Origin.REPLAYED

    @property
    def protocol(self) -> str:
        """How the recording was measured."""
        vendors = (found.vendor for found in self._recorded.values())
        return next((vendor.protocol for vendor in vendors if vendor is not None), "unknown")

    def time(self, problem: Problem, config: Config | None, against: Sequence[str]) -> Timed:
        """Give the recorded times of a config, or of the vendor's call for None, and the vendor's.

        Raises:
            RecordingError: another comparison is asked for than with torch.
        """
        others = sorted(set(against) - {TORCH})
        if others:
            raise RecordingError(
                f"a recording has no times of {', '.join(others)}: compare with torch, or measure"
                " with --device cuda on a GPU"
            )
        found = self._recorded[problem]
        ours = found.vendor if config is None else self._config_time(problem, config)
        times: dict[str, Measurement] = {}
        left_out: dict[str, str] = {}
        if ours is None:
            left_out[TUNEKIT] = f"{config or 'the vendor'} was not recorded for {problem}"
        else:
            times[TUNEKIT] = ours
        if TORCH in against and found.vendor is not None:
            times[TORCH] = found.vendor
        elif TORCH in against:
            left_out[TORCH] = f"the vendor was not recorded for {problem}"
        return Timed(times, left_out)

    def _config_time(self, problem: Problem, config: Config) -> Measurement | None:
        """Return a config's final time, else that of its screening (on a cooler card)."""
        found = self._recorded[problem]
        trial = found.finals.get(config) or found.screening.get(config)
        return None if trial is None else trial.measurement

    def ceilings(self, dtypes: Iterable[str]) -> Ceilings:
        """Return the highest rates that any vendor time of the recorded problems reaches."""
        wanted = set(dtypes)
        rate, tflops = 0.0, dict.fromkeys(sorted(wanted), 0.0)
        for problem, found in self._recorded.items():
            times = [t.measurement for t in found.finals.values()] + [found.vendor]
            for us in (measured.median_us for measured in times if measured is not None):
                rate = max(rate, problem.min_bytes / us / 1e3)
                tflops[problem.dtype] = max(tflops[problem.dtype], problem.flops / us / 1e6)
        return Ceilings(rate, tflops)
