"""`tunekit import-cache`: load an export, and say what became of each row."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunekit.cache import ImportReport, Policy, Store, default_location, import_json
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import ExchangeError, NoStoreError, ProblemError
from tunekit.kernels import family
from tunekit.key import Problem
from tunekit.output import say
from tunekit.space import Violation


def run_import(file: str, cache: str | None, *, on_conflict: str, dry_run: bool) -> int:
    """Load a file into the cache and return the exit code: 1 only if every row was refused.

    Raises:
        TunekitError: the file is damaged or the cache cannot be used; nothing was written.
    """
    text = _read_export(Path(file))
    location = default_location() if cache is None else cache
    policy = Policy(on_conflict)
    try:
        report, shown = _import(text, location, policy, dry_run=dry_run)
    except ExchangeError as error:
        raise ExchangeError(f"{file}: {error}") from error
    return _report_import(report, shown, dry_run=dry_run)


def _import(text: str, location: str, policy: Policy, *, dry_run: bool) -> tuple[ImportReport, str]:
    """Load a text, and return what became of it and where the cache is, as it may be shown."""
    fresh = False
    try:
        store = Store.open(location, create=False)
    except NoStoreError as absent:
        # A file that holds nothing for us leaves no empty cache behind.
        with _scratch_store() as scratch:
            report = import_json(scratch, text, policy=policy, legality=_legality, dry_run=True)
        if dry_run or not report.added:
            return report, absent.location
        fresh = True
    if fresh:
        store = Store.open(location)
    with store:
        report = import_json(store, text, policy=policy, legality=_legality, dry_run=dry_run)
        return report, store.location


def _read_export(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ExchangeError(f"{path} is not an export of tunekit: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ExchangeError(f"cannot read the export {path}: {reason}") from error


def _legality(config: Config, problem: Problem, device: DeviceInfo) -> Violation | None:
    try:
        return family(problem.family).violation(config, problem, device)
    except ProblemError as error:
        return Violation("family", str(error))


@contextmanager
def _scratch_store() -> Iterator[Store]:
    """Give an empty store that is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="tunekit-") as folder,
        Store.open(Path(folder) / "scratch.db") as store,
    ):
        yield store


def _report_import(report: ImportReport, location: str, *, dry_run: bool) -> int:
    """Say what became of the rows; an error only if every one was refused."""
    for number, reason in report.refused:
        say(f"row {number} refused: {reason}")
    would = "would be " if dry_run else ""
    say(
        f"{location}: {report.added} rows {would}added, {report.replaced} {would}replaced, "
        f"{report.kept} {would}kept as they are, {len(report.refused)} refused"
    )
    loaded = report.added + report.replaced + report.kept
    return 1 if report.refused and not loaded else 0
