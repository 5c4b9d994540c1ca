"""A small, clearly made-up recording."""

from __future__ import annotations

import pytest

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.trial import Fingerprint, Measurement, Provenance, Status, Trial

DEVICE = DeviceInfo("Made-up GPU", "cuda", "sm_90", 10, 1 << 17, 1 << 22, 1 << 30)
PROBLEMS = [Problem("matmul", size, size, 64, "float16") for size in (128, 64)]
CONFIGS = [
    Config("pointer", 64, 64, 32, switches=(("halves", 2),)),
    Config("pointer", 32, 64, 32),
    Config("tma", 32, 32, 64),
]


def provenance(config, compiler="compiler-1"):
    mark = Fingerprint(f"source-of-{config.variant}", compiler)
    return Provenance(
        mark, "fake-1", "0.1", "3.6", "2.11", "580", "Made-up GPU", "2020-01-01T00:00:00Z"
    )


def timed(config, median, *, final=False):
    found = Measurement(
        median, median - 0.1, median + 0.1, median, median + 0.2, median - 0.2,
        21, "fake-1", 0.0123456, final=final, contended=final,
    )  # fmt: skip
    return Trial(config, Status.OK, found)


@pytest.fixture
def device():
    return DEVICE


@pytest.fixture
def problems():
    return PROBLEMS


@pytest.fixture
def configs():
    return CONFIGS


@pytest.fixture
def recording():
    made = Recording(DEVICE)
    for config in CONFIGS:
        made.admit(config, provenance(config))
    broken = Trial(CONFIGS[2], Status.COMPILE_ERROR, error="boom\nat line 2 — ü")
    flaky = Trial(CONFIGS[1], Status.NOT_REPEATABLE, error="two results")
    for problem in PROBLEMS:
        made.put(
            problem,
            [timed(CONFIGS[0], 12.34567), timed(CONFIGS[1], 9.5), broken],
            finals=[timed(CONFIGS[0], 12.0, final=True), flaky],
            vendor=timed(CONFIGS[0], 11.0).measurement,
            space_size=500,
        )
    return made
