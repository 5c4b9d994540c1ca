"""A store that fails costs `tunekit.matmul` one warning, and heals without a new process."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import tunekit
from tunekit import dispatch, products, serving
from tunekit.cache import Store, opening
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import MissError, StoreError
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe
from tunekit.key import TuningKey
from tunekit.trial import Best, Choice, Measurement, Provenance

H200 = KNOWN_DEVICES["sm_90"]


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture(autouse=True)
def pretend_gpu(monkeypatch):
    """Let operands on the CPU stand for an H200's, in a process that has read nothing."""
    monkeypatch.setattr(serving, "_device_info", lambda place, backend: H200)
    monkeypatch.setattr(products, "on_gpu", lambda a: True)
    tunekit.reload()
    yield
    tunekit.reload()


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(serving, "time", made)
    return made


def operands(m=48):
    return torch.randn(m, 64).half(), torch.randn(64, 64).half().t()


@pytest.fixture
def tuned(own_cache):
    """Operands whose problem has a row in the cache."""
    a, b = operands()
    times = Measurement(10.0, 9.0, 11.0, 9.0, 11.0, 9.0, 21, "test", 0.5, final=True)
    mark = MATMUL.fingerprint("pointer")
    made = Provenance(mark, "test", "0", "3", "2", "1", "GPU", "2026-01-01T00:00:00Z")
    key = TuningKey.of(describe(a, b), H200.slug)
    config = Config("pointer", 32, 32, 32, num_warps=4, num_stages=2)
    with Store.open(own_cache) as store:
        store.put_device(H200)
        assert store.put_best(Best(key, Choice.TRITON, config, times, times, 10, 100, made))
    return a, b


def is_tuned(a, b):
    tunekit.matmul(a, b)
    return dispatch.served_for(a, b).launch is not None


def warned(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.fixture
def broken(monkeypatch):
    """Make the store fail until the returned function is called."""
    with monkeypatch.context() as patch:
        attempts = []

        def fail(*arguments, **options):
            attempts.append(arguments)
            raise StoreError("cannot read the cache: the disk is gone")

        patch.setattr(Store, "open", fail)
        fail.attempts = attempts
        fail.heal = patch.undo
        yield fail


@pytest.mark.interpreted
def test_a_failed_read_is_one_warning_and_is_tried_again_after_a_pause(
    tuned, broken, clock, caplog
):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not one for each key: that they are untuned is not known
        for m in (48, 49, 50, 51):
            a, b = operands(m)
            assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
        assert len(broken.attempts) == 1
        clock.now += serving.RETRY_SECONDS + 1
        tunekit.matmul(*operands(52))
        tunekit.matmul(*operands(53))
        assert len(broken.attempts) == 2
        assert len(warned(caplog)) == 1
        broken.heal()
        assert not is_tuned(*operands(54))  # the pause has begun again
        clock.now += serving.RETRY_SECONDS + 1
        with pytest.warns(tunekit.dispatch.MissWarning):
            tunekit.matmul(*operands(2048))
    assert is_tuned(*tuned)
    assert len(warned(caplog)) == 1


@pytest.mark.interpreted
def test_what_was_chosen_without_the_store_is_chosen_anew_once_it_was_read(
    tuned, broken, clock, caplog
):
    assert not is_tuned(*tuned)
    broken.heal()
    clock.now += serving.RETRY_SECONDS + 1
    assert not is_tuned(*tuned)  # a kind that was met: its path asks no clock
    with pytest.warns(tunekit.dispatch.MissWarning):
        tunekit.matmul(*operands(2048))
    assert is_tuned(*tuned)
    assert [key.m for key in dispatch.miss_counts()] == [2048]


@pytest.mark.interpreted
def test_a_store_that_was_read_is_never_read_again(tuned, clock, own_cache, caplog):
    assert is_tuned(*tuned)
    own_cache.unlink()
    for m in (2048, 4096):
        clock.now += serving.RETRY_SECONDS + 1
        tunekit.matmul(*operands(m), on_miss="fallback")
    assert is_tuned(*tuned)


@pytest.mark.filterwarnings("ignore::tunekit.serving.MissWarning")
def test_that_there_is_no_store_is_an_answer(own_cache, clock, tmp_path):
    assert not is_tuned(*operands())
    (tmp_path / "later").mkdir()
    with Store.open(own_cache) as store:
        store.put_device(H200)
    clock.now += serving.RETRY_SECONDS + 1
    tunekit.matmul(*operands(49))
    assert products.STATE.read_for(torch.device("cpu"), "auto").failed_at is None


def test_an_error_on_a_miss_is_one_also_without_the_store(broken):
    with pytest.raises(MissError):
        tunekit.matmul(*operands(), on_miss="error")


@pytest.mark.interpreted
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EBUSY, errno.ENOENT])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_fault_of_a_network_file_system_is_tried_once_more(
    tuned, monkeypatch, caplog, code, lasting
):
    exists, attempts = Path.exists, []

    def fail(path, **options):
        if path.name == "tunekit.db" and (lasting or not attempts):
            attempts.append(path)
            raise OSError(code, "injected")
        return exists(path, **options)

    monkeypatch.setattr(opening.Path, "exists", fail)
    assert is_tuned(*tuned) is not lasting
    assert len(attempts) == (2 if lasting else 1)
    assert len(warned(caplog)) == (1 if lasting else 0)


