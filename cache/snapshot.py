"""An export as an SQLite file: a cache of its own, sealed, and read back with suspicion.

An exported file is sealed: the change counter in its header is set to a number of ours, and
`user_version`, which SQLite leaves to programs, to what its bytes add up to (a CRC-32). So damage
that leaves a readable database is found. Whoever goes on to use the file as a cache moves the
counter on, and the seal means nothing any more.

A file is never opened for writing here. It is copied, and the copy is checked, brought to the
present schema and read.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tunekit.cache.document import Sections
from tunekit.cache.engine import BUSY_SECONDS
from tunekit.cache.models import SCHEMA_VERSION, Base, SchemaVersion
from tunekit.cache.raw import read_sections
from tunekit.cache.reading import StoredBaseline, StoredTrial
from tunekit.cache.store import Store
from tunekit.cache.writing import RowWriter
from tunekit.device import DeviceInfo
from tunekit.errors import ExchangeError, StoreError
from tunekit.trial import Best

SQLITE_MAGIC = b"SQLite format 3\0"
"""How every SQLite file begins."""

_HEADER_BYTES = 100
_WAL = 2
_COUNTER, _SEAL, _COUNTER_AGAIN = 24, 60, 92
"""Where in the header, each as four bytes, the numbers stand that a seal is made of."""

_SEALED = 0x74756E65
"""The change counter of a sealed file, as good as any: SQLite counts on from there."""


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """The rows of a file, sorted."""

    devices: list[DeviceInfo]
    bests: list[Best]
    baselines: list[StoredBaseline]
    trials: list[StoredTrial]


def write_snapshot(path: Path, rows: SnapshotRows) -> None:
    """Write rows to a cache file of their own, whole or not at all.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            raise StoreError(f"cannot write {path}: it is not a plain file")
        target = path.resolve()  # a link stays one
        if any(Path(f"{target}{suffix}").exists() for suffix in ("-journal", "-wal")):
            raise StoreError(f"cannot write {path}: a database there is in use, or was left so")
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.unlink(missing_ok=True)
            _fill(part, target, rows)
            _seal(part)
            part.replace(target)
        finally:
            for left in (part, Path(f"{part}-journal")):
                left.unlink(missing_ok=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreError(f"cannot write {path}: {reason}") from error


def _fill(part: Path, target: Path, rows: SnapshotRows) -> None:
    try:
        with _unheard():
            store = Store.open(part)
    except StoreError as error:
        raise StoreError(str(error).replace(str(part), str(target))) from error
    store.database.location = str(target)  # what an error names
    with store, store.database.writing() as connection:
        writer = RowWriter(connection)
        for device in rows.devices:
            writer.device(device)
        for best in rows.bests:
            writer.best(best)
        for baseline in rows.baselines:
            writer.baseline(baseline.key, baseline.measurement, baseline.provenance)
        for stored in rows.trials:
            writer.trials(stored.key, [(stored.trial, stored.provenance)])


def _seal(part: Path) -> None:
    """Write into a file's header that it is sealed, and what its bytes add up to."""
    with part.open("r+b") as file:
        for place in (_COUNTER, _COUNTER_AGAIN):
            file.seek(place)
            file.write(struct.pack(">I", _SEALED))
        file.flush()
        total = _sum(part)
        file.seek(_SEAL)
        file.write(struct.pack(">I", total))
        file.flush()
        os.fsync(file.fileno())


def _sum(path: Path) -> int:
    """Return the CRC-32 of a file, the place of the seal aside."""
    with path.open("rb") as file:
        header = bytearray(file.read(_HEADER_BYTES))
        header[_SEAL : _SEAL + 4] = bytes(4)
        total = zlib.crc32(header)
        while block := file.read(1 << 20):
            total = zlib.crc32(block, total)
    return total


def read_snapshot(path: Path) -> Sections:
    """Return every section of an exported SQLite file, or of any cache, its rows unchecked.

    The file is not changed, nor is anything made beside it.

    Raises:
        ExchangeError: it is damaged, in use, no cache of tunekit, or one of a newer tunekit.
    """
    try:
        wal = _check_file(path)
        with tempfile.TemporaryDirectory(prefix="tunekit-") as folder:
            copy = Path(folder) / "copy.db"
            _copy(path, copy, immutable=wal)
            return _read_copy(copy)
    except OSError as error:
        raise ExchangeError(f"cannot read the file: {error.strerror}") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a name was damaged
        raise ExchangeError(_damaged(" ".join(str(error).split()))) from error


def _damaged(how: str) -> str:
    return f"the SQLite file is damaged ({how}): export it again"


def _check_file(path: Path) -> bool:
    """Refuse a file that is cut off, in use, or not what was sealed; say if it is in WAL mode."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES or not header.startswith(SQLITE_MAGIC):
        raise ExchangeError(_damaged("it ends within its header"))
    for suffix in ("-journal", "-wal"):
        beside = Path(f"{path}{suffix}")
        if beside.exists() and beside.stat().st_size:
            raise ExchangeError(
                f"the SQLite file is in use, or was left half-written ({beside.name} lies beside"
                " it): export it with `tunekit export-cache --cache`"
            )
    numbers = (_COUNTER, _COUNTER_AGAIN, _SEAL)
    counter, again, seal = (struct.unpack_from(">I", header, at)[0] for at in numbers)
    if counter != again or (counter == _SEALED and seal != _sum(path)):
        raise ExchangeError(_damaged("its bytes are not those that were exported"))
    return _WAL in header[18:20]


def _copy(path: Path, copy: Path, *, immutable: bool) -> None:
    """Copy a database as one state of it, locked meanwhile against a writer.

    Reading one in WAL mode would make files beside it; without anything in its log it is immutable.
    """
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
    with (
        closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


def _read_copy(copy: Path) -> Sections:
    with closing(sqlite3.connect(copy)) as connection:
        _check_whole(connection)
        _check_ours(connection)
    try:
        with _unheard():
            store = Store.open(copy, create=False)
        with store, store.database.reading() as opened:
            return read_sections(opened)
    except StoreError as error:
        reason = str(error).replace(str(copy), "of the file")
        raise ExchangeError(f"the SQLite file cannot be read: {reason}") from error


@contextmanager
def _unheard() -> Iterator[None]:
    """Let the store say nothing of a file that only this module knows."""
    logger = logging.getLogger("tunekit.cache")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_whole(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    for (found,) in connection.execute("PRAGMA integrity_check(1)"):
        if found != "ok":
            raise ExchangeError(_damaged(" ".join(str(found).split())[:100]))
    for table, *_ in connection.execute("PRAGMA foreign_key_check"):
        raise ExchangeError(_damaged(f"a row of {table!r:.40} names one that is not there"))


def _check_ours(connection: sqlite3.Connection) -> None:
    """Refuse what is no cache of tunekit, or is one of a schema that is not known yet."""
    found: dict[str, set[str]] = {kind: set() for kind in ("table", "index", "trigger", "view")}
    for kind, name in connection.execute("SELECT type, name FROM sqlite_master"):
        found.setdefault(kind, set()).add(name)
    version = SchemaVersion.__tablename__
    rows = []
    if version in found["table"]:
        rows = connection.execute("SELECT version_num FROM schema_version").fetchall()
    stated = rows[0][0] if len(rows) == 1 else None
    if not isinstance(stated, str) or not re.fullmatch(r"[0-9]{4}", stated):
        raise ExchangeError("the file is an SQLite database, but not a cache of tunekit")
    if stated > SCHEMA_VERSION:
        raise ExchangeError(
            f"the file has schema {stated}, newer than this tunekit's {SCHEMA_VERSION}: upgrade"
            " tunekit, or export it there as JSON"
        )
    missing = sorted(Base.metadata.tables.keys() - found["table"])
    if missing and stated == SCHEMA_VERSION:
        raise ExchangeError(f"the file is no whole cache of tunekit: it has no table {missing[0]}")
    if found["trigger"] or found["view"]:
        raise ExchangeError("the file has views or triggers, which no cache of tunekit has")
