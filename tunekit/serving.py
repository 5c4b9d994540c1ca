"""What a process has read from the store and prepared, and how it decides what to run.

The store is read once for each device. A choice, once made for operands of one kind, is kept until
`State.clear`. Only where the store could not be read is it tried again, after a pause and when
operands of a new kind are met, and what was chosen without it is forgotten once it was read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES, DeviceInfo, detect
from tunekit.errors import DeviceError, MissError, NoStoreError, StoreError
from tunekit.kernels import current_fingerprint, family
from tunekit.kernels.operands import describe, interpreting
from tunekit.key import Problem, TuningKey
from tunekit.lookup import Answer, RowTable, StoredRow, how_to_tune, same_silicon
from tunekit.space import Violation
from tunekit.trial import Choice, Grade

logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""How long after a failure to read the store it is tried again."""

Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Served:
    """What the process runs for operands of one kind. No launch means the vendor's call."""

    key: TuningKey
    answer: Answer | None
    launch: Launch | None


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read for a device; `failed_at` (seconds) says that it is nothing, for a fault."""

    device: DeviceInfo
    table: RowTable
    location: str
    failed_at: float | None


class MissWarning(UserWarning):
    """A problem without a tuned row was multiplied; the text has the command that tunes it."""


def is_miss(served: Served) -> bool:
    return served.answer is None or served.answer.grade in (Grade.NEAREST, Grade.OTHER_GPU)


class State:
    """What this process has read and prepared. Filled under a lock, read without one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.clear()
        # A child forked while another thread was choosing would wait for it for ever.
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()

    def clear(self) -> None:
        with self._lock:
            self.served: dict[tuple[object, ...], Served] = {}
            self.misses: Counter[TuningKey] = Counter()
            self._warned: set[TuningKey] = set()
            self._tables: dict[torch.device, _Read] = {}

    def serve(
        self,
        kind: tuple[object, ...],
        a: torch.Tensor,
        b: torch.Tensor,
        backend: str,
        on_miss: str,
    ) -> Served:
        """Find what to run for operands of this kind, and remember it."""
        with self._lock:
            served = self.served.get(kind)
            if served is None:
                served = self._choose(a, b, backend)
                if is_miss(served):
                    self.misses[served.key] += 1
                    self._missed(served, on_miss, self._tables[a.device])
                self.served[kind] = served
            elif is_miss(served):
                self._missed(served, on_miss, self._tables[a.device])
            return served

    def _choose(self, a: torch.Tensor, b: torch.Tensor, backend: str) -> Served:
        problem = describe(a, b)
        read = self._table(a.device, backend)
        device, table = read.device, read.table
        key = TuningKey.of(problem, device.slug)
        out = torch.empty((problem.m, problem.n), dtype=a.dtype, device=a.device)
        for answer in table.answers(problem):
            if answer.best.choice is Choice.VENDOR and backend == "auto":
                return Served(key, answer, None)
            launch = _bind(answer, problem, device, a, b, out)
            if launch is not None:
                return Served(key, answer, launch)
        if backend == "triton":
            return Served(key, None, _any_launch(problem, device, a, b, out))
        return Served(key, None, None)

    def _table(self, place: torch.device, backend: str) -> _Read:
        read = self._tables.get(place)
        if read is None:
            self._tables[place] = _read_table(_device_info(place, backend))
        elif read.failed_at is not None and time.monotonic() - read.failed_at > RETRY_SECONDS:
            again = self._tables[place] = _read_table(read.device, before=read)
            if again.failed_at is None:
                self._forget(read.device.slug)
        return self._tables[place]

    def _forget(self, gpu: str) -> None:
        """Drop what was chosen for a kind of GPU while the store could not be read."""
        self.served = {kind: one for kind, one in self.served.items() if one.key.gpu != gpu}
        self._warned = {key for key in self._warned if key.gpu != gpu}
        for key in [key for key in self.misses if key.gpu == gpu]:
            del self.misses[key]

    def owes(self, key: TuningKey, on_miss: str) -> bool:
        """Say whether a miss of this key has still to be told."""
        return on_miss == "error" or (on_miss == "warn" and key not in self._warned)

    def _missed(self, served: Served, on_miss: str, read: _Read) -> None:
        if not self.owes(served.key, on_miss):
            return
        if read.failed_at is not None and on_miss == "warn":
            self._warned.add(served.key)  # that the store cannot be read was said
            return
        location = read.location
        what = "torch" if served.launch is None else "a default config"
        if served.answer is not None:
            what = f"the row of {served.answer.best.key.problem}"
        text = (
            f"{served.key} is not tuned, {what} serves it (cache: {location});"
            f" {how_to_tune(served.key, location)}"
        )
        if on_miss == "error":
            raise MissError(text)
        self._warned.add(served.key)
        warnings.warn(text, MissWarning, stacklevel=4)


