"""Who gets which key and job, message by message, with no worker at all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tunekit.config import Config
from tunekit.errors import TuneError
from tunekit.fleet.jobs import Job, Place, State
from tunekit.fleet.messages import (
    Compile,
    Drop,
    Dropped,
    Lost,
    Measure,
    Outline,
    Outlined,
    Screen,
    Take,
    Taken,
    Tried,
)
from tunekit.fleet.places import MOST_AHEAD, Places
from tunekit.fleet.squad import Squad
from tunekit.key import Problem, TuningKey
from tunekit.trial import Status, Trial

KEYS = [TuningKey.of(Problem("matmul", m, 64, 64, "bfloat16"), "gpu") for m in range(1, 9)]
CONFIGS = tuple(Config("pointer", 64, 64, k) for k in (16, 32, 64))


def trial(config):
    return Trial(config, Status.COMPILE_ERROR, error="none")


class Workers:
    """Answers for workers that take every key, except those that another run has."""

    def __init__(self, others=()):
        self.others, self.said, self.released = set(others), [], []
        self.squad = Squad(self.send, self.released.append)

    def send(self, worker, message):
        self.said.append((worker, message))

    def join(self, worker, outlining=()):
        self.squad.join(worker, SimpleNamespace(holder=f"holder {worker}", outlining=outlining))

    def answer(self):
        """Answer what was asked of leases since the last time; return the rest."""
        rest = []
        while self.said:
            worker, message = self.said.pop(0)
            if isinstance(message, Take):
                got = frozenset(message.keys) - self.others
                self.squad.hear(worker, Taken(message.keys, got))
            elif isinstance(message, Drop):
                self.squad.hear(worker, Dropped(message.keys))
            elif not isinstance(message, Compile):
                rest.append((worker, message))
        return rest

    def take(self, keys):
        """Have keys leased; the answers come while the caller waits."""
        changed = self.squad._changed
        wait_for, changed.wait_for = changed.wait_for, lambda *_: self.answer()
        try:
            return self.squad.take(keys)
        finally:
            changed.wait_for = wait_for


def test_keys_are_dealt_evenly_and_those_of_another_run_are_left_to_it():
    workers = Workers(others=KEYS[:1])
    workers.join(1)
    workers.join(2)
    assert workers.take(KEYS[:5]) == set(KEYS[1:5])
    assert [workers.squad.holds(key) for key in KEYS[:3]] == [False, True, True]
    assert workers.squad.begin(KEYS[0], CONFIGS).over


def test_a_worker_has_few_jobs_at_a_time_and_an_idle_one_takes_a_key_over():
    workers = Workers()
    workers.join(1)
    workers.take(KEYS[:4])
    jobs = [workers.squad.begin(key, CONFIGS) for key in KEYS[:4]]
    given = workers.answer()
    assert {worker for worker, _ in given} == {1}
    assert len(given) >= 2
    for key in KEYS[4:]:
        workers.take([key])
        jobs.append(workers.squad.begin(key, CONFIGS))
    given += workers.answer()
    assert len(given) == 4
    workers.join(2)
    taken_over = workers.answer()
    assert [worker for worker, _ in taken_over] == [2]
    assert taken_over[0][1].job == jobs[-1].number


def test_an_idle_worker_takes_over_a_key_whose_operands_it_has_before_another():
    said = []
    desk = Places(lambda worker, message: said.append((worker, message)))
    for worker in (1, 2):
        desk.join(worker, SimpleNamespace())
    desk.places = {key: Place(key, State.HELD, 1) for key in KEYS}
    desk.places[KEYS[5]] = Place(KEYS[5], State.TAKING, 2)
    desk.taken(2, Taken((KEYS[5],), frozenset(KEYS[5:6])))
    desk.places[KEYS[5]].worker = 1  # who was idle then
    for number, place in enumerate(desk.places.values()):
        place.waiting.append(Job(number, place.key, CONFIGS))
    desk.dispatch()
    assert [message for _, message in said if isinstance(message, Drop)] == [Drop((KEYS[5],))]


def test_what_a_dead_worker_had_not_done_goes_to_another_and_its_leases_are_released():
    workers = Workers()
    workers.join(1)
    workers.take(KEYS[:1])
    job = workers.squad.begin(KEYS[0], CONFIGS)
    assert workers.answer() == [(1, Screen(job.number, KEYS[0], CONFIGS))]
    workers.squad.hear(1, Tried(job.number, trial(CONFIGS[0])))
    workers.squad.leave(1)
    assert workers.released == ["holder 1"]
    workers.join(2)
    assert workers.answer() == [(2, Screen(job.number, KEYS[0], CONFIGS[1:]))]
    workers.squad.ask(job)
    for config in CONFIGS[1:]:
        workers.squad.hear(2, Tried(job.number, trial(config)))
    found = [workers.squad.next_trial({job}) for _ in CONFIGS]
    assert [one.config for _, one in found] == list(CONFIGS)
    assert workers.squad.next_trial({job}) is None


def test_a_key_of_a_dead_worker_waits_until_another_has_it():
    workers = Workers()
    for worker in (1, 2):
        workers.join(worker)
    workers.take(KEYS[:4])
    mine = [key for key, place in workers.squad._desk.places.items() if place.worker == 1]
    begun = []
    # While the store gives its leases back, the run's own thread goes on asking.
    workers.squad._release = lambda holder: begun.append(workers.squad.begin(mine[0], CONFIGS))
    workers.squad.leave(1)
    assert workers.answer() == [(2, Screen(begun[0].number, mine[0], CONFIGS))]


def test_a_key_whose_lease_was_lost_is_given_up_whatever_its_worker_still_says():
    workers = Workers()
    workers.join(1)
    workers.take(KEYS[:1])
    job = workers.squad.begin(KEYS[0], CONFIGS)
    workers.squad.ask(job)
    workers.squad.hear(1, Lost(job.number))
    for config in CONFIGS:
        workers.squad.hear(1, Tried(job.number, trial(config)))
    assert workers.squad.next_trial({job}) is None
    assert not workers.squad.holds(KEYS[0])


def test_trials_that_nobody_asked_for_yet_are_held():
    workers = Workers()
    workers.join(1)
    workers.take(KEYS[:1])
    job = workers.squad.begin(KEYS[0], CONFIGS)
    for config in CONFIGS:
        workers.squad.hear(1, Tried(job.number, trial(config)))
    workers.squad.ask(job)
    assert workers.squad.next_trial({job})[1].config == CONFIGS[0]
    left = workers.squad.give_up({job})
    assert [one.config for _, one in left] == list(CONFIGS[1:])


def test_only_spaces_that_no_worker_is_at_are_asked_for():
    problems = [key.problem for key in KEYS[:5]]
    workers = Workers()
    workers.join(1, outlining=problems[:2])
    workers.join(2, outlining=problems[2:3])
    workers.squad.outline(problems)
    asked = [message for _, message in workers.said if isinstance(message, Outline)]
    assert [message.problems for message in asked] == [(problems[3],), (problems[4],)]
    space = SimpleNamespace()
    workers.squad.hear(1, Outlined(problems[0], space))
    assert workers.squad.outlined(problems[0]) is space
    workers.squad.leave(2)
    assert workers.squad.outlined(problems[2]) is None  # it died at it: the caller does it


def test_finals_take_no_place_of_what_the_compilers_work_for():
    workers = Workers()
    workers.join(1)
    workers.take(KEYS)
    for key in KEYS[:3]:
        workers.squad._put(Job(next(workers.squad._numbers), key, CONFIGS, is_finals=True))
    for key in KEYS[3:]:
        workers.squad.begin(key, CONFIGS)
    given = [type(message) for _, message in workers.answer()]
    assert given.count(Measure) == 3
    assert given.count(Screen) == MOST_AHEAD


def test_whoever_waits_is_told_that_the_run_has_failed():
    workers = Workers()
    workers.squad.fail(TuneError("no worker is left"))
    with pytest.raises(TuneError, match="no worker is left"):
        workers.squad.take(KEYS[:1])
