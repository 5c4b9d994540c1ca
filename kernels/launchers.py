"""Building ahead what Triton would build at a kernel's first launch, while the GPU waits.

Up to 3.8 Triton's CUDA launcher is C, written for a kernel's signature and compiled within half a
second. It lies in Triton's cache, so whoever builds it first spares the others.
"""

from __future__ import annotations

import functools
import logging
import subprocess
from typing import Any

_log = logging.getLogger(__name__)


def build_launcher(compiled: Any) -> None:
    """Have a compiled CUDA kernel's launcher in Triton's cache, where there is one to build.

    That it cannot be built here is no fault of the kernel's: its launch will say what is wrong.
    """
    make = _maker()
    if make is None:
        return
    try:
        make(compiled.src, compiled.metadata)
    except (RuntimeError, ImportError, OSError, subprocess.CalledProcessError) as error:
        _log.debug("the launcher of %s is left to its launch: %s", compiled.metadata.name, error)


@functools.cache
def _maker() -> Any:
    """Return Triton's class of launchers, if that compiles them and can do so here."""
    try:
        from triton.backends.nvidia import driver

        if not hasattr(driver, "make_launcher"):
            return None
        driver.library_dirs()
    except (ImportError, AssertionError, OSError, subprocess.CalledProcessError) as error:
        _log.debug("no launcher is built ahead here: %s", error)  # no NVIDIA driver, most likely
        return None
    return driver.CudaLauncher
