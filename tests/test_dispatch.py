"""`tunekit.matmul`: the kernels run for real, in Triton's interpreter or on a GPU."""

from __future__ import annotations

import dataclasses
import logging
import random
import subprocess
import sys
import threading
import warnings

import pytest
import torch

import tunekit
from tunekit import dispatch
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.dispatch import MissWarning
from tunekit.errors import DeviceError, MissError, ProblemError
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe
from tunekit.kernels.pointer import pointer_kernel
from tunekit.key import Problem, TuningKey
from tunekit.trial import Best, Choice, Grade, Measurement, Provenance

H200 = KNOWN_DEVICES["sm_90"]
ON_GPU = torch.cuda.is_available()
pytestmark = [
    pytest.mark.filterwarnings("ignore::tunekit.serving.MissWarning"),
    pytest.mark.usefixtures("forget"),
]


@pytest.fixture
def launches(monkeypatch):
    """Count the programs' launches of the real kernel, by whatever route."""
    seen: list[Config] = []
    bind = MATMUL.bind

    def counting(config, *rest):
        launch = bind(config, *rest)

        def counted(a, b, out):
            seen.append(config)
            launch(a, b, out)

        return counted

    monkeypatch.setattr(MATMUL, "bind", counting)
    return seen


@pytest.fixture
def no_vendor(monkeypatch):
    """Make torch's own product impossible."""

    def refuse(*args, **kwargs):
        raise AssertionError("torch multiplied")

    monkeypatch.setattr(torch, "matmul", refuse)
    monkeypatch.setattr(torch, "mm", refuse)


def row(problem: Problem, config: Config, *, choice=Choice.TRITON, source=None) -> Best:
    fingerprint = MATMUL.fingerprint("pointer")
    if source is not None:
        fingerprint = dataclasses.replace(fingerprint, source=source)
    measurement = Measurement(10.0, 9.0, 11.0, 9.0, 11.0, 9.0, 21, "test", 0.5, final=True)
    provenance = Provenance(fingerprint, "test", "0", "3", "2", "1", "GPU", "2026-01-01T00:00:00Z")
    key = TuningKey.of(problem, H200.slug)
    return Best(key, choice, config, measurement, measurement, 10, 100, provenance)


def stored(location, *rows: Best) -> None:
    with Store.open(location) as store:
        store.put_device(H200)
        for one in rows:
            assert store.put_best(one)


def operands(m, n, k, dtype=torch.float16, layout="nt"):
    a = torch.randn(m, k).to(dtype) if layout[0] == "n" else torch.randn(k, m).to(dtype).t()
    b = torch.randn(k, n).to(dtype) if layout[1] == "n" else torch.randn(n, k).to(dtype).t()
    return a, b


def assert_close(c, a, b):
    expected = a.double() @ b.double()
    scale = a.double().norm(dim=1)[:, None] * b.double().norm(dim=0)[None, :]
    slack = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[c.dtype]
    assert c.shape == expected.shape
    assert ((c.double() - expected).abs() <= slack * scale + 1e-6).all()


@pytest.mark.interpreted
def test_the_kernel_and_not_torch_makes_the_result(no_vendor, launches):
    rng = random.Random(3)
    for _ in range(25):
        dtype = rng.choice([torch.float16, torch.bfloat16, torch.float32])
        m, n, k = rng.randint(1, 70), rng.randint(1, 70), rng.randint(1, 90)
        a, b = operands(m, n, k, dtype, rng.choice(["nn", "nt", "tn", "tt"]))
        before = len(launches)
        c = tunekit.matmul(a, b, backend="triton")
        assert len(launches) == before + 1
        assert c.dtype == dtype
        with torch.no_grad():
            assert_close(c, a, b)


@pytest.mark.interpreted
def test_the_interpreter_ran_every_program_of_the_grid(no_vendor):
    if ON_GPU:
        pytest.skip("counts programs through the interpreter's hook")
    grids = []
    pointer_kernel.add_pre_run_hook(lambda *args, **kwargs: grids.append(args))
    try:
        tunekit.matmul(*operands(40, 50, 60), backend="triton")
    finally:
        pointer_kernel.pre_run_hooks.clear()
    assert len(grids) == 1


def test_a_tuned_row_is_what_runs(own_cache, launches, no_vendor, pretend_gpu):
    a, b = operands(48, 64, 64)
    config = Config("pointer", 16, 32, 32, num_stages=2)
    stored(own_cache, row(describe(a, b), config))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert_close(tunekit.matmul(a, b), a, b)
    assert launches == [config] * 3
    served = dispatch.served_for(a, b)
    assert served.answer.grade is Grade.EXACT


