"""What the leader sees though nobody tells it: silent workers, and that there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunekit.cache import Claims, Holder, Store
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import DeviceError, StoreError, TuneError
from tunekit.fleet import leading
from tunekit.fleet.identity import made_by
from tunekit.fleet.leading import Lead
from tunekit.fleet.messages import Gone, Hello, Refused, Stop, Stopped, Take, Taken
from tunekit.fleet.ray_crew import why_lost
from tunekit.fleet.watching import ALONE_S, STALLED_S
from tunekit.key import Problem, TuningKey
from tunekit.trial import Origin

HERE = KNOWN_DEVICES["sm_90"]
OTHER = replace(KNOWN_DEVICES["sm_80"], name="Another GPU")


class Crew:
    """Workers that do what the test says, and lease what they are asked to at once."""

    is_local = True

    def __init__(self, devices=(HERE,)):
        self.devices, self.ended, self.replaced, self.hear = devices, [], [], None
        self.holders = {}

    @property
    def planned(self):
        return len(self.devices)

    def start(self, hear):
        self.hear = hear
        for worker, device in enumerate(self.devices, 1):
            self.greet(worker, device)

    def greet(self, worker, device):
        self.holders[worker] = replace(Holder.here(), name=f"worker {worker}")
        origin = Origin.REPLAYED
        self.hear(worker, Hello(self.holders[worker], device, origin, made_by(origin), ""))

    def send(self, worker, message):
        if isinstance(message, Take):
            self.hear(worker, Taken(message.keys, frozenset(message.keys)))
        elif isinstance(message, Stop):
            self.hear(worker, Stopped())

    def replace(self, worker):
        self.replaced.append(worker)

    def end(self, worker):
        self.ended.append(worker)

    def lacking(self):
        return "no GPU is free"

    def close(self):
        pass


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "c.db") as store:
        store.put_device(HERE)
        yield store


def led(crew, store):
    lead = Lead(crew, store.location)
    lead.attach(store)
    return lead, {r.device.slug: r for r in lead.runners(0)}


def keys(device):
    return [TuningKey.of(Problem("matmul", 512, 512, 512, "bfloat16"), device.slug)]


def test_a_worker_whose_leases_stay_over_is_ended(store, caplog):
    crew = Crew()
    lead, runners = led(crew, store)
    runners[HERE.slug]._squad.take(keys(HERE))
    lead.look(0.0)
    lead.look(STALLED_S - 1)
    assert crew.ended == []
    with Claims(store, holder=crew.holders[1]) as renewed:
        renewed.take(keys(HERE))
        lead.look(STALLED_S)
    lead.look(STALLED_S + 1)
    assert crew.ended == []
    lead.look(2 * STALLED_S + 1)
    assert crew.ended == [1]
    assert "has not renewed its leases: it is ended" in caplog.text
    lead.close()


def test_a_worker_without_keys_has_no_leases_and_is_left_alone(store):
    crew = Crew()
    lead, _ = led(crew, store)
    lead.look(0.0)
    lead.look(10 * STALLED_S)
    assert crew.ended == []
    lead.close()


def test_a_run_without_a_worker_says_what_it_waits_for_and_then_ends(store, caplog):
    crew = Crew()
    lead, runners = led(crew, store)
    crew.hear(1, Gone("was lost to Ray"))
    assert crew.replaced == [1]
    lead.look(0.0)
    lead.look(ALONE_S - 1)
    told = "no worker is left: waiting for one of 1 (no GPU is free); Ctrl-C ends the run"
    assert [record.message for record in caplog.records].count(told) == 1
    lead.look(ALONE_S)
    with pytest.raises(TuneError, match=r"no worker has come in 15 minutes .*: no GPU is free;"):
        runners[HERE.slug]._squad.take(keys(HERE))
    lead.close()


def test_a_worker_that_comes_in_time_goes_on(store):
    crew = Crew()
    lead, runners = led(crew, store)
    crew.hear(1, Gone("was lost to Ray"))
    lead.look(0.0)
    crew.greet(2, HERE)
    lead.look(1.0)
    lead.look(ALONE_S + 1)
    assert runners[HERE.slug]._squad.take(keys(HERE)) == set(keys(HERE))
    lead.close()


def test_a_kind_of_gpu_without_workers_does_not_wait_for_one_of_another_kind(store):
    crew = Crew((HERE, OTHER))
    lead, runners = led(crew, store)
    crew.hear(2, Gone("was killed"))
    crew.hear(1, Refused(DeviceError("its driver is gone")))
    crew.greet(3, OTHER)
    lead.look(0.0)
    with pytest.raises(DeviceError, match="its driver is gone"):
        runners[HERE.slug]._squad.take(keys(HERE))
    lead.close()


def test_a_run_that_waits_for_its_first_worker_says_so(store, monkeypatch, caplog):
    class Late(Crew):
        def start(self, hear):
            self.hear = hear

        def lacking(self):
            self.greet(1, HERE)
            return "none of 0 GPUs is free"

    monkeypatch.setattr(leading, "NOTE_S", 0.001)
    lead = Lead(Late(), store.location)
    assert len(lead.runners(0)) == 1
    assert "no worker has started yet: waiting for one of 1 (none of 0 GPUs is free)" in caplog.text
    lead.close()


def test_all_workers_of_a_large_run_may_die_at_once(store):
    """As those of one host do, or of one server that is started again."""
    crew = Crew((HERE,) * 8)
    lead, _ = led(crew, store)
    for worker in range(1, 9):
        crew.hear(worker, Gone("was lost to Ray"))
    assert crew.replaced == list(range(1, 9))
    lead.close()


def test_a_worker_that_a_server_failed_is_replaced_once_it_has_ended(caplog):
    crew = Crew()
    lead = Lead(crew, "postgresql://nobody@nowhere/none")
    crew.hear(1, Refused(StoreError("the server is starting up")))
    assert crew.replaced == []
    crew.hear(1, Gone("ended with exit code 0"))
    assert crew.replaced == [1]
    assert "a worker failed: the server is starting up: its keys go to others" in caplog.text
    lead.close()


def test_a_worker_that_a_file_failed_is_not(store):
    crew = Crew()
    lead, runners = led(crew, store)
    crew.hear(1, Refused(StoreError("the disk is full")))
    crew.hear(1, Gone("ended with exit code 0"))
    assert crew.replaced == []
    with pytest.raises(StoreError, match="the disk is full"):
        runners[HERE.slug]._squad.take(keys(HERE))
    lead.close()


def test_a_server_that_stays_away_ends_the_run_with_what_it_says():
    crew = Crew()
    lead = Lead(crew, "postgresql://nobody@nowhere/none")
    (runner,) = lead.runners(0)
    for worker in range(1, leading.MOST_DEATHS + 2):
        crew.hear(worker, Refused(StoreError("the server is gone")))
        crew.hear(worker, Gone("ended with exit code 0"))
        if len(crew.replaced) == worker:
            crew.greet(worker + 1, HERE)
    assert len(crew.replaced) == leading.MOST_DEATHS
    with pytest.raises(TuneError, match=r"6 workers died .* failed: the server is gone"):
        runner._squad.take(keys(HERE))
    lead.close()


def test_an_actor_that_could_not_begin_says_why():
    """Ray's text is a traceback in colours, whose last line tells."""
    text = (
        "The actor died because of an error raised in its creation task, "
        "\x1b[36mray::Actor.__init__()\x1b[39m (pid=1, ip=192.0.2.2, actor_id=00, repr=<Actor>)\n"
        "  At least one of the input arguments for this task could not be computed:\n"
        "ModuleNotFoundError: No module named 'tunekit'\n"
    )
    assert why_lost(text) == "it could not begin: ModuleNotFoundError: No module named 'tunekit'"
    died = "The actor died unexpectedly before finishing this task.\n\tclass_name: Actor\n"
    assert why_lost(died).startswith(
        "The actor died unexpectedly before finishing this task. class"
    )
