"""A recording and its file."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import RecordingError
from tunekit.key import Problem
from tunekit.recording.columns import (
    as_text,
    as_whole,
    decode_measurement,
    decode_trials,
    encode_measurement,
    encode_trials,
    is_recordable,
    round_measurement,
    round_trial,
)
from tunekit.trial import Fingerprint, Measurement, Origin, Provenance, Trial

FORMAT = "tunekit-recording"
SCHEMA = 1
MAX_BYTES = 1 << 28
"""No recording unpacks to more than this; a file that does is not one."""

NAME_ANOTHER = ": name a file that `tunekit tune --record FILE` wrote"

_CONFIG_FIELDS = tuple(f.name for f in fields(Config))
_VERSIONS = ("protocol", "tunekit", "triton", "torch", "driver", "device_name", "created_at")


@dataclass(frozen=True)
class RecordedProblem:
    """What was measured for one problem: each config screened, and the finalists again."""

    problem: Problem
    space_size: int
    vendor: Measurement | None
    screening: Mapping[Config, Trial]
    finals: Mapping[Config, Trial]


@dataclass
class Recording:
    """Results of one device, made with one compiler and one version of each kernel."""

    device: DeviceInfo
    environment: Provenance | None = None
    """Provenance of the first result, its source left out; None while there is no result."""
    sources: dict[str, str] = field(default_factory=dict)
    problems: dict[Problem, RecordedProblem] = field(default_factory=dict)

    def admit(self, config: Config, provenance: Provenance) -> None:
        """Make sure that results of this provenance belong here, and note their environment.

        Raises:
            RecordingError: they were replayed, or the compiler or the kernel's source differs.
        """
        if provenance.origin is not Origin.MEASURED:
            raise RecordingError("only what is measured can be recorded: use --device cuda")
        mark = provenance.fingerprint
        if self.environment is None:
            bare = Fingerprint("", mark.compiler)
            self.environment = replace(provenance, fingerprint=bare)
        known = self.environment.fingerprint.compiler
        if mark.compiler != known:
            raise RecordingError(
                f"the recording was made with {known}, not {mark.compiler}: choose another file"
            )
        if self.sources.setdefault(config.variant, mark.source) != mark.source:
            raise RecordingError(
                f"the recording holds another version of kernel {config.variant}:"
                " choose another file"
            )

    def put(
        self,
        problem: Problem,
        screening: Iterable[Trial],
        *,
        finals: Iterable[Trial] = (),
        vendor: Measurement | None = None,
        space_size: int,
    ) -> None:
        """Set what is known of a problem. A config known from finals alone counts as screened."""
        last = {
            t.config: round_trial(t, final=True) for t in finals if is_recordable(t.measurement)
        }
        first = {config: round_trial(t, final=False) for config, t in last.items()}
        for trial in screening:
            if is_recordable(trial.measurement):
                first[trial.config] = round_trial(trial, final=False)
        if vendor is not None:
            sound = is_recordable(vendor)
            vendor = round_measurement(vendor, final=True) if sound else None
        self.problems[problem] = RecordedProblem(problem, space_size, vendor, first, last)

    def absorb(self, other: Recording) -> None:
        """Add what another recording of the same device, compiler and kernels holds.

        A problem that both hold is taken from the other, whole: its times are of one moment.

        Raises:
            RecordingError: it is of something else; nothing was added.
        """
        if other.device != self.device:
            raise RecordingError(f"it was made on {other.device.name}, not {self.device.name}")
        if other.environment is None:
            raise RecordingError("it is empty")
        theirs = other.environment.fingerprint.compiler
        ours = theirs if self.environment is None else self.environment.fingerprint.compiler
        if theirs != ours:
            raise RecordingError(f"it was made with {theirs}, not {ours}")
        changed = [v for v, mark in other.sources.items() if self.sources.get(v, mark) != mark]
        if changed:
            raise RecordingError(f"it holds another version of kernel {changed[0]}")
        self.environment = self.environment or other.environment
        self.sources |= other.sources
        self.problems |= other.problems

    def provenance(self, config: Config) -> Provenance:
        """Say where a replayed result of this config was measured."""
        if self.environment is None:
            raise RecordingError("the recording is empty")
        source = self.sources.get(config.variant, "")
        mark = Fingerprint(source, self.environment.fingerprint.compiler)
        return replace(self.environment, fingerprint=mark, origin=Origin.REPLAYED)

    def to_bytes(self) -> bytes:
        """Return the recording as a file's content; equal recordings give equal bytes."""
        text = json.dumps(_encode(self), sort_keys=True, separators=(",", ":"), allow_nan=False)
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
            file.write(text.encode())
        return packed.getvalue()

    def save(self, path: str | Path) -> None:
        """Write the recording to a file: the old content stays until the new one is whole.

        Raises:
            RecordingError: the file cannot be written.
        """
        path = Path(path)
        try:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(self.to_bytes())
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).chmod(0o644)
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise RecordingError(f"cannot write {path}: {error.strerror or error}") from error

    @staticmethod
    def load(path: str | Path) -> Recording:
        """Read a recording.

        Raises:
            RecordingError: the file cannot be read, is damaged, or is of a newer schema.
        """
        try:
            with gzip.open(path, "rb") as file:
                packed = file.read(MAX_BYTES + 1)
            if len(packed) > MAX_BYTES:
                raise RecordingError(f"{path} is too large to be a recording")
            plain = json.loads(packed)
        except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
            raise RecordingError(f"{path} is damaged or not a recording{NAME_ANOTHER}") from error
        except OSError as error:
            reason = error.strerror or error
            raise RecordingError(
                f"cannot read the recording {path}: {reason}{NAME_ANOTHER}"
            ) from error
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise RecordingError(f"{path} is not a recording{NAME_ANOTHER}")
        if plain.get("schema") != SCHEMA:
            raise RecordingError(
                f"{path} has schema {plain.get('schema')!r}; this tunekit reads schema {SCHEMA}"
            )
        try:
            return _decode(plain)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise RecordingError(f"{path} is damaged: {error!r}") from error

    @staticmethod
    def extend(path: str | Path, device: DeviceInfo) -> Recording:
        """Return the recording in a file to add to it, or an empty one if there is no file yet.

        Raises:
            RecordingError: the file is damaged, of another device, or cannot be written there.
        """
        path = Path(path)
        if not path.parent.is_dir():
            raise RecordingError(f"cannot write {path}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise RecordingError(f"cannot write {path}: {path.parent} is not writable")
        if not path.exists():
            return Recording(device)
        found = Recording.load(path)
        if found.device != device:
            raise RecordingError(
                f"{path} was recorded on {found.device.name}, not this {device.name}:"
                " choose another file"
            )
        return found


def _encode(recording: Recording) -> dict[str, Any]:
    environment = recording.environment
    if environment is None:
        raise RecordingError("there is nothing to record")
    problems = [recording.problems[p] for p in sorted(recording.problems)]
    configs = sorted({c for p in problems for c in (*p.screening, *p.finals)})
    place = {config: i for i, config in enumerate(configs)}
    rows = [config.to_dict() for config in configs]
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "device": asdict(recording.device),
        "environment": {
            "compiler": environment.fingerprint.compiler,
            **{name: getattr(environment, name) for name in _VERSIONS},
        },
        "sources": recording.sources,
        "configs": {name: [row[name] for row in rows] for name in _CONFIG_FIELDS},
        "problems": [
            {
                "problem": p.problem.to_dict(),
                "space_size": p.space_size,
                "vendor": None if p.vendor is None else encode_measurement(p.vendor),
                "screening": encode_trials(p.screening, place),
                "finals": encode_trials(p.finals, place),
            }
            for p in problems
        ],
    }


