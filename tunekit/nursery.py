"""A process that loads once what compilers need, and forks them.

To load Triton and the kernels takes a second and a hundred MB, of each process that does it
for itself. A fork has them at once, and shares the memory. It is a `Child` like any other, with a
session, a lifeline, an output and a pipe of its own: we make them and hand its ends to the nursery,
which keeps none of them, as a fork keeps none of the nursery's or of other forks'. What its parent
alone can see is how it ended, so the nursery tells us over one more pipe. Should the nursery die,
another is started, and what it forked goes on.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from errno import EMFILE
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

from tunekit.child import Child, Ends, become
from tunekit.errors import TuneError

MOST_DEATHS = 3
"""How many nurseries may die in a row before it is given up."""

_FORK_S = 30.0
"""How long a fork, of milliseconds, may take before the nursery counts as hung."""

_READY = "ready"
_DESCRIPTORS = len(Ends._fields) + 1


class Fork:
    """A process that the nursery forked."""

    def __init__(self, pid: int, told: Connection) -> None:
        self.pid = pid
        self._told = told
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code if that was waited for, and could be told."""
        return self._code

    def wait(self, timeout: float) -> int | None:
        """Wait until it has ended, and return its exit code, or None if the nursery ended first.

        Raises:
            subprocess.TimeoutExpired: neither has.
        """
        if not self._told.closed:
            if not self._told.poll(timeout):
                raise subprocess.TimeoutExpired("a fork", timeout)
            with suppress(EOFError):
                self._code = self._told.recv()
            self._told.close()
        return self._code


class Nursery:
    """One nursery after the other. It calls `prepare(*args)` and is ready. For one thread.

    Raises:
        TuneError: this host allows no more files, memory or processes.
    """

    def __init__(
        self,
        prepare: Callable[..., None],
        *args: Any,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.deaths = 0
        """How many have died since this was last set to 0."""
        self.is_ready = False
        self._open = partial(Child, serve, prepare, *args, environ=environ)
        self._child = self._start()

    @property
    def pid(self) -> int:
        """The nursery's own process."""
        return self._child.pid

    @property
    def connection(self) -> Connection:
        """Where the nursery has something to say, to `hear`."""
        return self._child.connection

    def hear(self) -> None:
        """Take what the nursery says: that it is ready, or that it has ended, and is replaced.

        Raises:
            ChildError: `prepare` raised an error.
            TuneError: too many have died, or no other can be started.
        """
        try:
            self.is_ready = self._child.recv() == _READY
        except EOFError:
            self._replace()

    def fork(self, task: Callable[..., None], *args: Any) -> Child | None:
        """Start a child that runs `task(connection, *args)`; None if the nursery was replaced.

        Raises:
            TuneError: this host allows no more files, memory or processes; or as `hear`.
        """
        try:
            return Child(task, *args, start=self._fork)
        except EOFError:
            self._replace()
            return None
        except OSError as error:
            raise too_much("compiler", error) from error

    def kill(self) -> None:
        """End the nursery. What it has forked goes on."""
        self._child.kill()

    def _start(self) -> Child:
        try:
            return self._open()
        except OSError as error:
            raise too_much("compiler", error) from error

    def _replace(self) -> None:
        how = self._child.ended()
        self._child.kill()
        self.is_ready = False
        self.deaths += 1
        if self.deaths > MOST_DEATHS:
            raise TuneError(f"nothing can be compiled here: the compiler {how}")
        self._child = self._start()

    def _fork(self, ends: Ends) -> Fork:
        with ExitStack() as closing:
            told, telling = Pipe(duplex=False)
            closing.enter_context(told)
            with telling, _socket(self.connection) as line:
                try:
                    socket.send_fds(line, [b"f"], [*ends, telling.fileno()])
                except (BrokenPipeError, ConnectionResetError) as error:
                    raise EOFError from error
            if not self.connection.poll(_FORK_S):
                raise EOFError
            answer = self._child.recv()
            if isinstance(answer, OSError):
                raise answer
            closing.pop_all()
            return Fork(answer, told)


def too_much(what: str, error: OSError) -> TuneError:
    """Say that this host lets nothing more be started, and what was to be."""
    return TuneError(
        f"no {what} can be started here: {error.strerror}. Raise this host's limits (ulimit -a),"
        " or end what else runs, and run again"
    )


def _socket(connection: Connection) -> socket.socket:
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def serve(connection: Connection, prepare: Callable[..., None], *args: Any) -> None:
    """Be the nursery: prepare, then fork whatever is asked for, until the connection closes."""
    prepare(*args)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, all that it shares
    _Forks(connection).serve()


class _Forks:
    """What the nursery has forked, and how it hears of their ends and of what it is asked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._line = _socket(connection)
        self._bell, self._ringing = Pipe(duplex=False)
        self._telling: dict[int, Connection] = {}
        os.set_blocking(self._ringing.fileno(), False)
        signal.set_wakeup_fd(self._ringing.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # the bell is what it is for

    def serve(self) -> None:
        """Fork what is asked for, and tell how each ends, until nobody can ask any more.

        Raises:
            EOFError: nobody can.
        """
        self._connection.send(_READY)
        while True:
            ready = wait([self._connection, self._bell])
            if self._bell in ready:
                os.read(self._bell.fileno(), 4096)
                self._tell()
            if self._connection in ready:
                self._connection.send(self._answer())

    def _tell(self) -> None:
        for pid in list(self._telling):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with self._telling.pop(pid) as telling, suppress(BrokenPipeError):
                    telling.send(os.waitstatus_to_exitcode(status))

    def _answer(self) -> int | OSError:
        """Fork once, and return the process id, or why there is none."""
        flags = socket.MSG_CMSG_CLOEXEC
        asked, received, _, _ = socket.recv_fds(self._line, 1, _DESCRIPTORS, flags)
        if not asked:
            raise EOFError
        with ExitStack() as closing:
            for descriptor in received:
                closing.callback(os.close, descriptor)
            if len(received) < _DESCRIPTORS:
                return OSError(EMFILE, os.strerror(EMFILE))
            *ends, telling = received
            try:
                pid = self._fork(Ends(*ends), telling)
            except OSError as error:
                return error
            closing.pop_all()
        for descriptor in ends:
            os.close(descriptor)
        self._telling[pid] = Connection(telling, readable=False)
        return pid

    def _fork(self, ends: Ends, telling: int) -> int:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or each fork would print it again
        leads, led = Pipe(duplex=False)
        with leads, led, warnings.catch_warnings():
            # Of other threads. The lifeline's only reads, and a BLAS sees to its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                self._be(ends, telling, (leads, led))
            led.close()
            leads.poll(None)  # until it leads a process group, so that it can be killed, or is dead
        return pid

    def _be(self, ends: Ends, telling: int, others: Iterable[Connection]) -> NoReturn:
        """Be a fork, in which nothing of the nursery's is left open and nothing of it goes on."""
        code = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(ends.output, stream.fileno())
            for descriptor in (ends.output, telling):
                os.close(descriptor)
            self._line.close()
            ours = (self._connection, self._bell, self._ringing)
            for one in (*ours, *others, *self._telling.values()):
                one.close()
            become(ends.pipe, ends.lifeline)
            code = 0
        except BaseException:  # an exit too
            traceback.print_exc()
        finally:
            os._exit(code)
