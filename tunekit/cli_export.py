"""`tunekit export-cache`: write what a cache holds, or check that it holds what is needed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tunekit.cache import Store, export_json, export_sqlite
from tunekit.device import DeviceInfo
from tunekit.errors import StoreError
from tunekit.kernels import family
from tunekit.key import TuningKey
from tunekit.lookup import grade_of, how_to_tune
from tunekit.output import answer, answer_json, counted, say, sized, write_file
from tunekit.shapes import Shape, load_shapes
from tunekit.trial import Best, Grade
from tunekit.which_gpu import which_gpu

SCHEMA = 1
"""Version of the JSON that `--check` prints."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The options of `tunekit export-cache`."""

    output: str | None
    cache: str | None
    gpu: str | None
    all_trials: bool
    form: str
    shapes_file: str | None
    as_json: bool

    def check_usage(self) -> None:
        """Refuse options that do not go together.

        Raises:
            UsageError: there are such.
        """
        if self.shapes_file is not None:
            if self.output is not None or self.all_trials or self.form != "json":
                raise click.UsageError("--check writes no file: no -o, --all-trials or --format")
        elif self.as_json:
            raise click.UsageError("--json is for --check: an export is JSON as it is")
        elif self.form == "sqlite" and self.output is None:
            raise click.UsageError("--format sqlite needs -o FILE")


def run_export(request: ExportRequest) -> int:
    """Write the cache to a file, or as JSON to stdout, or check it, and return the exit code.

    Raises:
        TunekitError: the cache cannot be read or holds nothing, or the file cannot be written.
    """
    request.check_usage()
    if request.shapes_file is not None:
        return _check(request.shapes_file, request)
    wanted: dict[str, Any] = {"gpu": request.gpu, "all_trials": request.all_trials}
    path = None if request.output is None else Path(request.output)
    with Store.open(request.cache, create=False) as store:
        if path is not None and _is_cache(path, store):
            raise StoreError(f"cannot write {path}: it is the cache itself: name another file")
        if path is not None and request.form == "sqlite":
            export_sqlite(store, path, **wanted)
        else:
            text = export_json(store, **wanted)
            if path is None:
                answer(text.removesuffix("\n"))
                return 0
            write_file(path, text)
        rows = counted(len(store.bests(gpu=request.gpu)), "row")
    say(
        f"wrote {path}: {rows}, {sized(path.stat().st_size)}; to load them elsewhere:"
        f" tunekit import-cache {shlex.quote(path.name)}"
    )
    return 0


def _is_cache(path: Path, store: Store) -> bool:
    try:
        return path.samefile(store.location)
    except (OSError, ValueError):  # one of them is no file
        return False


@dataclass(frozen=True, slots=True)
class Missing:
    """A problem that no row of a GPU serves, and why."""

    shape: Shape
    key: TuningKey
    reason: str
    how: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as the plain data of `--check --json`."""
        return {
            **self.key.problem.to_dict(),
            "count": self.shape.count,
            "name": self.shape.name,
            "reason": self.reason,
            "how": self.how,
        }


def _check(shapes_file: str, request: ExportRequest) -> int:
    """List the problems of a file that no row serves, and return the exit code: 1 if any."""
    shapes, as_json = load_shapes(shapes_file), request.as_json
    with Store.open(request.cache, create=False) as store:
        device = which_gpu(request.gpu, store)
        rows = store.bests(gpu=device.slug)
        location = store.location
    first: dict[TuningKey, Shape] = {}
    for shape in shapes:
        first.setdefault(TuningKey.of(shape.problem, device.slug), shape)
    missing = _missing(first, rows, device, location)
    if as_json:
        document = {"schema": SCHEMA, "gpu": device.slug, "problems": len(first)}
        answer_json({**document, "missing": [one.to_dict() for one in missing]})
    else:
        for one in missing:
            answer(f"{one.key.problem}: {one.reason}; {one.how}")
    _summarise(len(missing), len(first), device, shapes_file, location, as_json=as_json)
    return 1 if missing else 0


def _summarise(
    missing: int, total: int, device: DeviceInfo, file: str, location: str, *, as_json: bool
) -> None:
    if missing:
        command = f"tunekit tune --shapes {shlex.quote(file)} --cache {shlex.quote(location)}"
        say(
            f"{missing} of {total} problems of {file} have no row that serves them on"
            f" {device.slug}; to tune them there: {command}"
        )
    elif not as_json:
        answer(f"{location}: all {total} problems of {file} have a row for {device.slug}")


def _missing(
    first: dict[TuningKey, Shape], rows: Iterable[Best], device: DeviceInfo, location: str
) -> list[Missing]:
    of_key: dict[TuningKey, list[Best]] = {}
    for row in rows:
        of_key.setdefault(row.key, []).append(row)
    found = []
    for key, shape in first.items():
        reasons = [_why_not(row, device) for row in of_key.get(key, ())]
        if None not in reasons:
            reason = next((reason for reason in reasons if reason), "no row")
            found.append(Missing(shape, key, reason, how_to_tune(key, location)))
    return found


def _why_not(best: Best, device: DeviceInfo) -> str | None:
    """Return why a row of a problem does not serve it, or None if it does."""
    problem, ratio = best.key.problem, best.measurement.error_ratio
    kernels = family(problem.family)
    if best.config.variant not in {variant.name for variant in kernels.variants}:
        return "its row is of a kernel that there is no more"
    if grade_of(best, kernels.fingerprint(best.config.variant)) is Grade.OTHER_SOURCE:
        return "its row was tuned for a kernel that has changed since"
    if ratio is None or ratio > 1:
        return "the result of its row was never verified"
    violation = kernels.violation(best.config, problem, device)
    return None if violation is None else f"the config of its row is not legal here ({violation})"
