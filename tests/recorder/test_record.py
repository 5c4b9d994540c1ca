"""`tunekit.record`: every product of a block, as the problem that `tunekit.matmul` looks up."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import tunekit
from tunekit import products
from tunekit.errors import ShapesError
from tunekit.kernels.operands import describe
from tunekit.recorder import Record, Recorder
from tunekit.shapes import load_shapes


def sizes(record):
    """Return what a record holds as (batch, m, n, k) with its count."""
    return {
        (one.problem.batch, one.problem.m, one.problem.n, one.problem.k): one.count
        for one in record.products
    }


def matrix(rows, columns, kind="n", dtype=torch.float32):
    if kind == "n":
        return torch.randn(rows, columns).to(dtype)
    return torch.randn(columns, rows).to(dtype).t()


CALLS = {
    "mm": (lambda: torch.mm(matrix(3, 4), matrix(4, 5)), (1, 3, 5, 4)),
    "mm by name": (lambda: torch.mm(input=matrix(3, 4), mat2=matrix(4, 5)), (1, 3, 5, 4)),
    "mm into": (
        lambda: torch.mm(matrix(3, 4), matrix(4, 5), out=torch.empty(3, 5)),
        (1, 3, 5, 4),
    ),
    "addmm": (lambda: torch.addmm(matrix(3, 5), matrix(3, 4), matrix(4, 5)), (1, 3, 5, 4)),
    "addmm in place": (lambda: matrix(3, 5).addmm_(matrix(3, 4), matrix(4, 5)), (1, 3, 5, 4)),
    "bmm": (lambda: torch.bmm(torch.randn(2, 3, 4), torch.randn(2, 4, 5)), (2, 3, 5, 4)),
    "baddbmm": (
        lambda: torch.baddbmm(
            torch.randn(2, 3, 5), batch1=torch.randn(2, 3, 4), batch2=torch.randn(2, 4, 5)
        ),
        (2, 3, 5, 4),
    ),
    "matmul N-D": (lambda: torch.randn(2, 3, 4) @ torch.randn(4, 5), (1, 6, 5, 4)),
    "matmul batched": (lambda: torch.randn(2, 3, 4) @ torch.randn(2, 4, 5), (2, 3, 5, 4)),
    "matrix times vector": (lambda: torch.randn(3, 4) @ torch.randn(4), (1, 3, 1, 4)),
    "vector times matrix": (lambda: torch.randn(4) @ torch.randn(4, 5), (1, 1, 5, 4)),
    "addmv": (lambda: torch.addmv(torch.randn(3), matrix(3, 4), torch.randn(4)), (1, 3, 1, 4)),
    "linear": (
        lambda: functional.linear(torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5)),
        (1, 6, 5, 4),
    ),
    "einsum": (
        lambda: torch.einsum("bhij,bhjk->bhik", torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5, 6)),
        (6, 4, 6, 5),
    ),
    "tensordot": (lambda: torch.tensordot(torch.randn(3, 4), torch.randn(4, 5), 1), (1, 3, 5, 4)),
    "tunekit": (lambda: tunekit.matmul(matrix(3, 4), matrix(4, 5)), (1, 3, 5, 4)),
    "tunekit's linear": (
        lambda: tunekit.linear(matrix(3, 4), matrix(5, 4), torch.randn(5)),
        (1, 3, 5, 4),
    ),
}


@pytest.mark.parametrize("mode", ["plain", "inference", "gradients"])
@pytest.mark.parametrize("call", CALLS)
def test_every_way_to_multiply_is_seen_once(call, mode):
    run, expected = CALLS[call]
    torch.manual_seed(0)
    with torch.no_grad():
        undisturbed = run()
    torch.manual_seed(0)
    around = {
        "plain": torch.no_grad,
        "inference": torch.inference_mode,
        "gradients": torch.enable_grad,
    }[mode]
    with tunekit.record() as record, around():
        result = run()
    assert sizes(record) == {expected: 1}
    assert torch.equal(result, undisturbed)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sizes", [(16, 32, 64), (1, 32, 64), (16, 1, 64), (15, 33, 7)])
def test_the_problem_is_what_matmul_looks_up(layout, dtype, sizes):
    m, n, k = sizes
    a, b = matrix(m, k, layout[0], dtype), matrix(k, n, layout[1], dtype)
    with tunekit.record() as record:
        torch.mm(a, b)
    assert [one.problem for one in record.products] == [describe(a, b)]


def test_alignment_is_that_of_the_operands():
    wide = torch.randn(64, 72).half()
    with tunekit.record() as record:
        torch.mm(wide[:, :64], wide[:, 8:])
        torch.mm(wide[:, 1:65], wide[:, 8:])
        torch.bmm(torch.randn(2 * 8 * 8 + 2)[1:-1].view(2, 8, 8), torch.randn(2, 8, 8))
        torch.bmm(torch.randn(2 * 65)[:].as_strided((2, 8, 8), (65, 8, 1)), torch.randn(2, 8, 8))
    found = {(one.problem.m, one.problem.batch, one.problem.aligned) for one in record.products}
    assert found == {(64, 1, True), (64, 1, False), (8, 2, False)}


def test_gradients_are_seen_and_said_to_be_such():
    made = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    with tunekit.record() as record:
        made(torch.randn(32, 8, requires_grad=True)).sum().backward()
    names = {(p.problem.m, p.problem.n, p.problem.k): p.name for p in record.products}
    assert names == {
        (32, 16, 8): "*",
        (32, 4, 16): "*",
        (4, 16, 32): "backward",
        (32, 16, 4): "backward",
        (16, 8, 32): "backward",
        (32, 8, 16): "backward",
    }


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(x)) + x @ x.new_ones(8, 8)


def test_names_are_those_of_the_modules_with_stars_for_their_numbers():
    made = torch.nn.Sequential(*[Layer() for _ in range(12)])
    wrapped = torch.nn.ModuleDict({"layers": made, "v2": torch.nn.Linear(8, 3)})
    wrapped.forward = lambda x: wrapped["v2"](wrapped["layers"](x))
    with tunekit.record() as record:
        wrapped(torch.randn(5, 8))
        torch.randn(3, 4) @ torch.randn(4, 5)
    names = {(p.problem.n, p.problem.k): (p.name, p.count) for p in record.products}
    assert names == {
        (16, 8): ("layers.*.up", 12),
        (8, 16): ("layers.*.down", 12),
        (8, 8): ("layers.*", 12),
        (3, 8): ("v2", 1),
        (5, 4): ("", 1),
    }


def test_several_names_of_a_problem_are_one_short_line():
    record = Record()
    problem = describe(torch.randn(4, 4), torch.randn(4, 4))
    for number, name in enumerate("abcde"):
        record.add(problem, f"layer.{name}" + "x" * 80, count=number + 1)
    (one,) = record.products
    assert one.count == 15
    assert one.name.startswith("layer.exxx")
    assert len(one.name) <= 200
    assert one.name.endswith("...")


def test_a_module_that_raises_leaves_no_name_behind():
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise ValueError

    with tunekit.record() as record:
        with pytest.raises(ValueError):
            Broken()(torch.randn(2))
        torch.mm(torch.randn(3, 4), torch.randn(4, 5))
    assert [one.name for one in record.products] == [""]


def test_nothing_needs_memory():
    def run(device):
        layer = torch.nn.Linear(4096, 6144, dtype=torch.bfloat16, device=device)
        layer(torch.empty(16, 4096, dtype=torch.bfloat16, device=device)).square().sum().backward()

    with tunekit.record() as meta:
        run("meta")
    with tunekit.record() as fake, FakeTensorMode():
        run("cuda" if torch.cuda.is_available() else "cpu")
    with FakeTensorMode(), tunekit.record() as inside:
        run("cpu")
    assert [str(one.problem) for one in meta.products] == [
        "16x6144x4096 bfloat16 nt",
        "6144x4096x16 bfloat16 tn",
    ]
    assert meta.products == fake.products == inside.products


def test_a_fake_gpu_is_recorded_where_there_is_none():
    with tunekit.record() as record, FakeTensorMode():
        x = torch.empty(8, 64, dtype=torch.float16, device="cuda")
        tunekit.matmul(x, torch.empty(32, 64, dtype=torch.float16, device="cuda").t())
    assert [str(one.problem) for one in record.products] == ["8x32x64 float16 nt"]


def test_eight_bit_products_say_what_they_are():
    a, b = torch.ones(32, 32, dtype=torch.int8), torch.ones(32, 48, dtype=torch.int8)
    float8 = torch.float8_e4m3fn
    x, w = torch.ones(32, 64).to(float8), torch.ones(48, 64).to(float8).t()
    one, rows, columns = torch.tensor(1.0), torch.ones(32, 1), torch.ones(1, 48)
    meta = [tensor.to("meta") for tensor in (x, w, rows, columns)]
    with tunekit.record() as record:
        torch._int_mm(a, b)
        torch._scaled_mm(x, w, one, one, out_dtype=torch.bfloat16)
        torch._scaled_mm(*meta, out_dtype=torch.bfloat16)
    assert {str(one.problem) for one in record.products} == {
        "32x48x32 int8 nn -> int32",
        "32x48x64 float8_e4m3fn nt -> bfloat16 scaled per tensor",
        "32x48x64 float8_e4m3fn nt -> bfloat16 scaled per row",
    }


def test_what_is_no_problem_of_tunekits_is_counted_by_what_it_is():
    with tunekit.record() as record:
        for _ in range(3):
            torch.mm(torch.randn(3, 4).double(), torch.randn(4, 5).double())
        torch.mm(torch.ones(3, 4).long(), torch.ones(4, 5).long())
        torch.mm(torch.randn(3, 0), torch.randn(0, 5))
    assert record.products == []
    assert record.skipped == {"aten.mm in float64": 3, "aten.mm in int64": 1}


def test_sparse_products_run_and_are_told_of():
    with tunekit.record() as record:
        found = torch.eye(8).to_sparse_csr() @ torch.ones(8, 4)
    assert torch.equal(found, torch.ones(8, 4))
    assert record.products == []
    assert record.skipped == {"aten.mm of sparse_csr": 1}


def test_of_a_sharded_tensor_the_shards_are_seen_and_no_rehearsal(tmp_path):
    dist = torch.distributed
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        with tunekit.record() as record:
            a = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
            product = a @ distribute_tensor(torch.ones(4, 6), mesh, [Shard(1)])
            assert torch.equal(product.full_tensor(), torch.full((8, 6), 4.0))
        assert sizes(record) == {(1, 8, 6, 4): 1}
    finally:
        dist.destroy_process_group()


def test_what_is_exported_is_counted_when_it_runs():
    with tunekit.record() as record:
        exported = torch.export.export(torch.nn.Linear(8, 16), (torch.randn(4, 8),))
        assert record.products == []
        exported.module()(torch.randn(4, 8))
    assert sizes(record) == {(1, 4, 16, 8): 1}


def test_autocast_is_recorded_as_what_it_casts_to():
    with tunekit.record() as record, torch.autocast("cpu", dtype=torch.bfloat16):
        torch.nn.Linear(8, 16)(torch.randn(4, 8))
    assert [one.problem.dtype for one in record.products] == ["bfloat16"]


def test_the_order_is_by_work_and_counts_add_up():
    with tunekit.record() as record:
        for _ in range(50):
            torch.randn(8, 8) @ torch.randn(8, 8)
        torch.randn(32, 8) @ torch.randn(8, 32)
    assert [(one.count, one.flops) for one in record.products] == [(50, 51200), (1, 16384)]


def test_functional_transforms_are_seen():
    def f(x, w):
        return (x @ w).sum()

    with tunekit.record() as record:
        torch.func.grad(f, argnums=1)(torch.randn(3, 4), torch.randn(4, 5))
        torch.func.vmap(torch.mm)(torch.randn(2, 3, 4), torch.randn(2, 4, 7))
    assert sizes(record) == {(1, 3, 5, 4): 1, (1, 4, 5, 3): 1, (2, 3, 7, 4): 1}


class Halves(torch.Tensor):
    """Two tensors side by side, as a shard or a quantized weight is more than one inside."""

    @staticmethod
    def __new__(cls, left, right):
        shape = (left.shape[0], left.shape[1] + right.shape[1])
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=left.dtype)

    def __init__(self, left, right):
        self.parts = left, right

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert func is torch.ops.aten.mm.default
        a, b = args
        return cls(*(torch.mm(a, part) for part in b.parts))


def test_of_a_wrapper_the_products_inside_are_seen():
    weight = Halves(torch.randn(4, 5), torch.randn(4, 6))
    with tunekit.record() as record:
        result = torch.mm(torch.randn(3, 4), weight)
    assert result.shape == (3, 11)
    assert sizes(record) == {(1, 3, 5, 4): 1, (1, 3, 6, 4): 1}


@pytest.mark.filterwarnings("ignore:Using .torch.compile.module")
@pytest.mark.parametrize("before", [False, True], ids=["compiled inside", "compiled before"])
def test_compiled_code_runs_uncompiled_and_is_seen(before):
    torch._dynamo.reset()
    made = torch.compile(torch.nn.Linear(8, 16), backend="aot_eager", fullgraph=True)
    if before:
        made(torch.randn(4, 8))
    with tunekit.record() as record:
        made(torch.randn(4, 8))
        made(torch.randn(4, 8))
    assert sizes(record) == {(1, 4, 16, 8): 2}


def test_products_of_our_own_in_compiled_code_are_seen(monkeypatch):
    monkeypatch.setattr(products, "on_gpu", lambda a: True)
    torch._dynamo.reset()
    made = torch.compile(tunekit.linear, backend="aot_eager", fullgraph=True)
    operands = torch.randn(2, 4, 8), torch.randn(16, 8)
    graph = torch.fx.symbolic_trace(lambda a, b: torch.ops.tunekit.matmul(a, b, "", ""))
    expected = operands[0] @ operands[1].t()
    with tunekit.record() as record:
        found = [made(*operands), graph(operands[0], operands[1].t())]
    assert sizes(record) == {(1, 8, 16, 8): 2}
    assert all(torch.allclose(one, expected, atol=1e-5) for one in found)


def test_another_thread_is_seen_only_with_a_recorder_of_its_own():
    with tunekit.record() as record:
        thread = threading.Thread(target=torch.mm, args=(torch.randn(3, 4), torch.randn(4, 5)))
        thread.start()
        thread.join()
    assert record.products == []

    def work():
        with Recorder(record):
            for _ in range(20):
                torch.mm(torch.randn(3, 4), torch.randn(4, 5))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes(record) == {(1, 3, 5, 4): 160}


def test_after_the_block_nothing_is_watched():
    with tunekit.record() as record:
        pass
    torch.mm(torch.randn(3, 4), torch.randn(4, 5))
    assert record.products == []
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks


def test_recording_measures_nothing_and_looks_nothing_up(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a row was looked up")

    monkeypatch.setattr(products.STATE, "serve", refuse)
    with tunekit.record() as record:
        tunekit.matmul(torch.randn(3, 4), torch.randn(4, 5))
    assert len(record.products) == 1


def test_what_another_process_saw_is_added():
    with tunekit.record() as record:
        torch.nn.Linear(8, 16)(torch.randn(4, 8))
        torch.mm(torch.randn(3, 4).double(), torch.randn(4, 5).double())
    total = Record()
    for _ in range(2):
        total.update(record.to_dict())
    assert [(one.problem, one.count) for one in total.products] == [
        (one.problem, 2 * one.count) for one in record.products
    ]
    assert total.skipped == {"aten.mm in float64": 2}


def test_a_block_that_raises_is_written_too(tmp_path):
    path = tmp_path / "shapes.yaml"

    def fail():
        with tunekit.record(path):
            torch.mm(torch.randn(3, 4), torch.randn(4, 5))
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    assert [(s.problem.m, s.count) for s in load_shapes(path)] == [(3, 1)]


def test_a_file_that_cannot_be_added_to_is_an_error_before_anything_runs(tmp_path):
    path, ran = tmp_path / "shapes.yaml", []
    path.write_text("shapes: [[1, 2]]\n")

    def work(where):
        with tunekit.record(where):
            ran.append(True)

    with pytest.raises(ShapesError, match=r"shapes\.yaml:1"):
        work(path)
    with pytest.raises(ShapesError, match="no folder"):
        work(tmp_path / "missing" / "shapes.yaml")
    assert ran == []


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_attention_is_made_of_is_left_to_the_kernel_that_fuses_it(device):
    query, weight = torch.randn(1, 2, 4, 8, device=device), torch.randn(8, 8, device=device)
    mask = torch.ones(4, 4, dtype=torch.bool, device=device).tril()
    with tunekit.record() as seen:
        attended = functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
        attended @ weight
    assert sizes(seen) == {(1, 8, 8, 8): 1}
    with pytest.raises(RuntimeError), tunekit.record() as seen:
        functional.scaled_dot_product_attention(query, query[..., :3], query)
    with tunekit.record() as seen:  # an attention that failed is over too
        query.reshape(8, 8) @ weight
    assert sizes(seen) == {(1, 8, 8, 8): 1}
