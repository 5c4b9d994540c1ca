"""`python -m tunekit.recorder`: how `tunekit record` starts a program. No command of its own."""

from __future__ import annotations

import sys

from tunekit.recorder.program import main

if __name__ == "__main__":
    main(sys.argv[1:])
