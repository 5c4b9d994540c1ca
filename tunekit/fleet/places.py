"""Which worker has which key of a run, and what each is at.

Each key is with one worker, which has leased it. Its jobs go there, in order, and no worker has
more than a few at a time. One that has nothing to do takes a key over from the one with the most to
do: so all end at about the same time, however long keys take, and who joins later has work as well.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from tunekit.fleet.jobs import Job, Place, State
from tunekit.fleet.messages import Drop, Dropped, Hello, Message, Take, Taken
from tunekit.key import TuningKey

_log = logging.getLogger(__name__)

FEWEST_AHEAD, MOST_AHEAD = 2, 4
"""Jobs a worker is given at a time: what is compiled first is measured first, among those."""


class Places:
    """Not thread-safe: a squad's lock is held wherever it is used."""

    def __init__(self, send: Callable[[int, Message], None]) -> None:
        self._send = send
        self.members: dict[int, Hello] = {}
        self.load: dict[int, set[Job]] = {}
        """What each worker was given and has not done."""
        self.places: dict[TuningKey, Place] = {}
        self.had: dict[int, set[TuningKey]] = {}
        """The keys each worker has had, whose operands it need not make again."""

    def join(self, worker: int, hello: Hello) -> None:
        """Take in a worker."""
        self.members[worker] = hello
        self.load[worker] = set()
        self.had[worker] = set()
        self.adopt()
        self.dispatch()

    def leave(self, worker: int) -> Hello | None:
        """Let go of a worker; what it had stays with nobody until `inherit`."""
        self.load.pop(worker, None)
        self.had.pop(worker, None)
        return self.members.pop(worker, None)

    def inherit(self, worker: int) -> None:
        """Give what a worker had to the others."""
        for place in self.places.values():
            if worker in (place.worker, place.heir):
                self._abandon(place, worker)
        self.adopt()
        self.dispatch()

    def adopt(self) -> None:
        """Have the keys that nobody has taken by those with the fewest."""
        if not self.members:
            return
        counts = dict.fromkeys(self.members, 0)
        for place in self.places.values():
            if place.worker in counts:
                counts[place.worker] += 1
        takes: dict[int, list[TuningKey]] = {}
        for place in self.places.values():
            if place.state is State.ORPHAN:
                place.worker = min(counts, key=lambda worker: (counts[worker], worker))
                place.state = State.TAKING
                counts[place.worker] += 1
                takes.setdefault(place.worker, []).append(place.key)
        for worker, keys in takes.items():
            self._send(worker, Take(tuple(keys)))

    def dispatch(self) -> None:
        """Give jobs to workers that have room for them."""
        waiting = [p for p in self.places.values() if p.waiting and p.running is None]
        if not waiting or not self.members:
            return
        each = math.ceil((len(waiting) + sum(map(len, self.load.values()))) / len(self.members))
        most = min(MOST_AHEAD, max(FEWEST_AHEAD, each))
        kept: dict[int, list[Place]] = {}
        for place in sorted(waiting, key=lambda place: place.waiting[0].number):
            worker = place.worker
            if place.state is not State.HELD or worker not in self.load:  # who had it has ended
                continue
            if place.waiting[0].is_finals or self._trying(worker) < most:
                job = place.running = place.waiting.popleft()
                self.load[worker].add(job)
                self._send(worker, job.message())
            else:
                kept.setdefault(worker, []).append(place)
        coming = {p.worker for p in self.places.values() if p.state is State.TAKING}
        coming |= {p.heir for p in self.places.values()}
        for worker in self.members:
            if not self.load[worker] and worker not in coming and kept:
                busiest = max(kept, key=lambda other: (len(kept[other]), -other))
                mine = self.had[worker]
                place = max(reversed(kept[busiest]), key=lambda place: place.key in mine)
                kept[busiest].remove(place)
                if not kept[busiest]:
                    del kept[busiest]
                place.state, place.heir = State.LEAVING, worker
                self._send(busiest, Drop((place.key,)))

    def _trying(self, worker: int) -> int:
        """Count the jobs a worker has that its compilers work for; finals fill what they leave."""
        return sum(not job.is_finals for job in self.load[worker])

    def over(self, worker: int, job: Job) -> None:
        """Take note that nothing more comes of a job."""
        self.load[worker].discard(job)
        place = self.places.get(job.key)
        if place is not None and place.running is job:
            place.running = None

    def taken(self, worker: int, message: Taken) -> None:
        """Take note of what a worker has leased, and of what another run has."""
        for key in message.asked:
            place = self.places.get(key)
            if place is None or place.worker != worker or place.state is not State.TAKING:
                if key in message.keys:  # given back, or given to another, in the meantime
                    self._send(worker, Drop((key,)))
            elif key in message.keys:
                place.state = State.HELD
                self.had[worker].add(key)
            else:
                self.lose(key)

    def dropped(self, message: Dropped) -> None:
        """Have keys that were given back leased by those that are to have them."""
        for key in message.keys:
            place = self.places.get(key)
            if place is None or place.state is not State.LEAVING:
                continue
            place.worker, place.heir = place.heir, None
            place.state = State.TAKING
            if place.worker is None:  # it has ended meanwhile
                place.state = State.ORPHAN
                self.adopt()
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

    def lose(self, key: TuningKey) -> None:
        """Give a key up: another run has it now."""
        place = self.places.pop(key, None)
        if place is None:
            return
        _log.debug("another run has taken %s", key)
        for job in (*place.waiting, place.running):
            if job is not None:
                job.lost = True
