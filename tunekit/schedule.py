"""What waits to be measured and what came of it, between the caller, the compilers and the GPU.

Configs are measured in the order in which they are compiled, those of one problem together where
possible, so that its operands stay on the device. Something urgent (the vendor's call, the finals)
goes before them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

from tunekit.compiler import Compiled
from tunekit.config import Config
from tunekit.key import Problem
from tunekit.measuring import Died, Outcome
from tunekit.trial import Status, Trial
from tunekit.worker import Answer, Ask, Kind, Ready

MOST_KILLS = 2
"""A config that ended this many measuring processes is tried on no other problem."""

Work = tuple[Problem, Config]


class Schedule:
    """Implements `Feed`; the other methods are for the one thread that owns the runner."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] = lambda: None
        """Called when there is something to pull."""
        self._changed = threading.Condition()
        self._ready_message: Ready | None = None
        self._error: Exception | None = None
        self._kills: Counter[Config] = Counter()
        self._number = 0
        self._urgent: Ask | None = None
        self._outcome: Outcome | None = None
        self._screening = 0
        self._compiling = 0
        self._compiled: deque[Work] = deque()
        self._tried: deque[tuple[Problem, Trial]] = deque()
        self._last: Problem | None = None

    def opened(self, ready: Ready) -> None:
        """Take note that the process is up."""
        with self._changed:
            self._ready_message = ready
            self._changed.notify_all()

    def broke(self, error: Exception) -> None:
        """Raise this for the caller once it has taken what is there."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def waiting(self) -> bool:
        """Say whether all that is to be screened is still being compiled."""
        with self._changed:
            return self._compiling > 0 and not self._compiled

    def pull(self) -> Ask | None:
        """Give what is urgent, else the next compiled config."""
        with self._changed:
            if self._urgent is not None:
                ask, self._urgent = self._urgent, None
                return ask
            while self._compiled:
                problem, config = work = self._next_work()
                self._compiled.remove(work)
                outlawed = self.outlawed(config)
                if outlawed is None:
                    self._last = problem
                    return Ask(Kind.SCREEN, problem, (config,), self._screening)
                self._tried.append((problem, outlawed))
                self._changed.notify_all()
            return None

    def deliver(self, ask: Ask, outcome: Outcome) -> None:
        """Hand what came of an ask to the caller, unless it has given that up."""
        with self._changed:
            culprit = culprit_of(outcome)
            if culprit is not None:
                self._kills[culprit.config] += 1
            if ask.kind is not Kind.SCREEN and ask.number == self._number:
                self._outcome = outcome
            elif ask.kind is Kind.SCREEN and ask.number == self._screening:
                trial = culprit or _only_trial(outcome)
                self._tried.append((ask.problem, trial))
            self._changed.notify_all()

    def when_ready(self) -> Ready:
        """Wait until the measuring process is up for the first time."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready_message or self._error)
            if self._ready_message is None:
                assert self._error is not None
                raise self._error
            return self._ready_message

    def ask(self, kind: Kind, problem: Problem, configs: tuple[Config, ...] = ()) -> Outcome:
        """Have something measured before all else, and wait for what comes of it."""
        with self._changed:
            self._number += 1
            self._outcome = None
            self._urgent = Ask(kind, problem, configs, self._number)
            self.ring()
            self._changed.wait_for(lambda: self._outcome or self._error)
            if self._outcome is None:
                assert self._error is not None
                raise self._error
            return self._outcome

    def begin(self) -> None:
        """Begin a screening."""
        self.give_up()

    def add(self, work: Work, compilation: Future[Compiled]) -> None:
        """Have a config measured in this screening once it is compiled."""
        with self._changed:
            self._compiling += 1
            number = self._screening
        compilation.add_done_callback(lambda done: self._built(number, work, done))
        self.ring()  # from now on the GPU waits for a compilation

    def next_trial(self) -> tuple[Problem, Trial]:
        """Wait for the next trial of this screening."""
        with self._changed:
            self._changed.wait_for(lambda: self._tried or self._error)
            if self._tried:
                return self._tried.popleft()
            assert self._error is not None
            raise self._error

    def give_up(self) -> list[tuple[Problem, Trial]]:
        """End a screening, and return what was tried and not taken. What is in flight is lost."""
        with self._changed:
            self._screening += 1
            self._compiling = 0
            self._compiled.clear()
            untaken, self._tried = list(self._tried), deque()
            return untaken

    def outlawed(self, config: Config) -> Trial | None:
        """Return the failed trial of a config that has ended too many processes, else None."""
        kills = self._kills[config]
        if kills < MOST_KILLS:
            return None
        text = f"not tried: it has ended the measuring process on {kills} problems"
        return Trial(config, Status.LAUNCH_ERROR, error=text)

    def _next_work(self) -> Work:
        same = (work for work in self._compiled if work[0] == self._last)
        return next(same, self._compiled[0])

    def _built(self, number: int, work: Work, compilation: Future[Compiled]) -> None:
        """Take a compilation that has ended, in whatever thread it did."""
        try:
            compiled = compilation.result()
        except CancelledError:
            return  # the pool was closed
        except Exception as error:  # of the pool: to be raised where the results are waited for
            self.broke(error)
            return
        with self._changed:
            if number != self._screening:
                return
            self._compiling -= 1
            if compiled.status is Status.OK:
                self._compiled.append(work)
            else:
                failed = Trial(work[1], compiled.status, error=compiled.error)
                self._tried.append((work[0], failed))
            self._changed.notify_all()
        self.ring()


def culprit_of(outcome: Outcome) -> Trial | None:
    """Return the failed trial of the config that ended a process, if it is known."""
    if isinstance(outcome, Died):
        if outcome.config is None:
            return None
        return Trial(outcome.config, outcome.status, error=outcome.reason)
    return outcome.trials[0] if outcome.lost and outcome.trials else None


def _only_trial(outcome: Outcome) -> Trial:
    assert isinstance(outcome, Answer)
    (trial,) = outcome.trials
    return trial
