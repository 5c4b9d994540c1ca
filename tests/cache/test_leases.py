"""Leases: a key has one holder, and passes on when that one is done, dead or late."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest

from tunekit.cache import Claims, Holder, Store, leases
from tunekit.cache.process import host_name, started_at
from tunekit.errors import StoreError

EVERY_DATABASE = True

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def keys(make):
    return [make.key(m=m) for m in (1, 2, 3)]


@pytest.fixture
def elsewhere():
    """A holder on another host, of which nothing is known."""
    return replace(Holder.here(), host="another-host", pid=1)


def test_a_key_has_one_holder_until_it_is_given_back(store, keys):
    mine, other = Holder.here(), Holder.here()
    assert store.acquire(keys[:2], mine, seconds=60) == set(keys[:2])
    assert store.acquire(keys, other, seconds=60) == {keys[2]}
    assert store.acquire(keys[:2], other, seconds=60) == set()
    assert store.acquire(keys, mine, seconds=60) == set(keys[:2])
    found = store.leases()
    assert {key: lease.holder for key, lease in found.items()} == dict.fromkeys(keys[:2], mine) | {
        keys[2]: other
    }
    store.release(mine, [keys[0]])
    assert store.acquire(keys[:2], other, seconds=60) == {keys[0]}
    store.release(mine)
    store.release(other)
    assert store.leases() == {}


def test_a_lease_whose_time_is_over_passes_on(store, keys, elsewhere, monkeypatch):
    now = time.time()
    monkeypatch.setattr(leases, "_now", lambda connection: now)
    store.acquire(keys, elsewhere, seconds=60)
    now += 59
    assert store.acquire(keys, Holder.here(), seconds=60) == set()
    assert store.renew(elsewhere, seconds=60) == set(keys)
    now += 59
    assert store.acquire(keys, Holder.here(), seconds=60) == set()
    now += 2
    assert store.leases() == {}
    assert store.acquire([keys[0]], Holder.here(), seconds=60) == {keys[0]}
    assert store.renew(elsewhere, seconds=60) == set(keys[1:])


def test_a_lease_from_before_the_clock_was_set_back_passes_on(store, keys, elsewhere, monkeypatch):
    """Else a container that is gone would hold its keys until that time comes again."""
    now = time.time()
    monkeypatch.setattr(leases, "_now", lambda connection: now)
    store.acquire(keys, elsewhere, seconds=60)
    now -= 24 * 3600
    assert store.leases() == {}
    here = Holder.here()
    assert store.acquire(keys[:1], here, seconds=60) == {keys[0]}
    assert store.renew(elsewhere, seconds=60) == set(keys[1:])
    assert store.acquire(keys, here, seconds=60) == {keys[0]}


def test_the_lease_of_a_killed_process_is_free_at_once(store, keys):
    taken = FORK.Event()

    def hold_for_ever():
        store.acquire(keys, Holder.here(), seconds=3600)
        taken.set()
        time.sleep(3600)

    holder = FORK.Process(target=hold_for_ever, daemon=True)
    holder.start()
    assert taken.wait(60)
    assert store.acquire(keys, Holder.here(), seconds=60) == set()
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, though nobody has asked how
    assert store.acquire(keys, Holder.here(), seconds=60) == set(keys)
    holder.join()


def test_another_process_that_got_the_same_number_is_not_the_holder(store, keys):
    here = Holder.here()
    assert here.started == started_at(os.getpid())
    earlier = replace(here, name="earlier", started=here.started - 1)
    store.acquire(keys, earlier, seconds=3600)
    assert store.acquire(keys, here, seconds=60) == set(keys)


def test_of_another_host_boot_or_container_no_process_is_known(store, keys):
    here = Holder.here()
    store.acquire(keys, replace(here, name="x", host=f"{host_name()}0", pid=1 << 22), seconds=60)
    assert store.acquire(keys, here, seconds=60) == set()
    assert str(here) == f"process {os.getpid()} on {os.uname().nodename}"


def test_a_process_that_is_hidden_counts_as_there(monkeypatch, tmp_path):
    monkeypatch.setattr("tunekit.cache.process._PROC", tmp_path)
    assert started_at(os.getpid()) == started_at(1) == 0
    assert not replace(Holder.here(), started=7).is_gone()
    assert replace(Holder.here(), pid=1 << 30).is_gone()


def test_of_processes_that_want_the_same_keys_one_gets_each(store, make, together):
    wanted = [make.key(m=m) for m in range(1, 21)]
    done = FORK.Barrier(6)

    def take(number):
        mine = Holder.here()
        taken = [key for key in wanted for key in store.acquire([key], mine, seconds=60)]
        done.wait(60)  # a process that ends would free its keys
        return taken

    taken = [key for keys in together(6, take) for key in keys]
    assert sorted(key.m for key in taken) == list(range(1, 21))


def test_a_device_that_was_never_put_cannot_be_leased(store, make):
    with pytest.raises(StoreError, match="put it first"):
        store.acquire([make.key(gpu="no-such")], Holder.here(), seconds=60)


def test_claims_are_renewed_while_they_are_held_and_then_given_back(store, keys):
    with Claims(store, seconds=6.0) as claims:
        assert claims.take(keys) == set(keys)
        assert claims.holds(keys[0])
        first = store.leases()[keys[0]].expires_at
        claims.give_back(keys[1:])
        deadline = time.monotonic() + 60
        while store.leases()[keys[0]].expires_at <= first:
            assert time.monotonic() < deadline, "never renewed"
            time.sleep(0.1)
        assert set(store.leases()) == {keys[0]}
        assert not claims.holds(keys[1])
    assert store.leases() == {}


def test_a_claim_that_was_over_and_taken_is_no_longer_held(store, keys, monkeypatch):
    clock = time.time()
    monkeypatch.setattr(leases, "_now", lambda connection: clock)
    monkeypatch.setattr("tunekit.cache.claims._clock", lambda: clock)
    with Claims(store, seconds=60.0) as claims:
        claims.take(keys)
        clock += 61  # the machine slept
        assert store.acquire([keys[0]], Holder.here(), seconds=60) == {keys[0]}
        assert [claims.holds(key) for key in keys] == [False, True, True]


def test_claims_outlast_a_store_that_fails_for_a_while(store, keys, monkeypatch, caplog):
    clock = time.time()
    monkeypatch.setattr("tunekit.cache.claims._clock", lambda: clock)
    with Claims(store, seconds=60.0) as claims:
        claims.take(keys)

        def fail(*arguments, **settings):
            raise StoreError("the disk is gone")

        with monkeypatch.context() as broken:
            broken.setattr(Store, "renew", fail)
            clock += 61
            assert claims.holds(keys[0])
        assert "the disk is gone" in caplog.text
        assert claims.holds(keys[0])
    assert store.leases() == {}
