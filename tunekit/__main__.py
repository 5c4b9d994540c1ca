"""What the `tunekit` command runs, and `python -m tunekit` where it is not on the path."""

from __future__ import annotations

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
    return main()


if __name__ == "__main__":
    sys.exit(run())
