"""The measuring process: one GPU, one ask at a time, answers over a pipe.

What goes over the pipe are the values below and nothing else. A config may take the process along;
`tunekit.measuring` starts another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from tunekit.child import forget_output
from tunekit.config import Config
from tunekit.device import DeviceInfo, detect, detect_early, driver_version, gpu_uuid
from tunekit.errors import TunekitError
from tunekit.gpu_watch import GpuWatch, nvml_module
from tunekit.kernels import prepare_to_launch
from tunekit.key import Problem
from tunekit.runner import DeviceLost
from tunekit.trial import Measurement, Trial

if TYPE_CHECKING:
    from tunekit.measure import Measure


@dataclass(frozen=True, slots=True)
class Ready:
    """The process can be asked; it has no context on the GPU yet."""

    device: DeviceInfo
    uuid: str
    driver: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The GPU cannot be used, for a reason that is the user's to act on."""

    error: TunekitError


class Kind(Enum):
    """What is asked for."""

    VENDOR = "vendor"
    SCREEN = "screen"
    FINALS = "finals"


@dataclass(frozen=True, slots=True)
class Ask:
    """Something to measure; a screening has one config. `number` says whose ask it is."""

    kind: Kind
    problem: Problem
    configs: tuple[Config, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class Trying:
    """An ask is begun, or this config runs from now on, or all of the finalists together."""

    config: Config | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an ask. After `lost` the process ends: its context on the GPU is unusable."""

    trials: tuple[Trial, ...] = ()
    vendor: Measurement | None = None
    time_s: float = 0.0
    compiled: int = 0
    """Kernels that were not found compiled."""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """A GPU that is known, before what measures on it is loaded."""

    ready: Ready
    start: Callable[[], tuple[Measure, Callable[[], int]]]
    """Returns what measures, and a count of the kernels compiled in this process."""


def open_gpu(index: int, seed: int) -> Opened:
    """Open the GPU with this index, without making a context on it yet.

    Raises:
        DeviceError: there is no such GPU.
    """
    device, uuid = detect_early(index) or (detect(index), gpu_uuid(index))
    ready = Ready(device, uuid, driver_version())
    return Opened(ready, partial(_start, ready, index, seed))


def _start(ready: Ready, index: int, seed: int) -> tuple[Measure, Callable[[], int]]:
    """Load what measures, and what its first launch would, while compilers already work.

    Raises:
        DeviceError: torch cannot use the GPU.
    """
    from tunekit.measure import Measure
    from tunekit.timing import Gpu

    watch = GpuWatch(ready.uuid, nvml_module())
    measure = Measure(Gpu(detect(index), index), watch, seed=seed)
    prepare_to_launch()
    return measure, _count_compilations()


def _count_compilations() -> Callable[[], int]:
    import triton

    late: list[bool] = []

    def listen(*, cache_hit: bool, **rest: Any) -> None:
        if not cache_hit:
            late.append(True)

    triton.knobs.compilation.listener = listen
    return late.__len__


def serve(connection: Connection, open_device: Callable[..., Opened], *args: Any) -> None:
    """Be the measuring process: answer asks in order, until the connection closes."""
    try:
        opened = open_device(*args)
        connection.send(opened.ready)
        measure, compiled = opened.start()
    except TunekitError as error:
        connection.send(Refused(error))
        return
    lost = False
    while not lost:
        ask: Ask = connection.recv()
        forget_output()
        connection.send(Trying(None))
        timed, before = measure.time_s, compiled()
        answer = _answer(measure, ask, connection)
        answer = replace(answer, time_s=measure.time_s - timed, compiled=compiled() - before)
        connection.send(answer)
        lost = answer.lost
    time.sleep(60)  # a broken context may hang or crash at exit: we are going to be killed


def _answer(measure: Measure, ask: Ask, connection: Connection) -> Answer:
    def trying(config: Config | None) -> None:
        connection.send(Trying(config))

    try:
        if ask.kind is Kind.VENDOR:
            return Answer(vendor=measure.vendor(ask.problem))
        if ask.kind is Kind.SCREEN:
            return Answer((measure.screen(ask.problem, ask.configs[0]),))
        finals = measure.finals(ask.problem, ask.configs, trying=trying)
        return Answer(finals.trials, finals.vendor)
    except DeviceLost as fault:
        return Answer(() if fault.trial is None else (fault.trial,), lost=True)
