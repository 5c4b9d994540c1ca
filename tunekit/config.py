"""One point of a search space: which kernel variant, with which tile and launch parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tunekit.errors import ConfigError

MAX_FIELD = 1 << 20
"""No field of a config is ever near this; a larger number is a damaged row, not a config."""


@dataclass(frozen=True, slots=True, order=True)
class Config:
    """What a kernel variant may be set to.

    `block_m`, `block_n`, `block_k` are tile sizes in elements, `group_size` the number of tile rows
    walked together for L2 reuse, `split_k` into how many parts K is cut, `num_warps` and
    `num_stages` Triton's launch options. `switches` are the variant's own, sorted by name.
    """

    variant: str
    block_m: int
    block_n: int
    block_k: int
    group_size: int = 1
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 3
    switches: tuple[tuple[str, int], ...] = ()

    def switch(self, name: str, default: int = 0) -> int:
        """Return one of the variant's own switches."""
        for key, value in self.switches:
            if key == name:
                return value
        return default

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain data, the form every file and row holds."""
        plain: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["switches"] = dict(self.switches)
        return plain

    @staticmethod
    def from_dict(plain: Any) -> Config:
        """Read a config by field name.

        A field that is absent takes its default (older files lack newer fields). A field this
        version does not know would change the kernel in a way it cannot follow, so it is an error.

        Raises:
            ConfigError: a field is unknown, missing without a default, or of the wrong type.
        """
        if not isinstance(plain, Mapping):
            raise ConfigError(f"a config is an object of named fields, not {type(plain).__name__}")
        unknown = sorted(str(name) for name in plain if name not in _NAMES)
        if unknown:
            raise ConfigError(f"config has the unknown field {unknown[0]!r}")
        values: dict[str, Any] = {}
        for name, value in plain.items():
            if name == "switches":
                values[name] = _switches(value)
            elif name == "variant":
                if not isinstance(value, str) or not value or len(value) > 64:
                    raise ConfigError(f"config field 'variant' must be a name, not {value!r}")
                values[name] = value
            else:
                values[name] = _positive(name, value)
        missing = [n for n in ("variant", "block_m", "block_n", "block_k") if n not in values]
        if missing:
            raise ConfigError(f"config lacks the field {missing[0]!r}")
        return Config(**values)

    def __str__(self) -> str:
        text = (
            f"{self.variant} {self.block_m}x{self.block_n}x{self.block_k}"
            f" group={self.group_size} split_k={self.split_k}"
            f" warps={self.num_warps} stages={self.num_stages}"
        )
        return text + "".join(f" {name}={value}" for name, value in self.switches)


_NAMES = frozenset(field.name for field in fields(Config))


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_FIELD:
        raise ConfigError(f"config field {name!r} must be a whole number from 1, not {value!r}")
    return value


def _switches(value: Any) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"config field 'switches' must be an object, not {type(value).__name__}")
    for name, setting in value.items():
        if not isinstance(name, str) or isinstance(setting, bool) or not isinstance(setting, int):
            raise ConfigError(f"config switch {name!r} must be a whole number, not {setting!r}")
        if abs(setting) > MAX_FIELD:
            raise ConfigError(f"config switch {name!r} is out of range: {setting}")
    return tuple(sorted(value.items()))