@pytest.mark.interpreted
def test_a_fault_inside_the_database_is_tried_once_more(tuned, monkeypatch, caplog):
    connect, attempts = sqlite3.connect, []

    def fail(*arguments, **options):
        attempts.append(arguments)
        if len(attempts) <= 2:  # it is opened for writing, then for reading
            raise sqlite3.OperationalError("disk I/O error")
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", fail)
    assert is_tuned(*tuned)
    assert warned(caplog) == []


def test_a_fault_that_lasts_is_not_waited_for_twice(tuned, broken):
    assert not is_tuned(*tuned)
    assert len(broken.attempts) == 1


@pytest.mark.interpreted
def test_a_lock_that_is_held_for_too_long_costs_one_warning(
    tuned, own_cache, clock, monkeypatch, caplog
):
    monkeypatch.setattr("tunekit.cache.sqlite_file.BUSY_SECONDS", 0.1)
    with sqlite3.connect(own_cache, isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")  # a writer holds it so only while it commits
        assert not is_tuned(*tuned)
        assert not is_tuned(*operands(49))
        holder.execute("ROLLBACK")
    assert len(warned(caplog)) == 1
    clock.now += serving.RETRY_SECONDS + 1
    tunekit.matmul(*operands(50), on_miss="fallback")
    assert is_tuned(*tuned)


def test_a_damaged_file_stays_where_it_is_and_is_said_once(tuned, own_cache, caplog):
    content = own_cache.read_bytes()[:5000]
    own_cache.write_bytes(content)
    for m in (48, 49, 50):
        a, b = operands(m)
        assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
    assert len(warned(caplog)) == 1
    assert "damaged" in warned(caplog)[0]
    assert own_cache.read_bytes() == content


def test_a_default_cache_of_another_user_is_gone_without(tuned, monkeypatch, caplog):
    def theirs():
        raise StoreError("/home/me/.cache/tunekit belongs to another user")

    monkeypatch.setattr("tunekit.cache.default_location", theirs)
    assert not is_tuned(*tuned)
    assert "belongs to another user" in warned(caplog)[0]


AS_ANYBODY = """
import logging, os, sys, warnings
import torch, tunekit
import tunekit.cache.migrating
from tunekit import dispatch, products, serving
from tunekit.device import KNOWN_DEVICES

serving._device_info = lambda place, backend: KNOWN_DEVICES["sm_90"]
products.on_gpu = lambda a: True
warnings.simplefilter("ignore", dispatch.MissWarning)
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("tunekit").addHandler(handler)
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
os.environ.pop("TUNEKIT_CACHE", None)
os.environ.pop("XDG_CACHE_HOME", None)
for home in ("/", "/proc/none", None):
    os.environ.pop("HOME", None)
    if home is not None:
        os.environ["HOME"] = home
    tunekit.reload()
    for m in (48, 49):
        a, b = torch.randn(m, 64).half(), torch.randn(64, 64).half()
        assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
    assert len(said) == 1, said
    print(said.pop())
"""


@pytest.mark.parametrize("root", ["writable", "read-only"])
def test_a_container_without_a_home_costs_one_warning(root):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    command = [sys.executable, "-c", AS_ANYBODY]
    if root == "read-only":
        remount = 'mount -o remount,bind,ro / && exec "$@"'
        inside = ["unshare", "-m", "sh", "-c", remount, "sh"]
        try:
            allowed = subprocess.run([*inside, "true"], capture_output=True)
        except FileNotFoundError:
            pytest.skip("there is no `unshare` here")
        if allowed.returncode:
            pytest.skip("this user may not mount")
        command = inside + command
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert "/tmp/tunekit-12345" in line or "no folder can hold the cache" in line
