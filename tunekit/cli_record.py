"""`tunekit record`: run a Python program and write the shapes of its matrix products.

The program runs in a process of its own, under the interpreter that the command names, with its
streams and its exit code. Signals meant for it are passed on, and what it did until it ended, in
whatever way, is written.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tunekit.errors import ProgramError, TunekitError
from tunekit.output import say
from tunekit.recorder import Record
from tunekit.recorder.program import read_records
from tunekit.recorder.shapes_file import check_shapes_file

_WITH_VALUE = "WX"
"""Options of Python that take a value, in the same word or the next."""


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program: its interpreter with options, what kind of target, and its arguments."""

    interpreter: tuple[str, ...]
    kind: str
    target: str
    arguments: tuple[str, ...]

    def command(self, folder: Path) -> list[str]:
        """Return the command that runs it under a recorder, which writes into a folder."""
        under = ("-m", "tunekit.recorder", str(folder), self.kind, self.target)
        return [*self.interpreter, *under, *self.arguments]


def run_record(command: Sequence[str], *, output: str) -> int:
    """Run a command, write its products to a shapes file, and return its exit code.

    Raises:
        ProgramError: the command is no Python program, or is not there.
        ShapesError: the file that is there is no shapes file; nothing has run then.
        TunekitError: it cannot be written.
    """
    program, path = parse_program(command), Path(output)
    check_shapes_file(path)
    with tempfile.TemporaryDirectory(prefix="tunekit-record-") as folder:
        code = _run(program.command(Path(folder)))
        record = read_records(Path(folder))
    code = 128 - code if code < 0 else code
    save(record, path, shlex.join(command), code)
    return code


def parse_program(command: Sequence[str]) -> Program:
    """Read `python [OPTION] script.py|-m MODULE|-c CODE [ARGUMENT]`, or a script by itself.

    Raises:
        ProgramError: it is none of these.
    """
    first, *rest = command
    if Path(first).name.startswith("python"):
        return _parse_python(_found(first), rest)
    if first.endswith(".py"):
        return Program((sys.executable,), "script", _script(first), tuple(rest))
    path = _found(first)
    interpreter = _interpreter_of(path)
    if interpreter is None:
        raise ProgramError(
            f"{first} is no Python program: record runs `python script.py`, `python -m module`,"
            " a .py file, or a command that is a Python script"
        )
    return Program(interpreter, "script", path, tuple(rest))


def _parse_python(interpreter: str, words: list[str]) -> Program:
    options: list[str] = []
    while words:
        word, *words = words
        if word == "-":
            return Program((interpreter, *options), "stdin", word, tuple(words))
        if not word.startswith("-"):
            return Program((interpreter, *options), "script", _script(word), tuple(words))
        for place, letter in enumerate(word[1:], start=1):
            value = [word[place + 1 :]] if word[place + 1 :] else words[:1]
            if letter in "mc":
                if not value:
                    raise ProgramError(f"{word} needs a value: {shlex.join([interpreter, word])}")
                if word[:place] != "-":
                    options.append(word[:place])
                rest = words if word[place + 1 :] else words[1:]
                kind = "module" if letter == "m" else "code"
                return Program((interpreter, *options), kind, value[0], tuple(rest))
            if letter in _WITH_VALUE or word.startswith("--"):
                break
        options.append(word)
        if word[-1] in _WITH_VALUE or word == "--check-hash-based-pycs":
            options += words[:1]
            words = words[1:]
    raise ProgramError(f"{interpreter} is given no program: name a script, -m MODULE, -c CODE or -")


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ProgramError(f"there is no command {name!r}")
    return path


def _script(name: str) -> str:
    if not Path(name).exists():
        raise ProgramError(f"there is no script {name}")
    return name


def _interpreter_of(path: str) -> tuple[str, ...] | None:
    """Return the Python that a script names in its first line, or None."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 -- a path as it was found
            line = file.readline(1000)
    except OSError as error:
        raise ProgramError(f"cannot read {path}: {error.strerror}") from error
    words = line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = words[1:]
    return tuple(words) if words and Path(words[0]).name.startswith("python") else None


def _run(command: list[str]) -> int:
    """Run a command to its end, whatever signals come, and return its exit code."""
    with subprocess.Popen(command) as process, _passing_on(process):
        return process.wait()


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the program and not us, inside the block."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM or not _is_foreground():
            process.send_signal(number)  # from a terminal it has had it as we have

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a signal's handler
        return
    before = {one: signal.signal(one, pass_on) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _is_foreground() -> bool:
    """Say whether a terminal sends its Ctrl-C to this process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def save(record: Record, path: Path, source: str, code: int) -> None:
    """Write what was recorded of a program that ended with a code, and say so."""
    products = record.products
    for what, count in record.skipped.items():
        say(f"not recorded: {_counted(count, 'product')} of another kind, {what}")
    if not products:
        why = (
            f"it ended with exit code {code} before one was noted"
            if code
            else "what processes it starts do is not seen: put `tunekit record` inside, as in"
            " torchrun -m tunekit record -- python script.py"
        )
        say(f"nothing was recorded: the program itself made no matrix product ({why})")
        return
    try:
        record.save(path, source=source)
    except TunekitError as error:  # a run may have taken hours
        kept = Path(tempfile.mkdtemp(prefix="tunekit-record-")) / "shapes.yaml"
        record.save(kept, source=source)
        raise TunekitError(f"{error}; what was recorded is in {kept}") from error
    times = sum(product.count for product in products)
    say(
        f"{_counted(len(products), 'problem')}, {_counted(times, 'product')} in {path};"
        f" to tune them: tunekit tune"
        f" --shapes {shlex.quote(str(path))}"
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
