"""What Triton's own autotuner keeps on disk (`*.autotune.json`), read as trials.

    {"key": [512, 1024, 256, "torch.float16", ...],
     "configs_timings": [[{"kwargs": {"BLOCK_M": 64, ...}, "num_warps": 4, ...}, [ms, ms, ms]]]}

Such a file has the median, the 0.2 and the 0.8 quantile of each config in milliseconds. It does not
say which kernel was timed, on which GPU, or whether its results were right. So its rows are trials
only, never a best, and their source and protocol are no kernel's and no protocol's of tunekit:
nothing is served from them, and they mix with no verified trial.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from tunekit.cache.document import Sections
from tunekit.cache.fields import LIMIT, RefusedRowError, object_of
from tunekit.cache.plain import device_to_plain
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import ConfigError, ExchangeError, ProblemError
from tunekit.key import Problem, TuningKey, canonical_dtype
from tunekit.trial import Status

SOURCE = "triton-autotune"
PROTOCOL = "triton-do_bench"
UNKNOWN = "unknown"

NAMES = {
    "block_m": ("BLOCK_M", "BLOCK_SIZE_M", "BM", "TILE_M"),
    "block_n": ("BLOCK_N", "BLOCK_SIZE_N", "BN", "TILE_N"),
    "block_k": ("BLOCK_K", "BLOCK_SIZE_K", "BK", "TILE_K"),
    "group_size": ("GROUP_SIZE", "GROUP_M", "GROUP_SIZE_M"),
    "split_k": ("SPLIT_K",),
}
"""What people call the fields of a config in their kernels."""

_FIELDS = {name: field for field, names in NAMES.items() for name in names}
_LAUNCH = ("num_warps", "num_stages")


def is_autotune(document: Any) -> bool:
    """Say whether a JSON document is one of Triton's autotuner."""
    return isinstance(document, dict) and "configs_timings" in document


def autotune_dtype(document: Mapping[str, Any]) -> str | None:
    """Return the dtype of the tensors a file was tuned with, or None if it does not say.

    Raises:
        ExchangeError: they are of several dtypes, or of one that no problem has.
    """
    named = {text for text in _key(document) if isinstance(text, str) and text[:6] == "torch."}
    if len(named) > 1:
        raise ExchangeError(
            f"its tensors are of several dtypes ({', '.join(sorted(named))}): only products of one"
            " dtype can be taken"
        )
    try:
        return next((canonical_dtype(name) for name in named), None)
    except ProblemError as error:
        raise ExchangeError(f"its tensors: {error}") from error


def check_autotune_key(document: Mapping[str, Any], problem: Problem) -> None:
    """Refuse a file whose key shows that it is of another problem.

    Raises:
        ExchangeError: it is, or the file is not of the form Triton writes.
    """
    sizes = {value for value in _key(document) if type(value) is int}
    wanted = {"M": problem.m, "N": problem.n, "K": problem.k}
    absent = [f"{name}={size}" for name, size in wanted.items() if size not in sizes]
    if absent and len(sizes) >= len(set(wanted.values())):
        raise ExchangeError(f"its key is {describe_key(document)}, which has no {absent[0]}")
    dtype = autotune_dtype(document)
    if dtype not in (None, problem.dtype):
        raise ExchangeError(f"its tensors are {dtype}, not {problem.dtype}")


def describe_key(document: Mapping[str, Any]) -> str:
    """Return the key of a file as text, shortened."""
    return reprlib.repr(_key(document))


def read_autotune(
    document: Mapping[str, Any],
    key: TuningKey,
    *,
    device: DeviceInfo,
    variant: str,
    created_at: str,
    kernel: str = "",
) -> Sections:
    """Return the rows of a file as those of an export: trials of `key`, as configs of `variant`.

    `kernel` is the name of the kernel that was timed, where it is known: two kernels' timings of
    one config are two rows. What has no counterpart in the variant is refused by its row.

    Raises:
        ExchangeError: the file is not of the form Triton writes.
    """
    timings = document["configs_timings"]
    if not isinstance(timings, list):
        raise ExchangeError(f"configs_timings: expected a list, found {reprlib.repr(timings)}")
    provenance = {
        "source": f"{SOURCE}:{kernel}" if kernel else SOURCE,
        "protocol": PROTOCOL,
        "device_name": device.name,
        "created_at": created_at,
        "origin": "measured",
        **dict.fromkeys(("compiler", "tunekit", "triton", "torch", "driver"), UNKNOWN),
    }
    return {
        "devices": [device_to_plain(device)],
        "trials": [_row(pair, key, variant, provenance) for pair in timings],
    }


def _key(document: Mapping[str, Any]) -> list[Any]:
    key = document.get("key")
    if not isinstance(key, list):
        raise ExchangeError(f"key: expected a list, found {reprlib.repr(key)}")
    return key


def _row(
    pair: Any, key: TuningKey, variant: str, provenance: Mapping[str, Any]
) -> dict[str, Any] | RefusedRowError:
    """Return a trial as plain data, or why there is none."""
    try:
        if not isinstance(pair, list) or len(pair) != 2:
            raise RefusedRowError(f"expected a config and its times, found {reprlib.repr(pair)}")
        config = _config(object_of(pair[0], "config"), variant)
        return {
            "key": key.to_dict(),
            "config": config.to_dict(),
            "status": Status.OK.value,
            "measurement": _measurement(pair[1]),
            "provenance": provenance,
        }
    except (RefusedRowError, ConfigError) as error:
        return RefusedRowError(str(error))


def _config(plain: Mapping[str, Any], variant: str) -> Config:
    values: dict[str, Any] = {"variant": variant}
    for name, value in object_of(plain.get("kwargs"), "kwargs").items():
        field = _FIELDS.get(name.upper())
        if field in values:
            raise RefusedRowError(f"kwargs: {field} is given twice")
        if field is not None:
            values[field] = value
        elif value:  # what is off changes nothing
            raise _without_counterpart(name, value)
    for field in ("block_m", "block_n", "block_k"):
        if field not in values:
            raise RefusedRowError(f"kwargs: there is no {field} ({', '.join(NAMES[field])})")
    for name, value in plain.items():
        if name in _LAUNCH:
            values[name] = value
        elif value and name != "kwargs" and not (name == "num_ctas" and value == 1):
            raise _without_counterpart(name, value)
    return Config.from_dict(values)


def _without_counterpart(name: str, value: Any) -> RefusedRowError:
    return RefusedRowError(
        f"{reprlib.repr(name)}: no counterpart of the setting {reprlib.repr(value)} is known"
    )


def _measurement(times: Any) -> dict[str, Any]:
    """Return times in milliseconds as a measurement, each unknown at its most careful."""
    quantiles = times if isinstance(times, list) and len(times) == 3 else [times] * 3
    if not all(isinstance(time, int | float) and not isinstance(time, bool) for time in quantiles):
        raise RefusedRowError(
            f"times: expected the median and two quantiles, found {reprlib.repr(times)}"
        )
    if math.inf in quantiles:
        raise RefusedRowError("times: it did not run, and the file does not say why")
    if not all(0 < time < LIMIT for time in quantiles):
        raise RefusedRowError(f"times: expected positive ones, found {reprlib.repr(times)}")
    median, low, high = (float(time) * 1000.0 for time in quantiles)
    return {
        "median_us": median,
        **dict.fromkeys(("low_us", "p20_us", "min_us"), low),
        **dict.fromkeys(("high_us", "p80_us"), high),
        "repetitions": 1,
        "protocol": PROTOCOL,
        "error_ratio": None,
    }