def test_where_the_vendor_was_faster_the_vendor_runs(own_cache, launches, pretend_gpu):
    a, b = operands(48, 64, 64)
    config = Config("pointer", 16, 32, 32, num_stages=2)
    stored(own_cache, row(describe(a, b), config, choice=Choice.VENDOR))
    assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
    assert launches == []
    tunekit.matmul(a, b, backend="triton")
    assert launches == [config]


def test_the_store_is_read_once_and_never_on_a_hit(own_cache, pretend_gpu, monkeypatch):
    a, b = operands(48, 64, 64)
    stored(own_cache, row(describe(a, b), Config("pointer", 16, 32, 32, num_stages=2)))
    opened = []
    real = Store.open
    monkeypatch.setattr(Store, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    for m in (48, 48, 40, 33, 48):
        tunekit.matmul(*operands(m, 64, 64))
    assert len(opened) == 1


def test_a_process_changes_its_choice_only_when_told(own_cache, launches, pretend_gpu):
    a, b = operands(48, 64, 64)
    before, after = (Config("pointer", 16, 32, 32, num_stages=s) for s in (2, 2))
    after = dataclasses.replace(after, block_n=64)
    stored(own_cache, row(describe(a, b), before))
    tunekit.matmul(a, b)
    with Store.open(own_cache) as store:
        assert store.put_best(row(describe(a, b), after), force=True)
    tunekit.matmul(a, b)
    tunekit.reload()
    tunekit.matmul(a, b)
    assert launches == [before, before, after]


def test_an_untuned_problem_near_a_tuned_one_borrows_its_config(own_cache, launches, pretend_gpu):
    config = Config("pointer", 16, 32, 32, num_stages=2)
    stored(own_cache, row(describe(*operands(48, 64, 64)), config))
    a, b = operands(56, 64, 64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_close(tunekit.matmul(a, b), a, b)
    assert [w.category for w in caught] == [MissWarning]
    assert "the row of 48x64x64" in str(caught[0].message)
    assert launches == [config] * 3


def test_a_miss_goes_to_torch_with_one_warning_that_has_the_cure(own_cache, pretend_gpu):
    a, b = operands(48, 64, 64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
    assert [w.category for w in caught] == [MissWarning]
    text = str(caught[0].message)
    assert f"tunekit tune --shape 48,64,64,float16,nt --cache {own_cache}" in text
    assert dispatch.miss_counts() == {TuningKey.of(describe(a, b), H200.slug): 5}


def test_a_miss_can_be_silent_or_an_error(pretend_gpu):
    a, b = operands(48, 64, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tunekit.matmul(a, b, on_miss="fallback")
    for _ in range(2):
        with pytest.raises(MissError, match="tunekit tune"):
            tunekit.matmul(a, b, on_miss="error")


def test_a_miss_first_met_in_silence_is_told_when_asked(pretend_gpu):
    a, b = operands(48, 64, 64)
    tunekit.matmul(a, b, on_miss="fallback")
    with pytest.warns(MissWarning, match="is not tuned"):
        tunekit.matmul(a, b)


def test_an_unknown_policy_lists_those_there_are():
    with pytest.raises(ProblemError, match="warn, fallback or error"):
        tunekit.matmul(*operands(3, 4, 5), on_miss="eror")


def test_a_password_is_in_no_message(pretend_gpu, monkeypatch, caplog):
    monkeypatch.setenv("TUNEKIT_CACHE", "postgresql://someone:s3cret@localhost:1/none")
    with pytest.raises(MissError) as missed:
        tunekit.matmul(*operands(48, 64, 64), on_miss="error")
    assert "s3cret" not in str(missed.value) + caplog.text
    assert "someone:***@localhost" in str(missed.value)


FORKS = """
import os, signal, threading
import torch
import tunekit

torch.set_num_threads(1)
busy, stop = threading.Event(), threading.Event()

def operands(n):
    return torch.randn(n, n).half(), torch.randn(n, n).half()

def multiply():
    while not stop.is_set():
        tunekit.reload()
        tunekit.matmul(*operands(40), backend="triton")
        busy.set()

threading.Thread(target=multiply, daemon=True).start()
assert busy.wait(60)
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a deadlock ends the child
        a, b = operands(24)
        c = tunekit.matmul(a, b, backend="triton")
        os._exit(0 if torch.allclose(c, a @ b, rtol=1e-2, atol=1e-2) else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
os._exit(0)
"""


@pytest.mark.interpreted
@pytest.mark.skipif(ON_GPU, reason="a forked child cannot use the GPU of its parent")
def test_a_child_forked_while_a_thread_multiplies_can_multiply():
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_a_row_that_is_illegal_here_is_not_run(own_cache, launches, pretend_gpu):
    a, b = operands(48, 64, 64)
    stored(own_cache, row(describe(a, b), Config("pointer", 256, 256, 256, num_stages=6)))
    assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
    assert launches == []


def test_a_row_of_changed_source_is_not_run(own_cache, launches, pretend_gpu):
    a, b = operands(48, 64, 64)
    config = Config("pointer", 16, 32, 32, num_stages=2)
    stored(own_cache, row(describe(a, b), config, source="0" * 16))
    tunekit.matmul(a, b)
    assert launches == []


def test_a_row_that_fails_to_compile_is_passed_over(own_cache, pretend_gpu, monkeypatch, caplog):
    a, b = operands(48, 64, 64)
    stored(own_cache, row(describe(a, b), Config("pointer", 16, 32, 32, num_stages=2)))

    def broken(*args):
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(MATMUL, "bind", broken)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
    assert "PassManager::run failed" in caplog.text


def test_a_fault_of_ours_keeps_its_traceback(own_cache, pretend_gpu, monkeypatch):
    a, b = operands(48, 64, 64)
    stored(own_cache, row(describe(a, b), Config("pointer", 16, 32, 32, num_stages=2)))

    def broken(*args):
        raise TypeError("a programming error")

    monkeypatch.setattr(MATMUL, "bind", broken)
    with pytest.raises(TypeError, match="a programming error"):
        tunekit.matmul(a, b)


def test_a_store_that_cannot_be_read_costs_one_warning_and_no_result(
    own_cache, pretend_gpu, caplog
):
    own_cache.write_text("this is not a database, and it is long enough to be read as one" * 100)
    a, b = operands(48, 64, 64)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_operands_on_the_cpu_go_to_torch(launches):
    a, b = operands(5, 6, 7)
    assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
    assert launches == []


def test_triton_on_the_cpu_without_the_interpreter_is_an_error(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(DeviceError, match=r"CPU.*TRITON_INTERPRET=1"):
        tunekit.matmul(*operands(5, 6, 7), backend="triton")


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (torch.ones(3), torch.ones(4), "shapes"),
        (torch.ones(2, 3, 4), torch.ones(3, 4, 5), "shapes"),
        (torch.ones(3, 4), torch.ones(4, 5, dtype=torch.float16), "dtypes"),
        (torch.ones(3, 4, dtype=torch.float64), torch.ones(4, 5, dtype=torch.float64), "dtypes"),
        (torch.ones(3, 4), torch.ones(4, 5, device="meta"), "b is on meta"),
        (torch.ones(3, 4).to_sparse(), torch.ones(4, 5), "strided"),
    ],
)
def test_what_the_kernels_do_not_take_is_said(a, b, why):
    with pytest.raises(ProblemError, match=why):
        tunekit.matmul(a, b, backend="triton")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.ones(3), torch.ones(3)),
        (torch.ones(2, 3, 4), torch.ones(4, 5)),
        (torch.ones(3, 4, dtype=torch.float64), torch.ones(4, 5, dtype=torch.float64)),
        (torch.ones(0, 4), torch.ones(4, 5)),
        (torch.ones(3, 4), torch.ones(4, 0)),
        (torch.ones(3, 0), torch.ones(0, 5)),
        ((torch.ones(3, 4) * 1j).conj().imag, torch.ones(4, 5)),
    ],
)
def test_every_other_input_means_what_it_means_in_torch(a, b, pretend_gpu):
    result = tunekit.matmul(a, b)
    assert torch.equal(result, torch.matmul(a, b))
    assert result.dtype == torch.matmul(a, b).dtype


