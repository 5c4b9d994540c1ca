"""Implements `Runner` by many workers, and has their leases for the run's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Protocol

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import TunekitError
from tunekit.fleet.identity import provenance
from tunekit.fleet.jobs import Job
from tunekit.fleet.squad import Squad
from tunekit.kernels import family
from tunekit.key import Problem, TuningKey
from tunekit.runner import Finals
from tunekit.space import Space
from tunekit.spent import Spent
from tunekit.trial import Measurement, Origin, Provenance, Trial

ACCOUNT_S = 10.0


class LeaseLost(TunekitError):
    """Another run has taken a key, because the lease of the worker that had it was over."""


class Ground(Protocol):
    """What is known of the workers' GPU where there may be none."""

    @property
    def device(self) -> DeviceInfo:
        """The GPU whose kind the results are for."""

    @property
    def origin(self) -> Origin:
        """`MEASURED`, or `REPLAYED` where nothing is measured."""

    def space(self, problem: Problem) -> Space:
        """Return the configs that can be tried for a problem."""

    def provenance(self, problem: Problem, config: Config) -> Provenance:
        """Say where a result of this config for this problem comes from."""


class MeasuredElsewhere:
    """A GPU that workers have, and this process need not see."""

    origin = Origin.MEASURED

    def __init__(self, device: DeviceInfo, driver: str, made_by: Mapping[str, str]) -> None:
        """`made_by` is what a worker says its results depend on: so no kernel is loaded here."""
        self.device = device
        self._driver = driver
        self._made_by = made_by

    def space(self, problem: Problem) -> Space:
        """Return every legal config of the problem on this GPU."""
        return family(problem.family).space(problem, self.device)

    def provenance(self, problem: Problem, config: Config) -> Provenance:
        """Say where a result of this config for this problem comes from."""
        return provenance(self._made_by, config, self.device, self._driver)


class FleetRunner:
    """The workers of a run on one kind of GPU. What it gives is in the store already.

    What is announced is begun as soon as a worker has nothing else to do, and `screen` only hands
    it over: so no worker waits for the slowest of a round. Finals of several keys may be asked for
    at once, from several threads.
    """

    def __init__(self, squad: Squad, ground: Ground, close: Callable[[], None]) -> None:
        self.claims = FleetClaims(squad)
        self._squad = squad
        self.ground = ground
        self._close = close
        self._begun: dict[TuningKey, Job] = {}
        self._made: dict[tuple[Problem, Config], Provenance] = {}
        self._untaken: list[tuple[Problem, Trial]] = []

    @property
    def width(self) -> int:
        """How many workers there are now."""
        return max(1, self._squad.size)

    @property
    def device(self) -> DeviceInfo:
        """The GPU whose kind the results are for."""
        return self.ground.device

    @property
    def origin(self) -> Origin:
        """`MEASURED`, or `REPLAYED` where nothing is measured."""
        return self.ground.origin

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Have the workers enumerate spaces, where they have to be."""
        if self.origin is Origin.MEASURED:
            self._squad.outline(problems)

    def space(self, problem: Problem) -> Space:
        """Return the configs that can be tried for a problem."""
        return self._squad.outlined(problem) or self.ground.space(problem)

    def provenance(self, problem: Problem, config: Config) -> Provenance:
        """Say where a result comes from: of a finalist, what its worker said."""
        made = self._made.get((problem, config))
        return made or self.ground.provenance(problem, config)

    def announce(self, work: Sequence[tuple[Problem, Config]]) -> None:
        """Have configs tried, if the run has their keys: it is going to ask for all of them."""
        for key, configs in self._by_key(work).items():
            if self._squad.holds(key):
                self._begun[key] = self._squad.begin(key, configs)

    def vendor(self, problem: Problem) -> Measurement | None:
        """Return the vendor's first time, once a worker has said it."""
        return self._squad.vendor(problem)

    def screen(self, work: Sequence[tuple[Problem, Config]]) -> Iterator[tuple[Problem, Trial]]:
        """Give the trials as they end. Those of a key that another run has taken do not come."""
        jobs: set[Job] = set()
        for key, configs in self._by_key(work).items():
            job = self._begun.get(key)
            if job is None or job.lost or not set(configs) <= set(job.configs):
                job = self._begun[key] = self._squad.begin(key, configs)
            self._squad.ask(job)
            jobs.add(job)
        try:
            while (found := self._squad.next_trial(jobs)) is not None:
                yield found
        finally:
            self._untaken = self._squad.give_up(jobs)

    def add(self, work: Sequence[tuple[Problem, Config]]) -> None:
        """Do the same as `announce`."""
        self.announce(work)

    def untaken(self) -> list[tuple[Problem, Trial]]:
        """Return the trials that had ended and nobody had taken."""
        untaken, self._untaken = self._untaken, []
        return untaken

    def has_time(self) -> bool:
        """Say that there is time: each worker sees for itself when it measures finalists."""
        return True

    def finals(self, problem: Problem, configs: Sequence[Config]) -> Finals:
        """Have a worker measure the finalists.

        Raises:
            LeaseLost: another run has taken the key.
        """
        key = TuningKey.of(problem, self.device.slug)
        self._begun.pop(key, None)
        job = self._squad.measure(key, tuple(configs))
        if job.finals is None:
            raise LeaseLost(f"another run has taken {key}")
        self._made |= {(problem, config): made for config, made in job.made.items()}
        return job.finals

    def spent(self) -> Spent:
        """Return where the time of all workers together went."""
        accounts = self._squad.accounts(ACCOUNT_S)
        names = [field.name for field in fields(Spent)]
        return Spent(**{name: sum(getattr(a, name) for a in accounts) for name in names})

    def close(self) -> None:
        """End the workers."""
        self._close()

    def _by_key(
        self, work: Sequence[tuple[Problem, Config]]
    ) -> dict[TuningKey, tuple[Config, ...]]:
        found: dict[Problem, list[Config]] = {}
        for problem, config in work:
            found.setdefault(problem, []).append(config)
        slug = self.device.slug
        return {TuningKey.of(problem, slug): tuple(c) for problem, c in found.items()}


class FleetClaims:
    """The keys of a run, which its workers have leased: what `Claims` is to a run of one."""

    def __init__(self, squad: Squad) -> None:
        self._squad = squad
        self._held: set[TuningKey] = set()

    def take(self, keys: Collection[TuningKey]) -> set[TuningKey]:
        """Have workers lease keys, and return those that they got."""
        taken = self._squad.take(keys)
        self._held |= taken
        return taken

    def holds(self, key: TuningKey) -> bool:
        """Say whether a key is still this run's."""
        return self._squad.holds(key)

    def give_back(self, keys: Collection[TuningKey]) -> None:
        """Let others have keys."""
        self._held -= set(keys)
        self._squad.give_back(keys)

    def close(self) -> None:
        """Let others have every key."""
        self.give_back(list(self._held))
