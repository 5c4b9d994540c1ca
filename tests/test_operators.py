"""`tunekit.matmul` where torch compiles, exports or fakes it."""

from __future__ import annotations

import math

import pytest
import torch

import tunekit
from tunekit import products, serving
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe

pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.filterwarnings("ignore::tunekit.serving.MissWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def forget():
    tunekit.reload()
    torch._dynamo.reset()
    yield
    tunekit.reload()
    torch._dynamo.reset()


@pytest.fixture
def graphs():
    return []


@pytest.fixture
def compiled(graphs):
    """Compile a function whole; the graphs made are in `graphs`."""

    def keep(module, example):
        graphs.append(module)
        return module.forward

    return lambda function, **options: torch.compile(
        function, fullgraph=True, backend=keep, **options
    )


def by_triton(a, b):
    return tunekit.matmul(a, b, backend="triton")


def alike(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.fixture
def configs(monkeypatch):
    """The configs that were launched, in order."""
    seen = []
    bind = MATMUL.bind

    def noting(config, *rest):
        launch = bind(config, *rest)

        def noted(*operands):
            seen.append(config)
            launch(*operands)

        return noted

    monkeypatch.setattr(MATMUL, "bind", noting)
    return seen


def test_one_graph_serves_every_size(compiled, graphs):
    b = torch.randn(16, 8)
    multiply = compiled(by_triton)
    for m in (2, 3, 7, 64, 1023, 4096, 1):
        a = torch.randn(m, 16)
        torch._dynamo.decorators.mark_unbacked(a, 0)
        alike(multiply(a, b), a @ b)
    assert len(graphs) == 1


def test_a_dynamic_size_is_one_graph(compiled, graphs):
    b = torch.randn(16, 8)
    multiply = compiled(by_triton, dynamic=True)
    for m in (5, 2, 300):
        a = torch.randn(m, 16)
        alike(multiply(a, b), a @ b)
    assert len(graphs) == 1


def test_the_config_is_chosen_when_the_graph_runs(compiled, graphs, configs):
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    multiply = compiled(by_triton)
    chosen = [Config("pointer", 16, 16, 16, num_stages=2), Config("pointer", 32, 32, 32)]
    for config in chosen:
        with tunekit.policy(config=config):
            alike(multiply(a, b), a @ b)
    assert configs == chosen
    assert len(graphs) == 1


def test_gradients_go_through_the_compiled_graph():
    a, w = torch.randn(5, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)

    def loss(multiply):
        return lambda a, w: multiply(a, w.t()).pow(2).sum()

    traced = torch.compile(loss(by_triton), fullgraph=True, backend="aot_eager", dynamic=True)
    found = torch.autograd.grad(traced(a, w), (a, w))
    expected = torch.autograd.grad(loss(torch.matmul)(a, w), (a, w))
    for mine, theirs in zip(found, expected, strict=True):
        alike(mine, theirs)
    transformed = torch.compile(torch.func.grad(loss(by_triton)), fullgraph=True, backend="eager")
    alike(transformed(a.detach(), w.detach()), expected[0])


def _cubed(multiply, w):
    return lambda a: multiply(a, w).pow(3)


TRANSFORMED = [
    lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    lambda f, x: torch.func.grad(lambda y: torch.func.grad(lambda z: f(z).sum())(y).sum())(x),
    lambda f, x: torch.func.jvp(torch.func.grad(lambda y: f(y).sum()), (x,), (x,))[1],
    lambda f, x: torch.func.grad(lambda y: torch.func.jvp(f, (y,), (x,))[1].sum())(x),
    lambda f, x: torch.func.jvp(lambda y: torch.func.jvp(f, (x,), (y,))[1], (x,), (x,))[1],
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("transformed", TRANSFORMED)
def test_compiled_transforms_differentiate_through_every_level(transformed, backend):
    x, w = torch.rand(2, 3), torch.rand(3, 2)
    traced = torch.compile(
        lambda x, w: transformed(_cubed(by_triton, w), x), fullgraph=True, backend=backend
    )
    alike(traced(x, w), transformed(_cubed(torch.matmul, w), x))


def test_a_tangent_goes_through_the_compiled_graph(compiled):
    a, b = torch.rand(2, 3), torch.rand(3, 2)
    with torch.autograd.forward_ad.dual_level():
        result = compiled(by_triton)(torch.autograd.forward_ad.make_dual(a, 2 * a), b)
        alike(torch.autograd.forward_ad.unpack_dual(result).tangent, 2 * a @ b)


def test_a_compiled_map_is_a_product(compiled):
    a, b = torch.randn(3, 4, 16), torch.randn(16, 8)
    alike(compiled(torch.func.vmap(by_triton, (0, None)))(a, b), a @ b)


def test_the_operator_keeps_torchs_rules_for_operators():
    a, b = (torch.randn(size, requires_grad=True) for size in ((4, 16), (16, 8)))
    results = torch.library.opcheck(torch.ops.tunekit.matmul.default, (a, b, "triton", ""))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_holds_the_operator_for_every_size(strict):
    class Product(torch.nn.Module):
        def forward(self, a, b):
            return by_triton(a, b)

    b = torch.randn(16, 8)
    dynamic = ({0: torch.export.Dim.DYNAMIC}, None)
    program = torch.export.export(
        Product(), (torch.randn(4, 16), b), dynamic_shapes=dynamic, strict=strict
    )
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.tunekit.matmul.default in calls
    a = torch.randn(9, 16)
    alike(program.module()(a, b), a @ b)


def test_autocast_casts_inside_a_graph(compiled):
    a, b = torch.randn(4, 16), torch.randn(16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(by_triton)(a, b).dtype is torch.bfloat16


def test_operands_on_the_cpu_are_torchs_product_in_a_graph(compiled, graphs):
    a, b = torch.randn(4, 16), torch.randn(16, 8)
    alike(compiled(tunekit.matmul)(a, b), a @ b)
    targets = {node.target for node in graphs[0].graph.nodes if node.op == "call_function"}
    assert targets == {torch.matmul}


def test_out_is_torchs_in_a_graph(compiled):
    a, b = torch.randn(4, 16), torch.randn(16, 8)
    out = torch.empty(4, 8)
    compiled(lambda a, b, out: tunekit.matmul(a, b, out=out))(a, b, out)
    alike(out, a @ b)


def test_fake_and_meta_operands_give_shapes():
    from torch._subclasses import FakeTensorMode

    meta = tunekit.matmul(torch.empty(3, 4, 5, device="meta"), torch.empty(5, 6, device="meta"))
    assert (meta.shape, meta.device.type) == ((3, 4, 6), "meta")
    with FakeTensorMode():
        fake = tunekit.matmul(torch.empty(3, 4), torch.empty(4, 5))
        assert fake.shape == (3, 5)


def test_in_inference_mode_the_kernels_run(configs):
    with torch.inference_mode():
        a, b = torch.randn(4, 16), torch.randn(16, 8)
        alike(by_triton(a, b), a @ b)
        out = torch.empty(4, 8)
        assert tunekit.matmul(a, b, out=out, backend="triton") is out
    assert len(configs) == 2


SIZES = (1, 2, 4, 15, 16, 31, 64, 500, 4096)
"""Of 1 to 4096, which were all run once."""


def test_each_size_of_a_graph_runs_the_config_of_its_own_row(
    compiled, graphs, own_cache, best_row, monkeypatch
):
    device = KNOWN_DEVICES["sm_90"]
    monkeypatch.setattr(serving, "_device_info", lambda place, backend: device)
    monkeypatch.setattr(products, "on_gpu", lambda a: True)
    ran = []

    def bind(config, *of):
        return lambda a, b, out: (ran.append(config), out.zero_())

    monkeypatch.setattr(MATMUL, "bind", bind)
    b = torch.randn(64, 32)
    rows = {16: 16, 64: 32, 512: 64}
    with Store.open(own_cache) as store:
        store.put_device(device)
        for m, block in rows.items():
            config = Config("pointer", block, 32, 32)
            assert store.put_best(best_row(describe(torch.randn(m, 64), b), config))
    multiply = compiled(tunekit.matmul)
    for m in SIZES:
        a = torch.randn(m, 64)
        torch._dynamo.decorators.mark_unbacked(a, 0)
        ran.clear()
        result = multiply(a, b)
        expected = tunekit.explain(a, b).config
        assert ran == ([] if expected is None else [expected])
        assert result.shape == (m, 32)
        near = min(rows, key=lambda size: abs(math.log2(size / m)))
        assert (expected is None) is (abs(math.log2(near / m)) > 2)
    assert len(graphs) == 1


def test_a_subclass_decides_for_itself_in_a_graph_too():
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            func = torch.add if func is torch.matmul else func
            return super().__torch_function__(func, types, args, kwargs or {})

    a, b = torch.ones(4, 4).as_subclass(Loud), torch.ones(4, 4)
    compiled = torch.compile(
        lambda a, b: tunekit.matmul(a, b, backend="triton"), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(a, b).as_subclass(torch.Tensor), torch.full((4, 4), 2.0))