def _device_info(place: torch.device, backend: str) -> DeviceInfo:
    if place.type == "cuda":
        return detect(place.index or 0)
    if backend == "triton" and interpreting():
        return KNOWN_DEVICES["sm_90"]  # the interpreter has no limits of its own: an H200's
    raise DeviceError(
        "backend='triton' with operands on the CPU: move them to a GPU, or set TRITON_INTERPRET=1"
        " before Python starts to run the kernels in Triton's interpreter"
    )


def _read_table(device: DeviceInfo, *, before: _Read | None = None) -> _Read:
    """Read every row that may answer on a device, once.

    A store that cannot be read leaves an empty table and one warning.
    """
    from tunekit.cache import default_location, shown_location

    location = "the default cache"
    rows: list[StoredRow] = []
    devices: dict[str, DeviceInfo] = {}
    failed_at = None
    try:
        where = default_location()
        location = shown_location(where)
        rows, devices = _read_rows(where, device)
    except NoStoreError as error:
        logger.info("%s", error)
    except StoreError as error:
        failed_at = time.monotonic()
        level = logging.WARNING if before is None else logging.INFO
        logger.log(level, "tunekit goes on without its cache: %s", error)
    if before is not None and failed_at is None:
        logger.info("the cache %s can be read again", location)
    table = RowTable(
        rows, devices, device=device, fingerprint=current_fingerprint, legality=_legality,
        versions={"torch": torch.__version__},
    )  # fmt: skip
    return _Read(device, table, location, failed_at)


def _read_rows(where: str, device: DeviceInfo) -> tuple[list[StoredRow], dict[str, DeviceInfo]]:
    """Read the rows that may answer on a device, again where a fault comes and goes."""
    from tunekit.cache import Store

    for last in (False, True):
        try:
            with Store.open(where, create=False) as store:
                devices = {info.slug: info for info in store.devices()}
                alike = [
                    s for s, o in devices.items() if s == device.slug or same_silicon(o, device)
                ]
                return [row for slug in alike for row in store.unread_bests(gpu=slug)], devices
        except StoreError as error:
            if last or not error.passing:
                raise
    raise AssertionError("the last try either returns or raises")


def _legality(config: Config, problem: Problem, device: DeviceInfo) -> Violation | None:
    return family(problem.family).violation(config, problem, device)


def _bind(
    answer: Answer, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any
) -> Launch | None:
    """Prepare a row's launch; one that does not compile or load here is passed over."""
    kernels = family(problem.family)
    try:
        with on_device_of(a):
            return kernels.bind(answer.best.config, problem, device, a, b, out)
    except Exception as error:
        failure = kernels.failure(error)
        if failure is None:
            raise
        logger.warning("%s does not run for %s: %s", answer.best.config, problem, failure[1])
        return None


def _any_launch(problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any) -> Launch:
    """Prepare some legal config for `backend="triton"` without a row: the first of the space."""
    kernels = family(problem.family)
    config = kernels.default_config(problem, device)
    with on_device_of(a):
        return kernels.bind(config, problem, device, a, b, out)


def on_device_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make a tensor's GPU the current one inside the block, where launches go."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return contextlib.nullcontext()
