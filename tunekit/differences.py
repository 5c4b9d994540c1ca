"""In which fields what a row was made with differs from what is here.

The kernel's source and the compiler decide whether and how a row is served; torch and the driver do
not, and are named all the same. What is not known, on either side, is no difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tunekit.trial import Best, Fingerprint, Provenance

UNKNOWN = ("", "unknown")
"""How a version is written that could not be found out."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of a row that is not what it is here."""

    field: str
    stored: str
    here: str

    def __str__(self) -> str:
        return f"{self.field} {self.stored} -> {self.here}"

    def to_dict(self) -> dict[str, str]:
        """Return the difference as plain data."""
        return {"field": self.field, "stored": self.stored, "here": self.here}


def compiler_differences(stored: str, here: str) -> Iterator[Difference]:
    """Yield the parts in which two compiler identities differ: `triton 3.6.0 -> 3.9.0`."""
    if stored == here:
        return
    old, new = _parts(stored), _parts(here)
    changed = [name for name in (old | new) if old.get(name) != new.get(name)]
    if "" in old or "" in new or not changed:  # not in the form this tunekit writes
        yield Difference("compiler", stored, here)
        return
    for name in changed:
        yield Difference(name, old.get(name, "none"), new.get(name, "none"))


def version_differences(stored: Provenance, here: Mapping[str, str]) -> Iterator[Difference]:
    """Yield those of the versions known here (of torch, of the driver) that a row does not have."""
    for name, version in here.items():
        old = getattr(stored, name)
        if old != version and old not in UNKNOWN and version not in UNKNOWN:
            yield Difference(name, old, version)


def fingerprint_differences(best: Best, current: Fingerprint | None) -> Iterator[Difference]:
    """Yield how a row's kernel and compiler differ from those installed. None: no such kernel."""
    stored = best.provenance.fingerprint
    variant = best.config.variant
    if current is None:
        yield Difference(f"kernel {variant}", stored.source, "none")
        return
    if stored.source != current.source:
        yield Difference(f"kernel {variant}", stored.source, current.source)
    yield from compiler_differences(stored.compiler, current.compiler)


def _parts(identity: str) -> dict[str, str]:
    """Split `triton-3.9.0+ptxas-12.9` into names and versions; what has none is named ''."""
    pieces = re.split(r"\+(?=[A-Za-z_]\w*-)", identity)
    split = [piece.partition("-") for piece in pieces]
    return {name if dash else "": version if dash else name for name, dash, version in split}
