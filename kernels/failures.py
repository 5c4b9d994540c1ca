"""Which errors are a config's own failure, to be stored with it, and which are tunekit's."""

from __future__ import annotations

import sys

from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from tunekit.trial import Status

LONGEST_TEXT = 500
"""Characters of an error that are kept: compilers quote whole programs."""


def classify(error: BaseException) -> tuple[Status, str] | None:
    """Return the status and a short text of a config's failure, or None for any other error."""
    status = _status(error)
    return None if status is None else (status, _short(error, status))


def _status(error: BaseException) -> Status | None:
    torch = sys.modules.get("torch")  # a compiler has not loaded it, nor met an error of its
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return Status.OUT_OF_MEMORY
    if isinstance(error, OutOfResources):
        return Status.OUT_OF_RESOURCES
    if isinstance(error, (CompilationError, PTXASError)):
        return Status.COMPILE_ERROR
    if isinstance(error, RuntimeError):
        # Triton's passes and both drivers raise plain RuntimeErrors.
        text = str(error)
        on_device = "CUDA" in text or "HIP" in text or type(error).__name__ == "AcceleratorError"
        return Status.LAUNCH_ERROR if on_device else Status.COMPILE_ERROR
    return None


def _short(error: BaseException, status: Status) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    # A driver's error is followed by advice; a compiler's stands below the program it quotes.
    text = f"{type(error).__name__}: {lines[0 if status is Status.LAUNCH_ERROR else -1]}"
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."
