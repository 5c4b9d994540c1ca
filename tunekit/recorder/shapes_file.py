"""Shapes files as tunekit writes them: one line a problem, most work first."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import ShapesError, TunekitError
from tunekit.kernels import family
from tunekit.key import MAX_SIZE, Problem
from tunekit.output import write_file
from tunekit.shapes import Shape, load_shapes, read_shapes

_MARK = "# Written by `tunekit record`"
_NOT_YET = re.compile(r"^# (- \{m: )", re.MULTILINE)
"""Entries that no kernel takes stand in the file as comments of this form."""


class Counted(Protocol):
    """A problem with how often it is run and its name in the program."""

    @property
    def problem(self) -> Problem: ...
    @property
    def count(self) -> int: ...
    @property
    def name(self) -> str: ...


def check_shapes_file(path: Path) -> None:
    """Make sure that a file can be written, or if it is there, added to.

    Raises:
        ShapesError: it is no shapes file, or its folder is not there or may not be written.
    """
    if path.exists():
        _load(path)
    elif not path.parent.is_dir():
        raise ShapesError(f"cannot write {path}: there is no folder {path.parent}")
    folder = path.resolve().parent
    if (path.is_file() or not path.exists()) and not os.access(folder, os.W_OK | os.X_OK):
        raise ShapesError(f"cannot write {path}: {folder} is not writable: name another with -o")


def add_to_shapes(path: Path, products: Sequence[Counted], *, source: str = "") -> None:
    """Write a shapes file, or add counts and problems to the one that is there.

    One that tunekit did not write is first copied to `FILE.orig`: only its problems are kept in
    what is written, not its comments, lists and defaults.

    Raises:
        ShapesError: the file that is there is no shapes file.
        TunekitError: it cannot be written.
    """
    with _alone(path):
        before = _load(path) if path.exists() else []
        if before and not _is_ours(path):
            _keep(path)
        write_file(path, shapes_text(_merged([*before, *products]), source=source))


def shapes_text(shapes: Sequence[Counted], *, source: str = "") -> str:
    """Return the text of a shapes file, the problems with the most operations first.

    What no kernel takes yet stands in it as comments, so that the file can be tuned as it is.
    """
    ordered = sorted(shapes, key=lambda one: (-one.problem.flops * one.count, one.problem))
    total = sum(one.problem.flops * one.count for one in ordered)
    lines = [f"{_MARK}; to tune them: tunekit tune --shapes FILE"]
    if source:
        lines.append(f"# The matrix products of: {_one_line(source)}")
    lines.append("# Most work first; the percentages are of all floating-point operations.")
    reasons = [why_not(one.problem) for one in ordered]
    entries = [
        (f"- {_entry(one)}  # {one.problem.flops * one.count / total:.1%}", why)
        for one, why in zip(ordered, reasons, strict=True)
    ]
    taken = [f"  {entry}" for entry, why in entries if why is None]
    lines += ["shapes:", *taken] if taken else ["shapes: []"]
    refused = [(entry, why) for entry, why in entries if why is not None]
    if refused:
        lines += ["", "# What no kernel of tunekit takes yet:"]
        lines += [f"# {entry}: {_one_line(why)}" for entry, why in refused]
    return "\n".join(lines) + "\n"


def _entry(shape: Counted) -> str:
    """Return an entry in one line, without what it would be anyway."""
    problem = shape.problem
    fields: dict[str, Any] = {name: getattr(problem, name) for name in ("m", "n", "k")}
    fields |= {"dtype": problem.dtype, "layout": problem.layout}
    plain = Problem.natural(family=problem.family, **fields)
    for name in ("out_dtype", "precision", "scaling", "batch"):
        if getattr(problem, name) != getattr(plain, name):
            fields[name] = getattr(problem, name)
    if problem.aligned != problem.naturally_aligned():
        fields["aligned"] = str(problem.aligned).lower()
    if shape.count != 1:
        fields["count"] = min(shape.count, MAX_SIZE - 1)
    if shape.name:
        fields["name"] = json.dumps(shape.name, ensure_ascii=False)
    return "{" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}"


def why_not(problem: Problem) -> str | None:
    """Say why no kernel takes a problem, whatever the config, or None if one does."""
    middling = Config("pointer", 64, 64, 32)
    broken = family(problem.family).violation(middling, problem, KNOWN_DEVICES["sm_90"])
    # Any other rule is about the config, and another one may meet it.
    return broken.reason if broken is not None and broken.rule == "problem" else None


def _merged(shapes: Sequence[Counted]) -> list[Shape]:
    merged: dict[Problem, Shape] = {}
    for shape in shapes:
        known = merged.get(shape.problem)
        count = shape.count + (known.count if known is not None else 0)
        name = (known.name if known is not None else "") or shape.name
        merged[shape.problem] = Shape(shape.problem, count, name)
    return list(merged.values())


def _load(path: Path) -> list[Shape]:
    """Read a shapes file, and if it is ours, the entries in its comments too."""
    if not _is_ours(path):
        return load_shapes(path)
    text = path.read_text(encoding="utf-8").replace("shapes: []", "shapes:", 1)
    return read_shapes(_NOT_YET.sub(r"  \1", text), path=path)


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MARK)) == _MARK.encode()
    except OSError:
        return False


def _keep(path: Path) -> None:
    """Copy a file beside itself, under a name that is free."""
    copy = path.with_name(f"{path.name}.orig")
    number = 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{path.name}.orig{number}")
    try:
        shutil.copy2(path, copy)
    except OSError as error:
        raise TunekitError(f"cannot copy {path} to {copy}: {error.strerror}") from error


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let no other process of this host change files of ours in a file's folder meanwhile."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise TunekitError(f"cannot write {path}: {error.strerror}") from error
    try:
        with contextlib.suppress(OSError):  # network file systems lock no folders
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
