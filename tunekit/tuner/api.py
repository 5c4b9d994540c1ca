"""`tunekit.tune`: the whole of a tuning run in one call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tunekit.cache import Store
from tunekit.device import cuda_available
from tunekit.errors import DeviceError, RecordingError
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner, shipped_recordings
from tunekit.runner import Runner
from tunekit.search import Budget
from tunekit.shapes import load_shapes, parse_shape
from tunekit.tuner.events import Listener, Task, TuneReport
from tunekit.tuner.rounds import run

Shapes = str | Path | Iterable[Task | Problem | Sequence[int]]


def tune(
    shapes: Shapes,
    *,
    cache: str | Path | None = None,
    device: str = "auto",
    sampler: str = "tpe",
    trials: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    retune: bool = False,
    record: str | Path | None = None,
    on_event: Listener | None = None,
) -> TuneReport:
    """Find and store the fastest right config of each problem.

    `shapes` is a shapes file, or problems, each a `Task`, a `Problem` or (m, n, k) for bfloat16
    in layout `nt`. `cache` is a path or an SQLAlchemy URL; the default is where `tunekit.matmul`
    looks. `trials` is for each key, `seconds` for the run. The rest is as on the command line.

    Raises:
        TunekitError: one line that says what is wrong: shapes, device, cache or recording.
        TuneError: no config of some key works; the other keys are done and stored.
    """
    tasks = _tasks(shapes)
    budget = Budget.for_sampler(sampler, trials, seconds)
    runner = open_runner(device, seed=seed)
    try:
        for task in tasks:
            runner.space(task.problem)  # before the cache file is made
        with Store.open(cache) as store:
            report = run(
                tasks, runner=runner, store=store, sampler=sampler, budget=budget, seed=seed,
                retune=retune, record=record, on_event=on_event,
            )  # fmt: skip
    finally:
        runner.close()
    report.raise_failures()
    return report


def open_runner(device: str, *, seed: int = 0) -> Runner:
    """Return the runner that `auto`, `cuda`, `cuda:N`, `replay` or `replay:FILE` names.

    `auto` is the first GPU, or without one the recording that ships with tunekit.

    Raises:
        DeviceError: the name is none of these, or the GPU is not there.
        RecordingError: there is no such recording, or it is damaged.
    """
    if device == "auto":
        device = "cuda" if cuda_available() else "replay"
    name, _, detail = device.partition(":")
    if name == "cuda" and re.fullmatch(r"(cuda|cuda:[0-9]{1,4})", device):
        from tunekit.measure import GpuRunner

        return GpuRunner(int(detail or 0), seed=seed)
    if name == "replay" and (detail or device == "replay"):
        return ReplayRunner(Recording.load(detail or _shipped()))
    raise DeviceError(f"unknown device {device!r}: use auto, cuda, cuda:N, replay or replay:FILE")


def _shipped() -> Path:
    found = shipped_recordings()
    if not found:
        raise RecordingError("no recording ships with this tunekit: use --device replay:FILE")
    return found[0]


def _tasks(shapes: Shapes) -> list[Task]:
    if isinstance(shapes, (str, Path)):
        return [Task(s.problem, s.count, s.name) for s in load_shapes(shapes)]
    return [_task(shape) for shape in shapes]


def _task(shape: Task | Problem | Sequence[int]) -> Task:
    if isinstance(shape, Task):
        return shape
    if isinstance(shape, Problem):
        return Task(shape)
    return Task(parse_shape(",".join(map(str, shape))).problem)
