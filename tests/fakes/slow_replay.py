"""A replay that takes its time and keeps a log, in workers and in processes that lead them.

`main` leads a run of slow workers, and prints what happens.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path

from tunekit.cache import Store
from tunekit.fleet.crews import Processes, Threads
from tunekit.fleet.leading import Lead
from tunekit.fleet.messages import Post
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner
from tunekit.search import Budget
from tunekit.tuner import Task, TrialDone, run


class SlowReplay(ReplayRunner):
    """Takes so many seconds for a trial, and writes down in one line which it is."""

    def __init__(self, recording, seconds, log):
        super().__init__(recording)
        self.seconds, self.log = seconds, log

    def screen(self, work):
        for problem, trial in super().screen(work):
            time.sleep(self.seconds)
            self.note(f"{problem}: {trial.config}")
            yield problem, trial

    def note(self, text):
        if self.log is not None:
            line = f"{threading.get_native_id()} {text}\n".encode()
            with Path(self.log).open("ab", buffering=0) as file:
                file.write(line)


def open_slow(device, *, seed=0, compilers=None, seconds=0.0, log=None, gpu=None):
    """Open `replay:FILE`; `gpu` is to stand for another one than the recording's."""
    recording = Recording.load(device.partition(":")[2])
    if gpu is not None:
        recording.device = gpu
    return SlowReplay(recording, seconds, log)


def open_and_die(device, *, seed=0, compilers=None):
    """Be killed before there is anything to say."""
    os.kill(os.getpid(), 9)


def lead_workers(kind, count, cache, file, *, seconds=0.0, log=None):
    """Start slow workers and return who leads them, and their crew."""
    opener = partial(open_slow, seconds=seconds, log=log)
    if kind == "ray":
        from tunekit.fleet.ray_crew import RayCrew

        crew = RayCrew(opener, f"replay:{file}", cache, address="local", workers=count)
    else:
        posts = [Post(opener, f"replay:{file}", cache)] * count
        crew = Threads(posts) if kind == "threads" else Processes(posts)
    return Lead(crew, cache, ground=ReplayRunner(Recording.load(file))), crew


def main(kind, count, cache, file, trials, seconds, log):
    def tell(event):
        name = event.key.m if isinstance(event, TrialDone) else ""
        print(type(event).__name__, name, flush=True)

    tasks = [Task(problem) for problem in Recording.load(file).problems]
    lead, crew = lead_workers(kind, int(count), cache, file, seconds=float(seconds), log=log)
    try:
        (runner,) = lead.runners(60)
        print("workers", *crew.pids, flush=True)
        with Store.open(cache) as store:
            lead.attach(store)
            report = run(
                tasks, runner=runner, store=store, budget=Budget(trials=int(trials)),
                sampler="random", on_event=tell,
            )  # fmt: skip
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return
    finally:
        lead.close()
    print("bests", len(report.bests), flush=True)
