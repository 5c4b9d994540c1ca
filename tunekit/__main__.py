"""What the `tunekit` command runs, and `python -m tunekit` where it is not on the path."""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def run() -> int:
    """Run the command line and return the exit code.

    Ctrl-C while it is being loaded ends the process at once, with nothing said: `main`, which says
    something, is not there yet.
    """
    caught = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if caught:  # it may also be ignored, as in a shell's background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tunekit.cli import main

    if caught:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = main()
    if sys.argv[1:2] == ["tune"]:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End without taking apart what was loaded, a second's work that changes nothing any more."""
    with contextlib.suppress(OSError):  # else the usual way, which has its own words and code
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # it was closed when this began
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(run())
