"""`tunekit import-cache`: load an export, and say what became of each row."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tunekit.cache import ImportReport, Policy, Store, default_location, import_sections
from tunekit.cache.autotune import (
    autotune_dtype,
    check_autotune_key,
    describe_key,
    is_autotune,
    read_autotune,
)
from tunekit.cache.document import Sections, document_sections, parse_json
from tunekit.cache.snapshot import SQLITE_MAGIC, read_snapshot
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES, DeviceInfo, cuda_available, detect
from tunekit.errors import DamagedStoreError, ExchangeError, NoStoreError, ProblemError
from tunekit.kernels import family
from tunekit.key import Problem, TuningKey
from tunekit.output import counted, say
from tunekit.shapes import DEFAULT_DTYPE, parse_shape, shape_parts
from tunekit.space import Violation

GZIP_MAGIC = b"\x1f\x8b"
AUTOTUNE_VARIANT = "pointer"
"""The variant that is what people write: tiles by pointers, walked in groups, K in parts."""


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """The options of `tunekit import-cache`."""

    file: str
    cache: str | None
    on_conflict: str
    dry_run: bool
    shape: str | None = None
    gpu: str | None = None


def run_import(request: ImportRequest) -> int:
    """Load a file into the cache and return the exit code: 1 only if nothing could be taken.

    Raises:
        TunekitError: the file is damaged or the cache cannot be used; nothing was written.
    """
    location = default_location() if request.cache is None else request.cache
    policy = Policy(request.on_conflict)
    try:
        sections = _read_file(request, location)
        report, shown = _import(sections, location, policy, dry_run=request.dry_run)
    except ExchangeError as error:
        raise ExchangeError(f"{request.file or repr('')}: {error}") from error
    code = _report_import(report, shown, dry_run=request.dry_run)
    if request.shape is not None and not code:
        say("these are trials for the search to learn from: nothing is served from them")
    return code


def _import(
    sections: Sections, location: str, policy: Policy, *, dry_run: bool
) -> tuple[ImportReport, str]:
    """Load sections, and return what became of them and where the cache is, as it may be shown."""
    unusable = None
    try:
        Store.open(location, create=False).close()
    except NoStoreError as absent:
        unusable = absent.location
    except DamagedStoreError:
        if dry_run:
            raise
        unusable = location
    if unusable is not None:
        # A file that holds nothing for us leaves no empty cache behind, and moves none aside.
        with _scratch_store() as scratch:
            report = import_sections(
                scratch, sections, policy=policy, legality=_legality, dry_run=True
            )
        if dry_run or not report.added:
            return report, unusable
    with Store.open(location, create=not dry_run) as store:
        report = import_sections(
            store, sections, policy=policy, legality=_legality, dry_run=dry_run
        )
        return report, store.location


def _read_file(request: ImportRequest, location: str) -> Sections:
    """Return the rows of a file, whichever of the forms it has: its contents say, not its name."""
    path = Path(request.file)
    try:
        with path.open("rb") as file:
            raw = file.read(len(SQLITE_MAGIC))
            if raw == SQLITE_MAGIC:
                if not path.is_file():
                    raise ExchangeError("an SQLite file cannot be read from a pipe: save it first")
            else:
                raw += file.read(4096)
                if raw.startswith(GZIP_MAGIC):
                    raise ExchangeError("it is compressed: unpack it with gunzip first")
                if b"\0" in raw:
                    raise ExchangeError("it is not an export of tunekit: it is not text")
                raw += file.read()
                document = parse_json(raw.decode("utf-8-sig"))  # some editors sign what they save
    except UnicodeDecodeError as error:
        raise ExchangeError("it is not an export of tunekit: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ExchangeError(f"cannot read it: {reason}: name another file") from error
    if raw != SQLITE_MAGIC and is_autotune(document):
        return _autotune_sections(document, request, location)
    if request.shape is not None or request.gpu is not None:
        raise ExchangeError(
            "--shape and --gpu are for a file of Triton's autotuner; an export names its problems"
        )
    return read_snapshot(path) if raw == SQLITE_MAGIC else document_sections(document)


def _autotune_sections(
    document: Mapping[str, Any], request: ImportRequest, location: str
) -> Sections:
    """Return what Triton's autotuner timed as trials of the problem and the GPU that are named."""
    if request.shape is None:
        raise ExchangeError(
            f"it is a file of Triton's autotuner, with the key {describe_key(document)}: say which"
            " product it timed with --shape M,N,K[,DTYPE[,LAYOUT]]"
        )
    dtype = autotune_dtype(document) or DEFAULT_DTYPE
    sizes_alone = len(shape_parts(request.shape)) == 3
    text = f"{request.shape},{dtype}" if sizes_alone else request.shape
    problem = parse_shape(text).problem
    check_autotune_key(document, problem)
    if problem.dtype == "float32":
        raise ExchangeError("it does not say whether float32 was multiplied as ieee or as tf32")
    device = _device(request.gpu, location)
    path = Path(request.file)
    written = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    kernel = path.name.removesuffix(".autotune.json")
    return read_autotune(
        document,
        TuningKey.of(problem, device.slug),
        device=device,
        variant=AUTOTUNE_VARIANT,
        created_at=written.isoformat(timespec="seconds"),
        kernel=kernel if re.fullmatch(r"\w{1,150}", kernel, re.ASCII) else "",
    )


def _device(gpu: str | None, location: str) -> DeviceInfo:
    """Return the GPU that is named, or the one that is here."""
    if gpu is None and cuda_available():
        return detect()
    devices = {device.slug: device for device in KNOWN_DEVICES.values()}
    try:
        with Store.open(location, create=False) as store:
            devices |= {device.slug: device for device in store.devices()}
    except NoStoreError:
        pass  # it is made once there is something to put into it
    if gpu not in devices and cuda_available():
        here = detect()
        devices[here.slug] = here
    if gpu is not None and gpu in devices:
        return devices[gpu]
    known = ", ".join(sorted(devices))
    if gpu is None:
        raise ExchangeError(f"no GPU is usable here: say which one timed it with --gpu: {known}")
    raise ExchangeError(f"nothing is known of the GPU {gpu!r}: use one of {known}")


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
    """Say what became of the rows; an error if there were none, or every one was refused."""
    for number, reason in report.refused:
        say(f"row {number} refused: {reason}")
    would = "would be " if dry_run else ""
    say(
        f"{location}: {counted(report.added, 'row')} {would}added,"
        f" {report.replaced} {would}replaced, {report.kept} {would}kept as they are,"
        f" {len(report.refused)} refused"
    )
    loaded = report.added + report.replaced + report.kept
    if not loaded and not report.refused:
        say("the file holds no rows")
    return 0 if loaded else 1
