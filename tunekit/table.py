"""The rows that `show` and `tune` print: one per key, as JSON and as a table against the vendor."""

from __future__ import annotations

import itertools
import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tunekit.differences import Difference, fingerprint_differences
from tunekit.kernels import current_fingerprint
from tunekit.key import Problem, TuningKey
from tunekit.lookup import grade_of, is_verified, order_of
from tunekit.output import Paint, plain, wrap
from tunekit.trial import Best, Choice, Fingerprint, Grade, Measurement, Status

SCHEMA = 1
"""Version of the JSON that `show` and `tune` print."""

_HEADS = (
    "problem (M x N x K)",
    "choice",
    "Triton us (95 %)",
    "vendor us",
    "ratio",
    "trials/space",
    "failed",
    "off best (90 %)",
    "origin",
    "grade",
    "best Triton config",
)
_RIGHT = {2, 3, 4, 5, 6, 7}
_COLOURS = {"triton": "green", "vendor": "cyan"}


@dataclass(frozen=True, slots=True)
class Row:
    """A key's best, graded against the kernels and the compiler that are installed."""

    best: Best
    grade: Grade
    differences: tuple[Difference, ...] = ()
    """In which fields the row differs from what is installed."""
    failed: Mapping[Status, int] = field(default_factory=dict)
    """How many configs of the key failed how, under the row's compiler."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as the plain data of `show --json`. Times are in microseconds."""
        key, best = self.best.key, self.best
        return {
            "family": key.family,
            "m": key.m,
            "n": key.n,
            "k": key.k,
            "dtype": key.dtype,
            "layout": key.layout,
            "gpu": key.gpu,
            "choice": best.choice.value,
            "variant": best.config.variant,
            "config": best.config.to_dict(),
            "triton_us": best.measurement.median_us,
            "triton_low_us": best.measurement.low_us,
            "triton_high_us": best.measurement.high_us,
            "vendor_us": None if best.vendor is None else best.vendor.median_us,
            "ratio": best.ratio,
            "trials": best.trials,
            "space_size": best.space_size,
            "origin": best.provenance.origin.value,
            "grade": self.grade.value,
            "out_dtype": key.out_dtype,
            "precision": key.precision,
            "aligned": key.aligned,
            "scaling": key.scaling,
            "batch": key.batch,
            "count": best.count,
            "verified": is_verified(best),
            "failed": {status.value: count for status, count in sorted(self.failed.items())},
            "distance": None if best.distance is None else asdict(best.distance),
            "differences": [difference.to_dict() for difference in self.differences],
        }


Installed = Callable[[Best], "Fingerprint | None"]
"""Says what a row's kernel and compiler are as installed, or None if there is no such kernel."""


def installed_here(best: Best) -> Fingerprint | None:
    """Say it for this process, which loads the kernels to know."""
    return current_fingerprint(best.key.family, best.config.variant)


def graded(best: Best, installed: Installed = installed_here) -> Row:
    """Grade a stored row for the kernels and the compiler that are installed."""
    current = installed(best)
    # Without a kernel of that name there is none that the row could be for.
    grade = Grade.OTHER_SOURCE if current is None else grade_of(best, current)
    return Row(best, grade, tuple(fingerprint_differences(best, current)))


def served_rows(
    bests: Iterable[Best],
    failures: Mapping[tuple[TuningKey, str], Mapping[Status, int]] | None = None,
    installed: Installed = installed_here,
) -> list[Row]:
    """Return one row a key, by GPU and key: of several environments' rows the one that fits best.

    That is the row `tunekit.matmul` takes first. `failures` is what `Store.failures` says.
    """
    rows: dict[TuningKey, Row] = {}
    for best in bests:
        row = graded(best, installed)
        other = rows.get(best.key)
        if other is None or order_of(best, row.grade) < order_of(other.best, other.grade):
            rows[best.key] = row
    known = failures or {}
    return [
        replace(row, failed=known.get((key, row.best.provenance.fingerprint.compiler), {}))
        for key, row in sorted(rows.items(), key=lambda item: (item[0].gpu, item[0]))
    ]


def table(rows: Sequence[Row], *, width: int | None, paint: Paint = plain) -> str:
    """Lay the rows out as text, a block for each GPU, with the geometric mean of the ratios."""
    blocks = []
    for gpu, group in itertools.groupby(rows, key=lambda row: row.best.key.gpu):
        members = list(group)
        name = _printable(members[0].best.provenance.device_name)
        lines = lay_out([_HEADS, *map(_cells, members)], _RIGHT, width=width, paint=paint)
        footer = [wrap(line, width, 2) for line in _footer(members)]
        blocks.append("\n".join([f"{name} ({gpu})", *lines, *footer]))
    return "\n\n".join(blocks)


