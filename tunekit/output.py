"""Where the command line's text goes: answers to stdout or a file, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
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
        sys.stdout.write(text + "\n")
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


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all: a reader never sees half of it.

    Raises:
        TunekitError: it cannot be written.
    """
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
        raise TunekitError(f"cannot write {path}: {reason}") from error
