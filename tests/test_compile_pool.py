"""The compile pool: real workers, with a real compiler or one that fails in the ways it can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tunekit import compile_pool, compiler
from tunekit.child import ChildError
from tunekit.compile_pool import CompilePool
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import TuneError, TunekitError
from tunekit.kernels.matmul_family import MATMUL
from tunekit.key import Problem
from tunekit.nursery import Fork
from tunekit.trial import Status

H200 = KNOWN_DEVICES["sm_90"]
CONFIG = Config("pointer", 64, 64, 32, num_stages=2)


def problem(m: int, n: int = 512, k: int = 512) -> Problem:
    return Problem("matmul", m, n, k, "float16")


@pytest.fixture
def fakes(monkeypatch):
    """The module of fake compilers, where spawned workers find it too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))
    import fake_gpu

    return fake_gpu


@pytest.fixture
def pools(fakes):
    """Return a function that makes pools whose compilers do what a table says."""
    made = []

    def make(table, **settings):
        made.append(CompilePool(build=partial(fakes.build, table), **{"workers": 1, **settings}))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def config(block_k: int) -> Config:
    return Config("pointer", 64, 64, block_k, num_stages=2)


def result(pool, one: Problem, config: Config = CONFIG):
    return pool.submit(one, config, H200).result(60)