@pytest.mark.interpreted
@pytest.mark.parametrize(("m", "k", "n"), [(0, 4, 5), (3, 4, 0), (3, 0, 5), (0, 0, 0)])
def test_an_empty_product_needs_no_kernel(m, k, n, launches):
    tunekit.matmul(*operands(4, 5, 6), backend="triton")  # a kernel is there already
    before = list(launches)
    dirty = torch.full((m * n + 8,), float("nan"))
    a, b = torch.ones(m, k), torch.ones(k, n)
    for backend in ("auto", "triton"):
        assert torch.equal(tunekit.matmul(a, b, backend=backend), torch.zeros(m, n))
    assert launches == before
    assert dirty.isnan().all()


def test_nested_tensors_mean_what_they_mean_in_torch():
    a = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    b = torch.nested.nested_tensor([torch.randn(3, 5), torch.randn(3, 2)])
    found, expected = tunekit.matmul(a, b).unbind(), torch.matmul(a, b).unbind()
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_an_empty_inner_dimension_gives_zeros_in_dirty_memory(pretend_gpu):
    torch.full((300,), float("nan"))
    assert torch.equal(tunekit.matmul(torch.ones(3, 0), torch.ones(0, 5)), torch.zeros(3, 5))


def test_gradients_flow_as_in_torch(pretend_gpu):
    a, b = torch.randn(4, 5, requires_grad=True), torch.randn(5, 6)
    tunekit.matmul(a, b).sum().backward()
    assert torch.allclose(a.grad, b.sum(dim=1).expand(4, 5), atol=1e-5)


