"""What every test relies on: no GPU assumed, no file of the user's touched, hypothesis profiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Triton decides at import whether kernels are compiled or interpreted, so the choice has to be made
# before any test module loads it. Where no GPU driver is present only the interpreter can run a
# kernel; tests that need the real compiler run it in a process of its own without this variable.
if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# `pytest --hypothesis-profile full` searches longer and at random.
settings.register_profile(
    "ci",
    max_examples=30,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("full", max_examples=1000, deadline=None)
settings.load_profile("ci")


def torch_sees_a_gpu() -> bool:
    """Say whether a kernel can run here. What needs no torch is tested without it as well."""
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where torch sees no usable GPU. The only place that decides so."""
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
