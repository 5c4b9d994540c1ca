"""What a timing of a kernel depends on beside the problem: its source and the compiler.

The source hash covers the text of a kernel and of every jitted function it calls, and nothing else:
moving a kernel to another file or line keeps its rows, which Triton's own `cache_key` does not.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import textwrap
from typing import Any

import triton
from triton.runtime import cache

from tunekit.trial import Fingerprint


def source_hash(kernels: tuple[Any, ...]) -> str:
    """Hash the source of kernels and, transitively, of the jitted functions they call."""
    sources: dict[str, str] = {}
    pending = list(kernels)
    while pending:
        function = pending.pop().fn
        if function.__qualname__ in sources:
            continue
        sources[function.__qualname__] = _text(function)
        reachable = (function.__globals__.get(name) for name in function.__code__.co_names)
        pending.extend(found for found in reachable if is_jitted(found))
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(sources[name].encode() + b"\0")
    return digest.hexdigest()[:16]


def is_jitted(value: Any) -> bool:
    """Say whether a value is a Triton kernel or device function, compiled or interpreted."""
    return type(value).__name__ in ("JITFunction", "InterpretedFunction", "GluonJITFunction")


def _text(function: Any) -> str:
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    return "\n".join(line.rstrip() for line in lines)


CODE_SWITCHES = (
    "DISABLE_LLVM_OPT",
    "DISABLE_PTXAS_OPT",
    "PTXAS_OPTIONS",
    "TRITON_DEBUG",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_ENABLE_ASAN",
    "TRITON_F32_DEFAULT",
    "TRITON_FORCE_DISABLE_FP_FUSION",
    "TRITON_HIP_USE_ASYNC_COPY",
    "TRITON_HIP_USE_BLOCK_PINGPONG",
    "TRITON_HIP_USE_IN_THREAD_TRANSPOSE",
    "TRITON_INSTRUMENTATION_MODE",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_OVERRIDE_ARCH",
)
"""Environment variables of Triton's that change the code it makes of one kernel."""


@functools.cache
def compiler_identity() -> str:
    """Name the compiler: Triton's version, that of its ptxas, and what is set of `CODE_SWITCHES`.

    Triton with a switch set is another compiler. The switches are read once, at first use.
    """
    settings = {name: os.environ.get(name, "") for name in CODE_SWITCHES}
    switches = "".join(f"+{name}-{value}" for name, value in settings.items() if value)
    return f"triton-{triton.__version__}{_ptxas()}{switches}"


def keep_compiler_key() -> None:
    """Have Triton hash its own files now; where it has no such call it will when it compiles."""
    with contextlib.suppress(AttributeError, OSError):
        cache.triton_key()


def _ptxas() -> str:
    try:
        from triton.backends.nvidia.compiler import get_ptxas
    except ImportError:
        return ""
    try:
        return f"+ptxas-{get_ptxas(90).version}"
    except (RuntimeError, OSError):
        return ""


def fingerprint(kernels: tuple[Any, ...]) -> Fingerprint:
    """Return the fingerprint of a variant's kernels under this compiler."""
    return Fingerprint(source_hash(kernels), compiler_identity())
