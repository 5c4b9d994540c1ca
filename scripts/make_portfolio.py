"""Make the portfolios that ship from the recordings that ship.

    python scripts/make_portfolio.py

To be run when a recording was made anew; a test holds the one to the other.
"""

from __future__ import annotations

from pathlib import Path

import tunekit.search
from tunekit.recording import Recording
from tunekit.replay import shipped_recordings
from tunekit.search.portfolio import portfolio_of


def main() -> None:
    """Write one portfolio for each shipped recording."""
    folder = Path(tunekit.search.__file__).parent
    for path in shipped_recordings():
        made = folder / f"portfolio-{path.name}"
        portfolio_of(Recording.load(path)).save(made)
        print(f"{made.name}: {made.stat().st_size} bytes")


if __name__ == "__main__":
    main()
