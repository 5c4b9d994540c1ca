"""Put recordings of one GPU together.

    python scripts/merge_recordings.py INTO FROM...
    python scripts/merge_recordings.py tunekit/recordings/nvidia-h200.json.gz further.json.gz
    python scripts/make_portfolio.py    # if INTO ships

A problem that several hold is taken from the last. INTO is written at the end, or not at all.
`tunekit tune --record FILE` adds to a file in the same way.
"""

from __future__ import annotations

import sys

from tunekit.errors import RecordingError
from tunekit.recording import Recording


def main(arguments: list[str]) -> int:
    """Merge the recordings named and say what came of it."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    into, *others = arguments
    whole = Recording.load(into)
    before = len(whole.problems)
    for path in others:
        part = Recording.load(path)
        known = len(whole.problems.keys() & part.problems.keys())
        try:
            whole.absorb(part)
        except RecordingError as error:
            print(f"{path} does not belong into {into}: {error}", file=sys.stderr)
            return 1
        print(f"{path}: {len(part.problems)} problems, {known} of them in place of older ones")
    whole.save(into)
    print(f"{into}: {len(whole.problems)} problems, before {before}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
