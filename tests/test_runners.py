"""The names of devices, and what is loaded to open one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tunekit import runners
from tunekit.errors import DeviceError, RecordingError
from tunekit.replay import ReplayRunner
from tunekit.runners import open_runner


@pytest.mark.parametrize("device", ["cpu", "", "cuda:", "cuda:x", "cuda0", "cuda:-1", "replay:"])
def test_an_unknown_device_is_an_error(device):
    with pytest.raises(DeviceError, match="use auto, cuda, cuda:N, replay or replay:FILE"):
        open_runner(device)


def test_cuda_without_a_gpu_is_an_error(no_gpu):
    pytest.importorskip("torch", reason="asks torch whether there is a GPU")
    with pytest.raises(DeviceError, match="no CUDA device is usable"):
        open_runner("cuda")


def test_auto_without_a_gpu_replays_what_ships(monkeypatch):
    monkeypatch.setattr(runners, "cuda_expected", lambda: False)
    assert isinstance(open_runner("auto"), ReplayRunner)
    monkeypatch.setattr("tunekit.replay.shipped_recordings", list)
    with pytest.raises(RecordingError, match="no recording ships"):
        open_runner("auto")


def test_a_gpu_is_opened_before_anything_that_takes_seconds_is_loaded():
    """What a worker loads first: torch is loaded by the processes that it starts, meanwhile."""
    code = (
        "import sys, tunekit.fleet.post, tunekit.runners, tunekit.gpu_runner;"
        "print([m for m in ('torch', 'triton', 'sqlalchemy', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
