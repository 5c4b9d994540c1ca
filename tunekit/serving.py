"""What a process has read from the store and prepared, and how it decides what to run.

The store is read once for each device. A choice, once made for operands of one kind, is kept until
`State.clear`. Only where the store could not be read is it tried again, after a pause and when
operands of a new kind are met, and what was chosen without it is forgotten once it was read.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunekit import policies
from tunekit.config import Config
from tunekit.decision import decide
from tunekit.device import KNOWN_DEVICES, DeviceInfo, detect
from tunekit.errors import DeviceError, MissError
from tunekit.kernels import family
from tunekit.kernels.operands import describe, float32_precision
from tunekit.kernels.stand_ins import interpreting
from tunekit.key import Problem, TuningKey
from tunekit.lookup import BORROWED, Answer, how_to_tune
from tunekit.misses import WRITER
from tunekit.policies import Kind, Policy
from tunekit.reading import Read, read_table

logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""How long after a failure to read the store it is tried again."""

MOST_SERVED = 1 << 17
"""For how many kinds of matrices a choice is remembered at most."""

Launch = Callable[..., None]
"""Takes A, B, the result and, for a scaled product, the scales of A and B."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the process runs for matrices of one kind. No launch means the vendor's call."""

    key: TuningKey
    answer: Answer | None
    launch: Launch | None
    pinned: bool = False
    """Whether the policy named the config, so that no row was asked."""

    @property
    def is_miss(self) -> bool:
        """Whether the problem itself has no row that serves it here."""
        return not self.pinned and (self.answer is None or self.answer.grade in BORROWED)


class MissWarning(UserWarning):
    """A problem without a tuned row was multiplied; the text has the command that tunes it."""


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
        """Forget everything that was read and prepared."""
        with self._lock:
            self.served: dict[Kind, Served] = {}
            self.misses: dict[TuningKey, Calls] = {}
            self._warned: set[TuningKey] = set()
            self._tables: dict[torch.device, Read] = {}
            policies.forget()

    def serve(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, policy: Policy, *scales: Any
    ) -> Served:
        """Find what to run for matrices like these under a policy, and remember it.

        `scales` are those of A and B where the product is scaled.

        Raises:
            MissError: the problem is not tuned, and the policy says that this is an error.
        """
        kind = self.kind(a, b, out.stride(), out.data_ptr() % 16, policy)
        if scales or out.dtype is not a.dtype:
            kind = (*kind, out.dtype, scaling_of(scales))
        with self._lock:
            served = self.served.get(kind)
            if served is None:
                served = self._choose((a, b, out, *scales), policy)
                if len(self.served) >= MOST_SERVED:
                    self.served.clear()  # to be chosen anew, from what was read
                self.served[kind] = served
            if served.is_miss:
                self._missed(served, policy.on_miss, self._tables[a.device])
            return served

    @staticmethod
    def kind(
        a: torch.Tensor, b: torch.Tensor, strides: tuple[int, ...], offset: int, policy: Policy
    ) -> Kind:
        """Return what `served` is kept by: the operands' kind, the result's, and the policy's."""
        own = (policy.backend, policy.deterministic, policy.config)
        return kind_of(a, b, strides, offset, *own)

    def calls_of(self, key: TuningKey, *, told: bool) -> Calls:
        """Return the count of an untuned problem's calls; `told` has the cache told of it too."""
        with self._lock:
            calls = self.misses.get(key)
            if calls is None:
                read = next((r for r in self._tables.values() if r.device.slug == key.gpu), None)
                if read is None:
                    return Calls()  # forgotten meanwhile by another thread: the next call counts
                calls = self.misses[key] = Calls()
                if told and read.where:
                    WRITER.watch(key, read.device, read.where, calls)
            return calls

    def read_for(self, place: torch.device, backend: str) -> Read:
        """Return what the store holds for a device, read once."""
        with self._lock:
            return self._table(place, backend)

    def _choose(self, operands: tuple[torch.Tensor, ...], policy: Policy) -> Served:
        a, b, out, *scales = operands
        problem = describe(a, b, out_dtype=out.dtype, scaling=scaling_of(scales))
        if policy.config is not None:
            device = _device_info(a.device, "triton")
            key = TuningKey.of(problem, device.slug)
            return Served(key, None, _launch(policy.config, problem, device, *operands), True)
        read = self._table(a.device, policy.backend)
        key = TuningKey.of(problem, read.device.slug)
        if policy.deterministic:
            read.require()
        launches: list[Launch] = []

        def refuses(answer: Answer) -> str | None:
            return _prepare(answer, problem, read.device, operands, policy, launches)

        decision = decide(
            read.table, problem, backend=policy.backend, own_only=policy.deterministic,
            refuses=refuses,
        )  # fmt: skip
        if decision.triton:
            return Served(key, decision.answer, launches[0])
        if policy.backend == "triton":
            config = family(problem.family).default_config(problem, read.device)
            return Served(key, None, _launch(config, problem, read.device, *operands))
        return Served(key, decision.answer, None)

    def _table(self, place: torch.device, backend: str) -> Read:
        read = self._tables.get(place)
        if read is None:
            self._tables[place] = read_table(_device_info(place, backend), time.monotonic())
        elif read.failed_at is not None and time.monotonic() - read.failed_at > RETRY_SECONDS:
            again = self._tables[place] = read_table(read.device, time.monotonic(), before=read)
            if again.failed_at is None:
                self._forget(read.device.slug)
        return self._tables[place]

    def _forget(self, gpu: str) -> None:
        """Drop what was chosen for a kind of GPU while the store could not be read."""
        self.served = {kind: one for kind, one in self.served.items() if one.key.gpu != gpu}
        self._warned = {key for key in self._warned if key.gpu != gpu}
        for key in [key for key in self.misses if key.gpu == gpu]:
            del self.misses[key]
        policies.forget()

    def _missed(self, served: Served, on_miss: str, read: Read) -> None:
        if on_miss == "fallback" or (on_miss == "warn" and served.key in self._warned):
            return
        if read.failed_at is not None and on_miss == "warn":
            self._warned.add(served.key)  # that the store cannot be read was said
            return
        what = "torch" if served.launch is None else "a default config"
        if served.answer is not None:
            what = f"the row of {served.answer.best.key.problem}"
        text = (
            f"{served.key} is not tuned, {what} serves it (cache: {read.location});"
            f" {how_to_tune(served.key, read.location)}"
        )
        if on_miss == "error":
            raise MissError(text)
        self._warned.add(served.key)
        warnings.warn(text, MissWarning, stacklevel=_callers_depth())


