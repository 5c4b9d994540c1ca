"""What measures and tests many workers: a replay that takes its time and keeps a log.

`main` leads a run of such workers in a process of its own, and prints what happens.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.fleet.crews import Processes, Threads
from tunekit.fleet.leading import Lead
from tunekit.fleet.post import Post
from tunekit.fleet.ray_crew import LOCAL, RayCrew
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.runner import Finals
from tunekit.search import Budget
from tunekit.trial import Trial
from tunekit.tuner import Event, KeyDone, KeyFailed, KeySkipped, Task, TrialDone, run

LEADER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import slow_replay;"
    " slow_replay.main(*sys.argv[1:])"
)


def command(*arguments: object) -> list[str]:
    """Return what starts `main` with these arguments in a process of its own.

    Its module has a name there, so that workers can import what they are to open.
    """
    folder = str(Path(__file__).parent)
    return [sys.executable, "-c", LEADER, folder, *map(str, arguments)]


class SlowReplay(ReplayRunner):
    """Takes so many seconds for a trial, and writes down in one line what it has tried."""

    def __init__(self, recording: Recording, seconds: float, log: str | Path | None) -> None:
        super().__init__(recording)
        self.seconds = seconds
        self._log = log

    def screen(self, work: Sequence[tuple[Problem, Config]]) -> Iterator[tuple[Problem, Trial]]:
        """Give the recorded trials, slowly."""
        for problem, trial in super().screen(work):
            time.sleep(self.seconds)
            self._note("trial", problem, trial.config)
            yield problem, trial

    def finals(self, problem: Problem, configs: Sequence[Config]) -> Finals:
        """Give the recorded finals, slowly."""
        time.sleep(self.seconds)
        self._note("finals", problem, "")
        return super().finals(problem, configs)

    def _note(self, what: str, problem: Problem, config: object) -> None:
        if self._log is not None:
            line = f"{threading.get_native_id()} {what} {problem} {config}\n".encode()
            with Path(self._log).open("ab", buffering=0) as file:
                file.write(line)


def open_slow(
    device: str,
    *,
    seed: int = 0,
    compilers: int | None = None,
    seconds: float = 0.0,
    log: str | Path | None = None,
    gpu: DeviceInfo | None = None,
) -> SlowReplay:
    """Open `replay:FILE`; `gpu` is to stand for another one than the recording's."""
    recording = Recording.load(device.partition(":")[2])
    return SlowReplay(recording if gpu is None else replace(recording, device=gpu), seconds, log)


def open_and_die(device: str, *, seed: int = 0, compilers: int | None = None) -> SlowReplay:
    """Be killed before there is anything to say."""
    os.kill(os.getpid(), 9)
    raise AssertionError("unreachable")


def small_recording(path: Path, problems: int) -> list[Problem]:
    """Write a recording of some problems of the one that ships, and return them."""
    whole = Recording.load(shipped_recordings()[0])
    plain = ("bfloat16", "nt", 1)  # what M, N and K alone say on the command line
    found = [p for p in sorted(whole.problems) if (p.dtype, p.layout, p.batch) == plain]
    chosen = found[:: len(found) // problems][:problems]
    replace(whole, problems={p: whole.problems[p] for p in chosen}).save(path)
    return chosen


def lead_workers(
    kind: str,
    count: int,
    cache: str,
    file: str | Path,
    *,
    seconds: float = 0.0,
    log: str | Path | None = None,
) -> tuple[Lead, Processes | Threads | RayCrew]:
    """Start slow workers and return who leads them, and their crew."""
    opener = partial(open_slow, seconds=seconds, log=log)
    crew: Processes | Threads | RayCrew
    if kind.startswith("ray"):  # its workers import what the leader can: this module too
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        address = kind.partition(":")[2] or LOCAL
        crew = RayCrew(opener, f"replay:{file}", cache, address=address, workers=count)
    else:
        posts = [Post(opener, f"replay:{file}", cache)] * count
        crew = Threads(posts) if kind == "threads" else Processes(posts)
    return Lead(crew, cache, ground=ReplayRunner(Recording.load(file))), crew


def main(
    kind: str, count: str, cache: str, file: str, trials: str, seconds: str, log: str
) -> None:  # fmt: skip
    """Lead a run, and print its workers' processes, its events and how many rows there are."""

    def tell(event: Event) -> None:
        name = ""
        if isinstance(event, (KeyDone, KeySkipped)):
            name = str(event.best.key.problem)
        elif isinstance(event, (TrialDone, KeyFailed)):
            name = str(event.key.problem)
        print(type(event).__name__, name, flush=True)

    tasks = [Task(problem) for problem in Recording.load(file).problems]
    lead, crew = lead_workers(kind, int(count), cache, file, seconds=float(seconds), log=log)
    try:
        (runner,) = lead.runners(60)
        if not isinstance(crew, Threads):
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
