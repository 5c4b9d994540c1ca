"""What is known of other problems, and the forest that learns from it.

Times of different problems cannot be compared, so each trial counts as its slowdown: the logarithm
of its time over the best of its problem. The roofline would be the other yardstick; measured
against the recordings it ranks worse, for a forest then spends its splits on why one problem lies
further from the roofline than another.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import Problem
from tunekit.search.features import Matrix, roofline_us
from tunekit.search.forest import TREES, Columns, Forest, Grow, Subject
from tunekit.trial import Status, Trial

WORST = 0.7
"""A slowdown counts as at most this, twice as slow: a slow outlier says no more than a slow one."""

MAX_ROWS = 3000
"""Rows the forest is grown on; of each problem the fastest half of its share, and others."""

FEWEST = 4
"""Trials that a problem must have to say what is slow for it."""

_NEWS = 0.05
"""Share of the trials that must be new before the forest is grown again."""
_IMPOSSIBLE = 0.25
"""No kernel takes this part of the roofline's time: such a time was not of this product."""

_OWN_FAULT = frozenset(
    {Status.COMPILE_ERROR, Status.OUT_OF_RESOURCES, Status.WRONG_RESULT, Status.NOT_REPEATABLE}
)
"""Failures a config is to blame for. The others may be the machine's."""


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What a forest is grown on of one subject."""

    made_of: tuple[DeviceInfo, Columns, tuple[Config, ...]]
    """What the rows of features depend on, besides the problem."""
    rows: Matrix
    slowdowns: Matrix


_Known = Mapping[Subject, Mapping[Config, float]]


class Experience:
    """Trials of many problems. The forest it gives depends on which, not on their order.

    Trials that would mislead do not count: failures that may be the machine's, results that were
    not verified, times that were contended or that no kernel could take.

    What is noted is seen when it is settled, not before. So all who ask between two calls of
    `settle` or `turn` are told the same, however their own trials come in; any thread may note and
    ask.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        trees: int = TREES,
        max_rows: int = MAX_ROWS,
        grow: Grow | None = None,
    ) -> None:
        """`grow` grows forests elsewhere, as `Forest.grow` does here."""
        self._seed = seed
        self._grow_forest = grow
        self._trees = trees
        self._max_rows = max_rows
        self._devices: dict[str, DeviceInfo] = {}
        self._times: dict[Subject, dict[Config, float]] = {}
        self._settled: int | None = None
        """How many trials were there when it was settled last."""
        self._known: _Known = {}
        """What was settled of subjects with enough trials, in order: replaced, never changed."""
        self._forest: Future[Forest] | None = None
        """Of what is known; it grows when it is first asked for, or when it was coming."""
        self._coming: tuple[_Known, Future[Forest] | None] | None = None
        """What the next turn lets be seen, and its forest."""
        self._growing = ThreadPoolExecutor(1, "tunekit-forest")
        self._grown: dict[Subject, _Rows] = {}
        """What the last forest was grown on, for the next one: most subjects have nothing new."""
        self._lock = threading.Lock()
        """Of all of these but the last, which is of the thread that grows. Growing takes long
        enough that nobody who notes a trial should wait for it."""

    def note(
        self, problem: Problem, device: DeviceInfo, trials: Iterable[Trial], *, made_with: str = ""
    ) -> None:
        """Take in trials of a problem; a config tried again is known by its last trial.

        `made_with` sets apart what cannot be compared, such as trials under another compiler.
        """
        found = [(t.config, believable_us(t, problem, device)) for t in trials]
        with self._lock:
            self._devices[device.slug] = device
            times = self._times.setdefault(Subject(problem, device.slug, made_with), {})
            times.update((config, time) for config, time in found if time is not None)

    def settle(self, *, whole: bool = False) -> None:
        """Let all that was noted be seen, if it is enough to grow the forest again for.

        If `whole`, however little it is.
        """
        with self._lock:
            before = self._settled
            now = sum(map(len, self._times.values()))
            if whole or before is None or now - before > _NEWS * before:
                self._settled = now
                self._known = _telling(self._times)
                self._forest = self._coming = None

    def without(self, forbidden: Iterable[Problem]) -> Experience:
        """Return what is known of other products than these: nothing of their (M, N, K)."""
        sizes = {(p.m, p.n, p.k) for p in forbidden}
        rest = Experience(
            seed=self._seed, trees=self._trees, max_rows=self._max_rows, grow=self._grow_forest
        )
        with self._lock:
            rest._devices = dict(self._devices)
            rest._times = {
                subject: dict(times)
                for subject, times in self._times.items()
                if (subject.problem.m, subject.problem.n, subject.problem.k) not in sizes
            }
        return rest

    @property
    def problems(self) -> frozenset[Problem]:
        """The problems of which something was noted."""
        return frozenset(subject.problem for subject in self._times)

    def times(self) -> Iterator[tuple[Problem, Config, float]]:
        """Yield every time that was noted, in microseconds."""
        for subject, times in self._times.items():
            for config, time in times.items():
                yield subject.problem, config, time

    def knows(self, arch: str) -> bool:
        """Say whether enough is settled of GPUs of an architecture."""
        self._settle_first()
        return any(self._devices[subject.gpu].arch == arch for subject in self._known)

    def turn(self) -> None:
        """Let what the last turn settled be seen, and settle for the next one what is known now.

        So a forest grows while the one before it serves, and nobody waits for it. What all are told
        between two turns still does not depend on how long anything took.
        """
        if self._settled is None:
            self.settle()
            return
        with self._lock:
            if self._coming is not None:
                self._known, self._forest = self._coming
                self._coming = None
            now = sum(map(len, self._times.values()))
            if now - self._settled > _NEWS * self._settled:
                self._settled = now
                known = _telling(self._times)
                self._coming = known, self._grown_on(known)

    def forest(self) -> Forest | None:
        """Return a forest grown on what is settled, or None if that is too little.

        The first to ask settles, if nobody has, and waits for the forest to grow.
        """
        self._settle_first()
        with self._lock:
            if self._forest is None:
                self._forest = self._grown_on(self._known)
            forest = self._forest
        return None if forest is None else forest.result()

    def _settle_first(self) -> None:
        if self._settled is None:
            self.settle()

    def _grown_on(self, known: _Known) -> Future[Forest] | None:
        """Have a forest grow, after those that were asked for before; of nothing there is none."""
        return self._growing.submit(self._grow, known) if known else None

    def _grow(self, known: _Known) -> Forest:
        share = max(FEWEST, self._max_rows // len(known))
        columns = Columns.of(known.values())
        grown = {
            subject: self._rows(subject, times, share, columns) for subject, times in known.items()
        }
        self._grown = grown
        grow = self._grow_forest or Forest.grow
        return grow(
            columns,
            np.vstack([part.rows for part in grown.values()]),
            np.concatenate([part.slowdowns for part in grown.values()]),
            [subject for subject, part in grown.items() for _ in part.rows],
            trees=self._trees,
            seed=self._seed,
        )

    def _rows(
        self, subject: Subject, times: Mapping[Config, float], share: int, columns: Columns
    ) -> _Rows:
        """Return what a subject brings to a forest. Its features are made anew if they change."""
        kept, slowdowns = _share(times, share, _seed_of(self._seed, str(subject)))
        device = self._devices[subject.gpu]
        made_of = (device, columns, kept)
        last = self._grown.get(subject)
        if last is not None and last.made_of == made_of:
            return _Rows(last.made_of, last.rows, slowdowns)
        return _Rows(made_of, columns.rows(subject.problem, device, kept), slowdowns)


def believable_us(trial: Trial, problem: Problem, device: DeviceInfo) -> float | None:
    """Return a trial's time in microseconds, infinity for a config that cannot run, else None."""
    found = trial.measurement
    if found is None or trial.status is not Status.OK:
        return math.inf if trial.status in _OWN_FAULT else None
    verified = found.error_ratio is not None and found.error_ratio <= 1
    time = found.median_us
    if not verified or found.contended or not math.isfinite(time):
        return None
    return time if time > _IMPOSSIBLE * roofline_us(problem, device) else None


def slowdowns_of(times: Matrix) -> Matrix:
    """Return log(time / best time) of each, cut at `WORST`; configs that cannot run have that."""
    return np.asarray(np.minimum(np.log(times / times.min()), WORST))


def _telling(noted: Mapping[Subject, dict[Config, float]]) -> dict[Subject, dict[Config, float]]:
    """Return a copy of what was noted of subjects with enough trials, in order."""
    return {
        subject: dict(noted[subject])
        for subject in sorted(noted)
        if sum(map(math.isfinite, noted[subject].values())) >= FEWEST
    }


def _share(
    times: Mapping[Config, float], most: int, seed: int
) -> tuple[tuple[Config, ...], Matrix]:
    """Return the configs of a problem the forest is grown on, in order, with their slowdowns."""
    order = sorted(times, key=lambda config: (times[config], config))
    if len(order) > most:
        fast, rest = order[: most // 2], order[most // 2 :]
        random = np.random.Generator(np.random.PCG64(seed))
        picked = random.permutation(len(rest))[: most - len(fast)]
        order = fast + [rest[i] for i in sorted(picked)]
    kept = tuple(sorted(order))
    return kept, slowdowns_of(np.array([times[config] for config in kept]))


def _seed_of(seed: int, text: str) -> int:
    """Return a seed for one of many things that share a run's seed."""
    return int.from_bytes(hashlib.sha256(f"{seed} {text}".encode()).digest()[:8], "big")
