"""What was seen: each problem with how often it ran, and in which modules."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunekit.key import Problem

_MOST_NAMES = 3
_NAME_LENGTH = 200
"""What a shapes file takes."""


@dataclass(frozen=True, slots=True)
class Product:
    """A problem that a program ran: how often, and in which of its modules."""

    problem: Problem
    count: int
    name: str = ""

    @property
    def flops(self) -> int:
        """Floating-point operations of all its runs together."""
        return self.problem.flops * self.count


class Record:
    """What was seen. Any number of threads may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Problem, Counter[str]] = {}
        self._skipped: Counter[str] = Counter()

    @property
    def products(self) -> list[Product]:
        """The problems, that with the most operations in all first."""
        with self._lock:
            found = [Product(p, names.total(), _name(names)) for p, names in self._seen.items()]
        return sorted(found, key=lambda product: (-product.flops, product.problem))

    @property
    def skipped(self) -> dict[str, int]:
        """Products that are no problem of tunekit's, such as those in float64, by what they are."""
        with self._lock:
            return dict(self._skipped.most_common())

    def add(self, problem: Problem, name: str = "", *, count: int = 1) -> None:
        """Count a problem that was run in a module of this name."""
        with self._lock:
            self._seen.setdefault(problem, Counter())[name] += count

    def skip(self, what: str, *, count: int = 1) -> None:
        """Count a product that is no problem of tunekit's."""
        with self._lock:
            self._skipped[what] += count

    def restart(self) -> None:
        """Forget everything, in a child forked while another thread may have been adding."""
        self._lock = threading.Lock()
        self._seen = {}
        self._skipped = Counter()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data."""
        with self._lock:
            seen = [[problem.to_dict(), dict(names)] for problem, names in self._seen.items()]
            return {"seen": seen, "skipped": dict(self._skipped)}

    def update(self, plain: Mapping[str, Any]) -> None:
        """Add what another process recorded, as `to_dict` gave it."""
        for problem, names in plain["seen"]:
            for name, count in names.items():
                self.add(Problem(**problem), name, count=count)
        for what, count in plain["skipped"].items():
            self.skip(what, count=count)

    def save(self, path: str | Path, *, source: str = "") -> None:
        """Write a shapes file, or add to the one that is there; `source` says what was run.

        Counts of a problem that the file has are added up. Processes may save to one file at the
        same time.

        Raises:
            ShapesError: the file that is there is no shapes file.
            TunekitError: it cannot be written.
        """
        from tunekit.recorder.shapes_file import add_to_shapes

        add_to_shapes(Path(path), self.products, source=source)


def _name(names: Counter[str]) -> str:
    """Return the names a problem had in one line, the most frequent first."""
    known = [
        name for name, _ in sorted(names.items(), key=lambda pair: (-pair[1], pair[0])) if name
    ]
    text = ", ".join(known[:_MOST_NAMES]) + (", ..." if len(known) > _MOST_NAMES else "")
    return text if len(text) <= _NAME_LENGTH else text[: _NAME_LENGTH - 3] + "..."
