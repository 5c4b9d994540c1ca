"""`tunekit doctor`: is everything there, and what mends what is not."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from tunekit.cache import Store, default_location, examine, file_of, place_of, shown_location
from tunekit.checkup import Check, Level, gpus, versions
from tunekit.errors import NoStoreError, StoreError
from tunekit.lookup import is_verified
from tunekit.output import Paint, answer, answer_json, answer_width, counted, paint, sized, wrap
from tunekit.table import Row, served_rows
from tunekit.trial import Grade

SCHEMA = 1
"""Version of the JSON that `doctor` prints."""

_COLOURS = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "red"}

_NAME_THE_CACHE = "name another place with --cache or TUNEKIT_CACHE"


def run_doctor(cache: str | None, *, as_json: bool) -> int:
    """Print what was found, and return the exit code: 1 if there is a problem."""
    checks = [*versions(), *gpus(), *_cache(cache)]
    healthy = all(check.level is not Level.PROBLEM for check in checks)
    if as_json:
        answer_json({"schema": SCHEMA, "healthy": healthy, "checks": [c.to_dict() for c in checks]})
    else:
        answer("\n".join(lines(checks, paint=paint(), width=answer_width())))
    return 0 if healthy else 1


def lines(checks: list[Check], *, paint: Paint, width: int | None) -> Iterator[str]:
    """Yield what was found as text, a line each and its cure below it."""
    wide = max(len(check.name) for check in checks)
    for check in checks:
        text = "".join(letter if letter.isprintable() else "?" for letter in check.text)
        level = check.level.value.ljust(7)
        line = wrap(f"{level}  {check.name.ljust(wide)}  {text}", width, wide + 11)
        yield paint(level, fg=_COLOURS[check.level]) + line[len(level) :]
        if check.fix is not None:
            yield f"{' ' * 7}  {' ' * wide}  -> {check.fix}"
    problems = sum(check.level is Level.PROBLEM for check in checks)
    yield "no problems" if not problems else f"{counted(problems, 'problem')}: see the -> lines"


def _cache(named: str | None) -> Iterator[Check]:
    try:
        location = default_location() if named is None else named
        place_of(location)
    except StoreError as error:
        yield Check("cache", Level.PROBLEM, str(error), _NAME_THE_CACHE)
        return
    path = file_of(location)
    sound = True
    if path is not None:
        for check in _file(path):
            sound = sound and check.level is not Level.PROBLEM
            yield check
        if not path.exists():
            return
    if sound:
        yield from _rows(location)


def _file(path: Path) -> Iterator[Check]:
    """Check a cache file from outside, so that nothing is migrated or moved by looking."""
    found = examine(path)
    if found.network is not None:
        text = f"{path} is on a network file system ({found.network}): SQLite's locks may not hold"
        fix = "name a path on a local disk, or postgresql://..., with --cache or TUNEKIT_CACHE"
        yield Check("file system", Level.NOTE, text, fix)
    if not found.exists:
        yield _not_there(path, writable=found.writable)
    elif not found.readable:
        fix = f"chmod u+r {shlex.quote(str(path))}, or {_NAME_THE_CACHE}"
        yield Check("cache", Level.PROBLEM, f"{path} may not be read by this user", fix)
    elif found.fault is not None:
        fix = f"restore it from a copy, or {_NAME_THE_CACHE}; `tunekit tune` moves a damaged one"
        yield Check("cache", Level.PROBLEM, f"{path}: {found.fault}", f"{fix} aside")
    elif found.schema is not None and found.schema > found.newest_schema:
        text = f"{path} has schema {found.schema}, newer than this tunekit's {found.newest_schema}"
        yield Check("cache", Level.PROBLEM, text, "pip install --upgrade tunekit-triton")
    else:
        size = f"{path}, {sized(found.size_bytes)}, schema {found.schema}"
        yield Check("cache", Level.OK, size)
        if found.schema != found.newest_schema:
            text = f"it is brought to schema {found.newest_schema} when it is next opened for"
            yield Check("schema", Level.NOTE, f"{text} writing, and a copy is kept")
        if not found.writable:
            text = "it may be read but not written: rows are served, and `tune` cannot add any"
            yield Check("permissions", Level.NOTE, text)


def _not_there(path: Path, *, writable: bool) -> Check:
    if not writable:
        text = f"there is none at {path}, and none can be made there"
        return Check("cache", Level.PROBLEM, text, _NAME_THE_CACHE)
    return Check("cache", Level.NOTE, f"none yet at {path}", "tunekit tune --shapes FILE")


def _rows(location: str) -> Iterator[Check]:
    """Check what is in the cache against what is installed."""
    try:
        with Store.open(location, create=False) as store:
            rows = served_rows(store.bests())
            misses = store.misses()
            leases = store.leases()
    except NoStoreError as error:
        yield Check("cache", Level.NOTE, str(error), "tunekit tune --shapes FILE")
        return
    except StoreError as error:
        yield Check("cache", Level.PROBLEM, str(error), _NAME_THE_CACHE)
        return
    if "://" in location and file_of(location) is None:
        yield Check("cache", Level.OK, shown_location(location))
    where = f"--cache {shlex.quote(shown_location(location))}"
    gpus = sorted({row.best.key.gpu for row in rows})
    of_gpus = f" of {', '.join(gpus)}" if gpus else ""
    yield Check("rows", Level.OK, counted(len(rows), "tuned problem") + of_gpus)
    yield from _unfit(rows, where)
    if misses:
        text = f"asked for at run time and not tuned: {counted(len(misses), 'problem')}"
        yield Check("misses", Level.NOTE, text, f"tunekit tune --misses {where}")
    if leases:
        yield Check("leases", Level.NOTE, f"being tuned now: {counted(len(leases), 'problem')}")


def _unfit(rows: Sequence[Row], where: str) -> Iterator[Check]:
    """Tell of rows that were made otherwise than what is installed would make them."""
    # A replay answers as of its own compiler: to it no row is stale.
    stale = [row for row in rows if row.grade is not Grade.EXACT and not row.best.replayed]
    if stale:
        text = f"made by other kernels, or by another compiler: {counted(len(stale), 'row')}"
        yield Check("stale", Level.NOTE, text, f"tunekit tune --stale {where}")
    if any(row.best.replayed for row in rows):
        count = counted(sum(row.best.replayed for row in rows), "row")
        yield Check("replayed", Level.NOTE, f"from a recording and not from a GPU: {count}")
    changed = sum(row.best.replayed and row.grade is Grade.OTHER_SOURCE for row in rows)
    if changed:
        text = f"of kernels that have changed since, so not served: {counted(changed, 'row')}"
        yield Check("changed", Level.NOTE, text, f"tunekit tune --retune --shapes FILE {where}")
    unverified = sum(not is_verified(row.best) for row in rows)
    if unverified:
        text = f"never verified, so not served: {counted(unverified, 'row')}"
        yield Check("unverified", Level.NOTE, text, f"tunekit tune --retune --shapes FILE {where}")
