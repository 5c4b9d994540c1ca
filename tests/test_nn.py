"""`tunekit.linear`, its module and `replace_linear`: what torch's do, by tuned kernels.

Operands on the CPU stand for an H200's where kernels are to run, in Triton's interpreter.
"""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings

import pytest
import torch
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm

import tunekit
from tunekit import dispatch, nn, products
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import MissError, ProblemError
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe
from tunekit.key import TuningKey
from tunekit.trial import Best, Choice, Measurement, Provenance

H200 = KNOWN_DEVICES["sm_90"]
pytestmark = [
    pytest.mark.filterwarnings("ignore::tunekit.serving.MissWarning"),
    pytest.mark.usefixtures("forget"),
]


@pytest.fixture
def pretend_gpu(pretend_gpu, monkeypatch):
    """Let operands on the CPU, and none else, stand for an H200's."""
    monkeypatch.setattr(products, "on_gpu", lambda a: a.device.type == "cpu")


@pytest.fixture
def launches(monkeypatch):
    """Collect the operands of each launch of a tuned kernel."""
    seen: list[tuple[torch.Size, torch.Size]] = []
    bind = MATMUL.bind

    def counting(*arguments):
        launch = bind(*arguments)

        def counted(a, b, out):
            seen.append((a.shape, b.shape))
            launch(a, b, out)

        return counted

    monkeypatch.setattr(MATMUL, "bind", counting)
    return seen


def tune(location, x, weight, *, choice=Choice.TRITON):
    """Put a row for one product into the cache."""
    times = Measurement(10.0, 9.0, 11.0, 9.0, 11.0, 9.0, 21, "test", 0.5, final=True)
    made = Provenance(
        MATMUL.fingerprint("pointer"), "test", "0", "3", "2", "1", "GPU", "2026-01-01T00:00:00Z"
    )
    key = TuningKey.of(describe(x, weight.t()), H200.slug)
    config = Config("pointer", 32, 32, 32, num_warps=4, num_stages=2)
    with Store.open(location) as store:
        store.put_device(H200)
        assert store.put_best(Best(key, choice, config, times, times, 10, 100, made))


def layer(n=48, k=64, *, bias=True, dtype=torch.float16):
    made = torch.nn.Linear(k, n, bias=bias, dtype=dtype)
    return made.requires_grad_(False)


def close(found, expected):
    return found.shape == expected.shape and torch.allclose(
        found.float(), expected.float(), rtol=1e-2, atol=1e-2
    )


CASES = {
    "1-D": lambda: (torch.randn(8), torch.randn(5, 8), torch.randn(5)),
    "2-D": lambda: (torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)),
    "N-D": lambda: (torch.randn(2, 3, 4, 8), torch.randn(5, 8), torch.randn(5)),
    "no bias": lambda: (torch.randn(3, 8), torch.randn(5, 8), None),
    "weight 1-D": lambda: (torch.randn(3, 8), torch.randn(8), None),
    "no rows": lambda: (torch.randn(0, 8), torch.randn(5, 8), torch.randn(5)),
    "nothing to sum": lambda: (torch.randn(3, 0), torch.randn(5, 0), torch.randn(5)),
    "no columns": lambda: (torch.randn(3, 8), torch.randn(0, 8), torch.randn(0)),
    "strided": lambda: (torch.randn(8, 6).t()[::2], torch.randn(8, 5).t(), torch.randn(10)[::2]),
    "bias of one": lambda: (torch.randn(3, 8), torch.randn(5, 8), torch.randn(1)),
    "float64": lambda: tuple(torch.randn(*s).double() for s in ((3, 8), (5, 8), (5,))),
    "sparse weight": lambda: (torch.randn(3, 8), torch.eye(5, 8).to_sparse(), None),
    "bfloat16": lambda: tuple(torch.randn(*s).bfloat16() for s in ((3, 8), (5, 8), (5,))),
    "complex": lambda: tuple(torch.randn(*s).cfloat() for s in ((3, 8), (5, 8), (5,))),
    "meta": lambda: tuple(torch.randn(*s, device="meta") for s in ((3, 8), (5, 8), (5,))),
}


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "as on a gpu"])
@pytest.mark.parametrize("case", CASES)
def test_every_input_gives_what_torch_gives(case, gpu, request):
    if gpu:
        request.getfixturevalue("pretend_gpu")
    operands = CASES[case]()
    expected = functional.linear(*operands)
    found = tunekit.linear(*operands)
    assert found.dtype == expected.dtype
    assert found.device == expected.device
    assert found.shape == expected.shape
    if expected.device.type != "meta":
        assert torch.allclose(found, expected, rtol=1e-2, atol=1e-2 if case == "bfloat16" else 1e-5)


