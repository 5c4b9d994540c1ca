"""What reaches Triton's bare launcher for a kernel call: found out once, from the launcher itself.

Triton changes the order of a launcher's arguments between versions. So nothing is assumed of it but
that it has a `launch` and calls that at the end: it is called once on a copy whose `launch` only
notes what it is given.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

from tunekit.kernels.protocol import KernelCall

_STREAM = 0x7E57
"""Stands for the stream where it is found out what a launcher passes on."""


@dataclass(frozen=True, slots=True)
class Built:
    """The kernel launches for some operands, and the operands as they were handed to them."""

    calls: tuple[KernelCall, ...]
    views: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One bare launch: what to call, with what, and where addresses and maps go."""

    launch: Callable[..., Any]
    front: list[Any]
    """What comes before the kernel's arguments; the stream is number 3."""
    values: list[Any]
    nested: bool
    """Whether the launcher takes the kernel's arguments as one sequence."""
    addresses: tuple[tuple[int, int], ...]
    """Places of values that are an operand's address, and which operand's."""
    maps: tuple[tuple[int, int], ...]
    """Places of values that are an operand's encoded descriptor, and which operand's."""
    kept: tuple[Any, ...]
    """Memory beside the operands that the launch uses, held so that it stays."""


Steps = tuple[Step, ...]


def arguments(call: KernelCall) -> tuple[Any, ...]:
    """Return every argument of a kernel in order, constants included, as launchers take them."""
    rest = call.kernel.arg_names[len(call.args) :]
    return (*call.args, *(call.options[name] for name in rest))


def bare_steps(compiled: list[Any], built: Built) -> Steps | None:
    """Return the bare launches of compiled kernel calls, or None if one cannot be laid bare."""
    steps = [
        _step(binary, call, built.views) for binary, call in zip(compiled, built.calls, strict=True)
    ]
    return None if None in steps else tuple(step for step in steps if step is not None)


def _step(compiled: Any, call: KernelCall, views: tuple[Any, ...]) -> Step | None:
    given = arguments(call)
    found = _passed_on(compiled, call.grid, given)
    if found is None:
        return None
    launch, passed = found
    nested = bool(passed) and isinstance(passed[-1], (list, tuple))
    counts = [1 + 2 * len(one.shape) if _described(one) else 1 for one in given]
    values = list(passed[-1]) if nested else list(passed[len(passed) - sum(counts) :])
    front = list(passed[:-1] if nested else passed[: len(passed) - sum(counts)])
    if len(values) != sum(counts) or len(front) < 5 or front[3] != _STREAM:
        return None
    addresses: list[tuple[int, int]] = []
    maps: list[tuple[int, int]] = []
    kept: list[Any] = []
    place = 0
    for one, count in zip(given, counts, strict=True):
        if not _is_at(values, place, one):
            return None  # passed on in a form that is not known here
        memory = one.base if _described(one) else one
        if hasattr(memory, "data_ptr"):
            which = [number for number, view in enumerate(views) if view is memory]
            if which:
                (maps if _described(one) else addresses).append((place, which[0]))
            elif _overlaps(memory, views):
                return None  # an operand in another guise: its address is not the operand's
            else:
                kept.append(memory)
            if not _described(one):
                values[place] = memory.data_ptr()
        place += count
    return Step(launch, front, values, nested, tuple(addresses), tuple(maps), tuple(kept))


def _is_at(values: list[Any], place: int, argument: Any) -> bool:
    """Say whether an argument is what stands at a place: itself, or a map, sizes and strides."""
    if not _described(argument):
        return bool(values[place] is argument)
    rest = [*argument.shape, *argument.strides]
    encoded = not hasattr(values[place], "data_ptr")
    return encoded and values[place + 1 : place + 1 + len(rest)] == rest


def _described(argument: Any) -> bool:
    return isinstance(argument, TensorDescriptor) or type(argument).__name__ == "TensorDescriptor"


def _overlaps(memory: Any, views: tuple[Any, ...]) -> bool:
    mine = memory.untyped_storage().data_ptr()
    return any(view.untyped_storage().data_ptr() == mine for view in views)


def _passed_on(
    compiled: Any, grid: tuple[int, ...], given: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Return a launcher's bare function and what it would be called with, or None."""
    launcher = compiled.run
    launch = getattr(launcher, "launch", None)
    scratch = ("global_scratch_size", "profile_scratch_size", "gsan_enabled")
    if launch is None or any(getattr(launcher, name, 0) for name in scratch):
        return None
    seen: list[tuple[Any, ...]] = []

    def note(*passed: Any) -> None:
        seen.append(passed)

    bare, noting = launch, note
    if isinstance(launch, types.FunctionType):  # it encodes descriptors before it launches
        if "launcher" not in launch.__code__.co_freevars or launch.__closure__ is None:
            return None
        cells = dict(zip(launch.__code__.co_freevars, launch.__closure__, strict=True))
        bare = cells["launcher"].cell_contents
        cells["launcher"] = types.CellType(note)
        noting = types.FunctionType(
            launch.__code__, launch.__globals__, launch.__name__, launch.__defaults__,
            tuple(cells.values()),
        )  # fmt: skip
    on_paper = copy.copy(launcher)
    on_paper.launch = noting
    function, packed = compiled.function, compiled.packed_metadata
    whole = (*grid, 1, 1)[:3]
    on_paper(*whole, _STREAM, function, packed, None, None, None, *given)
    return (bare, seen[0]) if len(seen) == 1 else None
