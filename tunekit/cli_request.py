"""What `tunekit tune` was asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What was asked for on the command line."""

    shapes_file: str | None
    shape_texts: tuple[str, ...]
    misses: bool
    cache: str | None
    device: str
    sampler: str
    trials: int | None
    least: int | None
    seconds: float | None
    patience: int | None
    reach: float | None
    """In percent."""
    seed: int
    retune: bool
    stale: bool
    record: str | None
    optuna_storage: str | None
    workers: str | None
    """How many, or "all"."""
    ray: str | None
    as_json: bool
    quiet: bool
    verbose: bool
