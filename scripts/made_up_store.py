"""A cache of any size with made-up rows, for the benchmarks of the store.

The rows are whole: every column is filled and every row decodes. They are put in bulk through the
tables' models, for a million of them one by one would take hours.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select

from tunekit.cache import Store
from tunekit.cache.models import (
    BaselineRow,
    BestRow,
    ConfigRow,
    DeviceRow,
    EnvironmentRow,
    ProblemRow,
    TrialRow,
)
from tunekit.cache.rows import config_text
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES, DeviceInfo
from tunekit.key import TuningKey
from tunekit.trial import Best, Choice, Fingerprint, Measurement, Provenance

GPUS = 10
COMPILER = "triton-3.9.0+ptxas-12.9.86"
BATCH = 50_000
"""Rows handed to the database at once."""


def devices() -> list[DeviceInfo]:
    """Return ten kinds of GPU, none of which may stand in for another."""
    h200 = KNOWN_DEVICES["sm_90"]
    return [
        replace(h200, name=f"Made-up GPU {number}", multiprocessors=100 + number)
        for number in range(GPUS)
    ]


def own_gpu() -> DeviceInfo:
    """Return the GPU whose rows are loaded and written."""
    return devices()[GPUS // 2]


@functools.cache
def configs() -> list[Config]:
    """Return as many configs as the space of a large problem has."""
    blocks = itertools.product((32, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128))
    launches = itertools.product((1, 2, 4), (4, 8), (2, 3, 4, 5, 6, 7))
    pairs = itertools.product(blocks, launches)
    return [
        Config("pointer", m, n, k, 8, split, warps, stages, (("eviction", 1),))
        for (m, n, k), (split, warps, stages) in pairs
    ]


def times(number: int) -> dict[str, Any]:
    """Return the columns of a measurement."""
    median = 5.0 + number % 9973 / 7
    return {
        "median_us": median,
        "low_us": median * 0.99,
        "high_us": median * 1.01,
        "p20_us": median * 0.98,
        "p80_us": median * 1.02,
        "min_us": median * 0.97,
        "repetitions": 41,
        "protocol": "cold-l2-2",
        "error_ratio": 0.25,
        "final": False,
        "contended": False,
    }


def date(number: int) -> str:
    """Return when a row was made: every row of a run has a second of its own."""
    moment = datetime.fromtimestamp(1_750_000_000 + number // 4, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def problem(number: int) -> dict[str, Any]:
    """Return the columns of a problem; every number has another."""
    return {
        "family": "matmul",
        "m": 1 + number,
        "n": 4096 + 128 * (number % 37),
        "k": 4096,
        "dtype": "bfloat16",
        "out_dtype": "bfloat16",
        "precision": "ieee",
        "layout": "nt",
        "aligned": True,
        "scaling": "none",
        "batch": 1,
    }


def build(path: Path, *, trials: int, keys: int) -> None:
    """Make the cache: every key with its trials, one best and one baseline."""
    made = path.with_suffix(".part")
    made.unlink(missing_ok=True)
    with Store.open(made) as store:
        for device in devices():
            store.put_device(device)
        with store.database.writing() as connection:
            fill(connection, trials=trials, keys=keys)
    made.replace(path)


def fill(connection: Connection, *, trials: int, keys: int) -> None:
    """Insert every row, in batches."""
    texts = [{"text": config_text(config)} for config in configs()]
    connection.execute(insert(ConfigRow), texts)
    versions = ("cold-l2-2", "0.1.0", "3.9.0", "2.13.0", "580.1", "Made-up GPU")
    names = ("protocol", "tunekit", "triton", "torch", "driver", "device_name")
    environment = {"compiler": COMPILER, **dict(zip(names, versions, strict=True))}
    connection.execute(insert(EnvironmentRow), environment)
    insert_all(connection, ProblemRow, (problem(number) for number in range(keys)))
    gpus = connection.scalars(select(DeviceRow.id).order_by(DeviceRow.slug)).all()

    def place(number: int) -> dict[str, Any]:
        return {
            "problem_id": number + 1,
            "device_id": gpus[number * GPUS // keys],
            "environment_id": 1,
            "source": f"{number % 7:016x}",
            "origin": "measured",
            "created_at": date(number),
            "imported": False,
        }

    each = trials // keys

    def trial(number: int) -> dict[str, Any]:
        key, attempt = divmod(number, each)
        config = (key * 31 + attempt * 7) % len(texts) + 1
        own = {"config_id": config, "status": "ok", "error": None}
        return {**place(key), **times(number), **own}

    def baseline(number: int) -> dict[str, Any]:
        return {**place(number), **times(number + 1), "error_ratio": None, "final": True}

    def best(number: int) -> dict[str, Any]:
        own = {
            "compiler": COMPILER,
            "choice": ("triton", "vendor")[number % 5 == 0],
            "config_id": number * 31 % len(texts) + 1,
            "baseline_id": number + 1,
            "trials": each,
            "space_size": 3000,
            "count": 1,
        }
        return {**place(number), **times(number), "final": True, **own}

    insert_all(connection, TrialRow, (trial(number) for number in range(keys * each)))
    insert_all(connection, BaselineRow, (baseline(number) for number in range(keys)))
    insert_all(connection, BestRow, (best(number) for number in range(keys)))


def insert_all(connection: Connection, table: Any, rows: Iterator[dict[str, Any]]) -> None:
    """Insert rows, many at a time."""
    while batch := list(itertools.islice(rows, BATCH)):
        connection.execute(insert(table), batch)


def best(*, m: int, median_us: float, config: int) -> Best:
    """Return one best of the middle GPU, of a problem with this many rows."""
    device = own_gpu()
    columns = times(0)
    factor = median_us / columns["median_us"]
    scaled = {name: value * factor for name, value in columns.items() if name.endswith("_us")}
    measurement = Measurement(**{**columns, **scaled, "final": True})
    provenance = Provenance(
        Fingerprint("0" * 16, COMPILER), "cold-l2-2", "0.1.0", "3.9.0", "2.13.0", "580.1",
        device.name, date(0),
    )  # fmt: skip
    return Best(
        key=TuningKey("matmul", m, 4096, 4096, "bfloat16", device.slug),
        choice=Choice.TRITON,
        config=configs()[config],
        measurement=measurement,
        vendor=replace(measurement, error_ratio=None),
        trials=10,
        space_size=3000,
        provenance=provenance,
    )
