"""What the tests of the store share: values to store, processes to store them from."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import TuningKey
from tunekit.trial import (
    Best,
    Choice,
    Fingerprint,
    Measurement,
    Origin,
    Provenance,
    Status,
    Trial,
)

_FORK = multiprocessing.get_context("fork")
_NOBODY = 65534
_TEMPORARY = tempfile.gettempdir()  # before a test sets another


class Maker:
    """Makes values that differ in what a test names and in nothing else."""

    device = KNOWN_DEVICES["sm_90"]
    other_device = KNOWN_DEVICES["sm_80"]

    def key(self, **fields: Any) -> TuningKey:
        plain = {"family": "matmul", "m": 512, "n": 1024, "k": 256, "dtype": "bfloat16"}
        return TuningKey(**{**plain, "gpu": self.device.slug, **fields})

    def config(self, **fields: Any) -> Config:
        return Config(
            **{"variant": "pointer", "block_m": 64, "block_n": 64, "block_k": 32, **fields}
        )

    def measurement(self, median_us: float = 10.0, **fields: Any) -> Measurement:
        factors = {"low_us": 0.9, "high_us": 1.1, "p20_us": 0.95, "p80_us": 1.05, "min_us": 0.8}
        times = {name: median_us * factor for name, factor in factors.items()}
        plain = {"repetitions": 100, "protocol": "cold-1", "error_ratio": 0.25, "final": True}
        return Measurement(**{"median_us": median_us, **times, **plain, **fields})

    def vendor(self, median_us: float = 12.0) -> Measurement:
        return self.measurement(median_us, error_ratio=None)

    def provenance(
        self, compiler: str = "triton-3.9", source: str = "5eed", **fields: Any
    ) -> Provenance:
        plain = {
            "protocol": "cold-1",
            "tunekit": "0.1.0",
            "triton": "3.9.0",
            "torch": "2.13.0",
            "driver": "570.1",
            "device_name": self.device.name,
            "created_at": "2025-06-01T12:00:00Z",
        }
        return Provenance(Fingerprint(source, compiler), **{**plain, **fields})

    def best(self, median_us: float = 10.0, **fields: Any) -> Best:
        plain = {
            "key": self.key(),
            "choice": Choice.TRITON,
            "config": self.config(),
            "measurement": self.measurement(median_us),
            "vendor": self.vendor(),
            "trials": 40,
            "space_size": 900,
            "provenance": self.provenance(),
            "count": 3,
        }
        return Best(**{**plain, **fields})

    def replayed(self, best: Best) -> Best:
        return replace(best, provenance=replace(best.provenance, origin=Origin.REPLAYED))

    def trial(self, median_us: float | None = 10.0, **config: Any) -> Trial:
        if median_us is None:
            return Trial(self.config(**config), Status.COMPILE_ERROR, None, "no such layout")
        return Trial(self.config(**config), Status.OK, self.measurement(median_us, final=False))

    def filled(self, location: Path) -> Store:
        """Return a store with the rows that `fill` puts."""
        location.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._filled_once(), location)
        return Store.open(location)

    @staticmethod
    @functools.cache
    def _filled_once() -> Path:
        # Not a TemporaryDirectory: a forked child that ends would remove it for everyone.
        folder, owner = tempfile.mkdtemp(dir=_TEMPORARY), os.getpid()
        atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
        path = Path(folder) / "filled.db"
        Maker().fill(path)
        return path

    def fill(self, location: Path) -> None:
        """Make a store with rows of every kind: two GPUs, both choices, no vendor, failures."""
        store = Store.open(location)
        store.put_device(self.device)
        store.put_device(self.other_device)
        for size in (128, 256, 512):
            key, config = self.key(m=size), self.config(block_m=size)
            vendor = self.vendor(size / 8)
            store.put_best(self.best(size / 10, key=key, config=config, vendor=vendor))
        store.put_best(self.best(20.0, key=self.key(m=2048), choice=Choice.VENDOR))
        store.put_best(self.best(key=self.key(gpu=self.other_device.slug), vendor=None))
        store.put_best(self.replayed(self.best(key=self.key(dtype="float32", precision="tf32"))))
        # A new driver makes a second environment, and leaves the first one's baseline behind.
        newer = self.provenance(driver="580.2", created_at="2025-07-01T12:00:00Z")
        store.put_best(self.best(9.0, key=self.key(m=128), provenance=newer))
        trials = [self.trial(11.0), self.trial(12.0, num_stages=5), self.trial(None, num_warps=8)]
        for key in (self.key(m=128), self.key(m=2048)):
            store.add_trials(key, [(trial, self.provenance()) for trial in trials])
        store.add_trials(self.key(m=128), [(self.trial(9.0), newer)])
        store.close()


@pytest.fixture
def make() -> Maker:
    return Maker()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module that says `EVERY_DATABASE` on PostgreSQL as well as on a file.

    One that looks into the file itself is marked `sqlite`.
    """
    everywhere = getattr(metafunc.module, "EVERY_DATABASE", False)
    on_file = metafunc.definition.get_closest_marker("sqlite")
    if "store" in metafunc.fixturenames and everywhere and not on_file:
        metafunc.parametrize("store", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, own_cache: Path, make: Maker) -> Iterator[Store]:
    """An empty store that knows the device."""
    on_server = getattr(request, "param", "sqlite") == "postgresql"
    place = request.getfixturevalue("server_url") if on_server else own_cache
    with Store.open(place) as opened:
        opened.put_device(make.device)
        yield opened


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], results: Any) -> None:
    try:
        results.put((None, function(*arguments)))
    except BaseException as error:
        results.put((f"{type(error).__name__}: {error}", None))


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    """Run a function in forked processes at once, each with its number; give what they return."""

    def run(count: int, function: Callable[[int], Any]) -> list[Any]:
        results = _FORK.SimpleQueue()
        barrier = _FORK.Barrier(count)

        def meet(number: int) -> Any:
            barrier.wait(timeout=60)
            return function(number)

        processes = [
            _FORK.Process(target=_run, args=(meet, (number,), results), daemon=True)
            for number in range(count)
        ]
        for process in processes:
            process.start()
        outcomes = [results.get() for _ in processes]
        for process in processes:
            process.join(60)
        failures = [failure for failure, _ in outcomes if failure is not None]
        assert not failures, failures
        return [value for _, value in outcomes]

    return run


@pytest.fixture
def as_plain_user() -> Callable[[Callable[[], Any]], Any]:
    """Run a function in a process that permission bits bind, also where the tests run as root."""

    def run(function: Callable[[], Any]) -> Any:
        results = _FORK.SimpleQueue()

        def plainly() -> Any:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
            return function()

        process = _FORK.Process(target=_run, args=(plainly, (), results), daemon=True)
        process.start()
        failure, value = results.get()
        process.join(60)
        assert failure is None, failure
        return value

    return run


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)
