"""The workers on one kind of GPU: who has which key, and who does what next.

Each key is with one worker, which has leased it. Its jobs go there, in order, and no worker has
more than a few at a time. One that has nothing to do takes a key over from the one with the most to
do: so all end at about the same time, however long keys take, and who joins later has work as well.
"""

from __future__ import annotations

import itertools
import logging
import math
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
    Take,
    Taken,
    Tried,
)
from tunekit.key import Problem, TuningKey
from tunekit.space import Space
from tunekit.spent import Spent
from tunekit.trial import Measurement, Trial

_log = logging.getLogger(__name__)

FEWEST_AHEAD, MOST_AHEAD = 2, 4
"""Jobs a worker is given at a time: what is compiled first is measured first, among those."""


class Squad:
    """All methods may be called from any thread."""

    def __init__(
        self, send: Callable[[int, Message], None], release: Callable[[Holder], None]
    ) -> None:
        self._send = send
        self._release = release
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._members: dict[int, Hello] = {}
        self._load: dict[int, set[Job]] = {}
        self._places: dict[TuningKey, Place] = {}
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
        return len(self._members)

    def join(self, worker: int, hello: Hello) -> None:
        """Take in a worker."""
        with self._changed:
            self._members[worker] = hello
            self._load[worker] = set()
            self._adopt()
            self._dispatch()

    def leave(self, worker: int) -> None:
        """Give what a worker had to the others: its process has ended, and its leases with it."""
        with self._changed:
            hello = self._members.pop(worker, None)
            self._load.pop(worker, None)
            self._accounts.pop(worker, None)
        if hello is None:
            return
        self._release(hello.holder)
        with self._changed:
            for place in self._places.values():
                if worker in (place.worker, place.heir):
                    self._abandon(place, worker)
            self._adopt()
            self._dispatch()
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Raise this for whoever waits."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def hear(self, worker: int, message: Message) -> None:
        """Take what a worker says."""
        with self._changed:
            if worker not in self._members:
                return
            if isinstance(message, Tried):
                self._tried(worker, message)
            elif isinstance(message, Outlined):
                self._spaces[message.problem] = message.space
            elif isinstance(message, Met):
                self._vendors[message.problem] = message.vendor
            elif isinstance(message, Measured):
                job = self._jobs[message.job]
                job.finals, job.made = message.finals, message.made
                self._over(worker, job)
            elif isinstance(message, Lost):
                job = self._jobs[message.job]
                self._lose(job.key)
                self._over(worker, job)
            elif isinstance(message, Taken):
                self._taken(worker, message)
            elif isinstance(message, Dropped):
                self._dropped(message)
            elif isinstance(message, Account):
                self._accounts[worker] = message.spent
            self._dispatch()
            self._changed.notify_all()

    def take(self, keys: Iterable[TuningKey]) -> set[TuningKey]:
        """Have workers lease keys, and return those that are this run's now."""
        wanted = list(keys)
        unsettled = (State.ORPHAN, State.TAKING)
        with self._changed:
            for key in wanted:
                self._places.setdefault(key, Place(key))
            self._adopt()
            self._wait(lambda: not any(self._state(key) in unsettled for key in wanted))
            return {key for key in wanted if key in self._places}

    def holds(self, key: TuningKey) -> bool:
        """Say whether a key is this run's."""
        with self._changed:
            return key in self._places

    def give_back(self, keys: Collection[TuningKey]) -> None:
        """Let other runs have keys."""
        with self._changed:
            for key in keys:
                place = self._places.pop(key, None)
                if place is not None and place.state is State.HELD and place.worker is not None:
                    self._send(place.worker, Drop((key,)))

    def outline(self, problems: Sequence[Problem]) -> None:
        """Have the workers enumerate spaces, each its share."""
        with self._changed:
            workers = list(self._members)
            for place, worker in enumerate(workers):
                share = tuple(problems[place :: len(workers)])
                if share:
                    self._outlines |= dict.fromkeys(share, worker)
                    self._send(worker, Outline(share))

    def outlined(self, problem: Problem) -> Space | None:
        """Wait for a space that was asked for. None if it was not, or its worker has ended.

        Raises:
            TunekitError: there is none.
        """

        def worker_is_at_it() -> bool:
            return problem not in self._spaces and self._outlines.get(problem) in self._members

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
            place = self._places.get(key)
            if place is not None:
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
            self._accounts = dict.fromkeys(self._members)
            for worker in self._members:
                self._send(worker, Account())
            self._changed.wait_for(lambda: None not in self._accounts.values(), timeout_s)
            return [spent for spent in self._accounts.values() if spent is not None]

    def _wait(self, until: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._error is not None or until())
        if not until() and self._error is not None:
            raise self._error

    def _state(self, key: TuningKey) -> State | None:
        return self._places[key].state if key in self._places else None

    def _put(self, job: Job) -> Job:
        with self._changed:
            self._jobs[job.number] = job
            place = self._places.get(job.key)
            if place is None:
                job.lost = True
                return job
            place.waiting.append(job)
            self._dispatch()
            if job in place.waiting and place.worker is not None and not job.is_finals:
                work = tuple((job.key.problem, config) for config in job.configs)
                self._send(place.worker, Compile(work))
        return job

    def _adopt(self) -> None:
        """Have the keys that nobody has taken by those with the fewest."""
        if not self._members:
            return
        counts = dict.fromkeys(self._members, 0)
        for place in self._places.values():
            if place.worker in counts:
                counts[place.worker] += 1
        takes: dict[int, list[TuningKey]] = {}
        for place in self._places.values():
            if place.state is State.ORPHAN:
                place.worker = min(counts, key=lambda worker: (counts[worker], worker))
                place.state = State.TAKING
                counts[place.worker] += 1
                takes.setdefault(place.worker, []).append(place.key)
        for worker, keys in takes.items():
            self._send(worker, Take(tuple(keys)))

    def _dispatch(self) -> None:
        """Give jobs to workers that have room for them."""
        waiting = [p for p in self._places.values() if p.waiting and p.running is None]
        if not waiting or not self._members:
            return
        each = math.ceil((len(waiting) + sum(map(len, self._load.values()))) / self.size)
        most = min(MOST_AHEAD, max(FEWEST_AHEAD, each))
        kept: dict[int, list[Place]] = {}
        for place in sorted(waiting, key=lambda place: place.waiting[0].number):
            worker = place.worker
            if place.state is not State.HELD or worker is None:
                continue
            if len(self._load[worker]) < most:
                job = place.running = place.waiting.popleft()
                self._load[worker].add(job)
                self._send(worker, job.message())
            else:
                kept.setdefault(worker, []).append(place)
        coming = {p.worker for p in self._places.values() if p.state is State.TAKING}
        coming |= {p.heir for p in self._places.values()}
        for worker in self._members:
            if not self._load[worker] and worker not in coming and kept:
                busiest = max(kept, key=lambda other: (len(kept[other]), -other))
                place = kept[busiest].pop()
                if not kept[busiest]:
                    del kept[busiest]
                place.state, place.heir = State.LEAVING, worker
                self._send(busiest, Drop((place.key,)))

    def _tried(self, worker: int, message: Tried) -> None:
        job = self._jobs[message.job]
        if message.trial.config in job.tried:
            return
        job.tried[message.trial.config] = message.trial
        if job.asked:
            self._stream.append((job, message.trial))
        else:
            job.held.append(message.trial)
        if job.over:
            self._over(worker, job)

    def _over(self, worker: int, job: Job) -> None:
        self._load[worker].discard(job)
        self._jobs.pop(job.number, None)
        place = self._places.get(job.key)
        if place is not None and place.running is job:
            place.running = None

    def _taken(self, worker: int, message: Taken) -> None:
        for key in message.asked:
            place = self._places.get(key)
            if place is None or place.worker != worker or place.state is not State.TAKING:
                if key in message.keys:  # given back, or given to another, in the meantime
                    self._send(worker, Drop((key,)))
            elif key in message.keys:
                place.state = State.HELD
            else:
                self._lose(key)

    def _dropped(self, message: Dropped) -> None:
        for key in message.keys:
            place = self._places.get(key)
            if place is None or place.state is not State.LEAVING:
                continue
            place.worker, place.heir = place.heir, None
            place.state = State.TAKING
            if place.worker is None:  # it has ended meanwhile
                place.state = State.ORPHAN
                self._adopt()
            else:
                self._send(place.worker, Take((key,)))

    def _abandon(self, place: Place, worker: int) -> None:
        """Take a key away from a worker that has ended, with what it had not done of it."""
        if place.heir == worker:
            place.heir = None
        if place.worker != worker:
            return
        place.state, place.worker, place.heir = State.ORPHAN, None, None
        if place.running is not None:
            place.waiting.appendleft(place.running)
            place.running = None

    def _lose(self, key: TuningKey) -> None:
        """Give a key up: another run has it now."""
        place = self._places.pop(key, None)
        if place is None:
            return
        _log.debug("another run has taken %s", key)
        for job in (*place.waiting, place.running):
            if job is not None:
                job.lost = True
