"""Which stored row answers for a problem, and how well it fits. Pure logic: no store, no GPU.

The ladder: the problem's own row, built by this compiler or by another; the nearest tuned problem
of this GPU whose config is legal here; the same two from a GPU of the same architecture and
number of multiprocessors. A row whose kernel has since changed is never served, nor one whose
result was never checked. Everything is decided by the rows alone, whatever their order, so every
process with the same store answers the same.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.differences import Difference, compiler_differences, version_differences
from tunekit.key import Problem, TuningKey
from tunekit.space import Legality
from tunekit.trial import Best, Fingerprint, Grade, Origin

FARTHEST = 2.0
"""How far a nearest row may be: M, N and K together off by a factor of 2 to this power."""

Sizes = tuple[int, int, int]
Kind = tuple[Any, ...]


class StoredRow(Protocol):
    """A best row that may not have been decoded yet."""

    @property
    def place(self) -> tuple[Any, ...]:
        """The fields of its key, unchecked, in the order of `TuningKey`."""

    def read(self) -> Best | None:
        """Return it as a best, or None if it is damaged."""


@dataclass(frozen=True, slots=True)
class DecodedRow:
    """A best at hand, as a row."""

    best: Best

    @property
    def place(self) -> tuple[Any, ...]:
        """The fields of its key."""
        return tuple(self.best.key.to_dict().values())

    def read(self) -> Best:
        """Return the best."""
        return self.best


@dataclass(frozen=True, slots=True)
class Answer:
    """A stored row that may serve a problem, its grade, and every field in which it differs."""

    best: Best
    grade: Grade
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A stored row that came before the one that serves, and why it does not."""

    best: Best
    reason: str

    def to_dict(self) -> dict[str, str]:
        """Return it as plain data."""
        row = self.best
        return {"row": str(row.key), "config": str(row.config), "reason": self.reason}


BORROWED = (Grade.NEAREST, Grade.OTHER_GPU)
"""Grades of rows that are another problem's or another GPU's."""


def grade_of(best: Best, current: Fingerprint) -> Grade:
    """Compare a row's fingerprint with what its kernel and compiler are now."""
    found = best.provenance.fingerprint
    if found.source != current.source:
        return Grade.OTHER_SOURCE
    return Grade.EXACT if found.compiler == current.compiler else Grade.OTHER_COMPILER


def is_verified(best: Best) -> bool:
    """Say whether the row's result was compared with the reference and found right."""
    ratio = best.measurement.error_ratio
    return ratio is not None and ratio <= 1


def distance(a: Problem, b: Problem) -> float:
    """Return how far two problems' sizes are apart: the sum of |log2| of the three ratios."""
    return _apart((a.m, a.n, a.k), (b.m, b.n, b.k))


Order = tuple[bool, int, bool, bool, float, Config, str, str]


def order_of(best: Best, grade: Grade) -> Order:
    """Return what sorts the rows of one problem: the lowest is served first.

    Of rows that fit equally well, one that was made here goes before any from elsewhere, whatever
    their times: those were not measured beside each other.
    """
    rank = list(Grade).index(grade)
    compiler = best.provenance.fingerprint.compiler
    median = best.measurement.median_us
    unverified, imported = not is_verified(best), best.provenance.origin is Origin.IMPORTED
    return unverified, rank, best.replayed, imported, median, best.config, best.key.gpu, compiler


def same_silicon(other: DeviceInfo | None, device: DeviceInfo) -> bool:
    """Say whether what was tuned on another kind of GPU may stand in for `device`."""
    return (
        other is not None
        and other.arch == device.arch
        and other.multiprocessors == device.multiprocessors
    )