class Calls:
    """How often an untuned problem was multiplied. Threads may lose a few."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def scaling_of(scales: Sequence[torch.Tensor]) -> str:
    """Return how a product with these scales is scaled, as `Problem` says it."""
    if not scales:
        return "none"
    return "tensor" if all(scale.numel() == 1 for scale in scales) else "row"


def kind_of(a: torch.Tensor, b: torch.Tensor, *more: object) -> Kind:
    """Return all of two operands that a prepared launch depends on, and more beside it."""
    kind = (
        a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device,
        a.data_ptr() % 16, b.data_ptr() % 16, *more,
    )  # fmt: skip
    return (*kind, float32_precision()) if a.dtype is torch.float32 else kind


def _callers_depth() -> int:
    """Return the `stacklevel` at which a warning names the code that called tunekit."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in ("tunekit", "torch", "contextlib"):
            break
        frame, depth = frame.f_back, depth + 1
    return depth


def _device_info(place: torch.device, backend: str) -> DeviceInfo:
    if place.type == "cuda":
        return detect(place.index or 0)
    if backend == "triton" and interpreting():
        return KNOWN_DEVICES["sm_90"]  # the interpreter has no limits of its own: an H200's
    raise DeviceError(
        "backend='triton' with operands on the CPU: move them to a GPU, or set TRITON_INTERPRET=1"
        " before Python starts to run the kernels in Triton's interpreter"
    )


def _launch(config: Config, problem: Problem, device: DeviceInfo, *operands: Any) -> Any:
    """Prepare a config's launch for operands like these."""
    with on_device_of(operands[0]), capture_relaxed(operands[0]):
        return family(problem.family).bind(config, problem, device, *operands)


def _prepare(
    answer: Answer,
    problem: Problem,
    device: DeviceInfo,
    operands: tuple[Any, ...],
    policy: Policy,
    launches: list[Launch],
) -> str | None:
    """Prepare a row's launch, or say why it does not compile or load here."""
    config = answer.best.config
    try:
        launches.append(_launch(config, problem, device, *operands))
    except Exception as error:
        failure = family(problem.family).failure(error)
        if failure is None or policy.deterministic:
            raise
        logger.warning("%s does not run for %s: %s", config, problem, failure[1])
        return f"does not run here: {failure[1]}"
    return None


def on_device_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make a tensor's GPU the current one inside the block, where launches go."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return contextlib.nullcontext()


@contextlib.contextmanager
def capture_relaxed(tensor: torch.Tensor) -> Iterator[None]:
    """Allow this thread to load kernels while it captures a CUDA graph.

    Loading one may allocate memory of the driver's, which a capture in torch's own mode forbids.
    """
    if not (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        yield
        return
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED; the call puts the old one in its place
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))
