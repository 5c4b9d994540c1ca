"""`tunekit report`: everything a cache holds, as one HTML page."""

from __future__ import annotations

from pathlib import Path

from tunekit.cache import Store
from tunekit.errors import StoreError
from tunekit.output import counted, say, sized, write_file
from tunekit.report import gather, render
from tunekit.table import served_rows


def run_report(output: str, cache: str | None, gpu: str | None) -> int:
    """Write the page and return the exit code.

    Raises:
        TunekitError: the cache cannot be read, or the file cannot be written.
    """
    with Store.open(cache, create=False) as store:
        known = [device.slug for device in store.devices()]
        if gpu is not None and gpu not in known:
            others = ", ".join(known) or "none"
            raise StoreError(f"{store.location} has no rows of the GPU {gpu!r}: it has {others}")
        served = [(row.best, row.grade) for row in served_rows(store.bests(gpu=gpu))]
        contents = gather(store, served, gpu=gpu)
    text = render(contents)
    write_file(Path(output), text)
    path = Path(output)
    problems = counted(len(contents.entries), "problem")
    say(f"wrote {path}: {problems}, {sized(len(text.encode()))}; open {path.resolve().as_uri()}")
    return 0
