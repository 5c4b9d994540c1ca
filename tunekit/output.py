"""Where the command line's text goes: answers to stdout or a file, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunekit.errors import TunekitError

INTERRUPTED = 130
"""Exit code of a command that was told to stop."""


def answer(text: str) -> None:
    """Write text and a line end to stdout, at once.

    Raises:
        BrokenPipeError: nobody reads it any more.
        TunekitError: it cannot be written for another reason, as on a full disk.
    """
    if sys.stdout is None:  # closed before Python started
        raise TunekitError("cannot write to stdout: it is closed")
    try:
        try:
            sys.stdout.write(text + "\n")
        except UnicodeEncodeError:  # its encoding lacks a letter: a name's, or a path's
            lacking = sys.stdout.encoding
            sys.stdout.write(text.encode(lacking, "backslashreplace").decode(lacking) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise TunekitError(f"cannot write to stdout: {error.strerror}") from error


def answer_json(document: dict[str, Any]) -> None:
    """Write one JSON document to stdout."""
    answer(json.dumps(document, indent=2))


def say(text: str) -> None:
    """Write one line to stderr, marked as ours, if anybody can read it.

    What a terminal would obey, as the escapes in another's text, is replaced.
    """
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"tunekit: {line}\n")
            sys.stderr.flush()


def answer_width() -> int | None:
    """Return the columns of the terminal stdout is, or None where it is none."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if on_terminal else None


Paint = Callable[..., str]
"""Gives a text a colour or weight: the signature of `click.style`."""


def plain(text: str, **style: Any) -> str:
    """Paint nothing."""
    return text


def paint() -> Paint:
    """Return what paints for stdout: a terminal that has colours, unless NO_COLOR is set."""
    if answer_width() is None:
        return plain
    import click
    from rich.console import Console  # it knows what turns colours off

    console = Console(file=sys.stdout)
    return plain if console.no_color or console.color_system is None else click.style


def wrap(text: str, width: int | None, indent: int) -> str:
    """Break a line at spaces to fit a width, further lines indented; `commands` stay whole.

    Where there is no width (a pipe, a file) a line is a line.
    """
    if width is None or len(text) <= width:
        return text
    kept = re.sub(r"`[^`]*`", lambda found: found.group().replace(" ", "\0"), text)
    lines = textwrap.wrap(
        kept,
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def counted(number: int, what: str) -> str:
    """Write a number of things: `1 key`, `2 keys`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def sized(number: int) -> str:
    """Write a number of bytes: `48 kB`, `1.3 MB`."""
    return f"{number / 1e3:.0f} kB" if number < 1e6 else f"{number / 1e6:.1f} MB"


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all: a reader never sees half of it.

    Raises:
        TunekitError: it cannot be written.
    """
    if not path.name:
        raise TunekitError(f"cannot write {path}: it is a folder: name a file")
    try:
        target = path.resolve()  # a link stays one
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a pipe or device; a folder is an error
            return
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TunekitError(f"cannot write {path}: {reason}: name another file") from error
