"""One run at a time on a GPU, across processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tunekit import gpu_lock
from tunekit.gpu_lock import GpuLock

HOLD = """
import sys, time
from pathlib import Path
from tunekit.gpu_lock import GpuLock
lock = GpuLock("GPU-1", Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock on GPU-1."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "locks")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_one_says_who_has_it_and_gets_it_when_that_is_killed(holder, tmp_path, caplog):
    lock = GpuLock("GPU-1", tmp_path / "locks")
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    end = time.monotonic() + 20
    while not caplog.records and time.monotonic() < end:
        time.sleep(0.02)
    assert [record.getMessage() for record in caplog.records] == [
        f"another run measures on this GPU (process {holder.pid}): waiting until it ends"
    ]
    assert not lock.held
    holder.send_signal(signal.SIGKILL)
    thread.join(20)
    assert lock.held
    lock.release()
    assert not lock.held


def test_another_gpu_is_free(holder, tmp_path, caplog):
    lock = GpuLock("GPU-2", tmp_path / "locks")
    lock.acquire()
    assert lock.held
    assert not caplog.records
    lock.release()


def test_two_in_one_process_exclude_each_other_and_a_released_one_is_free(tmp_path):
    first, second = GpuLock("GPU-1", tmp_path), GpuLock("GPU-1", tmp_path)
    first.acquire()
    thread = threading.Thread(target=second.acquire)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    first.release()
    thread.join(20)
    assert second.held
    second.release()


@pytest.mark.parametrize("case", ["a file in the way", "another user's"])
def test_where_no_lock_can_be_made_it_says_so_and_goes_on(tmp_path, caplog, monkeypatch, case):
    folder = tmp_path / "locks"
    if case == "a file in the way":
        folder.write_text("")
    else:
        monkeypatch.setattr(gpu_lock.os, "geteuid", lambda: 4242)
    lock = GpuLock("GPU-1", folder)
    lock.acquire()
    assert not lock.held
    (record,) = caplog.records
    assert "no lock can be made for this GPU" in record.getMessage()
    lock.release()


def test_the_folder_is_this_users_alone_and_no_session_is_no_complaint(monkeypatch, recwarn):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = gpu_lock._runtime_folder()
    assert folder.name == "tunekit"
    assert str(os.getuid()) in str(folder)
    assert not recwarn.list


def test_the_folder_is_made_for_its_owner_only(tmp_path):
    lock = GpuLock("GPU-1", tmp_path / "run" / "tunekit")
    lock.acquire()
    assert (tmp_path / "run" / "tunekit").stat().st_mode & 0o777 == 0o700
    lock.release()
