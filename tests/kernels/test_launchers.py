"""A launcher is built while a kernel is compiled, where Triton compiles launchers."""

from __future__ import annotations

import shutil
import subprocess
from types import SimpleNamespace

import pytest
from test_compile import case, compile_all

from tunekit.config import Config
from tunekit.kernels import launchers

nvidia = pytest.importorskip("triton.backends.nvidia.driver")

CONFIG = Config("pointer", 64, 64, 32, num_stages=2)


@pytest.fixture
def unknown():
    """Forget what was found out about launchers."""
    launchers._maker.cache_clear()
    yield
    launchers._maker.cache_clear()


@pytest.mark.skipif(not hasattr(nvidia, "make_launcher"), reason="this Triton compiles none")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler is here")
def test_a_launcher_is_in_the_cache_once_its_kernel_is(tmp_path, monkeypatch):
    """A library of that name is enough to link with: it is called at a launch only."""
    stand_in = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-o", stand_in, "-xc", "/dev/null"], check=True)
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(tmp_path))
    for arch, there in (("gfx942", 0), ("sm_90", 1)):
        cache = tmp_path / arch
        assert [one["status"] for one in compile_all([case(arch, CONFIG)], cache)] == ["ok"]
        assert len(list(cache.glob("*/__triton_launcher*.so"))) == there


def test_where_none_can_be_built_a_kernel_compiles_all_the_same(unknown, monkeypatch):
    def missing():
        raise AssertionError("libcuda.so cannot found!")

    monkeypatch.setattr(nvidia, "make_launcher", None, raising=False)
    monkeypatch.setattr(nvidia, "library_dirs", missing)
    launchers.build_launcher(SimpleNamespace(src=None, metadata=None))
    assert launchers._maker() is None


def test_that_one_fails_to_build_is_left_to_the_launch(monkeypatch, caplog):
    def make(src, metadata):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(launchers, "_maker", lambda: make)
    with caplog.at_level("DEBUG", "tunekit.kernels.launchers"):
        launchers.build_launcher(SimpleNamespace(src=None, metadata=SimpleNamespace(name="tiles")))
    assert "tiles is left to its launch: Failed to find C compiler" in caplog.text
