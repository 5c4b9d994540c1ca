"""Keeps one measuring process alive and fed, from a thread of its own.

The process always has the next ask waiting in its pipe, so that neither the search nor the store
idles the GPU. If it dies, hangs or loses its context, the ask it was at is answered with how that
happened, another process is started, and what was waiting is asked again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Protocol

from tunekit.child import Child, ChildError
from tunekit.config import Config
from tunekit.errors import TuneError, TunekitError
from tunekit.spent import Spent
from tunekit.trial import Status
from tunekit.worker import Answer, Ask, Kind, Ready, Refused, Trying

AHEAD = 2
"""Asks the process has at a time: the one it is at and the next."""

MOST_STARTS = 3
MOST_DEATHS = 5
"""If the process dies this often in a row, the vendor's call has to show that the GPU is well."""

MOST_FAULTS = 4 * MOST_DEATHS
"""The run ends after so many deaths without a config that ran, even on a GPU that is well."""

PROBE = -1
"""The number of an ask whose answer nobody waits for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the process may be silent, in seconds, before it counts as hung."""

    start_s: float = 180.0
    vendor_s: float = 300.0
    """The first ask for a problem: it makes operands and reference."""
    screen_s: float = 60.0
    finals_s: float = 120.0

    def of(self, ask: Ask) -> float:
        """Return the limit for an ask."""
        limits = {Kind.VENDOR: self.vendor_s, Kind.SCREEN: self.screen_s}
        return limits.get(ask.kind, self.finals_s)


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended in the middle of an ask, at this config if that is known."""

    status: Status
    reason: str
    config: Config | None


Outcome = Answer | Died


class Feed(Protocol):
    """Where asks come from and outcomes go. All are called from the feeding thread."""

    def opened(self, ready: Ready) -> None:
        """The process is up, for the first time or again."""

    def pull(self) -> Ask | None:
        """Give the next ask, or None if there is none now; `ring` says when there is one."""

    def waiting(self) -> bool:
        """Say whether asks are held up by compilations."""

    def deliver(self, ask: Ask, outcome: Outcome) -> None:
        """Take what came of an ask."""

    def broke(self, error: Exception) -> None:
        """Take the error that ends it all: nothing else will come."""


class MeasuringProcess:
    """One measuring process after the other, until `close`."""

    def __init__(
        self, start: Callable[[], Child], feed: Feed, *, limits: Limits | None = None
    ) -> None:
        self._start = start
        self._source = feed
        self._limits = limits or Limits()
        self._child = start()  # first: where it cannot be started nothing is left behind
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._is_up = False
        self._asked: deque[Ask] = deque()
        self._again: deque[Ask] = deque()
        self._begun = False
        self._at: Config | None = None
        self._deaths = self._faults = self._failed_starts = 0
        self._seconds = {"start": 0.0, "busy": 0.0, "compile": 0.0, "idle": 0.0, "time": 0.0}
        self._state, self._since = "start", time.monotonic()
        self._heard = self._since
        self._compiled = self._restarts = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tunekit-measuring", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process that measures now."""
        return self._child.pid

    def ring(self) -> None:
        """Say that `pull` may have something new."""
        if not self._stopping:
            os.eventfd_write(self._bell, 1)

    def spent(self) -> Spent:
        """Return where the time went so far."""
        with self._lock:
            seconds = dict(self._seconds)
            seconds[self._state] += time.monotonic() - self._since
            return Spent(
                start_s=seconds["start"],
                compile_s=seconds["compile"],
                verify_s=max(0.0, seconds["busy"] - seconds["time"]),
                time_s=min(seconds["time"], seconds["busy"]),
                idle_s=seconds["idle"],
                compiled_late=self._compiled,
                restarts=self._restarts,
            )

    def close(self) -> None:
        """End the process, whatever it is at."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._child.kill()
        os.close(self._bell)

    def _run(self) -> None:
        error: Exception = ChildError("the measuring process's own thread failed")
        try:
            while not self._stopping:
                self._feed()
                self._account()
                self._listen()
        except (TunekitError, ChildError) as reason:
            error = reason
        finally:
            self._account("idle")
            if not self._stopping:  # whoever waits for an answer must not wait for ever
                self._source.broke(error)

    def _feed(self) -> None:
        while self._is_up and len(self._asked) < AHEAD:
            ask = self._again.popleft() if self._again else self._source.pull()
            if ask is None:
                return
            if not self._asked:
                self._heard = time.monotonic()
            self._asked.append(ask)
            self._child.send(ask)

    def _account(self, state: str | None = None) -> None:
        """Book the time since the last call, and say what the time from now on is spent on."""
        if state is None:
            waits = "compile" if self._source.waiting() else "idle"
            state = "busy" if self._asked else waits if self._is_up else "start"
        with self._lock:
            now = time.monotonic()
            self._seconds[self._state] += now - self._since
            self._state, self._since = state, now

    def _listen(self) -> None:
        """Wait until the process says something, ends or is late, or somebody rings."""
        limit: float | None = None
        if not self._is_up:
            limit = self._limits.start_s
        elif self._asked:
            limit = self._limits.of(self._asked[0])
        left = None if limit is None else max(0.0, self._heard + limit - time.monotonic())
        ready = wait([self._bell, self._child.connection], left)
        self._account()
        if self._bell in ready:
            os.eventfd_read(self._bell)
        if self._child.connection in ready:
            self._hear()
        elif not ready and limit is not None:
            self._died(Status.TIMEOUT, f"it ran over {limit:g} s")

    def _hear(self) -> None:
        self._heard = time.monotonic()
        try:
            message = self._child.recv()
        except EOFError:
            self._died(Status.LAUNCH_ERROR, f"the measuring process {self._child.ended()}")
            return
        if isinstance(message, Answer):
            self._take(message)
        elif isinstance(message, Trying):
            self._begun, self._at = True, message.config
        elif isinstance(message, Refused):
            raise message.error
        else:
            self._is_up = True
            self._failed_starts = 0
            self._source.opened(message)

    def _take(self, answer: Answer) -> None:
        ask = self._asked.popleft()
        self._begun = False
        with self._lock:
            self._seconds["time"] += answer.time_s
            self._compiled += answer.compiled
        self._at = None
        if answer.lost:
            self._restarts += 1
        self._source.deliver(ask, answer)
        if answer.lost:
            self._restart("a fault made its context on the GPU unusable", ask)
            return
        self._deaths = 0
        if ask.number != PROBE:
            self._faults = 0

    def _died(self, status: Status, reason: str) -> None:
        self._restarts += 1
        if not self._is_up:
            self._failed_starts += 1
            if self._failed_starts >= MOST_STARTS:
                raise TuneError(f"the measuring process does not start: {reason}")
        ask = self._asked[0] if self._asked else None
        if ask is not None and self._begun:  # else it died between two asks: neither is to blame
            self._asked.popleft()
            config = ask.configs[0] if ask.kind is Kind.SCREEN else self._at
            self._source.deliver(ask, Died(status, reason, config))
        self._restart(reason, ask)

    def _restart(self, reason: str, ask: Ask | None) -> None:
        """Start another process, unless it is the GPU that fails and not what runs there."""
        self._deaths += 1
        self._faults += 1
        if self._deaths > MOST_DEATHS or self._faults >= MOST_FAULTS:
            raise TuneError(
                f"the measuring process died {self._faults} times in a row, the last time so:"
                f" {reason}. Finished trials are kept; see whether nvidia-smi shows the GPU well,"
                " then run the same command again"
            )
        self._again.extendleft(reversed(self._asked))
        self._asked.clear()
        if self._deaths == MOST_DEATHS and ask is not None:
            self._again.appendleft(Ask(Kind.VENDOR, ask.problem, number=PROBE))
        self._child.kill()
        self._child = self._start()
        self._is_up, self._begun, self._at = False, False, None
        self._heard = time.monotonic()