class RowTable:
    """The rows a process serves from, indexed for its GPU. A row is read when it may answer."""

    def __init__(
        self,
        rows: Iterable[StoredRow],
        devices: Mapping[str, DeviceInfo],
        *,
        device: DeviceInfo,
        fingerprint: Callable[[str, str], Fingerprint | None],
        legality: Legality,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        """Index rows for `device`.

        `fingerprint` gives the current one of a family's variant, or None if there is no such
        variant; `legality` is asked before any row is served; `versions` are those of torch and
        the driver here, where known: they change no grade and are named where they differ.
        """
        self._devices = devices
        self._device = device
        self._fingerprint = fingerprint
        self._legality = legality
        self._versions = versions or {}
        self._own: dict[Kind, dict[Sizes, list[StoredRow]]] = {}
        self._twins: dict[Kind, dict[Sizes, list[StoredRow]]] = {}
        tables = {slug: self._twins for slug in devices if same_silicon(devices[slug], device)}
        tables[device.slug] = self._own
        for (family, (dtype, gpu, *rest)), of_kind in _by_kind(rows).items():
            if gpu in tables:
                table = tables[gpu]
                others = table.setdefault((family, dtype, *rest), of_kind)
                if others is not of_kind:
                    for sizes, alike in of_kind.items():
                        others.setdefault(sizes, []).extend(alike)

    def answers(
        self, problem: Problem, passed_over: list[PassedOver] | None = None
    ) -> Iterator[Answer]:
        """Yield the rows that may serve a problem, best grade first, each checked to be legal.

        Those met on the way that may not are added to `passed_over`.
        """
        sizes = problem.m, problem.n, problem.k
        passed = [] if passed_over is None else passed_over
        own = self._own.get(_kind(problem), {})
        twins = self._twins.get(_kind(problem), {})
        yield from self._ranked(own.get(sizes, ()), problem, None, passed)
        yield from self._nearest(own, problem, Grade.NEAREST, passed)
        yield from self._ranked(twins.get(sizes, ()), problem, Grade.OTHER_GPU, passed)
        yield from self._nearest(twins, problem, Grade.OTHER_GPU, passed)

    def _ranked(
        self,
        rows: Iterable[StoredRow],
        problem: Problem,
        grade: Grade | None,
        passed: list[PassedOver],
    ) -> Iterator[Answer]:
        """Yield those of one key's rows that may serve a problem, the best first."""
        found: list[tuple[tuple[Any, ...], Best]] = []
        for best in filter(None, (row.read() for row in rows)):
            own_grade = self._serveable(best, problem)
            if isinstance(own_grade, Grade):
                found.append((order_of(best, own_grade), best))
            else:
                passed.append(PassedOver(best, own_grade))
        for order, best in sorted(found, key=lambda pair: pair[0]):
            differences = tuple(self._differences(best, problem))
            yield Answer(best, grade or list(Grade)[order[1]], differences)

    def _nearest(
        self,
        of_kind: Mapping[Sizes, list[StoredRow]],
        problem: Problem,
        grade: Grade,
        passed: list[PassedOver],
    ) -> Iterator[Answer]:
        asked = problem.m, problem.n, problem.k
        near = sorted(
            (apart, sizes)
            for sizes in of_kind
            if sizes != asked and _are_sizes(sizes)
            if (apart := _apart(sizes, asked)) <= FARTHEST
        )
        for _, sizes in near:
            yield from self._ranked(of_kind[sizes], problem, grade, passed)

    def _serveable(self, best: Best, problem: Problem) -> Grade | str:
        """Return a row's grade if its config may run for the problem here, else why it may not."""
        variant = best.config.variant
        current = self._fingerprint(best.key.family, variant)
        if current is None:
            return f"there is no kernel {variant!r} here"
        if not is_verified(best):
            return "its result was never found right"
        grade = grade_of(best, current)
        if grade is Grade.OTHER_SOURCE:
            stored = best.provenance.fingerprint.source
            return f"{grade.value}: kernel {variant} was {stored}, is {current.source}"
        broken = self._legality(best.config, problem, self._device)
        return grade if broken is None else f"not legal here: {broken}"

    def _differences(self, best: Best, problem: Problem) -> Iterator[Difference]:
        key = best.key
        for name in ("m", "n", "k"):
            if getattr(key, name) != getattr(problem, name):
                yield Difference(name, str(getattr(key, name)), str(getattr(problem, name)))
        if key.gpu != self._device.slug:
            yield Difference("gpu", self._devices[key.gpu].name, self._device.name)
        current = self._fingerprint(key.family, best.config.variant)
        if current is not None:
            yield from compiler_differences(best.provenance.fingerprint.compiler, current.compiler)
        yield from version_differences(best.provenance, self._versions)


def _by_kind(rows: Iterable[StoredRow]) -> dict[Kind, dict[Sizes, list[StoredRow]]]:
    """Return rows by (family, the fields of the key from dtype on), then by sizes.

    There may be thousands, and the first product waits for them: so this does little for each.
    """
    found: dict[Kind, dict[Sizes, list[StoredRow]]] = {}
    for row in rows:
        place = row.place
        kind = place[0], place[4:]
        of_kind = found.get(kind)
        if of_kind is None:
            of_kind = found[kind] = {}
        of_kind.setdefault(place[1:4], []).append(row)
    return found


def _kind(problem: Problem) -> Kind:
    """Return all that two problems must share for one to stand in for the other."""
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


def _are_sizes(sizes: Sequence[Any]) -> bool:
    """Say whether these are numbers, as a damaged row's need not be."""
    return all(isinstance(size, int) and size > 0 for size in sizes)


def _apart(a: Sizes, b: Sizes) -> float:
    return sum(abs(math.log2(mine / theirs)) for mine, theirs in zip(a, b, strict=True))


def how_to_tune(key: TuningKey, location: str) -> str:
    """Say how to tune a key into the cache at this location: the command line, where one can."""
    problem, cache = key.problem, shlex.quote(location)
    shape = f"{problem.m},{problem.n},{problem.k},{problem.dtype},{problem.layout}"
    named = ("family", "m", "n", "k", "dtype", "layout")
    plain = Problem.natural(**{name: getattr(problem, name) for name in named})
    if problem == plain:
        return f"to tune it: tunekit tune --shape {shape} --cache {cache}"
    # Of what says no more than the short form, the alignment is taken to be the natural one.
    written = str(problem)
    whole = problem.batch != 1 or len(written.split()) > 3
    if whole and Problem.parse(written, family=problem.family) == problem:
        return f"to tune it: tunekit tune --shape {shlex.quote(written)} --cache {cache}"
    fields = ", ".join(
        f"{name}: {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in problem.to_dict().items()
        if name in (*named[1:], "aligned") or value != getattr(plain, name)
    )
    return (
        f"to tune it: put - {{{fields}}} under shapes: in a file"
        f" and run tunekit tune --shapes FILE --cache {cache}"
    )
