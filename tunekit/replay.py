"""Replay: a runner that answers from a recording. Nothing is measured and nothing waits.

What it answers is labelled `REPLAYED` and carries the device, versions and kernel sources of the
recording, so a row always says where its times were taken.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import RecordingError
from tunekit.kernels import current_fingerprint, unsupported
from tunekit.key import Problem
from tunekit.recording import RecordedProblem, Recording
from tunekit.runner import Finals
from tunekit.space import Space
from tunekit.spent import Spent
from tunekit.trial import Measurement, Origin, Provenance, Status, Trial

_SHOWN = 4


def shipped_recordings() -> list[Path]:
    """Return the recordings that come with tunekit, by name."""
    folder = Path(str(files("tunekit.recordings")))
    return sorted(folder.glob("*.json.gz"))


def current_source(family_name: str, variant: str) -> str | None:
    """Return the source hash of a kernel variant as installed, or None if there is none."""
    found = current_fingerprint(family_name, variant)
    return None if found is None else found.source


class ReplayRunner:
    """Implements `Runner` from a recording."""

    def __init__(
        self,
        recording: Recording,
        *,
        source: Callable[[str, str], str | None] = current_source,
    ) -> None:
        self._recording = recording
        self._source = source
        self._work: deque[tuple[Problem, Config]] = deque()

    @property
    def device(self) -> DeviceInfo:
        """The device the recording was made on."""
        return self._recording.device

    @property
    def origin(self) -> Origin:
        """`REPLAYED`."""
        return Origin.REPLAYED

    @property
    def stale(self) -> tuple[str, ...]:
        """Variants whose kernel is no longer the one that was recorded."""
        families = sorted({problem.family for problem in self._recording.problems})
        return tuple(
            variant
            for variant, recorded in sorted(self._recording.sources.items())
            if all(self._source(name, variant) != recorded for name in families)
        )

    def recorded(self, problem: Problem) -> RecordedProblem:
        """Return what was recorded for a problem.

        Raises:
            RecordingError: nothing was.
        """
        found = self._recording.problems.get(problem)
        if found is None:
            raise RecordingError(self._not_recorded(problem))
        return found

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Do nothing: the spaces are in the recording."""

    def space(self, problem: Problem) -> Space:
        """Return the configs recorded for a problem.

        Raises:
            RecordingError: the problem was not recorded.
        """
        return Space(problem, self.device, tuple(self.recorded(problem).screening))

    def provenance(self, problem: Problem, config: Config) -> Provenance:
        """Say where the recorded result was measured; its origin is `REPLAYED`."""
        return self._recording.provenance(config)

    def announce(self, work: Sequence[tuple[Problem, Config]]) -> None:
        """Do nothing: there is nothing to compile."""

    def vendor(self, problem: Problem) -> Measurement | None:
        """Give the vendor's recorded time."""
        return self.recorded(problem).vendor

    def screen(self, work: Sequence[tuple[Problem, Config]]) -> Iterator[tuple[Problem, Trial]]:
        """Give the recorded trials, in the order asked for."""
        self._work = deque(work)
        while self._work:
            problem, config = self._work.popleft()
            yield problem, self._trial(self.recorded(problem), config)

    def add(self, work: Sequence[tuple[Problem, Config]]) -> None:
        """Give the recorded trials of these too."""
        self._work.extend(work)

    def untaken(self) -> list[tuple[Problem, Trial]]:
        """Return nothing: each trial is looked up when it is asked for."""
        return []

    def has_time(self) -> bool:
        """Say that there is time: looking up takes none."""
        return True

    def finals(self, problem: Problem, configs: Sequence[Config]) -> Finals:
        """Give the recorded finals, of those configs that were in them.

        The others were slower when all were screened, and finals ran on a hotter card: the two are
        not to be compared. Where no config was in the finals, all answer with their screening.
        """
        found = self.recorded(problem)
        trials = [found.finals[c] for c in configs if c in found.finals]
        if not any(trial.status is Status.OK for trial in trials):
            trials = [found.finals.get(c) or self._trial(found, c) for c in configs]
        return Finals(tuple(map(_as_final, trials)), found.vendor)

    def spent(self) -> Spent:
        """Say that no time was spent: nothing is measured."""
        return Spent()

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _not_recorded(self, problem: Problem) -> str:
        reason = unsupported(problem)
        if reason is not None:
            return f"{problem}: {reason}"
        near = sorted(self._recording.problems, key=lambda p: (_distance(p, problem), p))
        shown = ", ".join(map(str, near[:_SHOWN])) or "nothing"
        more = len(near) - _SHOWN
        return (
            f"{problem} is not in the recording made on {self.device.name},"
            f" which holds {shown}{f' and {more} more' if more > 0 else ''}:"
            " tune one of those, or this with --device cuda on a GPU"
        )

    def _trial(self, found: RecordedProblem, config: Config) -> Trial:
        trial = found.screening.get(config)
        if trial is None:
            raise RecordingError(f"{config} was not recorded for {found.problem}")
        return trial


def _as_final(trial: Trial) -> Trial:
    if trial.measurement is None:
        return trial
    return replace(trial, measurement=replace(trial.measurement, final=True))


def _distance(one: Problem, other: Problem) -> float:
    """Order problems by how alike they are: the same kind first, then sizes in octaves."""
    names = ("family", "dtype", "layout", "precision", "out_dtype", "batch", "aligned", "scaling")
    kinds = len([name for name in names if getattr(one, name) != getattr(other, name)])
    ratios = (one.m / other.m, one.n / other.n, one.k / other.k)
    return 100.0 * kinds + sum(abs(math.log2(ratio)) for ratio in ratios)