def test_a_nested_input_is_torchs(pretend_gpu):
    parts, weight = [torch.randn(2, 8), torch.randn(3, 8)], torch.randn(5, 8)
    found = tunekit.linear(torch.nested.nested_tensor(parts), weight)
    for mine, part in zip(found.unbind(), parts, strict=True):
        torch.testing.assert_close(mine, functional.linear(part, weight))


WRONG = {
    "features": lambda: (torch.randn(3, 7), torch.randn(5, 8), None),
    "features of a vector": lambda: (torch.randn(7), torch.randn(5, 8), None),
    "a scalar": lambda: (torch.tensor(1.0), torch.randn(5, 8), None),
    "weight 3-D": lambda: (torch.randn(3, 8), torch.randn(2, 5, 8), None),
    "weight 1-D with bias": lambda: (torch.randn(3, 8), torch.randn(8), torch.tensor(2.0)),
    "dtypes": lambda: (torch.randn(3, 8), torch.randn(5, 8).half(), None),
    "bias dtype": lambda: (torch.randn(3, 8), torch.randn(5, 8), torch.randn(5).double()),
    "bias size": lambda: (torch.randn(3, 8), torch.randn(5, 8), torch.randn(4)),
    "no tensor": lambda: ([[1.0]], torch.randn(5, 1), None),
    "no weight": lambda: (torch.randn(3, 8), None, None),
    "boolean": lambda: (torch.ones(3, 8).bool(), torch.ones(5, 8).bool(), None),
}


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "as on a gpu"])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_raises_what_torch_raises(case, gpu, request):
    if gpu:
        request.getfixturevalue("pretend_gpu")
    operands = WRONG[case]()
    with pytest.raises(Exception) as theirs:
        functional.linear(*operands)
    with pytest.raises(type(theirs.value)) as ours:
        tunekit.linear(*operands)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(16, 64), (2, 8, 64), (16, 1, 64)])
def test_a_tuned_layer_runs_the_kernel(pretend_gpu, own_cache, launches, shape, bias):
    made = layer(bias=bias)
    tune(own_cache, torch.empty(16, 64).half(), made.weight)
    x = torch.randn(shape).half()
    found = tunekit.linear(x, made.weight, made.bias)
    assert len(launches) == 1
    assert close(found, functional.linear(x, made.weight, made.bias))


def test_where_the_vendor_serves_the_result_is_torchs_own_to_the_bit(
    pretend_gpu, own_cache, launches
):
    made, x = layer(dtype=torch.bfloat16), torch.randn(16, 64).bfloat16()
    tune(own_cache, x, made.weight, choice=Choice.VENDOR)
    expected = functional.linear(x, made.weight, made.bias)
    for _ in range(3):  # the first call, which decides, is no other than the later ones
        assert torch.equal(tunekit.linear(x, made.weight, made.bias), expected)
    assert launches == []


def test_each_call_of_a_tuned_layer_gives_the_same_bits(pretend_gpu, own_cache, launches):
    made, x = layer(), torch.randn(16, 64).half()
    tune(own_cache, x, made.weight)
    results = [tunekit.linear(x, made.weight, made.bias) for _ in range(3)]
    assert len(launches) == 3
    assert all(torch.equal(one, results[0]) for one in results)


def test_an_untuned_layer_warns_once_and_names_the_command(pretend_gpu):
    made, x = layer(), torch.randn(16, 64).half()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", dispatch.MissWarning)
        for _ in range(3):
            tunekit.linear(x, made.weight, made.bias)
    assert len(caught) == 1
    assert "tunekit tune --shape 16,48,64,float16,nt" in str(caught[0].message)


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_are_torchs(pretend_gpu, bias):
    made = layer(bias=bias, dtype=torch.float32).requires_grad_(True)
    parameters = list(made.parameters())
    x = torch.randn(2, 8, 64, requires_grad=True)
    tunekit.linear(x, made.weight, made.bias).square().sum().backward()
    found = [x.grad, *(p.grad for p in parameters)]
    x.grad = None
    made.zero_grad()
    functional.linear(x, made.weight, made.bias).square().sum().backward()
    for one, expected in zip(found, [x.grad, *(p.grad for p in parameters)], strict=True):
        assert torch.allclose(one, expected, rtol=1e-4, atol=1e-4)


