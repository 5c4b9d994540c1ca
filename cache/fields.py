"""Single fields of plain data, checked: what was expected, and what was found.

`exchange.schema.json` says the same of every field, and a test holds the two together.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

_E = TypeVar("_E", bound=Enum)

MAX_COUNT = 1 << 53
"""The largest whole number that every reader of JSON keeps exact."""

LIMIT = 1e15
"""Times in microseconds and ratios lie below this: 30 years."""

MAX_TEXT = 4000

# Control letters, what turns or hides the letters beside it, and halves of letters. A terminal
# would obey the first two, and no database holds the last.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class RefusedRowError(ValueError):
    """A row of a file is not one that the store may hold."""


class ContradictionError(RefusedRowError):
    """A row of a file whose fields are each as they may be, and cannot all be true."""


def object_of(value: Any, what: str) -> Mapping[str, Any]:
    """Return a value that is an object of named fields."""
    if isinstance(value, dict):
        return value
    raise RefusedRowError(f"{what}: expected an object, found {reprlib.repr(value)}")


def text_of(
    row: Mapping[str, Any], name: str, limit: int = MAX_TEXT, *, least: int = 0, lines: bool = False
) -> str:
    """Return a text of `least` to `limit` letters; `lines` allows all that can be stored."""
    text = row.get(name)
    forbidden = _UNSTORABLE if lines else _UNSAFE
    if isinstance(text, str) and least <= len(text) <= limit and not forbidden.search(text):
        return text
    wanted = f"text of up to {limit} plain letters"
    raise RefusedRowError(f"{name}: expected {wanted}, found {reprlib.repr(text)}")


def whole(value: Any) -> Any:
    """Return a number without a fraction as an int: JSON knows no difference of 5 and 5.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def whole_of(row: Mapping[str, Any], name: str, low: int = 0, high: int = MAX_COUNT) -> int:
    """Return a whole number from `low` to `high`."""
    value = whole(row.get(name))
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    found = reprlib.repr(row.get(name))
    raise RefusedRowError(f"{name}: expected a whole number from {low} to {high}, found {found}")


def time_of(row: Mapping[str, Any], name: str) -> float:
    """Return a positive time."""
    value = row.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LIMIT:
        return float(value)
    raise RefusedRowError(f"{name}: expected a positive time, found {reprlib.repr(value)}")


def ratio_of(row: Mapping[str, Any], name: str) -> float | None:
    """Return a number from 0, or None where there is none."""
    return None if row.get(name) is None else part_of(row, name)


def part_of(row: Mapping[str, Any], name: str) -> float:
    """Return a number from 0."""
    value = row.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LIMIT:
        return float(value)
    raise RefusedRowError(f"{name}: expected a number from 0, found {reprlib.repr(value)}")


def flag_of(row: Mapping[str, Any], name: str) -> bool:
    """Return true or false; a flag that is absent is false."""
    value = row.get(name, False)
    if isinstance(value, bool):
        return value
    raise RefusedRowError(f"{name}: expected true or false, found {reprlib.repr(value)}")


def member_of(row: Mapping[str, Any], name: str, kind: type[_E]) -> _E:
    """Return the member of an enum that a text names."""
    value = row.get(name)
    try:
        return kind(value)
    except ValueError as error:
        wanted = ", ".join(str(member.value) for member in kind)
        found = reprlib.repr(value)
        raise RefusedRowError(f"{name}: expected one of {wanted}, found {found}") from error


def choice_of(row: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    """Return a text that is one of those allowed."""
    value = row.get(name)
    if isinstance(value, str) and value in allowed:
        return value
    wanted, found = ", ".join(allowed), reprlib.repr(value)
    raise RefusedRowError(f"{name}: expected one of {wanted}, found {found}")
