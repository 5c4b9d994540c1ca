"""`tunekit tune` whole, with real processes and a GPU that is not there, while things go wrong.

Whatever happens, the run goes on or stops with one line, at most what was in flight is lost, and no
process is left behind.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tunekit.cache import Store
from tunekit.device import KNOWN_DEVICES
from tunekit.key import TuningKey
from tunekit.shapes import parse_shape
from tunekit.trial import Status

H200 = KNOWN_DEVICES["sm_90"]
SHAPES = ("512,512,512", "64,4096,4096")

TUNE = """
import json, resource, sys
from functools import partial
from pathlib import Path
settings = json.loads(sys.argv[1])
sys.path.insert(0, settings["fakes"])
import fake_gpu
from tunekit import gpu_runner
from tunekit.cli import main
from tunekit.config import Config
from tunekit.kernels import family
from tunekit.measuring import Limits
from tunekit.space import Space
if settings.get("most_bytes"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (settings["most_bytes"],) * 2)
faults = {tuple(field): what for field, what in settings.get("faults", [])}
opened = partial(
    fake_gpu.open_fake, {"fields": faults}, settings["log"], settings.get("seconds", 0.0)
)
pointer = next(v.space for v in family("matmul").variants if v.name == "pointer")


def space(runner, problem):  # the whole one takes long to enumerate
    some = (
        Config("pointer", m, n, k, num_warps=w, num_stages=s)
        for m in (16, 64, 128) for n in (32, 64, 128) for k in (32, 64, 128)
        for w in (4, 8) for s in (2, 3, 4)
    )
    legal = tuple(c for c in some if pointer.violation(c, problem, runner.device) is None)
    return Space(problem, runner.device, legal)


