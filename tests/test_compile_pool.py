"""The compile pool, with real compilers in real workers."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from tunekit import compile_pool
from tunekit.compile_pool import CompilePool
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MATMUL
from tunekit.key import Problem
from tunekit.trial import Status

H200 = KNOWN_DEVICES["sm_90"]
CONFIG = Config("pointer", 64, 64, 32, num_stages=2)


def problem(m: int, n: int = 512, k: int = 512) -> Problem:
    return Problem("matmul", m, n, k, "float16")


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """A pool whose workers compile, into a cache of their own."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    pool = CompilePool(H200, workers=1)
    yield pool
    pool.close()


def test_a_config_is_compiled_once_for_all_problems_that_share_it(pool, tmp_path):
    sizes = [problem(64), problem(128), problem(4096, 4096, 4096)]
    for one in sizes:
        pool.submit(one, CONFIG)
    assert [pool.wait(one, CONFIG).status for one in sizes] == [Status.OK] * 3
    assert pool.compilations == 1
    assert list((tmp_path / "triton").rglob("pointer_kernel.cubin"))


BAD_COMPILERS = """
import os, time
def abort(problem, config, device): os.abort()
def hang(problem, config, device): time.sleep(600)
"""


@pytest.fixture
def bad_compilers(tmp_path, monkeypatch):
    """A module that spawned workers can import as well."""
    (tmp_path / "bad_compilers.py").write_text(BAD_COMPILERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    import bad_compilers

    return bad_compilers


def test_a_worker_that_aborts_or_hangs_costs_one_config(bad_compilers, pool, monkeypatch):
    real = compile_pool._compile
    monkeypatch.setattr(compile_pool, "_compile", bad_compilers.abort)
    aborted = pool.wait(problem(64), CONFIG)
    assert aborted.status is Status.COMPILE_ERROR
    assert "abort" in aborted.error
    monkeypatch.setattr(pool, "_timeout_s", 1.0)
    monkeypatch.setattr(compile_pool, "_compile", bad_compilers.hang)
    hung = pool.wait(problem(64), Config("pointer", 64, 64, 64, num_stages=2))
    assert hung.status is Status.TIMEOUT
    assert "1 s" in hung.error
    monkeypatch.setattr(pool, "_timeout_s", 120.0)
    monkeypatch.setattr(compile_pool, "_compile", real)
    assert pool.wait(problem(64), Config("pointer", 32, 64, 32)).status is Status.OK


def test_a_pool_whose_idle_worker_died_is_started_anew(pool):
    assert pool.wait(problem(64), CONFIG).status is Status.OK
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)
    assert pool.wait(problem(64), CONFIG).status is Status.OK
    assert pool.wait(problem(64), Config("pointer", 32, 64, 32)).status is Status.OK


def test_what_decides_a_compilation_is_in_its_name():
    def name(one: Problem, config: Config = CONFIG):
        return MATMUL.compile_key(config, one, H200)

    assert name(problem(64)) == name(problem(65)) == name(problem(128))
    grouped = Config("pointer", 64, 64, 32, group_size=8, num_stages=2)
    assert name(problem(128)) == name(problem(128), grouped)
    split = [Config("pointer", 64, 64, 32, split_k=s, num_stages=2) for s in (2, 4)]
    assert name(problem(64), split[0]) == name(problem(64), split[1])
    different = [
        name(problem(64)),
        name(problem(64), split[0]),
        name(problem(64, 513)),
        name(problem(64, 512, 513)),
        name(problem(64), Config("pointer", 64, 64, 32, num_stages=3)),
        name(Problem("matmul", 64, 512, 512, "bfloat16")),
        name(Problem("matmul", 64, 512, 512, "float16", aligned=False)),
    ]
    assert len(set(different)) == len(different)