def lay_out(
    grid: Sequence[Sequence[str]],
    right: Collection[int],
    *,
    width: int | None,
    paint: Paint = plain,
) -> list[str]:
    """Return the lines of a heading and its rows, the columns of `right` flush right.

    Where one line a row would pass `width` characters the last columns go to further lines, which
    are dimmed; with None (a pipe, a file) every row is one line however long. No number is ever
    shortened.
    """
    widths = [max(len(cells[place]) for cells in grid) for place in range(len(grid[0]))]
    whole = width is None or sum(widths) + 2 * (len(widths) - 1) <= width
    folds = [0, len(widths)] if whole or width is None else _folds(widths, width)
    lines = []
    for number, cells in enumerate(grid):
        padded = [
            cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
            for i, cell in enumerate(cells)
        ]
        for start, end in itertools.pairwise(folds):
            parts = "  ".join(padded[start:end]).rstrip()
            if start:
                lines.append(paint("    " + parts, dim=True))
            elif number == 0:
                lines.append(paint(parts, bold=True))
            else:
                lines.append(_coloured(padded[start:end], paint))
    return lines


def _coloured(cells: Sequence[str], paint: Paint) -> str:
    """Join cells, with what runs in its colour."""
    line = "  ".join(cells).rstrip()
    chosen = cells[1].strip() if len(cells) > 1 else ""
    colour = _COLOURS.get(chosen)
    if colour is None:
        return line
    place = len(cells[0]) + 2
    return line[:place] + paint(chosen, fg=colour) + line[place + len(chosen) :]


def explain_command(problem: Problem) -> str:
    """Return the command that explains a problem."""
    text = str(problem)
    return f"tunekit explain {shlex.quote(text) if '>' in text else text}"


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of at least one positive number."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def interval(measurement: Measurement) -> str:
    """Write a median with half its 95 % interval, in microseconds: `12.34 +-0.05`."""
    half = max(
        measurement.high_us - measurement.median_us, measurement.median_us - measurement.low_us
    )
    return f"{measurement.median_us:.2f} +-{half:.2f}"


def _origin(best: Best) -> str:
    origin = best.provenance.origin
    return f"{origin.value} (replayed)" if best.imported_replay else origin.value


def _distance(best: Best) -> str:
    """Write what is expected of the distance from the best and its bound: `0.4 % (2.0 %)`."""
    if best.distance is None:
        return "-"
    return f"{100 * best.distance.expected:.1f} % ({100 * best.distance.bound:.1f} %)"


def _printable(text: str) -> str:
    """Replace what a terminal would obey instead of showing it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _cells(row: Row) -> tuple[str, ...]:
    best = row.best
    return (
        str(best.key.problem),
        best.choice.value,
        interval(best.measurement),
        "-" if best.vendor is None else f"{best.vendor.median_us:.2f}",
        "-" if best.ratio is None else f"{best.ratio:.3f}",
        f"{best.trials}/{best.space_size}",
        str(sum(row.failed.values())),
        _distance(best),
        _origin(best),
        row.grade.value,
        _printable(str(best.config)),
    )


def _folds(widths: Sequence[int], width: int) -> list[int]:
    """Return where lines begin that hold as many columns as fit, and where the last one ends."""
    folds, room = [0], width
    for place, size in enumerate(widths):
        if size > room and place > folds[-1]:
            folds.append(place)
            room = width - 4
        room -= size + 2
    return [*folds, len(widths)]


def _misfit(row: Row) -> str:
    """Say how a row does not fit what is installed: `other-compiler, triton 3.6.0 -> 3.9.0`."""
    if not is_verified(row.best):
        return "not served, for their results were never verified"
    if row.grade is Grade.EXACT:
        return ""
    text = ", ".join([row.grade.value, *map(str, row.differences)])
    # A replay answers as of its own compiler: to it no row is stale.
    how = "on a GPU" if row.best.replayed else "them again"
    return _printable(f"{text} (`tunekit tune --stale` verifies {how})")


def _footer(rows: Sequence[Row]) -> list[str]:
    ratios = [row.best.ratio for row in rows if row.best.ratio is not None]
    lines = []
    if ratios:
        triton = sum(row.best.choice is Choice.TRITON for row in rows)
        lines.append(
            f"geometric mean of the ratio (vendor us / Triton us; above 1 Triton is faster): "
            f"{geometric_mean(ratios):.3f}"
        )
        lines.append(f"problems: {len(rows)}, Triton chosen for {triton}")
    tried, legal = (sum(getattr(row.best, n) for row in rows) for n in ("trials", "space_size"))
    failed: Counter[str] = Counter()
    for row in rows:
        failed.update({status.value: count for status, count in row.failed.items()})
    kinds = ", ".join(f"{kind} {count}" for kind, count in failed.most_common())
    lines.append(
        f"tried: {tried} of {legal} legal configs"
        + (f"; failed: {failed.total()} ({kinds})" if kinds else "")
    )
    for text, count in Counter(map(_misfit, rows)).items():
        if text:
            lines.append(f"{text}: {count} of {len(rows)} rows")
    replayed = sum(row.best.replayed for row in rows)
    if replayed:
        lines.append(
            f"replayed: {replayed} of {len(rows)} rows come from a recording made on the GPU named "
            "above"
        )
    return lines
