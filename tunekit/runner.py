"""How a config becomes a trial: the protocol that measuring and replay both keep.

The tuner knows a `Runner` and nothing of GPUs or recordings, so the whole flow runs, and is tested,
without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import ConfigError, RecordingError
from tunekit.key import Problem
from tunekit.space import Space
from tunekit.spent import Spent
from tunekit.trial import Measurement, Origin, Provenance, Trial


@dataclass(frozen=True, slots=True)
class Finals:
    """The finalists and the vendor's call, measured again in the same interleaved rounds."""

    trials: tuple[Trial, ...]
    vendor: Measurement | None


class DeviceLost(Exception):
    """A fault has made this process's context on the GPU unusable; `trial` says which config's."""

    def __init__(self, trial: Trial | None) -> None:
        super().__init__(trial)
        self.trial = trial


def known_provenance(runner: Runner, problem: Problem, config: Config) -> Provenance | None:
    """Say where a result would come from, or None of a variant that the runner does not know.

    As of a row in a cache that another version of tunekit has written to.
    """
    try:
        return runner.provenance(problem, config)
    except (ConfigError, RecordingError):
        return None


class Runner(Protocol):
    """Tries configs of problems on one device, real or recorded. Not thread-safe."""

    @property
    def device(self) -> DeviceInfo:
        """The device whose kind the results are for."""

    @property
    def origin(self) -> Origin:
        """`MEASURED`, or `REPLAYED` where nothing is measured."""

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Tell which problems' spaces will be asked for soon. Does not wait."""

    def space(self, problem: Problem) -> Space:
        """Return the configs that can be tried for a problem.

        Raises:
            TunekitError: the problem cannot be tried here at all.
        """

    def provenance(self, problem: Problem, config: Config) -> Provenance:
        """Say where a result of this config for this problem comes from."""

    def announce(self, work: Sequence[tuple[Problem, Config]]) -> None:
        """Tell what will be tried soon, so that it can be compiled meanwhile. Does not wait.

        May be called from another thread than the rest.
        """

    def vendor(self, problem: Problem) -> Measurement | None:
        """Return a first time of the vendor's call alone; the finals measure it again."""

    def screen(self, work: Sequence[tuple[Problem, Config]]) -> Iterator[tuple[Problem, Trial]]:
        """Try configs one at a time, giving each trial as it ends: whatever is ready comes first.

        A failing config is a trial with its status; only a fault of the run itself raises.
        """

    def add(self, work: Sequence[tuple[Problem, Config]]) -> None:
        """Have the screening that is under way try more. For the thread that takes its trials."""

    def untaken(self) -> list[tuple[Problem, Trial]]:
        """Give up a screening, and return the trials that had ended and nobody had taken."""

    def has_time(self) -> bool:
        """Say whether nothing is to be measured now: what is being screened is still compiled."""

    def finals(self, problem: Problem, configs: Sequence[Config]) -> Finals:
        """Measure the finalists against each other and the vendor, in interleaved rounds.

        The configs come best first. Of many, those that are soon seen to be slower may be left out
        of the answer.
        """

    def spent(self) -> Spent:
        """Return where the time went since this runner was opened."""

    def close(self) -> None:
        """Release the device and end the helpers."""


MOST_HELD = 8
"""Finals that wait while there are configs to try. Those are tried first, for what they say decides
what is compiled next, and compilers must not wait for finals, which nothing depends on."""


def are_finals_due(runner: Runner, held: int) -> bool:
    """Say whether the first of so many finals that are held is to be measured now."""
    return held > MOST_HELD or (held > 0 and runner.has_time())
