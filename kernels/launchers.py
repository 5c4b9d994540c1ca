"""Building ahead what Triton would build at a kernel's first launch, while the GPU waits.

Up to 3.8 Triton's CUDA launcher is C, written for a kernel's signature and compiled within half a
second. It lies in Triton's cache, so whoever builds it first spares the others.
"""

from __future__ import annotations

import functools
import logging
import subprocess
from typing import Any

from triton.runtime import driver

_log = logging.getLogger(__name__)

_FAILURES = (ImportError, OSError, subprocess.CalledProcessError)
"""Of what compiles C, or looks for what it is compiled with."""


def load_driver() -> None:
    """Have Triton's driver, parts of which are C that is compiled where its cache is new.

    It makes no context. What cannot be loaded here the first launch will say.
    """
    try:
        driver.active.utils  # noqa: B018 - it is made at first use
    except (RuntimeError, AttributeError, *_FAILURES) as error:
        _log.debug("Triton's driver is left to the first launch: %s", error)


def build_launcher(compiled: Any) -> None:
    """Have a compiled CUDA kernel's launcher in Triton's cache, where there is one to build.

    That it cannot be built here is no fault of the kernel's: its launch will say what is wrong.
    """
    make = _maker()
    if make is None:
        return
    try:
        make(compiled.src, compiled.metadata)
    except (RuntimeError, *_FAILURES) as error:
        _log.debug("the launcher of %s is left to its launch: %s", compiled.metadata.name, error)


@functools.cache
def _maker() -> Any:
    """Return Triton's class of launchers, if that compiles them and can do so here."""
    try:
        from triton.backends.nvidia import driver as nvidia

        if not hasattr(nvidia, "make_launcher"):
            return None
        nvidia.library_dirs()
    except (AssertionError, *_FAILURES) as error:
        _log.debug("no launcher is built ahead here: %s", error)  # no NVIDIA driver, most likely
        return None
    return nvidia.CudaLauncher