def test_functional_transforms_see_through_it(pretend_gpu):
    weight, bias = torch.randn(5, 8), torch.randn(5)
    x = torch.randn(4, 3, 8)

    def loss(call):
        return lambda w, b, x: call(x, w, b).square().sum()

    for transform in (
        lambda call: torch.func.grad(loss(call), argnums=(0, 1))(weight, bias, x),
        lambda call: torch.func.vmap(call, in_dims=(0, None, None))(x, weight, bias),
        lambda call: torch.func.vmap(call, in_dims=(None, None, 0))(x, weight, torch.randn(2, 5)),
        lambda call: torch.func.vmap(torch.func.grad(loss(call)), (None, None, 0))(weight, bias, x),
        lambda call: torch.func.jvp(lambda x: call(x, weight, bias), (x,), (x,)),
    ):
        torch.manual_seed(0)
        expected = transform(functional.linear)
        torch.manual_seed(0)
        torch.testing.assert_close(transform(tunekit.linear), expected, rtol=1e-4, atol=1e-4)


def test_a_gradient_function_compiles(pretend_gpu):
    def loss(weight, bias, x):
        return tunekit.linear(x, weight, bias).square().sum()

    operands = torch.randn(5, 8), torch.randn(5), torch.randn(4, 8)
    torch._dynamo.reset()
    compiled = torch.compile(torch.func.grad(loss, argnums=(0, 1)), backend="eager")
    expected = torch.func.grad(loss, argnums=(0, 1))(*operands)
    torch.testing.assert_close(compiled(*operands), expected, rtol=1e-4, atol=1e-4)


def test_any_number_of_rows_is_served_right_by_what_is_tuned(pretend_gpu, own_cache, launches):
    made = tunekit.nn.Linear(64, 48, dtype=torch.float16).requires_grad_(False)
    tune(own_cache, torch.empty(16, 64).half(), made.weight)
    for rows in (1, 2, 7, 16, 33, 64, 1000):
        x = torch.randn(rows, 64).half()
        assert close(made(x), functional.linear(x, made.weight, made.bias))
    assert 0 < len(launches) < 7  # those near 16 by its row, the others by the vendor


def test_autocast_gives_torchs_dtype_and_its_bits(pretend_gpu):
    made, x = layer(dtype=torch.float32), torch.randn(16, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = functional.linear(x, made.weight, made.bias)
        found = tunekit.linear(x, made.weight, made.bias)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)


