"""Which workers a run has, of this host or of a Ray cluster, and starting them.

It comes before all else and loads next to nothing: a worker takes seconds to load what it needs,
and meanwhile the process that leads the run loads what that needs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunekit.cache import default_location
from tunekit.cores import cores
from tunekit.device import cuda_expected, gpu_count
from tunekit.errors import DeviceError
from tunekit.fleet.crews import Crew, Processes
from tunekit.fleet.post import Post
from tunekit.fleet.ray_crew import LOCAL, RayCrew
from tunekit.key import Problem
from tunekit.trial import Origin

if TYPE_CHECKING:
    from tunekit.runner import Runner

_log = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""How long the first worker waits for the others of its host."""

CLUSTER_PATIENCE_S = 10.0
"""How long it waits for those of a cluster: who comes later gets work then."""

MOST_REPLAYING = 256
"""Processes of one host that replay. Each is a Python with torch in it, and starts in a second or
two of a core's time."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What workers a run is to have."""

    workers: int | None = None
    """None is one for each GPU, or for each core where nothing is measured."""
    ray: str | None = None
    """The address of a Ray cluster, `local` to start one, or None for processes of this host."""

    @property
    def patience_s(self) -> float:
        """How long to wait for the others once the first worker is there."""
        return PATIENCE_S if self.ray in (None, LOCAL) else CLUSTER_PATIENCE_S


@dataclass(frozen=True, slots=True)
class Hired:
    """Workers that are starting, with nobody to hear them yet."""

    crew: Crew
    device: str
    """What each opens: `cuda`, or what it replays."""
    place: str
    """The store that they share."""
    patience_s: float

    @property
    def origin(self) -> Origin:
        """Where what they find comes from."""
        return Origin.REPLAYED if self.device.startswith("replay") else Origin.MEASURED

    def close(self) -> None:
        """End them."""
        self.crew.close()


def start(
    open_runner: Callable[..., Runner], device: str, cache: str | Path | None,
    wanted: Wanted | None, *, seed: int = 0, problems: Sequence[Problem] = (),
) -> Runner | Hired:  # fmt: skip
    """Open a device in this process or, if workers are wanted, start those; to be closed.

    The spaces of `problems` are enumerated while the caller does something else.

    Raises:
        TunekitError: there is no such device or recording; or as `hire`.
    """
    if wanted is None:
        runner = open_runner(device, seed=seed)
        if problems:
            runner.prepare(problems)
        return runner
    return hire(open_runner, device, cache, wanted, seed=seed, problems=problems)


def hire(
    open_runner: Callable[..., Runner], device: str, cache: str | Path | None, wanted: Wanted,
    *, seed: int = 0, problems: Sequence[Problem] = (),
) -> Hired:  # fmt: skip
    """Start workers. The store is not opened, nor made, before a key is leased.

    Raises:
        DeviceError: there is no such device, or it names one GPU.
        TuneError: this host cannot have so many, Ray is not installed, or its cluster cannot be
            reached.
    """
    if re.fullmatch("cuda:[0-9]+", device):
        raise DeviceError(
            f"{device} is one GPU, which has one worker: use --device cuda for all of them"
        )
    if device not in ("auto", "cuda") and device.partition(":")[0] != "replay":
        open_runner(device)  # says that there is no such device
    place = _absolute(cache)
    if wanted.ray is not None:
        joined = RayCrew(
            open_runner, device, place, address=wanted.ray, workers=wanted.workers, seed=seed
        )
        return Hired(joined, joined.device, place, wanted.patience_s)
    if device == "auto":
        device = "cuda" if cuda_expected() else "replay"
    if device == "cuda":
        posts = _posts_on_gpus(open_runner, place, wanted.workers, seed, problems)
    else:
        posts = [Post(open_runner, device, place, seed)] * _replaying(wanted.workers)
    crew = Processes(posts)
    crew.begin()
    return Hired(crew, device, place, wanted.patience_s)


def _replaying(workers: int | None) -> int:
    """Return how many processes replay: a core of each is best, and a host bears only so many."""
    if workers is not None and workers > MOST_REPLAYING:
        _log.warning(
            "%d workers were asked for and one host replays with %d at most: as many work",
            workers, MOST_REPLAYING,
        )  # fmt: skip
    return min(workers or cores(), MOST_REPLAYING)


def _posts_on_gpus(
    open_runner: Callable[..., Runner], place: str, workers: int | None, seed: int,
    problems: Sequence[Problem],
) -> list[Post]:  # fmt: skip
    there = gpu_count()
    if workers is not None and workers > there:
        _log.warning(
            "%d workers were asked for and there are %d GPUs: as many work", workers, there
        )
    count = min(there, workers or there)
    # Together they have no more compilers than there are cores: with more, each compilation takes
    # longer, and a round of the search ends with its slowest.
    compilers = max(1, cores() // count)
    return [
        Post(open_runner, f"cuda:{i}", place, seed, compilers, tuple(problems[i::count]))
        for i in range(count)
    ]


def _absolute(cache: str | Path | None) -> str:
    place = default_location() if cache is None else str(cache)
    return place if "://" in place else str(Path(place).absolute())
