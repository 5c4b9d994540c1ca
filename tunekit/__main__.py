"""`python -m tunekit`: the command line, where the `tunekit` command is not on the path."""

from __future__ import annotations

import sys

from tunekit.cli import main

if __name__ == "__main__":
    sys.exit(main())
