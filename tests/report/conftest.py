"""Stores with known rows, and a browser where one is installed."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem, TuningKey
from tunekit.trial import (
    Best,
    Choice,
    Distance,
    Fingerprint,
    Measurement,
    Origin,
    Provenance,
    Status,
    Trial,
)

DEVICE = KNOWN_DEVICES["sm_90"]
MADE = Provenance(
    Fingerprint("source-1", "triton-3.9.0+ptxas-13"),
    *("fake-1", "0.1.0", "3.9.0", "2.13.0", "580.1", DEVICE.name, "2026-01-02T03:04:05Z"),
    Origin.REPLAYED,
)
CONFIGS = tuple(
    Config(variant, m, n, 64, num_warps=4, num_stages=stages)
    for variant in ("pointer", "tma")
    for m in (64, 128)
    for n in (64, 128)
    for stages in (2, 3)
)


def measured(median, *, final=False, error_ratio=0.25):
    low, high = median * 0.99, median * 1.02
    return Measurement(
        median, low, high, low, high, low, 40, "fake-1", error_ratio=error_ratio, final=final
    )


def key_of(number):
    return TuningKey.of(Problem("matmul", 16 * (number + 1), 4096, 1024, "bfloat16"), DEVICE.slug)


def trials_of(number):
    """Give a key's trials: two of them fail, and each block and stage has a cost of its own."""
    trials = []
    for place, config in enumerate(CONFIGS):
        if place == 3:
            trials.append(
                Trial(config, Status.COMPILE_ERROR, error="<b>no</b> </script> registers")
            )
        elif place == 5:
            trials.append(Trial(config, Status.WRONG_RESULT, error="off by 3"))
        else:
            cost = 128 / config.block_m + 2 * (128 / config.block_n) + config.num_stages / 10
            trials.append(Trial(config, Status.OK, measured(10 + number / 7 + cost)))
    return trials


def best_of(number):
    ran = [t for t in trials_of(number) if t.measurement is not None]
    fastest = min(ran, key=lambda t: t.measurement.median_us)
    final = replace(fastest.measurement, final=True)
    vendor = measured(final.median_us * (0.9 + number % 5 / 10), error_ratio=None)
    return Best(
        key_of(number), Choice.TRITON if number % 2 else Choice.VENDOR, fastest.config, final,
        vendor, len(CONFIGS), 190, MADE, distance=Distance(0.005, 0.025),
    )  # fmt: skip


def fill(path, keys, *, failing=False):
    """Make a store of so many keys; `failing` adds one of which no config works."""
    with Store.open(path) as store:
        store.put_device(DEVICE)
        for number in range(keys):
            store.add_trials(key_of(number), [(t, MADE) for t in trials_of(number)])
            store.put_best(best_of(number))
        if failing:
            trial = Trial(CONFIGS[0], Status.TIMEOUT, error="60 s")
            store.add_trials(key_of(keys), [(trial, MADE)])
    return path


@pytest.fixture
def filled(tmp_path):
    """Return a function that makes a store of so many keys and gives its path."""
    return lambda keys, **how: fill(tmp_path / f"{keys}.db", keys, **how)


@pytest.fixture
def drawing():
    """Skip where what draws a page is not installed."""
    for name in ("jinja2", "vl_convert"):
        pytest.importorskip(name, reason=f"no {name}: install tunekit-triton[report]")


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium, where there is one."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: it is in the group `browser`"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no browser: install Debian's chromium")
    with sync_api.sync_playwright() as playwright:
        # Its sandbox needs what containers lack, and nothing but our own page is opened.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
