"""Which stored row answers for a problem, and how well it fits. Pure logic: no store, no GPU.

The ladder: the problem's own row, built by this compiler or by another; the nearest tuned problem
of this GPU whose config is legal here; the same two from a GPU of the same architecture and
number of multiprocessors. A row whose kernel has since changed is never served. Everything is
decided by the rows alone, so every process with the same store answers the same.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import Problem, TuningKey
from tunekit.space import Legality
from tunekit.trial import Best, Fingerprint, Grade

FARTHEST = 2.0
"""How far a nearest row may be: M, N and K together off by a factor of 2 to this power."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A stored row that may serve a problem, and its grade."""

    best: Best
    grade: Grade


def grade_of(best: Best, current: Fingerprint) -> Grade:
    """Compare a row's fingerprint with what its kernel and compiler are now."""
    found = best.provenance.fingerprint
    if found.source != current.source:
        return Grade.OTHER_SOURCE
    return Grade.EXACT if found.compiler == current.compiler else Grade.OTHER_COMPILER


def distance(a: Problem, b: Problem) -> float:
    """Return how far two problems' sizes are apart: the sum of |log2| of the three ratios."""
    sizes = ((a.m, b.m), (a.n, b.n), (a.k, b.k))
    return sum(abs(math.log2(mine / theirs)) for mine, theirs in sizes)


def order_of(best: Best, grade: Grade) -> tuple[int, bool, float, Config]:
    """Return what sorts the rows of one key: the lowest is served first."""
    return list(Grade).index(grade), best.replayed, best.measurement.median_us, best.config


class RowTable:
    """The rows a process serves from, indexed for its GPU."""

    def __init__(
        self,
        rows: Iterable[Best],
        devices: Mapping[str, DeviceInfo],
        *,
        device: DeviceInfo,
        fingerprint: Callable[[str, str], Fingerprint | None],
        legality: Legality,
    ) -> None:
        """Index rows for `device`.

        `fingerprint` gives the current one of a family's variant, or None if there is no such
        variant; `legality` is asked before any row is served.
        """
        self._device = device
        self._fingerprint = fingerprint
        self._legality = legality
        self._own: dict[Problem, list[Best]] = {}
        self._twins: dict[Problem, list[Best]] = {}
        for row in rows:
            if row.key.gpu == device.slug:
                self._own.setdefault(row.key.problem, []).append(row)
            elif _same_silicon(devices.get(row.key.gpu), device):
                self._twins.setdefault(row.key.problem, []).append(row)

    def answers(self, problem: Problem) -> Iterator[Answer]:
        """Yield the rows that may serve a problem, best grade first, each checked to be legal."""
        yield from self._ranked(self._own.get(problem, ()), problem)
        yield from self._nearest(self._own, problem, Grade.NEAREST)
        for answer in self._ranked(self._twins.get(problem, ()), problem):
            yield Answer(answer.best, Grade.OTHER_GPU)
        yield from self._nearest(self._twins, problem, Grade.OTHER_GPU)

    def _ranked(self, rows: Iterable[Best], problem: Problem) -> list[Answer]:
        """Return those of one key's rows that may serve a problem, the best first."""
        found = [
            Answer(row, grade)
            for row in rows
            if (grade := self._serveable(row, problem)) is not None
        ]
        return sorted(found, key=lambda answer: order_of(answer.best, answer.grade))

    def _nearest(
        self, table: dict[Problem, list[Best]], problem: Problem, grade: Grade
    ) -> Iterator[Answer]:
        near = sorted(
            (apart, other)
            for other in table
            if other != problem and _same_kind(other, problem)
            if (apart := distance(other, problem)) <= FARTHEST
        )
        for _, other in near:
            for answer in self._ranked(table[other], problem):
                yield Answer(answer.best, grade)

    def _serveable(self, row: Best, problem: Problem) -> Grade | None:
        """Return a row's grade if its config may run for the problem here, else None."""
        current = self._fingerprint(row.key.family, row.config.variant)
        if current is None:
            return None
        grade = grade_of(row, current)
        if grade is Grade.OTHER_SOURCE:
            return None
        if self._legality(row.config, problem, self._device) is not None:
            return None
        return grade


def _same_silicon(other: DeviceInfo | None, device: DeviceInfo) -> bool:
    return (
        other is not None
        and other.arch == device.arch
        and other.multiprocessors == device.multiprocessors
    )


def _same_kind(a: Problem, b: Problem) -> bool:
    """Say whether two problems differ in nothing but their sizes."""
    return _kind(a) == _kind(b)


def _kind(problem: Problem) -> tuple[object, ...]:
    return (
        problem.family,
        problem.dtype,
        problem.out_dtype,
        problem.precision,
        problem.layout,
        problem.aligned,
        problem.scaling,
        problem.batch,
    )


def how_to_tune(key: TuningKey, location: str) -> str:
    """Say how to tune a key into the cache at this location: the command line, where one can."""
    problem = key.problem
    shape = f"{problem.m},{problem.n},{problem.k},{problem.dtype},{problem.layout}"
    plain = Problem(
        problem.family, problem.m, problem.n, problem.k, problem.dtype, layout=problem.layout
    )
    if problem == replace(plain, aligned=plain.naturally_aligned()):
        return f"to tune it: tunekit tune --shape {shape} --cache {shlex.quote(location)}"
    fields = ", ".join(
        f"{name}: {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in problem.to_dict().items()
        if name in ("m", "n", "k", "dtype", "layout") or value != getattr(plain, name)
    )
    return (
        f"to tune it: put - {{{fields}}} under shapes: in a file"
        f" and run tunekit tune --shapes FILE --cache {shlex.quote(location)}"
    )
