"""A launch prepared once for operands of one kind, so that a call only fills in addresses.

Triton's own launch binds arguments, looks a compiled kernel up, and encodes every tensor
descriptor (TMA) anew. Here the arguments that reach the bare launcher are kept in a list. Of an
operand only its address changes between calls, and the encoded descriptor of an address is kept
too. A launcher that is not understood is called as it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from triton.runtime import driver

from tunekit.kernels.bare import Built, Step, Steps, arguments, bare_steps
from tunekit.kernels.protocol import KernelCall

if TYPE_CHECKING:
    import torch

Call = Callable[..., KernelCall]
Launch = Callable[..., None]
Queue = Callable[[int, tuple[int, ...], tuple[Any, ...]], None]
"""Queues one bare launch on a stream: addresses of the operands, and the operands themselves."""

MOST_MAPS = 4096
"""How many addresses' encoded descriptors are kept for each operand of a launch."""

_handing_on = threading.RLock()
"""Held by launches that hand something on in kept memory, which two threads must not mix."""


def _after_fork() -> None:
    global _handing_on
    _handing_on = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def prepared(call: Call, *operands: Any, keep_maps: bool = True) -> Launch:
    """Compile (or load) what `call` launches and return a launch for operands like these.

    The operands are A, B, the output, and the scales where there are any. The launch takes tensors
    whose memory, from their first element on, has the strides, dtype and alignment of these, and
    queues on the current stream of their device, which must be the current one. `keep_maps=False`
    encodes descriptors at each launch, to measure what keeping them saves.
    """
    forms = [(tuple(one.shape), one.stride()) for one in operands]

    def build(*tensors: Any) -> Built:
        # Views of their own, so that each operand is known again even where two are one tensor.
        views = [one.as_strided(*form) for one, form in zip(tensors, forms, strict=True)]
        return Built(tuple(call(*views).sequence()), tuple(views))

    first = build(*operands)
    compiled = [one.compiled() for one in first.calls]
    steps = bare_steps(compiled, first)
    if steps is None or (not keep_maps and any(step.maps for step in steps)):
        return _as_it_is(compiled, build)
    queue, index = _Kept(compiled, build, steps).queue(), operands[0].device.index or 0
    stream_of = driver.active.get_current_stream

    def launch(a: Any, b: Any, out: Any) -> None:
        queue(stream_of(index), (a.data_ptr(), b.data_ptr(), out.data_ptr()), (a, b, out))

    def launch_scaled(*tensors: Any) -> None:
        queue(stream_of(index), tuple([one.data_ptr() for one in tensors]), tensors)

    return launch if len(operands) == 3 else launch_scaled


def fixed(call: KernelCall) -> Callable[[], None]:
    """Compile (or load) a call's kernels and return their launch on the call's own operands.

    It queues on the current stream of the device that is current now.
    """
    calls = tuple(call.sequence())
    compiled = [one.compiled() for one in calls]
    steps = bare_steps(compiled, Built(calls, ()))
    each: list[Callable[[], None]] = []
    if steps is not None:
        each += [_bare(step) for step in steps]
    else:
        for binary, one in zip(compiled, calls, strict=True):
            each.append(partial(_runner(binary, one.grid), arguments(one)))
    return each[0] if len(each) == 1 else partial(_one_by_one, each)


def _one_by_one(launches: Sequence[Callable[[], None]]) -> None:
    for launch in launches:
        launch()


def _bare(step: Step) -> Callable[[], None]:
    """Return a bare launch of what is given; only the stream is asked for each time."""
    x, y, z, _, *rest = step.front
    rest += [step.values] if step.nested else step.values
    stream_of, index = driver.active.get_current_stream, driver.active.get_current_device()
    bare, held = step.launch, step.kept

    def launch() -> None:
        bare(x, y, z, stream_of(index), *rest)

    launch.held = held  # type: ignore[attr-defined]  # so that the memory stays
    return launch


def _runner(compiled: Any, grid: tuple[int, ...]) -> Callable[[tuple[Any, ...]], None]:
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    whole = (*grid, 1, 1)[:3]
    active = driver.active

    def launch(values: tuple[Any, ...]) -> None:
        stream = active.get_current_stream(active.get_current_device())
        run(*whole, stream, function, packed, None, None, None, *values)

    return launch


