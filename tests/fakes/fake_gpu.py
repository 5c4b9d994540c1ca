"""Stand-ins for a GPU and a compiler whose processes fail in the ways real ones do.

Spawned processes import this module by name, so it is on `sys.path` where a test uses it, and it
imports nothing that takes long. What a config does is looked up in a table that the test passes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from tunekit.compiler import Compiled
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import DeviceError
from tunekit.runner import DeviceLost, Finals
from tunekit.trial import Measurement, Status, Trial
from tunekit.worker import Opened, Ready

H200 = KNOWN_DEVICES["sm_90"]
UUID = "GPU-fake"


def measurement(median=10.0, *, final=False, **marks):
    return Measurement(
        median, median, median, median, median, median, 5, "fake-1", 0.1, final=final, **marks
    )


def fail(what):
    """Do to this process what a bad config does."""
    if what == "abort":
        print("LLVM ERROR: cannot select this", file=sys.stderr, flush=True)
        os.abort()
    elif what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        os._exit(3)
    elif what == "hang":
        time.sleep(600)
    elif what == "bug":
        raise TypeError("a fault of tunekit's own")
    elif what == "disk full":
        raise OSError(28, "No space left on device")
    elif what.startswith("ptxas"):  # a child that would go on for itself
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)", what], check=False)


class FakeMeasure:
    """Measures nothing: a config takes 10 us, or does what the table says."""

    def __init__(self, table, log=None, seconds=0.0):
        self.table = table
        self.log = log
        self.seconds = seconds
        self.time_s = 0.0

    def note(self, *words):
        if self.log is not None:
            with Path(self.log).open("a") as file:
                print(os.getpid(), time.monotonic(), *words, file=file)

    def vendor(self, problem):
        self.note("vendor", problem)
        if "vendor" in self.table:
            fail(self.table["vendor"])
        return measurement(12.0)

    def screen(self, problem, config):
        self.note("begin", problem, config)
        if self.seconds:
            time.sleep(self.seconds)
            self.time_s += self.seconds
        trial = self.one(problem, config)
        self.note("end", problem, config)
        return trial

    def one(self, problem, config, *, final=False):
        what = self.table.get((problem, config), self.table.get(config, "ok"))
        for (name, value), fault in self.table.get("fields", {}).items():
            what = fault if getattr(config, name) == value else what
        if what == "ok":
            return Trial(config, Status.OK, measurement(10.0, final=final))
        if what == "launch":
            return Trial(config, Status.LAUNCH_ERROR, error="invalid argument")
        if what == "illegal":
            text = "CUDA error: an illegal memory access was encountered"
            raise DeviceLost(Trial(config, Status.LAUNCH_ERROR, error=text))
        if what == "in finals" and not final:
            return Trial(config, Status.OK, measurement(9.0))
        if isinstance(what, Status):
            return Trial(config, what, error=what.value)
        fail("segfault" if what == "in finals" else what)
        raise AssertionError(what)

    def finals(self, problem, configs, *, trying):
        trials = []
        for config in configs:
            trying(config)
            trials.append(self.one(problem, config, final=True))
        trying(None)
        if self.table.get("together"):
            fail(self.table["together"])
        return Finals(tuple(trials), measurement(12.0, final=True))


def open_fake(table, log, seconds, index, seed):
    if table.get("open") == "refused":
        raise DeviceError("no CUDA device is usable here")
    if table.get("open"):
        fail(table["open"])
    return Opened(Ready(H200, UUID, "0"), lambda: (FakeMeasure(table, log, seconds), int))


def open_runner(device, *, seed=0, compilers=None, locks):
    """Open the stand-in as a worker opens a GPU."""
    from tunekit.gpu_runner import GpuRunner

    measure = partial(open_fake, {}, None, 0.0)
    return GpuRunner(
        workers=1, seed=seed, open_device=measure, build=partial(build, {}), lock_folder=locks
    )


def build(table, problem, config, device):
    what = table.get(config, "ok")
    if isinstance(what, float):
        time.sleep(what)
    elif isinstance(what, Status):
        return Compiled(what, what.value)
    elif what != "ok":
        fail(what)
    return Compiled(Status.OK)


def build_slowly(log, problem, config, device):
    """Build for a while, and write down when."""
    began = time.monotonic()
    time.sleep(0.2)
    with Path(log).open("ab", buffering=0) as file:
        file.write(f"{config.block_k} {began} {time.monotonic()}\n".encode())
    return Compiled(Status.OK)


def look_at_malloc(problem, config, device):
    """Say, as a compiler's error, what glibc was told."""
    return Compiled(Status.COMPILE_ERROR, os.environ.get("GLIBC_TUNABLES", ""))


def look_around(problem, config, device):
    """Say, as a compiler's error, which GPUs a compiler sees and how nice it is."""
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    return Compiled(Status.COMPILE_ERROR, f"{visible} {os.nice(0)}")
