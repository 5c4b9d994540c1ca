"""Where in a program a product stands: a stack of module names for each thread."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_WRAPPER = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(\.|$)")
"""What compiling, sharding and checkpointing put into names."""

_standing = threading.local()
_names: weakref.WeakKeyDictionary[torch.nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()


@contextmanager
def module_names() -> Iterator[None]:
    """Keep track, inside the block and in every thread, of the module that runs."""
    hooks = (
        torch.nn.modules.module.register_module_forward_pre_hook(_enter),
        torch.nn.modules.module.register_module_forward_hook(_leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _enter(module: torch.nn.Module, args: Any) -> None:
    """Push a module's name within the outermost one, numbers as `*`: `layers.*.mlp.up`."""
    stack: list[tuple[torch.nn.Module, str]] = _standing.__dict__.setdefault("stack", [])
    root = stack[0][0] if stack else module
    if root not in _names:
        _names[root] = {
            id(m): _NUMBER.sub("*", _WRAPPER.sub("", name)) for name, m in root.named_modules()
        }
    stack.append((root, _names[root].get(id(module), type(module).__name__)))


def _leave(module: torch.nn.Module, args: Any, out: Any) -> None:
    stack = _standing.__dict__.get("stack")
    if stack:
        stack.pop()


def current_name() -> str:
    """Return the name of the module that runs in this thread, `backward`, or nothing."""
    stack = _standing.__dict__.get("stack")
    if stack:
        return str(stack[-1][1])
    return "backward" if torch._C._current_graph_task_id() != -1 else ""
