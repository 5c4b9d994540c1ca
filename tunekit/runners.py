"""Which runner a device's name means. What a runner needs is loaded when it is opened."""

from __future__ import annotations

import re
from pathlib import Path

from tunekit.device import cuda_expected
from tunekit.errors import DeviceError, RecordingError
from tunekit.runner import Runner


def open_runner(device: str, *, seed: int = 0, compilers: int | None = None) -> Runner:
    """Return the runner that `auto`, `cuda`, `cuda:N`, `replay` or `replay:FILE` names.

    `auto` is the first GPU, or without one the recording that ships with tunekit. `compilers` is
    how many processes compile for a GPU: as many as there are cores unless it is given.

    Raises:
        DeviceError: the name is none of these, or the GPU is not there.
        RecordingError: there is no such recording, or it is damaged.
    """
    if device == "auto":
        device = "cuda" if cuda_expected() else "replay"
    name, _, detail = device.partition(":")
    if name == "cuda" and re.fullmatch(r"(cuda|cuda:[0-9]{1,4})", device):
        from tunekit.gpu_runner import GpuRunner

        return GpuRunner(int(detail or 0), workers=compilers, seed=seed)
    if name == "replay" and (detail or device == "replay"):
        from tunekit.recording import Recording
        from tunekit.replay import ReplayRunner

        return ReplayRunner(Recording.load(detail or _shipped()))
    raise DeviceError(f"unknown device {device!r}: use auto, cuda, cuda:N, replay or replay:FILE")


def _shipped() -> Path:
    from tunekit.replay import shipped_recordings

    found = shipped_recordings()
    if not found:
        raise RecordingError("no recording ships with this tunekit: use --device replay:FILE")
    return found[0]
