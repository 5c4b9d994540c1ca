"""A worker: one GPU or a replay, a connection of its own to the store, and leases of its keys.

What it tries it stores at once and then tells the process that leads the run. If it is killed, its
leases end with it, and nothing that was told is lost.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tunekit.cache import Holder
from tunekit.config import Config
from tunekit.device import driver_version
from tunekit.errors import TunekitError
from tunekit.fleet.identity import made_by
from tunekit.fleet.messages import (
    Account,
    Broke,
    Compile,
    Drop,
    Dropped,
    Hello,
    Lost,
    Measure,
    Measured,
    Message,
    Met,
    Outline,
    Outlined,
    Refused,
    Screen,
    Stop,
    Stopped,
    Take,
    Taken,
    Tried,
)
from tunekit.key import Problem, TuningKey
from tunekit.ranking import sound
from tunekit.runner import Runner, are_finals_due
from tunekit.trial import Origin, Trial

if TYPE_CHECKING:
    from tunekit.cache import Claims, Store


class Link(Protocol):
    """One end of a connection that carries messages in order."""

    def send(self, message: Any, /) -> None:
        """Send a message."""

    def recv(self) -> Any:
        """Wait for the next message.

        Raises:
            EOFError: the other end is gone.
        """


def work(link: Link, runner: Runner, place: str, problems: Sequence[Problem] = ()) -> None:
    """Do what the leader asks for until it says stop, or is gone.

    Of `problems`, which the runner is prepared for, the spaces are said at once. The store is
    opened when the first key is to be leased: only then is it known to be needed.
    """
    member = _Member(link, runner, place)
    try:
        member.work(tuple(problems))
    except TunekitError as error:
        member.say(Refused(error))
    except Exception:  # whatever it is, the leader has to know
        member.say(Broke(traceback.format_exc()))
    finally:
        member.close()
        runner.close()


def _load_store() -> None:
    importlib.import_module("tunekit.cache.claims")


class _Member:
    """The work of one worker. A thread of its own hears what the leader says meanwhile."""

    def __init__(self, link: Link, runner: Runner, place: str) -> None:
        self._link = link
        self._runner = runner
        self._place = place
        self._holder = Holder.here()
        self._store: Store | None = None
        self._claims: Claims | None = None
        self._heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._jobs: dict[tuple[Problem, Config], Screen] = {}
        self._met: set[Problem] = set()
        self._finals: deque[Measure] = deque()
        self._stopped = threading.Event()
        self._saying = threading.Lock()

    def work(self, problems: tuple[Problem, ...]) -> None:
        """Say hello and the spaces of problems, and do what is asked for, until the end."""
        runner = self._runner
        driver = "" if runner.origin is Origin.REPLAYED else driver_version()
        made = made_by(runner.origin)  # loads the kernels, while the GPU is opened by its process
        self.say(Hello(self._holder, runner.device, runner.origin, made, driver, problems))
        # What leases and stores takes a second to load, which nobody waits for yet.
        threading.Thread(target=_load_store, name="tunekit-store", daemon=True).start()
        threading.Thread(target=self._hear, name="tunekit-leader", daemon=True).start()
        self._say_spaces(problems)
        while not self._stopped.is_set():
            if self._finals and self._heard.empty():
                self._measure(self._finals.popleft())
            else:
                self._do(self._heard.get())

    def say(self, message: Message) -> None:
        """Tell the leader, if it is still there."""
        with self._saying, contextlib.suppress(OSError):
            self._link.send(message)

    def close(self) -> None:
        """Let go of the keys and of the store."""
        if self._claims is not None:
            self._claims.close()
        if self._store is not None:
            self._store.close()

    def _opened(self) -> tuple[Store, Claims]:
        if self._store is None or self._claims is None:
            from tunekit.cache import Claims, Store

            self._store = Store.open(self._place)
            self._store.put_device(self._runner.device)
            self._claims = Claims(self._store, holder=self._holder)
        return self._store, self._claims

    def _hear(self) -> None:
        """Take messages as they come: what is to be compiled must not wait for a trial to end."""
        message: Message
        while True:
            try:
                message = self._link.recv()
            except (EOFError, OSError):
                message = Stop()
            if isinstance(message, Compile):
                self._runner.announce(message.work)
            elif isinstance(message, Screen):
                self._runner.announce([(message.key.problem, c) for c in message.configs])
            if isinstance(message, Stop):
                self._stop()
                return
            if not isinstance(message, Compile):
                self._heard.put(message)

    def _stop(self) -> None:
        """Let the keys go at once, whatever is being tried: a trial that has not ended is lost."""
        self._stopped.set()
        claims = self._claims
        if claims is not None:
            claims.close()
        self.say(Stopped())
        self._heard.put(Stop())

    def _do(self, message: Message) -> None:
        if isinstance(message, Stop):
            return
        if isinstance(message, Outline):
            self._runner.prepare(message.problems)
            self._say_spaces(message.problems)
            return
        _, claims = self._opened()
        if isinstance(message, Take):
            self.say(Taken(message.keys, frozenset(claims.take(message.keys))))
        elif isinstance(message, Drop):
            claims.give_back(message.keys)
            self.say(Dropped(message.keys))
        elif isinstance(message, Account):
            self.say(Account(self._runner.spent()))
        elif isinstance(message, Measure):
            self._finals.append(message)
        elif isinstance(message, Screen) and self._begin(message):
            self._screen(message)

    def _say_spaces(self, problems: Sequence[Problem]) -> None:
        for problem in problems:
            try:
                self.say(Outlined(problem, self._runner.space(problem)))
            except TunekitError as error:
                self.say(Outlined(problem, error))

    def _begin(self, job: Screen) -> bool:
        """Take note of a job, and meet the vendor where it is new. False if the key is lost."""
        if not self._opened()[1].holds(job.key):
            self.say(Lost(job.job))
            return False
        problem = job.key.problem
        if problem not in self._met:
            self._met.add(problem)
            self.say(Met(problem, self._runner.vendor(problem)))
        self._jobs |= {(problem, config): job for config in job.configs}
        return True

    def _screen(self, job: Screen) -> None:
        """Try what is asked for, and what comes in meanwhile, as it is compiled."""
        for problem, trial in self._runner.screen([(job.key.problem, c) for c in job.configs]):
            found = self._jobs.pop((problem, trial.config))
            self._keep(found.key, [trial])
            self.say(Tried(found.job, trial))
            self._listen()
            while not self._stopped.is_set() and are_finals_due(self._runner, len(self._finals)):
                self._measure(self._finals.popleft())
                self._listen()
            if self._stopped.is_set():
                return

    def _listen(self) -> None:
        """Do what has come in while something was tried, and have what is to be tried added."""
        while not self._stopped.is_set():
            try:
                message = self._heard.get_nowait()
            except queue.Empty:
                return
            if not isinstance(message, Screen):
                self._do(message)
            elif self._begin(message):
                self._runner.add([(message.key.problem, c) for c in message.configs])

    def _measure(self, job: Measure) -> None:
        if not self._opened()[1].holds(job.key):
            self.say(Lost(job.job))
            return
        problem = job.key.problem
        finals = self._runner.finals(problem, job.configs)
        self._keep(job.key, finals.trials)
        made = {t.config: self._runner.provenance(problem, t.config) for t in finals.trials}
        self.say(Measured(job.job, finals, made))

    def _keep(self, key: TuningKey, trials: Iterable[Trial]) -> None:
        """Store trials, as the leader takes them."""
        self._opened()[0].add_trials(
            key, [(t, self._runner.provenance(key.problem, t.config)) for t in map(sound, trials)]
        )
