"""What a process has read from the store and prepared, and how it decides what to run.

The store is read once for each device. A choice, once made for operands of one kind, is kept until
`State.clear`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
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

Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Served:
    """What the process runs for operands of one kind. No launch means the vendor's call."""

    key: TuningKey
    answer: Answer | None
    launch: Launch | None


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
            self._tables: dict[torch.device, tuple[DeviceInfo, RowTable, str]] = {}

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
                    self._missed(served, on_miss, self._tables[a.device][2])
                self.served[kind] = served
            elif is_miss(served):
                self._missed(served, on_miss, self._tables[a.device][2])
            return served

    def _choose(self, a: torch.Tensor, b: torch.Tensor, backend: str) -> Served:
        problem = describe(a, b)
        device, table, _ = self._table(a.device, backend)
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

    def _table(self, place: torch.device, backend: str) -> tuple[DeviceInfo, RowTable, str]:
        if place not in self._tables:
            self._tables[place] = _read_table(_device_info(place, backend))
        return self._tables[place]

    def owes(self, key: TuningKey, on_miss: str) -> bool:
        """Say whether a miss of this key has still to be told."""
        return on_miss == "error" or (on_miss == "warn" and key not in self._warned)

    def _missed(self, served: Served, on_miss: str, location: str) -> None:
        if not self.owes(served.key, on_miss):
            return
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


def _read_table(device: DeviceInfo) -> tuple[DeviceInfo, RowTable, str]:
    """Read every row that may answer on a device, once.

    A store that cannot be read leaves an empty table and one warning.
    """
    from tunekit.cache import Store, default_location

    location = "the default cache"
    rows: list[StoredRow] = []
    devices: dict[str, DeviceInfo] = {}
    try:
        where = default_location()
        location = re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", where)
        with Store.open(where, create=False) as store:
            devices = {info.slug: info for info in store.devices()}
            for slug, other in devices.items():
                if slug == device.slug or same_silicon(other, device):
                    rows.extend(store.unread_bests(gpu=slug))
    except NoStoreError as error:
        logger.info("%s", error)
    except StoreError as error:
        logger.warning("tunekit goes on without its cache: %s", error)
    table = RowTable(
        rows, devices, device=device, fingerprint=current_fingerprint, legality=_legality,
        versions={"torch": torch.__version__},
    )  # fmt: skip
    return device, table, location


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
