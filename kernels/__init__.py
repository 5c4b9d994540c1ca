"""The kernels and what each may be configured to, one family of them for each kind of problem."""

from __future__ import annotations

import threading

from tunekit.errors import ConfigError, ProblemError
from tunekit.kernels.protocol import Family, KernelCall, Launch, Prepared, Variant
from tunekit.key import Problem
from tunekit.trial import Fingerprint

FAMILIES = ("matmul",)
"""The families there are. Their kernels, and Triton with them, load at first use."""

__all__ = [
    "FAMILIES",
    "Family",
    "KernelCall",
    "Launch",
    "Prepared",
    "Variant",
    "compiler_identity",
    "current_fingerprint",
    "family",
    "keep_compiler_key",
    "prepare_to_launch",
    "store_binaries_alone",
    "unsupported",
]


def family(name: str) -> Family:
    """Return a kernel family by name.

    Raises:
        ProblemError: there is no such family.
    """
    if name == "matmul":
        from tunekit.kernels.matmul_family import MATMUL

        return MATMUL
    raise ProblemError(_unknown(name))


def unsupported(problem: Problem) -> str | None:
    """Return why no kernel computes a problem on any device, or None. It loads no kernel."""
    if problem.family == "matmul":
        from tunekit.kernels.problems import unsupported as by_matmul

        return by_matmul(problem)
    return _unknown(problem.family)


def _unknown(name: str) -> str:
    return f"unknown kernel family {name!r}: use one of {', '.join(FAMILIES)}"


def compiler_identity() -> str:
    """Name the compiler that builds the kernels here."""
    from tunekit.kernels.fingerprint import compiler_identity as identity

    return identity()


def keep_compiler_key() -> threading.Thread:
    """Have this process, and its forks, know what Triton names its own files by in its cache.

    Triton would hash them at the first compilation or launch, half a second's work, and remember.
    Here a thread, which is returned, does so beside whatever the caller goes on with.
    """
    from tunekit.kernels.fingerprint import keep_compiler_key as keep

    thread = threading.Thread(target=keep, name="tunekit-compiler-key", daemon=True)
    thread.start()
    return thread


def prepare_to_launch() -> None:
    """Load what the first launch would, which takes a second. It makes no context."""
    key = keep_compiler_key()
    from tunekit.kernels.launchers import load_driver

    load_driver()
    key.join()


def store_binaries_alone() -> None:
    """Have what this process compiles stored without what came before it: launches do not ask."""
    from tunekit.kernels.target import store_binaries_alone as store

    store()


def current_fingerprint(family_name: str, variant: str) -> Fingerprint | None:
    """Return the fingerprint of a variant as it is installed here, or None if there is none."""
    try:
        return family(family_name).fingerprint(variant)
    except (ProblemError, ConfigError):
        return None