def test_what_is_cast_already_stays_with_the_kernels_dtype_under_autocast(pretend_gpu):
    made, x = layer(dtype=torch.bfloat16), torch.randn(16, 64).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = tunekit.linear(x, made.weight, made.bias)
        expected = functional.linear(x, made.weight, made.bias)
    assert found.dtype == torch.bfloat16
    assert close(found, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_into_one_graph_for_every_number_of_rows(pretend_gpu, backend):
    made = layer(dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(tunekit.linear, backend=backend, fullgraph=True, dynamic=True)
    for rows in (2, 3, 40, 41):
        x = torch.randn(rows, 64)
        expected = functional.linear(x, made.weight, made.bias)
        assert torch.allclose(compiled(x, made.weight, made.bias), expected, atol=1e-5)


def test_inference_mode_gives_the_same(pretend_gpu, own_cache, launches):
    made, x = layer(), torch.randn(16, 64).half()
    tune(own_cache, x, made.weight)
    with torch.inference_mode():
        found = tunekit.linear(x, made.weight, made.bias)
    assert len(launches) == 1
    assert found.is_inference()
    assert close(found, functional.linear(x, made.weight, made.bias))


def test_threads_that_meet_a_layer_at_once_all_get_it_right(pretend_gpu, own_cache, launches):
    layers = [layer(n) for n in (32, 48)]
    for one in layers:
        tune(own_cache, torch.empty(16, 64).half(), one.weight)
    barrier, wrong = threading.Barrier(8), []

    def work(number):
        one = layers[number % 2]
        x = torch.randn(16, 64).half()
        barrier.wait()
        if not close(tunekit.linear(x, one.weight, one.bias), one(x)):
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(launches) == 8


def test_a_hook_may_multiply_too(pretend_gpu, own_cache, launches):
    made, x = tunekit.nn.Linear(64, 48, dtype=torch.float16).requires_grad_(False), None
    tune(own_cache, torch.empty(16, 64).half(), made.weight)
    seen = []
    made.register_forward_hook(
        lambda module, args, out: seen.append(tunekit.linear(args[0], module.weight, module.bias))
    )
    x = torch.randn(16, 64).half()
    out = made(x)
    assert len(launches) == 2
    assert torch.equal(out, seen[0])


# the module


def test_the_module_is_torchs_in_everything_but_the_product():
    ours, theirs = tunekit.nn.Linear(8, 5), torch.nn.Linear(8, 5)
    assert isinstance(ours, torch.nn.Linear)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 8)
    assert torch.equal(ours(x), theirs(x))
    assert repr(tunekit.nn.Linear(8, 5, bias=False)) == repr(torch.nn.Linear(8, 5, bias=False))
    made = tunekit.nn.Linear(8, 5, device="meta", dtype=torch.bfloat16)
    assert (made.weight.device.type, made.bias.dtype) == ("meta", torch.bfloat16)
    assert made.double().weight.dtype == torch.float64
    assert made.to_empty(device="cpu").weight.device.type == "cpu"


def test_the_module_is_copied_pickled_and_saved():
    ours, x = tunekit.nn.Linear(8, 5), torch.randn(3, 8)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    copies = [
        copy.deepcopy(ours),
        copy.copy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.load(file, weights_only=False),
    ]
    for one in copies:
        assert type(one) is tunekit.nn.Linear
        assert torch.equal(one(x), ours(x))


# replacing


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8, bias=False)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


def model():
    return torch.nn.Sequential(Block(), Block(), torch.nn.Linear(8, 11))


NAMES = ("0.up", "0.down", "1.up", "1.down", "2")


def kinds(made):
    return {
        name: type(module) for name, module in made.named_modules() if hasattr(module, "weight")
    }


def test_replacing_changes_the_class_and_nothing_else():
    made, x = model(), torch.randn(4, 8)
    expected, state = made(x), made.state_dict()
    parameters, modules = dict(made.named_parameters()), dict(made.named_modules())
    before, text = kinds(made), repr(made)
    done = tunekit.replace_linear(made)

    assert done.names == NAMES
    assert all(type(made.get_submodule(name)) is tunekit.nn.Linear for name in NAMES)
    assert list(made.state_dict()) == list(state)
    assert all(made.state_dict()[name].data_ptr() == state[name].data_ptr() for name in state)
    assert all(p is parameters[name] for name, p in made.named_parameters())
    assert all(m is modules[name] for name, m in made.named_modules())
    assert repr(made) == text
    assert torch.equal(made(x), expected)
    done.undo()
    assert kinds(made) == before
    assert torch.equal(made(x), expected)


def test_replacing_is_undone_at_the_end_of_a_block_also_by_an_exception():
    made = model()
    before = kinds(made)
    with pytest.raises(KeyError), tunekit.replace_linear(made):
        raise KeyError("stop")
    assert kinds(made) == before


def test_a_replaced_model_is_scripted_as_torchs():
    model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    x, expected = torch.randn(2, 8), torch.jit.script(model)
    tunekit.replace_linear(model)
    scripted = torch.jit.script(model)
    assert torch.equal(scripted(x), expected(x))
    assert {type(model[0]), type(model[2])} == {tunekit.nn.Linear}


def test_replacing_again_does_nothing_and_its_undoing_neither():
    made = model()
    first = tunekit.replace_linear(made)
    again = tunekit.replace_linear(made)
    assert again.names == ()
    again.undo()
    assert type(made[2]) is tunekit.nn.Linear
    first.undo()
    first.undo()
    assert type(made[2]) is torch.nn.Linear
    later = tunekit.replace_linear(made)
    first.undo()
    assert type(made[2]) is tunekit.nn.Linear
    assert first.names == later.names


