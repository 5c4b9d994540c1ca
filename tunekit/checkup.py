"""What an installation needs, checked piece by piece: versions, GPUs, the cache.

A `Check` that is a problem says what mends it. A note is what one may want to know, or mend.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from tunekit.device import cuda_available, describe, driver_version
from tunekit.version import VERSION

DISTRIBUTION = "tunekit-triton"

_OPTIONAL = {
    "postgres": "a cache on a PostgreSQL server",
    "report": "`tunekit report`",
}
"""What each extra is for."""

_OLDEST = (7, 0)
"""Compute capability below which Triton makes no code."""


class Level(str, Enum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    level: Level
    text: str
    fix: str | None = None
    """What mends it: a command line where there is one."""

    def to_dict(self) -> dict[str, str | None]:
        """Return the check as plain data."""
        return {
            "name": self.name,
            "level": self.level.value,
            "text": self.text,
            "fix": self.fix,
        }


def versions() -> Iterator[Check]:
    """Check what is installed against what tunekit asks for."""
    yield Check("tunekit", Level.OK, VERSION)
    yield Check("python", Level.OK, f"{platform.python_version()} ({sys.executable})")
    missing: dict[str, list[str]] = {}
    for requirement in map(Requirement, _requirements()):
        extra = _extra_of(requirement)
        if extra is not None and extra in _OPTIONAL:
            if _installed(requirement.name) is None:
                missing.setdefault(extra, []).append(requirement.name)
        elif extra is None and (requirement.marker is None or requirement.marker.evaluate()):
            yield _required(requirement)
    for extra, names in missing.items():
        text = f"{_OPTIONAL[extra]} needs {', '.join(names)}"
        yield Check(extra, Level.NOTE, text, f"pip install '{DISTRIBUTION}[{extra}]'")
    yield from _torchs_triton()


def _requirements() -> list[str]:
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # run from a checkout that is not installed
        return []


def _extra_of(requirement: Requirement) -> str | None:
    """Return the extra that a requirement belongs to, or None for what everybody needs."""
    if requirement.marker is None:
        return None
    return next(
        (
            extra
            for extra in _OPTIONAL
            if requirement.marker.evaluate({"extra": extra})
            and not requirement.marker.evaluate({"extra": ""})
        ),
        None,
    )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _required(requirement: Requirement) -> Check:
    name, wanted = requirement.name, str(requirement.specifier) or "any version"
    found = _installed(name)
    fix = f"pip install '{name}{requirement.specifier}'"
    if found is None:
        return Check(name, Level.PROBLEM, f"not installed (needs {wanted})", fix)
    if not requirement.specifier.contains(found, prereleases=True):
        return Check(name, Level.PROBLEM, f"{found} is outside {wanted}", fix)
    return Check(name, Level.OK, f"{found} ({wanted})")


def _torchs_triton() -> Iterator[Check]:
    """Say where torch asks for another Triton than there is: Inductor may not work then."""
    found = _installed("triton")
    try:
        texts = requires("torch") or []
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, texts):
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        asked = requirement.name == "triton" and applies and found is not None
        if asked and found and not requirement.specifier.contains(found, prereleases=True):
            text = f"torch asks for {requirement.specifier}, and {found} is installed"
            yield Check("triton for torch", Level.NOTE, text)


def gpus() -> Iterator[Check]:
    """Check the GPUs, the driver and the compiler."""
    import torch

    yield _compiler()
    if not cuda_available():
        yield _no_gpu(torch.__version__, torch.version.cuda or getattr(torch.version, "hip", None))
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        device = describe(properties)
        memory = device.memory_bytes / (1 << 30)
        text = f"{device.name}, {device.arch}, {memory:.0f} GiB ({device.slug})"
        old = device.backend == "cuda" and (properties.major, properties.minor) < _OLDEST
        if old:
            fix = "use a newer GPU: Triton makes no code for this one"
            yield Check(f"cuda:{index}", Level.PROBLEM, text, fix)
        else:
            yield Check(f"cuda:{index}", Level.OK, text)
    driver = driver_version()
    if driver == "unknown":
        text = "unknown: neither it nor other processes and heat can be watched while tuning"
        yield Check("driver", Level.NOTE, text, "pip install nvidia-ml-py")
    else:
        yield Check("driver", Level.OK, driver)


def _compiler() -> Check:
    from tunekit.kernels import compiler_identity

    try:
        return Check("compiler", Level.OK, compiler_identity())
    except (OSError, RuntimeError, ImportError) as error:
        text = f"Triton's compiler cannot be asked: {error}"
        return Check("compiler", Level.PROBLEM, text, "pip install --force-reinstall triton")


def _no_gpu(torch_version: str, built_for: str | None) -> Check:
    there = any(Path(place).exists() for place in ("/dev/nvidiactl", "/dev/kfd"))
    if there and built_for is None:
        text = f"there is a GPU, but torch {torch_version} is built without support for it"
        fix = "pip install --force-reinstall torch (a build for your GPU, not a CPU build)"
        return Check("gpu", Level.PROBLEM, text, fix)
    if there:
        text = f"there is a GPU, but torch {torch_version} (for {built_for}) cannot use it"
        fix = "nvidia-smi (does the driver work, and is it new enough for this build of torch?)"
        return Check("gpu", Level.PROBLEM, text, fix)
    text = "none here: `tunekit tune` replays the recording that ships, matmul runs torch's"
    return Check("gpu", Level.NOTE, text)