def test_a_config_is_compiled_once_for_all_problems_that_share_it(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    pool = CompilePool(workers=1)
    sizes = [problem(64), problem(128), problem(4096, 4096, 4096)]
    try:
        futures = [pool.submit(one, CONFIG, H200) for one in sizes]
        assert [future.result(120).status for future in futures] == [Status.OK] * 3
        assert pool.compilations == 1
        assert pool.seconds > 0
    finally:
        pool.close()
    assert list((tmp_path / "triton").rglob("pointer_kernel.cubin"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("abort", "the compiler was ended by SIGABRT: LLVM ERROR: cannot select this"),
        ("segfault", "the compiler was ended by SIGSEGV"),
        ("killed", "the compiler was ended by SIGKILL"),
        ("exit", "the compiler ended with exit code 3"),
    ],
)
def test_a_compiler_that_dies_costs_one_config(pools, fault, words):
    pool = pools({config(64): fault})
    first = [pool.submit(problem(64), config(k), H200) for k in (32, 64, 128)]
    outcomes = [future.result(60) for future in first]
    assert [o.status for o in outcomes] == [Status.OK, Status.COMPILE_ERROR, Status.OK]
    assert outcomes[1].error == words


def test_a_compiler_that_hangs_ends_with_the_assembler_it_started(pools):
    pool = pools({config(64): "ptxas-of-the-hanging-test"}, timeout_s=2.0)
    hung = pool.submit(problem(64), config(64), H200)
    after = pool.submit(problem(64), config(32), H200)
    assert hung.result(60).status is Status.TIMEOUT
    assert "2 s" in hung.result().error
    assert after.result(60).status is Status.OK
    assert until(lambda: not processes("ptxas-of-the-hanging-test"))


def test_a_failure_to_write_is_no_configs_fault_and_says_what_to_do(pools):
    pool = pools({config(64): "disk full"})
    with pytest.raises(TuneError, match=r"No space left on device.*TRITON_CACHE_DIR"):
        result(pool, problem(64), config(64))
    with pytest.raises(TuneError, match="No space left"):  # and nor can anything after it
        result(pool, problem(64), config(32))


def test_a_fault_of_tunekit_in_a_compiler_keeps_its_traceback(pools):
    pool = pools({config(64): "bug"})
    with pytest.raises(ChildError, match=r"(?s)Traceback.*TypeError: a fault of tunekit's own"):
        result(pool, problem(64), config(64))


def test_a_worker_that_died_idle_is_replaced(pools):
    pool = pools({})
    assert result(pool, problem(64)).status is Status.OK
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    assert result(pool, problem(64), config(64)).status is Status.OK


def test_the_process_that_forks_workers_may_die_while_they_build(pools):
    pool = pools({config(32): 1.0, config(64): "abort"}, workers=2)
    slow = pool.submit(problem(64), config(32), H200)
    assert result(pool, problem(64)).status is Status.OK
    os.kill(pool.pids[0], signal.SIGKILL)
    failed = result(pool, problem(64), config(64))
    assert failed.status is Status.COMPILE_ERROR
    assert "LLVM ERROR: cannot select this" in failed.error
    assert slow.result(60).status is Status.OK
    assert result(pool, problem(64), config(128)).status is Status.OK
    assert until(lambda: len(pool.pids) == 3)


def test_workers_are_replaced_by_forks_of_the_same_process(pools):
    pool = pools({config(64): "exit"})
    for one in (problem(64), problem(64, 513), problem(64, 512, 513)):
        assert result(pool, one, config(64)).status is Status.COMPILE_ERROR
        assert result(pool, one, config(32)).status is Status.OK
        first, worker = pool.pids
        status = Path(f"/proc/{worker}/status").read_text()
        assert f"PPid:\t{first}\n" in status
        assert first == pool.pids[0]


@pytest.mark.parametrize("at", [1, 4])
def test_a_host_that_allows_no_more_files_is_one_error(monkeypatch, pools, at):
    """At once where nothing could be started, else as the result of whatever is asked for."""
    made, create = [], os.memfd_create

    def refuse(name):
        made.append(name)
        if len(made) >= at:
            raise OSError(24, "Too many open files")
        return create(name)

    monkeypatch.setattr("tunekit.child.os.memfd_create", refuse)
    with pytest.raises(TuneError, match="no compiler can be started here: Too many open files"):
        result(pools({}, workers=4), problem(64))


def test_workers_that_cannot_start_end_the_wait(monkeypatch, pools):
    monkeypatch.setattr(compile_pool, "_NO_GPU", {"PYTHONHOME": "/nowhere"})
    pool = pools({})
    with pytest.raises(TuneError, match="nothing can be compiled here: the compiler ended with"):
        result(pool, problem(64))


def test_a_closed_pool_leaves_no_process_and_nobody_waiting(pools):
    pool = pools({CONFIG: "hang"}, workers=2)
    pending = pool.submit(problem(64), CONFIG, H200)
    pids = pool.pids
    pool.close()
    with pytest.raises(CancelledError):
        pending.result(10)
    assert all(until(lambda pid=pid: not Path(f"/proc/{pid}").exists()) for pid in pids)


def test_a_nursery_that_hangs_is_waited_for_once_as_a_pool_closes(pools, monkeypatch):
    monkeypatch.setattr("tunekit.child._KILL_WAIT_S", 0.5)
    pool = pools({}, workers=4)
    result(pool, problem(512))
    end = time.monotonic() + 60
    while len(pool.pids) < 5 and time.monotonic() < end:
        time.sleep(0.01)
    waits = []
    wait = Fork.wait

    def seen(fork, timeout):
        try:
            return wait(fork, timeout)
        except subprocess.TimeoutExpired:
            waits.append(fork)
            raise

    monkeypatch.setattr(Fork, "wait", seen)
    os.kill(pool.pids[0], signal.SIGSTOP)
    pool.close()
    assert len(waits) == 1


def test_compilers_see_no_gpu_and_yield_to_what_measures(fakes):
    pool = CompilePool(workers=1, build=fakes.look_around)
    try:
        assert result(pool, problem(64)).error == f" {os.nice(0) + compiler.NICENESS}"
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_compilers_ask_for_huge_pages_unless_the_user_has_settled_that(
    fakes, monkeypatch, wish, told
):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if wish is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", wish)
    pool = CompilePool(workers=1, build=fakes.look_at_malloc)
    try:
        assert result(pool, problem(64)).error == told
    finally:
        pool.close()


def processes(mark: str) -> list[str]:
    """Return the commands of running processes that hold this mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            text = path.read_bytes().decode("utf-8", "replace")
            found += [text] if mark in text and "pytest" not in text else []
    return found


def until(condition, within_s: float = 20.0) -> bool:
    end = time.monotonic() + within_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_what_decides_a_compilation_is_in_its_name():
    def name(one: Problem, config: Config = CONFIG):
        return MATMUL.compile_key(config, one, H200)

    assert name(problem(64)) == name(problem(65)) == name(problem(128))
    groups = [
        Config("tma", 128, 128, 64, group_size=g, num_stages=3, switches=(("shared", 0),))
        for g in (8, 16)
    ]
    assert name(problem(4096, 4096), groups[0]) == name(problem(4096, 4096), groups[1])
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


def test_two_pools_never_build_the_same_at_the_same_time(fakes, tmp_path):
    """As two workers of a run do: what one is at, the other leaves for later."""
    log = tmp_path / "log"
    both = [CompilePool(workers=1, build=partial(fakes.build_slowly, log)) for _ in range(2)]
    try:
        futures = [
            pool.submit(problem(64), config(k), H200) for k in (16, 32, 64) for pool in both
        ]  # fmt: skip
        assert {future.result(60).status for future in futures} == {Status.OK}
    finally:
        for pool in both:
            pool.close()
    builds = sorted(tuple(map(float, line.split())) for line in log.read_text().splitlines())
    assert [k for k, _, _ in builds] == [16, 16, 32, 32, 64, 64]
    for (_, _, end), (_, begin, _) in zip(builds[::2], builds[1::2], strict=True):
        assert end <= begin


def test_a_compiler_enumerates_spaces_too():
    pool = CompilePool(workers=1)
    try:
        found = pool.space(problem(64), H200)
        none = pool.space(Problem("matmul", 64, 64, 64, "float8_e4m3fn"), KNOWN_DEVICES["sm_80"])
        space = found.result(120)
        assert (space.problem, space.device) == (problem(64), H200)
        assert len(space) > 100
        assert space.pruned
        with pytest.raises(TunekitError, match="operands give out_dtype"):
            none.result(60)
        assert pool.space(problem(64), H200) is found
        assert pool.compilations == 0
    finally:
        pool.close()


AGAIN = """
import sys
import torch
from tunekit.compiler import compile_config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels import family
from tunekit.key import Problem

problem, device = Problem("matmul", 64, 512, 512, "float16"), KNOWN_DEVICES["sm_90"]
for config in family("matmul").space(problem, device).configs:
    if str(config) in sys.argv:
        assert compile_config(problem, config, device).status.value == "ok"
"""


def test_compilers_load_no_torch_and_build_what_a_launch_looks_for(tmp_path, monkeypatch):
    """Loading it would take them longer than all else. A process that has it finds what they built.

    Which entry of Triton's cache that is must not depend on it.
    """
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    legal = MATMUL.space(problem(64), H200).configs
    chosen = [next(c for c in legal if c.variant == variant) for variant in ("pointer", "tma")]
    pool = CompilePool(workers=1)
    try:
        for one in chosen:
            assert result(pool, problem(64), one).status is Status.OK
        loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in pool.pids]
    finally:
        pool.close()
    assert all("libtriton" in maps for maps in loaded)
    assert not any("libtorch" in maps for maps in loaded)
    built = {path.name for path in tmp_path.iterdir()}
    assert len(built) >= len(chosen)
    subprocess.run([sys.executable, "-c", AGAIN, *map(str, chosen)], check=True)
    assert {path.name for path in tmp_path.iterdir()} == built


@pytest.mark.parametrize(("wish", "is_whole"), [(None, False), ("1", False), ("0", True)])
def test_what_launches_do_not_load_is_stored_only_where_it_is_asked_for(
    tmp_path, monkeypatch, wish, is_whole
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("TRITON_STORE_BINARY_ONLY", raising=False)
    if wish is not None:
        monkeypatch.setenv("TRITON_STORE_BINARY_ONLY", wish)
    pool = CompilePool(workers=1)
    try:
        config = next(iter(MATMUL.space(problem(64), H200).configs))
        assert result(pool, problem(64), config).status is Status.OK
    finally:
        pool.close()
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert {".cubin", ".json"} <= kinds
    assert ({".ptx", ".llir", ".ttgir"} <= kinds) == is_whole
    assert (".ptx" in kinds) == is_whole