def test_what_was_tuned_by_hand_before_stays_so_after_the_undoing():
    made = torch.nn.Sequential(tunekit.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    done = tunekit.replace_linear(made)
    assert done.names == ("1",)
    done.undo()
    assert [type(one) for one in made] == [tunekit.nn.Linear, torch.nn.Linear]


def test_a_model_that_is_one_layer_is_replaced_itself():
    made = torch.nn.Linear(4, 4)
    with tunekit.replace_linear(made) as done:
        assert done.names == ("",)
        assert type(made) is tunekit.nn.Linear
    assert type(made) is torch.nn.Linear


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"include": "*.up"}, ("0.up", "1.up")),
        ({"include": ["0.*", "2"]}, ("0.up", "0.down", "2")),
        ({"exclude": "2"}, NAMES[:-1]),
        ({"exclude": ("*.down", "2")}, ("0.up", "1.up")),
        ({"include": "*.up", "exclude": "1.*"}, ("0.up",)),
        ({"exclude": "no.such"}, NAMES),
        ({"include": []}, ()),
    ],
)
def test_names_and_patterns_choose(options, names):
    assert tunekit.replace_linear(model(), **options).names == names


def test_a_name_that_fits_nothing_is_an_error_that_lists_what_there_is():
    made = model()
    with pytest.raises(ProblemError, match=r"'lm_head'.*0\.up"):
        tunekit.replace_linear(made, include=["2", "lm_head"])
    assert type(made[2]) is torch.nn.Linear
    with pytest.raises(ProblemError, match="none at all"):
        tunekit.replace_linear(torch.nn.ReLU(), include="x")
    tunekit.replace_linear(made)
    assert tunekit.replace_linear(made, include="2").names == ()


def test_hooks_flags_and_the_training_mode_stay():
    made = model().eval()
    made[0].up.requires_grad_(False)
    calls = []
    made[0].up.register_forward_pre_hook(lambda *a: calls.append("before"))
    made[0].up.register_forward_hook(lambda *a: calls.append("after"))
    made[0].down.register_full_backward_hook(lambda *a: calls.append("backward"))
    made[0].up.note = "kept"
    with tunekit.replace_linear(made):
        assert not made[0].up.training
        assert not made[0].up.weight.requires_grad
        assert made[1].up.weight.requires_grad
        assert made[0].up.note == "kept"
        made(torch.randn(2, 8, requires_grad=True)).sum().backward()
    assert calls == ["before", "after", "backward"]


def test_tied_weights_and_modules_that_stand_twice_stay_tied():
    made = model()
    made[1].up.weight = made[0].up.weight
    made.append(made[2])
    with tunekit.replace_linear(made):
        assert made[1].up.weight is made[0].up.weight
        assert made[3] is made[2]
        with torch.no_grad():
            made[0].up.weight.zero_()
        assert not made[1].up.weight.any()
    optimizer_sees = {id(p) for p in made.parameters()}
    assert id(made[1].up.weight) in optimizer_sees


