"""`tunekit.matmul` on a GPU: graphs, streams, devices, and every dtype. All need one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

import tunekit
from tunekit import dispatch
from tunekit.config import Config
from tunekit.device import detect
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::tunekit.serving.MissWarning"),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

VARIANTS = ["pointer", "tma", "persistent", "streamk", "composite", "swapped", "gemv", "gluon"]


@pytest.fixture(autouse=True)
def forget():
    tunekit.reload()
    yield
    tunekit.reload()


def operands(m=512, k=1024, n=768, dtype=torch.bfloat16, device="cuda"):
    a = torch.randn(m, k, device=device, dtype=dtype)
    return a, torch.randn(n, k, device=device, dtype=dtype).t()


def alike(found, a, b):
    expected = a.double() @ b.double()
    scale = a.double().norm(dim=-1)[..., None] * b.double().norm(dim=-2)[..., None, :]
    slack = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[found.dtype]
    assert ((found.double() - expected).abs() <= slack * scale + 1e-6).all()


def config_of(variant, a, b, *, split=None):
    """Return the first legal config of a variant, or skip where it has none."""
    problem, device = describe(a, b), detect(a.device.index or 0)
    if variant not in {one.name for one in MATMUL.variants}:
        pytest.skip(f"this Triton has no {variant}")
    for config in MATMUL.variant(variant).space.candidates():
        fits = split is None or (config.split_k > 1) is split
        if fits and MATMUL.violation(config, problem, device) is None:
            return config
    pytest.skip(f"{variant} has no config for {problem} here")


@pytest.mark.parametrize("variant", [*VARIANTS, "padded"])
def test_a_prepared_launch_is_right_at_every_address(variant):
    shapes = {"gemv": (1, 1024, 768), "swapped": (16, 1024, 768), "padded": (512, 1023, 768)}
    m, k, n = shapes.get(variant, (512, 1024, 768))
    a, b = operands(m, k, n)
    with tunekit.policy(config=config_of(variant, a, b)):
        for _ in range(3):
            a, b = operands(m, k, n)
            alike(tunekit.matmul(a, b), a, b)
        results = [tunekit.matmul(a, b) for _ in range(3)]
    assert all(torch.equal(one, results[0]) for one in results)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_layout_and_its_gradients_are_torchs(dtype, layout):
    a = torch.randn(96, 64, device="cuda", dtype=dtype)
    b = torch.randn(64, 80, device="cuda", dtype=dtype)
    a = a.mT.contiguous().mT if layout[0] == "t" else a
    b = b.mT.contiguous().mT if layout[1] == "t" else b
    a, b = a.requires_grad_(), b.requires_grad_()
    found = tunekit.matmul(a, b, backend="triton")
    alike(found.detach(), a.detach(), b.detach())
    grad = torch.randn_like(found)
    mine = torch.autograd.grad(found, (a, b), grad)
    alike(mine[0], grad, b.detach().mT)
    alike(mine[1], a.detach().mT, grad)


@pytest.mark.parametrize("split", [False, True])
def test_a_capture_right_after_a_cold_miss_replays(split):
    a, b = operands(64, 4096, 512)
    with tunekit.policy(config=config_of("pointer", a, b, split=split)):
        tunekit.matmul(a, b)  # cold
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = tunekit.matmul(a, b)
        for _ in range(3):
            a.copy_(torch.randn_like(a))
            graph.replay()
            eager = tunekit.matmul(a, b)  # in between, with memory of its own
            torch.cuda.synchronize()
            alike(captured, a, b)
            assert torch.equal(captured, eager)


def test_a_capture_may_be_the_cold_call_itself():
    a, b = operands(64, 4096, 512)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tunekit.matmul(a, b, backend="triton")
    graph.replay()
    torch.cuda.synchronize()
    alike(captured, a, b)


def test_replays_and_eager_calls_on_two_streams_share_no_workspace():
    a, b = operands(64, 8192, 512)
    expected = None
    with tunekit.policy(config=config_of("pointer", a, b, split=True)):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = tunekit.matmul(a, b)
        streams = [torch.cuda.Stream() for _ in range(3)]
        torch.cuda.synchronize()
        results = []
        for number in range(60):
            with torch.cuda.stream(streams[number % 3]):
                results.append(tunekit.matmul(a, b))
            graph.replay()
        torch.cuda.synchronize()
        expected = results[0]
    alike(expected, a, b)
    assert all(torch.equal(one, expected) for one in [*results, captured])


def test_nothing_synchronises():
    a, b = operands()
    with tunekit.policy(config=config_of("pointer", a, b, split=True)):
        tunekit.matmul(a, b)
        torch.cuda.set_sync_debug_mode("error")
        try:
            tunekit.matmul(a, b)
            with torch.cuda.stream(torch.cuda.Stream()):
                tunekit.matmul(a, b)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_threads_and_streams_are_right_from_the_cold():
    a, b = operands()
    barrier, results = threading.Barrier(8), []

    def call():
        barrier.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            results.append(tunekit.matmul(a, b, backend="triton"))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(results) == 8
    for one in results:
        alike(one, a, b)


def test_a_compiled_layer_is_right_for_every_size_with_one_graph():
    torch._dynamo.reset()
    w = torch.randn(256, 128, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(
        lambda x: torch.relu(tunekit.matmul(x, w.t(), backend="triton")),
        fullgraph=True,
        dynamic=True,
    )
    counters = torch._dynamo.utils.counters
    counters.clear()
    for m in (2, 3, 17, 64, 1000, 4096):
        x = torch.randn(m, 128, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(compiled(x), torch.relu(x @ w.t()), rtol=2e-2, atol=2e-1)
    assert counters["stats"]["unique_graphs"] == 1


def test_reduced_overhead_mode_captures_the_operator():
    torch._dynamo.reset()
    a, b = operands(64, 512, 256)
    compiled = torch.compile(
        lambda a, b: tunekit.matmul(a, b, backend="triton") * 2, mode="reduce-overhead",
        fullgraph=True,
    )  # fmt: skip
    for _ in range(4):
        found = compiled(a, b).clone()
        torch.testing.assert_close(found, (a @ b) * 2, rtol=2e-2, atol=2e-1)


@two_gpus
def test_a_second_gpu_is_used_where_its_operands_are():
    first = torch.cuda.memory_allocated(0)
    a, b = operands(device="cuda:1")
    c = tunekit.matmul(a, b, backend="triton")
    assert c.device == a.device
    alike(c, a, b)
    graph = torch.cuda.CUDAGraph()
    # torch keeps one stream to capture on, of the GPU that captured first.
    with torch.cuda.device(1), torch.cuda.graph(graph, stream=torch.cuda.Stream(1)):
        captured = tunekit.matmul(a, b, backend="triton")
    with torch.cuda.device(1):
        graph.replay()
        torch.cuda.synchronize()
    alike(captured, a, b)
    assert torch.cuda.memory_allocated(0) == first
    assert torch.cuda.current_device() == 0


@two_gpus
def test_operands_on_two_gpus_are_torchs_error():
    a, b = operands()
    with pytest.raises(RuntimeError):
        tunekit.matmul(a, b.to("cuda:1"))


FORKED = """
import os, torch, tunekit
import tunekit.dispatch, tunekit.kernels.matmul_family
assert not torch.cuda.is_initialized()
child = os.fork()
a = torch.randn(64, 64, device="cuda").half()
c = tunekit.matmul(a, a, backend="triton", on_miss="fallback")
right = torch.allclose(c, a @ a, rtol=1e-2, atol=1e-1)
if child == 0:
    os._exit(0 if right else 1)
assert right and os.waitpid(child, 0)[1] == 0
"""


def test_a_process_forked_before_first_use_multiplies_and_so_does_its_parent():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True,
                          timeout=200, check=False, env=os.environ)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_without_a_row_torch_multiplies_and_it_is_counted():
    a, b = operands()
    assert torch.equal(tunekit.matmul(a, b), torch.matmul(a, b))
    assert list(dispatch.miss_counts().values()) == [1]


def test_autocast_runs_the_kernels_in_its_dtype():
    a, b = operands(dtype=torch.float32)
    pinned = Config("pointer", 64, 64, 32)
    with torch.autocast("cuda", torch.bfloat16), tunekit.policy(config=pinned):
        c = tunekit.matmul(a, b)
    assert c.dtype is torch.bfloat16
    alike(c, a.bfloat16(), b.bfloat16())
