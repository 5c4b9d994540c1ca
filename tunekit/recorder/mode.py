"""A dispatch mode that counts products, and the block in which it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tunekit.kernels.operands import float32_precision
from tunekit.key import Problem
from tunekit.recorder.counting import Record
from tunekit.recorder.module_names import current_name, module_names
from tunekit.recorder.operations import (
    OWN,
    PRODUCTS,
    UNKNOWN,
    is_rehearsed,
    problem_of,
    shown,
    traits,
)


@contextmanager
def record(path: str | Path | None = None) -> Iterator[Record]:
    """Record the matrix products of the block, of this thread and of the gradients it asks for.

    With a path they are written there at the end, also where the block raises; see `Record.save`.

    Raises:
        ShapesError: there is a file at `path` that is no shapes file; nothing has run then.
        TunekitError: it cannot be written.
    """
    if path is not None:
        from tunekit.recorder.shapes_file import check_shapes_file

        check_shapes_file(Path(path))
    seen = Record()
    try:
        recorder = Recorder(seen)
        eager = torch.compiler.set_stance("force_eager")
        with eager, module_names(), recorder, Attention(recorder):
            yield seen
    finally:
        if path is not None:
            seen.save(path)


def watch(record: Record) -> None:
    """Record what this thread multiplies, from now on and for good."""
    recorder = Recorder(record)
    recorder.__enter__()  # type: ignore[no-untyped-call]
    Attention(recorder).__enter__()  # type: ignore[no-untyped-call]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds each product of the thread it is entered in to a record. One for each thread."""

    def __init__(self, record: Record) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._record = record
        self._known: dict[object, Problem | str | None] = {}
        self.in_attention = False
        """Whether what runs now is the inside of an attention, which a GPU does in one kernel."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation as torch would, and count it if it is a product."""
        if any(_is_wrapper(kind) for kind in types):
            return NotImplemented  # a wrapper, as of shards: it runs products of its own
        kwargs = kwargs or {}
        name = func._schema.name
        if name not in PRODUCTS and func.namespace == "aten" and func._can_decompose():
            with self:  # inference mode shows `linear` itself, not what it is made of
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if name == OWN:
            with self:  # who watches is to see torch's own product, as in eager code
                return torch.matmul(*args[:2]).contiguous()
        out = func(*args, **kwargs)
        if name in PRODUCTS:
            self._count(func, args, kwargs, out)
        elif name in UNKNOWN:
            self._record.skip(shown(name))
        return out

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        first, second = PRODUCTS[func._schema.name]
        a, b = given[names[first]], given[names[second]]
        if self.in_attention:
            self._record.skip("scaled_dot_product_attention")
        if self.in_attention or is_rehearsed(a, b):
            return
        scales = tuple(given[s].shape for s in ("scale_a", "scale_b") if s in given)
        kind = (func, *traits(a), *traits(b), out.dtype, scales, _precision(a))
        if kind not in self._known:
            self._known[kind] = problem_of(func._schema.name, a, b, out, given)
        found = self._known[kind]
        if isinstance(found, Problem):
            self._record.add(found, current_name())
        elif found is not None:
            self._record.skip(found)


class Attention(TorchFunctionMode):
    """Tells a recorder of attention, which is made of products only where no kernel fuses it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function as torch would."""
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self._recorder.in_attention = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._recorder.in_attention = False


def _precision(a: torch.Tensor) -> str:
    return float32_precision() if a.dtype is torch.float32 else ""


def _is_wrapper(kind: type) -> bool:
    """Say whether a class of tensors runs operations of its own."""
    own: Any = kind
    return kind is not FakeTensor and (
        own.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    )
