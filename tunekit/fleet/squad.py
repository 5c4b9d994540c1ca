"""The workers on one kind of GPU, as the run sees them: what it asks for, and what they said."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from tunekit.cache import Holder
from tunekit.config import Config
from tunekit.errors import TunekitError
from tunekit.fleet.jobs import Job, Place, State
from tunekit.fleet.messages import (
    Account,
    Compile,
    Drop,
    Dropped,
    Hello,
    Lost,
    Measured,
    Message,
    Met,
    Outline,
    Outlined,
    Taken,
    Tried,
)
from tunekit.fleet.places import Places
from tunekit.key import Problem, TuningKey
from tunekit.space import Space
from tunekit.spent import Spent
from tunekit.trial import Measurement, Trial


class Squad:
    """All methods may be called from any thread."""

    def __init__(
        self, send: Callable[[int, Message], None], release: Callable[[Holder], None]
    ) -> None:
        self._send = send
        self._release = release
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._desk = Places(send)
        self._jobs: dict[int, Job] = {}
        self._stream: deque[tuple[Job, Trial]] = deque()
        self._vendors: dict[Problem, Measurement | None] = {}
        self._outlines: dict[Problem, int] = {}
        self._spaces: dict[Problem, Space | TunekitError] = {}
        self._accounts: dict[int, Spent | None] = {}
        self._error: Exception | None = None

    @property
    def size(self) -> int:
        """How many workers there are now."""
        return len(self._desk.members)

    def join(self, worker: int, hello: Hello) -> None:
        """Take in a worker."""
        with self._changed:
            self._outlines |= dict.fromkeys(hello.outlining, worker)
            self._desk.join(worker, hello)

    def leave(self, worker: int) -> None:
        """Give what a worker had to the others: its process has ended, and its leases with it."""
        with self._changed:
            hello = self._desk.leave(worker)
            self._accounts.pop(worker, None)
        if hello is None:
            return
        self._release(hello.holder)
        with self._changed:
            self._desk.inherit(worker)
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Raise this for whoever waits."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def hear(self, worker: int, message: Message) -> None:
        """Take what a worker says."""
        with self._changed:
            if worker not in self._desk.members:
                return
            if isinstance(message, Tried):
                self._tried(worker, message)
            elif isinstance(message, Outlined):
                self._spaces[message.problem] = message.space
            elif isinstance(message, Met):
                self._vendors[message.problem] = message.vendor
            elif isinstance(message, (Measured, Lost)):
                self._ended(worker, message)
            elif isinstance(message, Taken):
                self._desk.taken(worker, message)
            elif isinstance(message, Dropped):
                self._desk.dropped(message)
            elif isinstance(message, Account):
                self._accounts[worker] = message.spent
            self._desk.dispatch()
            self._changed.notify_all()

    def take(self, keys: Iterable[TuningKey]) -> set[TuningKey]:
        """Have workers lease keys, and return those that are this run's now."""
        wanted = list(keys)
        unsettled = (State.ORPHAN, State.TAKING)
        with self._changed:
            for key in wanted:
                self._desk.places.setdefault(key, Place(key))
            self._desk.adopt()
            self._wait(lambda: not any(self._state(key) in unsettled for key in wanted))
            return {key for key in wanted if key in self._desk.places}

    def holds(self, key: TuningKey) -> bool:
        """Say whether a key is this run's."""
        with self._changed:
            return key in self._desk.places

    def give_back(self, keys: Collection[TuningKey]) -> None:
        """Let other runs have keys."""
        with self._changed:
            for key in keys:
                place = self._desk.places.pop(key, None)
                if place is not None and place.state is State.HELD and place.worker is not None:
                    self._send(place.worker, Drop((key,)))

    def leasing(self) -> dict[int, Holder]:
        """Return the workers that have keys, each with the holder of its leases."""
        with self._changed:
            busy = {p.worker for p in self._desk.places.values() if p.state is State.HELD}
            return {w: hello.holder for w, hello in self._desk.members.items() if w in busy}

    def outline(self, problems: Sequence[Problem]) -> None:
        """Have the workers enumerate spaces, each its share of those that none is at already."""
        with self._changed:
            workers = list(self._desk.members)
            left = [p for p in problems if self._outlines.get(p) not in workers]
            for place, worker in enumerate(workers):
                share = tuple(left[place :: len(workers)])
                if share:
                    self._outlines |= dict.fromkeys(share, worker)
                    self._send(worker, Outline(share))

    def outlined(self, problem: Problem) -> Space | None:
        """Wait for a space that was asked for. None if it was not, or its worker has ended.

        Raises:
            TunekitError: there is none.
        """

        def worker_is_at_it() -> bool:
            return problem not in self._spaces and self._outlines.get(problem) in self._desk.members

        with self._changed:
            self._wait(lambda: not worker_is_at_it())
            found = self._spaces.get(problem)
        if isinstance(found, TunekitError):
            raise found
        return found

    def vendor(self, problem: Problem) -> Measurement | None:
        """Return the vendor's first time as far as it is known: nobody waits for it."""
        return self._vendors.get(problem)

    def begin(self, key: TuningKey, configs: tuple[Config, ...]) -> Job:
        """Have configs of a key tried, as soon as a worker can."""
        return self._put(Job(next(self._numbers), key, configs))

    def measure(self, key: TuningKey, configs: tuple[Config, ...]) -> Job:
        """Have finalists measured, and wait. What else was to be tried of the key is given up."""
        job = Job(next(self._numbers), key, configs, is_finals=True)
        with self._changed:
            place = self._desk.places.get(key)
            if place is not None:
                for given_up in place.waiting:
                    given_up.lost = True
                place.waiting.clear()
            self._put(job)
            self._wait(lambda: job.over)
            return job

    def ask(self, job: Job) -> None:
        """Have the trials of a job given by `next_trial`, those that ended already first."""
        with self._changed:
            job.asked = True
            self._stream.extend((job, trial) for trial in job.held)
            job.held.clear()

    def next_trial(self, jobs: set[Job]) -> tuple[Problem, Trial] | None:
        """Wait for the next trial of jobs that were asked for, or return None if all is over."""
        with self._changed:
            self._wait(lambda: bool(self._stream) or all(job.over for job in jobs))
            if not self._stream:
                return None
            job, trial = self._stream.popleft()
            return job.key.problem, trial

    def give_up(self, jobs: set[Job]) -> list[tuple[Problem, Trial]]:
        """Ask for jobs no more for now, and return what was tried and not taken."""
        with self._changed:
            for job in jobs:
                job.asked = False
            for job, trial in self._stream:
                job.held.append(trial)
            self._stream.clear()
            return [(job.key.problem, trial) for job in jobs for trial in job.held]

    def accounts(self, timeout_s: float) -> list[Spent]:
        """Ask all workers where their time went."""
        with self._changed:
            self._accounts = dict.fromkeys(self._desk.members)
            for worker in self._desk.members:
                self._send(worker, Account())
            self._changed.wait_for(lambda: None not in self._accounts.values(), timeout_s)
            return [spent for spent in self._accounts.values() if spent is not None]

    def _wait(self, until: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._error is not None or until())
        if not until() and self._error is not None:
            raise self._error

    def _state(self, key: TuningKey) -> State | None:
        return self._desk.places[key].state if key in self._desk.places else None

    def _put(self, job: Job) -> Job:
        with self._changed:
            self._jobs[job.number] = job
            place = self._desk.places.get(job.key)
            if place is None:
                job.lost = True
                return job
            place.waiting.append(job)
            self._desk.dispatch()
            if job in place.waiting and place.worker is not None and not job.is_finals:
                work = tuple((job.key.problem, config) for config in job.configs)
                self._send(place.worker, Compile(work))
        return job

    def _tried(self, worker: int, message: Tried) -> None:
        job = self._jobs.get(message.job)
        if job is None or message.trial.config in job.tried:
            return
        job.tried[message.trial.config] = message.trial
        if job.asked:
            self._stream.append((job, message.trial))
        else:
            job.held.append(message.trial)
        if job.over:
            self._over(worker, job)

    def _ended(self, worker: int, message: Measured | Lost) -> None:
        job = self._jobs.get(message.job)
        if job is None:
            return
        if isinstance(message, Measured):
            job.finals, job.made = message.finals, message.made
        else:
            self._desk.lose(job.key)
        self._over(worker, job)

    def _over(self, worker: int, job: Job) -> None:
        self._jobs.pop(job.number, None)
        self._desk.over(worker, job)