class LowRank(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def test_what_is_more_than_a_plain_linear_is_left_alone():
    made = model()
    made[0].up = LowRank(8, 16)
    parametrizations.weight_norm(made[0].down)
    weight_norm(made[1].up)
    prune.random_unstructured(made[1].down, "weight", 0.5)
    made.append(torch.nn.LazyLinear(4))
    made.append(torch.nn.MultiheadAttention(8, 2))
    made[2].forward = lambda x: x  # as hooks of some libraries do
    before = kinds(made)
    assert tunekit.replace_linear(made).names == ()
    assert kinds(made) == before


class Marked(torch.Tensor):
    """A tensor with a class of its own, as quantized weights have."""


def test_quantized_weights_are_left_alone():
    made = model()
    made[2].weight = torch.nn.Parameter(made[2].weight.detach().as_subclass(Marked))
    assert type(made[2].weight) is not torch.nn.Parameter
    assert tunekit.replace_linear(made).names == NAMES[:-1]


def test_a_class_given_meanwhile_is_not_taken_back():
    made = model()
    done = tunekit.replace_linear(made)
    parametrizations.orthogonal(made[2])
    changed = type(made[2])
    done.undo()
    assert type(made[2]) is changed
    assert type(made[0].up) is torch.nn.Linear
    parametrize.remove_parametrizations(made[2], "weight")
    assert type(made[2]) is tunekit.nn.Linear
    done.undo()
    assert type(made[2]) is torch.nn.Linear


def test_a_replaced_model_is_copied_saved_and_moved():
    made, x = model(), torch.randn(3, 8)
    with tunekit.replace_linear(made):
        twin = copy.deepcopy(made)
        saved = pickle.loads(pickle.dumps(made))
    for one in (twin, saved):
        assert type(one[2]) is tunekit.nn.Linear
        assert torch.equal(one(x), made(x))
    fresh = model()
    fresh.load_state_dict(twin.state_dict())
    assert torch.equal(fresh(x), made(x))
    assert twin.to(torch.float64)(x.double()).dtype == torch.float64


def test_replacing_and_compiling_go_together_in_either_order(monkeypatch):
    seen = []
    real = nn.linear
    monkeypatch.setattr(nn, "linear", lambda *args: seen.append(None) or real(*args))
    made, x = model(), torch.randn(3, 8)
    expected = made(x)
    torch._dynamo.reset()
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph

    compiled = torch.compile(made, backend=backend, fullgraph=True)
    assert torch.allclose(compiled(x), expected, atol=1e-6)
    assert (len(graphs), len(seen)) == (1, 0)
    with tunekit.replace_linear(compiled) as done:  # what is compiled notices
        assert len(done.names) == 5
        assert torch.allclose(compiled(x), expected, atol=1e-6)
        assert (len(graphs), len(seen)) == (2, 5)
    assert torch.allclose(compiled(x), expected, atol=1e-6)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_an_exported_layer_holds_the_operator(strict, bias, monkeypatch):
    made, x = tunekit.nn.Linear(16, 8, bias=bias), torch.randn(4, 16)
    with monkeypatch.context() as here:
        here.setattr("tunekit.products.on_gpu", lambda tensor: True)
        program = torch.export.export(made, (x,), strict=strict)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.tunekit.matmul.default in targets
    assert torch.allclose(program.module()(x), made(x), atol=1e-6)
    plain = torch.export.export(made, (x,), strict=strict)
    targets = [node.target for node in plain.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.linear.default]


def test_a_replaced_model_multiplies_by_tuned_kernels(pretend_gpu, own_cache, launches):
    made = torch.nn.Sequential(layer(64, 64), torch.nn.ReLU(), layer(48, 64))
    x = torch.randn(16, 64).half()
    for one in (made[0], made[2]):
        tune(own_cache, x, one.weight)
    expected = made(x)
    with tunekit.replace_linear(made):
        assert close(made(x), expected)
    assert launches == [((16, 64), (64, 64)), ((16, 64), (48, 64))]  # weights as they are stored
    made(x)
    assert len(launches) == 2


def test_a_module_trains_as_torchs_does(pretend_gpu):
    torch.manual_seed(0)
    made = model()
    twin = copy.deepcopy(made)
    tunekit.replace_linear(made)
    x = torch.randn(6, 8)
    for one in (made, twin):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            one(x).square().mean().backward()
            optimizer.step()
    for name, parameter in twin.named_parameters():
        assert torch.allclose(made.get_parameter(name), parameter, atol=1e-5)


def test_it_shards_as_torchs_does(tmp_path):
    dist = torch.distributed
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    from torch.distributed.fsdp import fully_shard

    made = model()
    tunekit.replace_linear(made)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        expected = made(torch.ones(2, 8)).detach()
        for block in (made[0], made[1]):
            fully_shard(block, mesh=mesh)
        fully_shard(made[2], mesh=mesh)
        assert isinstance(made[2], tunekit.nn.Linear)
        assert type(made[2]) is not tunekit.nn.Linear
        out = made(torch.ones(2, 8))
        out.sum().backward()
        assert torch.allclose(out, expected, atol=1e-5)
        assert tunekit.replace_linear(made).names == ()
    finally:
        dist.destroy_process_group()


def test_an_error_on_a_miss_reaches_the_caller(pretend_gpu):
    made, x = layer(), torch.randn(16, 64).half()
    with tunekit.policy(on_miss="error"):
        for _ in range(2):
            with pytest.raises(MissError, match="tunekit tune"):
                tunekit.linear(x, made.weight, made.bias)


def test_misses_are_counted_whoever_serves_them(pretend_gpu):
    made, x = layer(), torch.randn(16, 64).half()
    for _ in range(3):
        tunekit.linear(x, made.weight, made.bias)
    for _ in range(2):
        tunekit.linear(x, made.weight)
    assert {str(key.problem): n for key, n in dispatch.miss_counts().items()} == {
        "16x48x64 float16 nt": 5
    }


def test_the_policy_holds_for_layers_too(pretend_gpu, own_cache, launches):
    made, x = layer(), torch.randn(16, 64).half()
    tune(own_cache, x, made.weight)
    expected = functional.linear(x, made.weight, made.bias)
    with tunekit.policy(backend="vendor"):
        for _ in range(2):
            assert torch.equal(tunekit.linear(x, made.weight, made.bias), expected)
    assert launches == []
    with tunekit.policy(config=Config("pointer", 16, 16, 16, num_warps=4, num_stages=2)):
        results = [tunekit.linear(x, made.weight, made.bias) for _ in range(3)]
    assert len(launches) == 3
    assert all(torch.equal(one, results[0]) for one in results)
    assert close(results[0], expected)


@pytest.mark.interpreted
def test_who_insists_on_a_kernel_gets_one_or_the_reason(launches):
    made, x = layer(), torch.randn(16, 64).half()
    with tunekit.policy(backend="triton", on_miss="fallback"):
        found = tunekit.linear(x, made.weight, made.bias)
        with pytest.raises(ProblemError, match="float64"):
            tunekit.linear(x.double(), made.weight.double())
    assert len(launches) == 1
    assert close(found, made(x))


def test_what_is_chosen_anew_after_a_reload_is_so_for_layers_too(pretend_gpu, own_cache, launches):
    made, x = layer(), torch.randn(16, 64).half()
    tunekit.linear(x, made.weight, made.bias)
    tune(own_cache, x, made.weight)
    tunekit.linear(x, made.weight, made.bias)
    assert launches == []
    tunekit.reload()
    tunekit.linear(x, made.weight, made.bias)
    assert len(launches) == 1


def test_gradients_come_from_tuned_products(pretend_gpu, own_cache, launches):
    made = layer(dtype=torch.float32).requires_grad_(True)
    x = torch.randn(16, 64, requires_grad=True)
    tune(own_cache, x, made.weight)
    tune(own_cache, torch.empty(16, 48), made.weight.detach().t())  # of the input
    tunekit.linear(x, made.weight, made.bias).square().sum().backward()
    assert len(launches) >= 2
    found = [x.grad, made.weight.grad, made.bias.grad]
    x.grad = None
    made.zero_grad()
    functional.linear(x, made.weight, made.bias).square().sum().backward()
    for one, expected in zip(found, [x.grad, made.weight.grad, made.bias.grad], strict=True):
        assert torch.allclose(one, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_layers_on_a_gpu_give_what_torch_gives(dtype, bias):
    made = torch.nn.Linear(256, 512, bias=bias, dtype=dtype, device="cuda").requires_grad_(False)
    for shape in [(256,), (16, 256), (2, 8, 256), (0, 256)]:
        x = torch.randn(shape, device="cuda", dtype=dtype)
        assert close(tunekit.linear(x, made.weight, made.bias), made(x))
    with pytest.raises(RuntimeError):
        tunekit.linear(torch.randn(16, 256, dtype=dtype), made.weight, made.bias)


@pytest.mark.gpu
def test_a_replaced_model_is_captured_into_a_graph():
    made = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 128))
    made = made.to("cuda", torch.bfloat16).requires_grad_(False)
    x = torch.randn(16, 256, device="cuda", dtype=torch.bfloat16)
    expected = made(x)
    with tunekit.replace_linear(made), tunekit.policy(backend="triton", on_miss="fallback"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = made(x)
    graph.replay()
    assert close(out, expected)


def test_a_mode_that_watches_functions_sees_torchs_layer(pretend_gpu, own_cache, launches):
    class Patched(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is functional.linear:
                return "patched"
            return func(*args, **(kwargs or {}))

    x, weight = torch.randn(16, 64).half(), torch.randn(48, 64).half()
    tune(own_cache, x, weight)
    with Patched():
        assert tunekit.linear(x, weight) == "patched"
    assert launches == []
    with torch.device("cpu"):
        assert close(tunekit.linear(x, weight), functional.linear(x, weight))
    with Patched(), tunekit.policy(backend="triton"):
        found = tunekit.linear(x, weight)
    assert close(found, functional.linear(x, weight))
    assert len(launches) == 2
