"""Processes of our own: they answer over a pipe and never outlive us.

A child leads a session of its own, so Ctrl-C at the terminal reaches us alone, and what it starts
(a compiler's assembler) is in its process group and ends with it. When this process ends, however
it ends, the kernel sends SIGKILL to that group: the child holds one end of a pipe whose other end
only we have. It is started by exec, as a fresh interpreter that imports what it is told to and not
the caller's main script, or forked by another child (`tunekit.nursery`). What it prints is kept
from our own output and asked for when it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple, Protocol

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tunekit.child import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
_EXIT_WAIT_S = 5.0
_KILL_WAIT_S = 20.0
"""A process in the middle of a driver call ends only when that returns."""

_LAST_BYTES = 8192

_lifeline = -1
"""The descriptor of this process's own lifeline, where it is a child."""


class ChildError(RuntimeError):
    """A fault of tunekit itself, or of what it runs, in a child; the text holds its traceback."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What a child sends before it ends by an exception that nothing in it expects."""

    traceback: str


class Ends(NamedTuple):
    """The descriptors a child is given: its ends of two pipes, and the file it prints to."""

    pipe: int
    lifeline: int
    output: int


class Process(Protocol):
    """A process as whoever started it sees it. `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """The process id."""

    def poll(self) -> int | None:
        """Return its exit code, minus a signal's number if that ended it; None: none is known."""

    def wait(self, timeout: float) -> int | None:
        """Wait until it has ended, and return the same.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """


class Child:
    """A process that runs `serve(connection, *args)`.

    `serve` and `args` are pickled, so the function must be one of an importable module. `environ`
    is set in the child alone, before it imports anything. `start` starts it in another way.

    Raises:
        OSError: this host allows no more files, memory or processes.
    """

    def __init__(
        self,
        serve: Callable[..., None],
        *args: Any,
        environ: Mapping[str, str] | None = None,
        start: Callable[[Ends], Process] | None = None,
    ) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self.connection, pipe = Pipe()
            ours.callback(self.connection.close)
            theirs.callback(pipe.close)
            lifeline, self._lifeline = os.pipe()
            ours.callback(os.close, self._lifeline)
            theirs.callback(os.close, lifeline)
            # In memory: a full disk takes nothing from it.
            self._output = os.memfd_create("tunekit")
            ours.callback(os.close, self._output)
            start = start or partial(_execute, environ or {})
            self._process = start(Ends(pipe.fileno(), lifeline, self._output))
            ours.pop_all()  # it has started: they stay open until it is killed
        self.send((serve, args))

    @property
    def pid(self) -> int:
        """The process id, which is that of its process group too."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a message. That a child has died shows when its answer is read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def recv(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: the child has ended.
            ChildError: it ended by an exception of its own.
        """
        try:
            message = self.connection.recv()
        except OSError as error:  # it ended in the middle of a message
            raise EOFError from error
        if isinstance(message, Raised):
            raise ChildError(f"in a process of tunekit's own:\n{message.traceback}")
        return message

    def ended(self) -> str:
        """Say how a child whose pipe is closed has ended, with what it printed last."""
        try:
            code = self._process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return "stopped answering"
        how = _told(code)
        words = self._last_words()
        return f"{how}: {words}" if words else how

    def end(self) -> None:
        """Have the child end, without waiting: whoever reads from it is told. For any thread."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> bool:
        """End the child, and all that it started; return whether its end was seen in time."""
        seen = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            seen = False
        if not self.connection.closed:
            self.connection.close()
            os.close(self._lifeline)
            os.close(self._output)
        return seen

    def _last_words(self) -> str:
        """Return the line it printed that best says what went wrong."""
        start = max(0, os.fstat(self._output).st_size - _LAST_BYTES)
        text = os.pread(self._output, _LAST_BYTES, start).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if re.search(r"error|fatal|assert|abort", line, re.I)]
        return (telling or lines or [""])[-1 if not telling else 0][:300]


def _execute(environ: Mapping[str, str], ends: Ends) -> Process:
    """Start a child as a fresh interpreter."""
    kept = (ends.pipe, ends.lifeline)
    path = [one for one in sys.path if isinstance(one, str)]  # as an import reads it
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps(path), *map(str, kept)],
        stdin=subprocess.DEVNULL,
        stdout=ends.output,
        stderr=subprocess.STDOUT,
        pass_fds=kept,
        start_new_session=True,
        env={**os.environ, **environ},
    )


def _told(code: int | None) -> str:
    if code is None:
        return "ended, and nothing saw how"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def forget_output() -> None:
    """Drop what this child has printed so far: it has nothing to do with what comes now."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.ftruncate(sys.stdout.fileno(), 0)
    os.lseek(sys.stdout.fileno(), 0, os.SEEK_SET)  # stderr's place too: it is the same file


def main(pipe: int, lifeline: int) -> None:
    """Be a child: run what the parent sends over the pipe with this file descriptor."""
    global _lifeline
    _lifeline = lifeline
    _die_with_parent(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(pipe)
    try:
        serve, args = connection.recv()
        serve(connection, *args)
    except EOFError:  # nobody asks any more: what this process started is to end with it
        os.killpg(0, signal.SIGKILL)
    except Exception:
        connection.send(Raised(traceback.format_exc()))


def become(pipe: int, lifeline: int) -> None:
    """Be another child, in a fork of one, which must not keep open what is that one's own."""
    os.close(_lifeline)
    main(pipe, lifeline)


def _die_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process group when the other end of a pipe is closed."""

    def watch() -> None:
        os.read(lifeline, 1)  # returns when it is closed: nothing is ever written
        os.killpg(0, signal.SIGKILL)

    # For what is not Linux itself (gVisor), and for a pipe that is closed already.
    threading.Thread(target=watch, name="tunekit-lifeline", daemon=True).start()
    with contextlib.suppress(OSError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