def test_forward_gradients_and_transforms_are_torchs(pretend_gpu):
    import torch.autograd.forward_ad as forward

    a, b, tangent = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 5)
    with forward.dual_level():
        dual = forward.make_dual(a, tangent)
        result = forward.unpack_dual(tunekit.matmul(dual, b))
    assert torch.allclose(result.tangent, tangent @ b, atol=1e-5)
    batch = torch.randn(3, 4, 5)
    assert torch.allclose(
        torch.func.vmap(tunekit.matmul, (0, None))(batch, b), batch @ b, atol=1e-5
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.ones(3, 4), torch.ones(5, 6)),
        (torch.ones(3, 4), torch.ones(4, 5, dtype=torch.float16)),
        (torch.tensor(1.0), torch.ones(4, 5)),
        ([1.0], torch.ones(4, 5)),
    ],
)
def test_a_wrong_call_fails_as_in_torch(a, b):
    with pytest.raises(Exception) as theirs:
        torch.matmul(a, b)
    with pytest.raises(type(theirs.value)):
        tunekit.matmul(a, b)


def test_an_unknown_backend_lists_those_there_are():
    with pytest.raises(ProblemError, match="auto, triton or vendor"):
        tunekit.matmul(*operands(3, 4, 5), backend="cublas")


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_float32_follows_torchs_precision(precision):
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    try:
        setting.fp32_precision = precision
        a, b = operands(32, 32, 32, torch.float32)
        assert describe(a, b).precision == precision
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_problem_is_described_by_its_storage(layout):
    a, b = operands(16, 24, 32, layout=layout)
    found = describe(a, b)
    assert (found.m, found.n, found.k, found.layout) == (16, 24, 32, layout)
    assert found.aligned
    assert found == Problem("matmul", 16, 24, 32, "float16", layout=layout)


def test_alignment_is_of_base_and_of_leading_dimension():
    memory = torch.zeros(4096, dtype=torch.float16)
    b = torch.zeros(32, 16, dtype=torch.float16)
    dense = memory.as_strided((16, 32), (32, 1))
    shifted = memory.as_strided((16, 32), (32, 1), 1)
    odd_rows = memory.as_strided((16, 32), (33, 1))
    gaps = memory.as_strided((16, 32), (64, 2))
    found = [describe(a, b).aligned for a in (dense, shifted, odd_rows, gaps)]
    assert found == [True, False, False, False]


@pytest.mark.parametrize("m", [1, 2, 15])
def test_one_row_has_the_layout_it_is_tuned_with(m):
    a, b = operands(m, 64, 63)
    natural = Problem("matmul", m, 64, 63, "float16")
    assert describe(a, b) == dataclasses.replace(natural, aligned=natural.naturally_aligned())


def test_threads_that_meet_cold_agree_and_prepare_once(own_cache, launches, pretend_gpu):
    a, b = operands(48, 64, 64)
    config = Config("pointer", 16, 32, 32, num_stages=2)
    stored(own_cache, row(describe(a, b), config))
    expected = tunekit.matmul(a, b)
    tunekit.reload()
    barrier, results = threading.Barrier(8), []

    def call():
        barrier.wait()
        results.append(tunekit.matmul(a, b))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(torch.equal(result, expected) for result in results)


def test_nothing_is_prepared_on_a_gpu_that_is_not_there(no_gpu):
    with pytest.raises(DeviceError, match="no GPU here to prepare 64x64x64 bfloat16 nt on"):
        tunekit.warmup([Problem("matmul", 64, 64, 64, "bfloat16")])