def _as_it_is(compiled: list[Any], build: Callable[..., Built]) -> Launch:
    """Launch through Triton's launcher, with descriptors made for each call."""

    def launch(*operands: Any) -> None:
        with _handing_on:
            for binary, one in zip(compiled, build(*operands).calls, strict=True):
                _runner(binary, one.grid)(arguments(one))

    return launch


class _Kept:
    """Launches with encoded descriptors, or with memory of their own, kept from call to call.

    Encoded descriptors are kept by address, which alone decides what is in one. Memory is kept for
    each stream. A launch that is captured into a CUDA graph gets memory of the graph's, for it must
    share none with those that run while the graph is replayed.
    """

    def __init__(self, compiled: list[Any], build: Callable[..., Built], steps: Steps) -> None:
        self._compiled = compiled
        self._build = build
        self._maps: list[list[dict[int, Any]]] = [[{} for _ in step.maps] for step in steps]
        self._of_stream: dict[int, Queue] = {}
        self._shared = None if any(step.kept for step in steps) else self._queue(steps)

    def queue(self) -> Queue:
        """Return what queues the launches on operands of the kind this was made for."""
        if self._shared is not None:
            return self._shared
        of_stream, make = self._of_stream, self._on

        def queue(stream: int, operands: tuple[int, ...], tensors: tuple[Any, ...]) -> None:
            # The default stream, which is 0, cannot be captured; of others that has to be asked.
            known = None if stream else of_stream.get(0)
            (known or make(stream, tensors))(stream, operands, tensors)

        return queue

    def _on(self, stream: int, tensors: tuple[torch.Tensor, ...]) -> Queue:
        import torch

        if stream and torch.cuda.is_current_stream_capturing():
            return self._queue(self._steps(*tensors))
        if stream not in self._of_stream:
            self._of_stream[stream] = self._queue(self._steps(*tensors))
        return self._of_stream[stream]

    def _queue(self, steps: Steps) -> Queue:
        each = [
            _queue(step, maps, self._encoded) for step, maps in zip(steps, self._maps, strict=True)
        ]
        return each[0] if len(each) == 1 else _in_order(each)

    def _steps(self, *tensors: Any) -> Steps:
        steps = bare_steps(self._compiled, self._build(*tensors))
        assert steps is not None  # it was not when this was made
        return steps

    def _encoded(self, wanted: dict[int, Any], address: int, tensors: tuple[Any, ...]) -> Any:
        """Encode the descriptors of operands that are met at a new address."""
        operands = [one.data_ptr() for one in tensors]
        for step, known in zip(self._steps(*tensors), self._maps, strict=True):
            for (place, which), maps in zip(step.maps, known, strict=True):
                if len(maps) >= MOST_MAPS:
                    maps.clear()
                maps[operands[which]] = step.values[place]
        return wanted[address]


def _in_order(each: list[Queue]) -> Queue:
    """Return what queues launches that hand something on, unmixed with another thread's."""

    def queue(stream: int, operands: tuple[int, ...], tensors: tuple[Any, ...]) -> None:
        with _handing_on:
            for one in each:
                one(stream, operands, tensors)

    return queue


def _queue(step: Step, known: list[dict[int, Any]], encoded: Callable[..., Any]) -> Queue:
    """Return what fills in and queues one bare launch."""
    bare, front, values = step.launch, step.front, step.values
    held = step.kept  # by what is returned, so that the memory stays
    offset = 0 if step.nested else len(front)
    flat = values if step.nested else [*front, *values]
    addresses = tuple((offset + place, which) for place, which in step.addresses)
    maps = tuple(
        (offset + place, which, of) for (place, which), of in zip(step.maps, known, strict=True)
    )

    def queue(stream: int, operands: tuple[int, ...], tensors: tuple[Any, ...]) -> None:
        filled = flat.copy()
        filled[3] = stream
        for place, which in addresses:
            filled[place] = operands[which]
        for place, which, of in maps:
            address = operands[which]
            filled[place] = of.get(address) or encoded(of, address, tensors)
        bare(*filled)

    def queue_nested(stream: int, operands: tuple[int, ...], tensors: tuple[Any, ...]) -> None:
        before, filled = front.copy(), values.copy()
        before[3] = stream
        for place, which in addresses:
            filled[place] = operands[which]
        for place, which, of in maps:
            address = operands[which]
            filled[place] = of.get(address) or encoded(of, address, tensors)
        bare(*before, filled)

    queue.held = queue_nested.held = held  # type: ignore[attr-defined]
    return queue_nested if step.nested else queue