def _decode(plain: Mapping[str, Any]) -> Recording:
    environment: dict[str, Any] = {name: as_text(plain["environment"][name]) for name in _VERSIONS}
    mark = Fingerprint("", as_text(plain["environment"]["compiler"]))
    columns = [plain["configs"][name] for name in _CONFIG_FIELDS]
    configs = [
        Config.from_dict(dict(zip(_CONFIG_FIELDS, row, strict=True)))
        for row in zip(*columns, strict=True)
    ]
    recording = Recording(
        device=_device(plain["device"]),
        environment=Provenance(fingerprint=mark, **environment),
        sources={as_text(name): as_text(mark) for name, mark in plain["sources"].items()},
    )
    for entry in plain["problems"]:
        problem = Problem(**entry["problem"])
        vendor = entry["vendor"]
        recording.problems[problem] = RecordedProblem(
            problem=problem,
            space_size=as_whole(entry["space_size"]),
            vendor=None if vendor is None else decode_measurement(vendor, final=True),
            screening=decode_trials(entry["screening"], configs, final=False),
            finals=decode_trials(entry["finals"], configs, final=True),
        )
    return recording


def _device(plain: Mapping[str, Any]) -> DeviceInfo:
    names = ("name", "backend", "arch")
    checked: dict[str, Any] = {
        name: (as_text if name in names else as_whole)(value) for name, value in plain.items()
    }
    return DeviceInfo(**checked)
