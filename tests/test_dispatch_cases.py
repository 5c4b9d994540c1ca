"""What users of other tuners ran into at run time: threads, captures, hooks, many shapes."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import warnings

import pytest
import torch

import tunekit
from tunekit import dispatch, policies, products, serving
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe
from tunekit.kernels.pointer import pointer_kernel
from tunekit.serving import MissWarning

H200 = KNOWN_DEVICES["sm_90"]
CONFIG = Config("pointer", 16, 32, 32, num_stages=2)


pytestmark = pytest.mark.usefixtures("forget")


@pytest.fixture
def launches(monkeypatch):
    """Replace kernels by nothing, and note the configs that are prepared."""
    seen = []
    monkeypatch.setattr(MATMUL, "bind", lambda config, *of: seen.append(config) or _nothing)
    return seen


def _nothing(a, b, out):
    return None


def put(own_cache, best_row, *sizes):
    with Store.open(own_cache) as store:
        store.put_device(H200)
        for m in sizes:
            assert store.put_best(best_row(describe(*operands(m)), CONFIG))


MEMORY = torch.zeros(8192 * 64, dtype=torch.float16)


def operands(m, k=64, n=64):
    return MEMORY[: m * k].view(m, k), MEMORY[: n * k].view(n, k).t()


def test_thousands_of_shapes_are_read_from_the_cache_once(
    own_cache, best_row, pretend_gpu, launches, monkeypatch
):
    put(own_cache, best_row, 16, 4096)
    opened = []
    real = Store.open
    monkeypatch.setattr(Store, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    monkeypatch.setattr(torch, "matmul", lambda a, b: None)  # slow in half precision on a CPU
    order = random.Random(1).sample(range(1, 5001), 1500)
    for _ in range(2):
        for m in order:
            tunekit.matmul(*operands(m), on_miss="fallback")
    assert len(opened) == 1
    served = {m: dispatch.served_for(*operands(m)) for m in order}
    # a neighbour is up to a factor of four away, and a problem of its own is never one's miss
    near = {m for m in order if 4 <= m <= 64 or m >= 1024}
    assert {m for m, one in served.items() if one.launch} == near
    assert {m for m, one in served.items() if not one.is_miss} == {16, 4096} & set(order)
    assert set(launches) == {CONFIG}


def test_a_warning_is_for_a_key_and_not_for_a_call(pretend_gpu):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            for m in (3, 4, 5):
                tunekit.matmul(*operands(m))
                tunekit.matmul(MEMORY[: m * 64].view(1, m, 64), operands(m)[1])
    assert [w.category for w in caught] == [MissWarning] * 3
    for m, warned in zip((3, 4, 5), caught, strict=True):
        assert f"--shape {m},64,64" in str(warned.message)


def test_while_a_graph_is_captured_nothing_is_measured_stored_or_printed(
    own_cache, best_row, pretend_gpu, launches, monkeypatch, capsys
):
    put(own_cache, best_row, 48)
    before = own_cache.read_bytes()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *a: pytest.fail("it waited for the GPU"))
    for m in (48, 50, 700):
        tunekit.matmul(*operands(m), on_miss="fallback")
    assert own_cache.read_bytes() == before
    assert capsys.readouterr() == ("", "")


@pytest.mark.interpreted
def test_threads_that_meet_cold_are_right_in_shapes_of_their_own():
    barrier, results = threading.Barrier(8), {}
    shapes = [(5, 7, 9), (16, 16, 16), (5, 7, 9), (3, 30, 20), (17, 5, 40), (16, 16, 16),
              (1, 9, 33), (3, 30, 20)]  # fmt: skip

    def call(number, m, k, n):
        a, b = torch.randn(m, k), torch.randn(k, n)
        barrier.wait()
        with warnings.catch_warnings():
            c = tunekit.matmul(a, b, backend="triton", on_miss="fallback")
        results[number] = torch.allclose(c, a @ b, rtol=1e-4, atol=1e-4)

    threads = [threading.Thread(target=call, args=(i, *one)) for i, one in enumerate(shapes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(8), True)


@pytest.mark.interpreted
def test_a_hook_of_a_kernel_may_multiply():
    if torch.cuda.is_available():
        pytest.skip("hooks into Triton's interpreter")
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    inner = []

    def hook(*args, **kwargs):
        if not inner:
            inner.append(None)
            inner.append(tunekit.matmul(b, a, backend="triton", on_miss="fallback"))

    pointer_kernel.add_pre_run_hook(hook)
    try:
        outer = tunekit.matmul(a, b, backend="triton", on_miss="fallback")
    finally:
        pointer_kernel.pre_run_hooks.clear()
    torch.testing.assert_close(outer, a @ b, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(inner[1], b @ a, rtol=1e-4, atol=1e-4)


def test_a_warnings_hook_may_multiply(pretend_gpu, monkeypatch):
    results = []

    def show(*told, **how):
        results.append(tunekit.matmul(*operands(9), on_miss="fallback"))

    monkeypatch.setattr(warnings, "showwarning", show)
    monkeypatch.setattr(warnings, "filters", [("always", None, MissWarning, None, 0)])
    tunekit.matmul(*operands(7))
    assert len(results) == 1


def test_a_watcher_of_operators_sees_torchs_product(pretend_gpu):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        tunekit.matmul(torch.randn(4, 8), torch.randn(8, 16))
    assert counter.get_total_flops() == 2 * 4 * 8 * 16


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_holds_the_product_and_not_its_result(pretend_gpu, launches, own_cache, best_row):
    put(own_cache, best_row, 48)
    a, b = operands(48)
    tunekit.matmul(a, b)
    assert launches  # by a kernel, where nobody traces
    scripted = torch.jit.trace(lambda a, b: tunekit.matmul(a, b), (a.float(), b.float()))
    x, y = torch.randn(48, 64), torch.randn(64, 64)
    torch.testing.assert_close(scripted(x, y), x @ y)
    traced = torch.fx.symbolic_trace(lambda a, b: tunekit.matmul(a, b))
    torch.testing.assert_close(traced(x, y), x @ y)
    with torch.no_grad():
        layer = torch.jit.trace(lambda a, w: tunekit.linear(a, w), (a.float(), b.float()))
        torch.testing.assert_close(layer(x, y), x @ y.t())


def test_a_default_device_changes_nothing_and_is_not_asked(
    pretend_gpu, launches, own_cache, best_row
):
    put(own_cache, best_row, 48)
    a, b = operands(48)
    looks = []

    class Counting(torch.utils._device.DeviceContext):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            looks.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    Counting.__name__ = "DeviceContext"
    with Counting("meta"):
        for _ in range(3):
            assert tunekit.matmul(a, b).device.type == "cpu"
    assert launches == [CONFIG]
    assert len(looks) <= 3


def test_a_mode_that_watches_functions_sees_torchs_product(pretend_gpu, launches):
    seen = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    a, b = torch.randn(4, 8), torch.randn(8, 16)
    with Watching():
        tunekit.matmul(a, b)
    assert torch.matmul in seen
    assert launches == []


def test_a_subclass_decides_for_itself(pretend_gpu):
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            result = super().__torch_function__(func, types, args, kwargs or {})
            return "loud" if func is torch.matmul else result

    assert tunekit.matmul(torch.ones(3, 4).as_subclass(Loud), torch.ones(4, 5)) == "loud"
    assert tunekit.matmul(torch.ones(3, 4), torch.ones(4, 5).as_subclass(Loud)) == "loud"


def test_the_kinds_remembered_are_bounded(pretend_gpu, launches, monkeypatch):
    monkeypatch.setattr(policies, "MOST_KINDS", 10)
    monkeypatch.setattr(serving, "MOST_SERVED", 20)
    for m in range(1, 50):
        a, b = operands(m)
        with tunekit.policy(on_miss="fallback", backend="triton"):
            tunekit.matmul(a, b)
            tunekit.matmul(a, b, out=a.new_empty(m, b.shape[1]))
            tunekit.matmul(a, b, out_dtype=torch.float32)
            tunekit.linear(a, b.t())
            assert len(dispatch.current().prepared) <= 10
        assert len(products.STATE.served) <= 20


MULTIPLIED = {
    "matmul": tunekit.matmul,
    "out": lambda a, b: tunekit.matmul(a, b, out=a.new_empty(a.shape[0], b.shape[1])),
    "out_dtype": lambda a, b: tunekit.matmul(a, b, out_dtype=torch.float32),
    "linear": lambda a, b: tunekit.linear(a, b.t()),
}


@pytest.mark.parametrize("how", MULTIPLIED)
def test_what_was_chosen_before_a_reload_is_gone_though_it_was_prepared_after_it(
    how, pretend_gpu, launches, monkeypatch
):
    reloads, serve = [tunekit.reload], serving.State.serve

    def served(self, *of):
        found = serve(self, *of)
        while reloads:  # as another thread may, right after the choice
            reloads.pop()()
        return found

    monkeypatch.setattr(serving.State, "serve", served)
    with tunekit.policy(backend="triton", on_miss="fallback"):
        MULTIPLIED[how](*operands(32))
        assert not reloads
        assert not dispatch.current().prepared
        assert not dispatch.miss_counts()  # nobody would write it to the cache
        MULTIPLIED[how](*operands(32))
        assert dispatch.current().prepared
    assert list(dispatch.miss_counts().values()) == [1]


def test_a_size_beyond_32_bits_is_torchs(pretend_gpu):
    huge = torch.ones(1, 1).expand(1 << 31, 1)  # takes no memory
    for a, b in ((huge, torch.ones(1, 1)), (huge.view(1 << 30, 2, 1), torch.ones(1, 1)),
                 (torch.ones(1, 1), huge.t())):  # fmt: skip
        found = tunekit.explain(a, b)
        assert (found.runs.value, found.why) == ("vendor", "a size passes 32 bits")


@pytest.mark.interpreted
def test_a_linear_layers_weights_may_change_in_place_and_by_assignment():
    layer, x = torch.nn.Linear(8, 4, bias=False), torch.randn(3, 8)
    for _ in range(3):
        with torch.no_grad():
            c = tunekit.matmul(x, layer.weight.t(), backend="triton", on_miss="fallback")
            torch.testing.assert_close(c, layer(x), rtol=1e-4, atol=1e-4)
            layer.weight.mul_(2)
        layer.weight.data = torch.randn(4, 8)


WITHOUT_A_GPU = """
import os, warnings
os.environ["TRITON_INTERPRET"] = "1"
import torch, tunekit
a, b = torch.randn(3, 4), torch.randn(4, 5)
assert torch.equal(tunekit.matmul(a, b), a @ b)
assert tunekit.explain(a, b).why
warnings.simplefilter("ignore")
assert torch.allclose(tunekit.matmul(a, b, backend="triton"), a @ b, atol=1e-4)
assert not torch.cuda.is_initialized()
"""


def test_a_host_without_a_gpu_multiplies_explains_and_interprets():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_GPU], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def torch_deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("torch_deterministic", "pretend_gpu")
def test_where_torch_must_be_deterministic_the_stored_config_runs_and_nothing_is_searched(
    own_cache, best_row, monkeypatch
):
    # torch fills new memory with NaN then, so what parts are summed through must not be read first
    assert torch.utils.deterministic.fill_uninitialized_memory
    a, b = torch.randn(20, 256), torch.randn(40, 256).t()
    parts = Config("pointer", 16, 32, 32, split_k=4, num_stages=2)
    with Store.open(own_cache) as store:
        store.put_device(H200)
        assert store.put_best(best_row(describe(a, b), parts))
    before = own_cache.read_bytes()
    monkeypatch.setattr("tunekit.tuner.tune", lambda *a, **k: pytest.fail("it searched"))
    results = [tunekit.matmul(a, b, on_miss="error") for _ in range(3)]
    assert dispatch.served_for(a, b).launch is not None
    assert torch.allclose(results[0], a @ b, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(results[0], one) for one in results)
    assert own_cache.read_bytes() == before