gpu_runner.GpuRunner.space = space
gpu_runner.GpuRunner.prepare = lambda runner, problems: None
gpu_runner.GpuRunner = partial(
    gpu_runner.GpuRunner, workers=1, limits=Limits(screen_s=2, finals_s=2), open_device=opened,
    build=partial(fake_gpu.build, {}), lock_folder=Path(settings["locks"]),
)
sys.exit(main(["tune", "--device", "cuda", *sys.argv[2:]]))
"""


class Run:
    """A tune in a process of its own."""

    def __init__(self, tmp_path, *arguments, log="log", **settings):
        self.log = tmp_path / log
        settings |= {
            "fakes": str(Path(__file__).parent / "fakes"),
            "log": str(self.log),
            "locks": str(tmp_path / "locks"),
        }
        shapes = [word for shape in SHAPES for word in ("--shape", shape)]
        command = [sys.executable, "-c", TUNE, json.dumps(settings), *shapes, *arguments]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, done: int):
        """Wait until this many trials have ended in the measuring process."""
        end = time.monotonic() + 60
        while self.ended() < done and time.monotonic() < end:
            time.sleep(0.01)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def ended(self) -> int:
        return sum(" end " in line for line in self.lines())

    def pids(self) -> set[int]:
        return {int(line.split()[0]) for line in self.lines()}

    def result(self):
        out, err = self.process.communicate(timeout=90)
        assert "Traceback" not in err, err
        return self.process.returncode, out, err

    def leaves_nothing(self) -> bool:
        """Say whether every process that measured or compiled for this run has ended."""
        end = time.monotonic() + 20
        mark = str(self.log.parent)
        while time.monotonic() < end:
            if not running(self.pids(), mark):
                return True
            time.sleep(0.05)
        return False


def running(pids: set[int], mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            environ = (folder / "environ").read_bytes().decode("utf-8", "replace")
            command = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        ours = int(folder.name) in pids or (mark in environ and "tunekit.child" in command)
        if ours and state != "Z":
            found.append(command)
    return found


@pytest.fixture
def tune(tmp_path):
    runs = []

    def start(*arguments, **settings):
        runs.append(Run(tmp_path, *arguments, **settings))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.communicate()


def stored(cache) -> list:
    with Store.open(cache, create=False) as store:
        keys = [TuningKey.of(parse_shape(text).problem, H200.slug) for text in SHAPES]
        return [trial for key in keys for trial, _ in store.trials(key)]


FAULTS = [
    (("num_stages", 3), "segfault"),
    (("num_stages", 4), "illegal"),
    (("block_k", 128), "launch"),
]


def test_a_run_with_faults_of_every_kind_goes_on_and_says_what_happened(tune, own_cache):
    # not those that a recording puts first, which may share what is made a fault here
    run = tune("--json", "--trials", "24", "--quiet", "--sampler", "random", faults=FAULTS)
    code, out, err = run.result()
    assert code == 0, err
    document = json.loads(out)
    counts = document["trial_counts"]
    assert sum(counts.values()) == 48
    assert counts["launch-error"] > 0
    assert counts["ok"] > 0
    assert len(document["keys"]) == 2
    assert document["spent"]["restarts"] > 0
    assert document["spent"]["gpu_busy_share"] > 0
    failed = [trial for trial in stored(own_cache) if trial.status is Status.LAUNCH_ERROR]
    reasons = " ".join(trial.error for trial in failed)
    assert "SIGSEGV" in reasons or "illegal memory access" in reasons or "invalid" in reasons
    assert run.leaves_nothing()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_one_line_and_nothing_finished_is_lost(tune, own_cache, number):
    run = tune("--json", "--trials", "24", seconds=0.4)
    run.wait_for(12)
    run.process.send_signal(number)
    code, out, err = run.result()
    assert (code, out) == (130, "")
    kept = int(re.search(r"interrupted: (\d+) finished trials", err).group(1))
    assert run.ended() - 2 <= len(stored(own_cache)) <= run.ended()
    assert kept <= len(stored(own_cache)) <= kept + 1
    assert run.leaves_nothing()


def test_a_killed_tuner_leaves_no_process_and_every_trial_but_the_last(tune, own_cache):
    run = tune("--trials", "24", seconds=0.1)
    run.wait_for(12)
    run.process.send_signal(signal.SIGKILL)
    run.process.communicate(timeout=30)
    assert run.process.returncode == -signal.SIGKILL
    assert run.leaves_nothing()
    # the last of them was on its way to the store
    assert run.ended() - 2 <= len(stored(own_cache)) <= run.ended()
    again = tune("--json", "--trials", "24", "--quiet")
    code, out, _ = again.result()
    assert code == 0  # neither the lock nor the cache is stuck
    assert len(json.loads(out)["keys"]) == 2


def test_a_killed_worker_costs_the_trial_in_flight(tune, own_cache):
    run = tune("--json", "--trials", "24", "--quiet", seconds=0.05)
    run.wait_for(6)
    (pid,) = run.pids()
    os.kill(pid, signal.SIGKILL)
    code, out, _ = run.result()
    assert code == 0
    counts = json.loads(out)["trial_counts"]
    assert counts["launch-error"] <= 1  # none, if it was hit between two trials
    assert sum(counts.values()) == 48
    assert json.loads(out)["spent"]["restarts"] == 1
    assert run.leaves_nothing()


def test_a_hang_is_a_timeout_and_the_run_goes_on(tune, own_cache):
    run = tune("--json", "--trials", "6", "--quiet", faults=[(("num_warps", 8), "hang")])
    code, _, err = run.result()
    assert code == 0, err
    timeouts = [trial for trial in stored(own_cache) if trial.status is Status.TIMEOUT]
    assert timeouts
    assert all("ran over 2 s" in t.error or "not tried" in t.error for t in timeouts)
    assert run.leaves_nothing()


def test_a_full_disk_is_one_line_and_what_was_stored_stays(tune, own_cache):
    code, _, _ = tune("--trials", "4", "--quiet").result()
    assert code == 0
    before = len(stored(own_cache))
    run = tune("--trials", "120", "--quiet", most_bytes=own_cache.stat().st_size + 4096)
    code, out, err = run.result()
    assert (code, out) == (1, "")
    assert re.fullmatch(r"tunekit: [^\n]*(full|disk)[^\n]*\n", err)
    assert run.leaves_nothing()
    assert before < len(stored(own_cache)) < 240
    code, _, _ = tune("--trials", "8", "--quiet").result()  # and there is room again
    assert code == 0


def test_a_second_tuner_waits_for_the_first_and_never_times_beside_it(tune, tmp_path):
    first = tune("--trials", "16", "--quiet", seconds=0.05)
    first.wait_for(1)
    first.process.send_signal(signal.SIGSTOP)  # it holds the GPU until we let it go on
    second = tune("--trials", "4", "--quiet", "--cache", str(tmp_path / "second.db"), log="log2")
    waits = second.process.stderr.readline()
    assert "another run measures on this GPU" in waits
    assert f"process {first.process.pid}" in waits
    first.process.send_signal(signal.SIGCONT)
    assert first.result()[0] == 0
    code, _, err = second.result()
    assert (code, err) == (0, "")

    def times(run, word):
        return [float(line.split()[1]) for line in run.lines() if f" {word} " in line]

    assert max(times(first, "end")) <= min(times(second, "begin"))
