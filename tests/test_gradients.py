"""Gradients of `tunekit.matmul`, in every layout and rank, against torch's own."""

from __future__ import annotations

import itertools
import weakref

import pytest
import torch
from torch.autograd.functional import jacobian

import tunekit
from tunekit import products
from tunekit.errors import ProblemError
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe

pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.filterwarnings("ignore::tunekit.serving.MissWarning"),
    pytest.mark.usefixtures("forget"),
]

SHAPES = [
    ((5,), (5,)), ((4, 5), (5,)), ((5,), (5, 6)), ((4, 5), (5, 6)), ((3, 4, 5), (5, 6)),
    ((2, 3, 4, 5), (5,)), ((4, 5), (3, 5, 6)), ((5,), (3, 5, 6)), ((2, 1, 4, 5), (3, 5, 6)),
    ((3, 4, 5), (1, 5, 6)), ((0, 4, 5), (5, 6)), ((3, 0, 5), (3, 5, 6)), ((4, 0), (0, 5)),
]  # fmt: skip


@pytest.fixture
def problems(monkeypatch):
    """The problems that kernels were prepared for, in order."""
    seen = []
    bind = MATMUL.bind

    def noting(config, problem, *rest):
        seen.append(problem)
        return bind(config, problem, *rest)

    monkeypatch.setattr(MATMUL, "bind", noting)
    return seen


def by_triton(a, b):
    return tunekit.matmul(a, b, backend="triton")


def leaf(shape, layout="n", dtype=torch.float32):
    made = torch.randn(shape).to(dtype)
    if layout == "t" and made.dim() > 1:
        made = made.mT.contiguous().mT
    return made.requires_grad_()


def assert_alike(found, expected, slack=1e-4):
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=slack, atol=slack)


@pytest.mark.parametrize(("shape_a", "shape_b"), SHAPES)
def test_value_and_gradients_are_torchs_in_every_rank(shape_a, shape_b):
    several = itertools.product("nt", "nt")
    for layouts in several if len(shape_b) == 2 <= len(shape_a) <= 3 else ["nt"]:
        a, b = leaf(shape_a, layouts[0]), leaf(shape_b, layouts[1])
        found, expected = by_triton(a, b), torch.matmul(a, b)
        assert found.stride() == expected.stride()
        assert_alike([found], [expected])
        grad = torch.randn_like(expected)
        assert_alike(
            torch.autograd.grad(found, (a, b), grad), torch.autograd.grad(expected, (a, b), grad)
        )


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_each_gradient_is_a_product_with_a_key_of_its_own(problems, layout):
    a, b = leaf((16, 32), layout[0]), leaf((32, 48), layout[1])
    by_triton(a, b).backward(torch.randn(16, 48))
    forward, left, right = problems
    assert (forward.m, forward.n, forward.k, forward.layout) == (16, 48, 32, layout)
    assert sorted((left.m, left.n, left.k)) == sorted((right.m, right.n, right.k)) == [16, 32, 48]
    expected = {  # an operand stored by columns gets a gradient stored so, without a copy
        "nn": [("nt", 16, 32), ("tn", 32, 48)], "nt": [("nn", 16, 32), ("tn", 48, 32)],
        "tn": [("nt", 32, 16), ("nn", 32, 48)], "tt": [("tt", 32, 16), ("tt", 48, 32)],
    }  # fmt: skip
    if layout in ("nn", "nt"):
        assert [(p.layout, p.m, p.n) for p in (left, right)] == expected[layout]
    assert a.grad.stride() == a.stride()
    assert b.grad.stride() == b.stride()


def test_only_what_needs_a_gradient_is_multiplied_for(problems):
    a, b = leaf((16, 32)), torch.randn(32, 48)
    by_triton(a, b).sum().backward()
    assert len(problems) == 2
    assert problems[1].aligned  # the gradient of a sum is one number seen many times


def test_an_operand_that_no_gradient_needs_is_let_go():
    x, w = leaf((16, 32)), torch.randn(32, 48)
    first = x * 1
    kept = weakref.ref(first)
    c = by_triton(first, w)  # the gradient of `first` needs w alone
    del first
    assert kept() is None
    c.sum().backward()
    assert_alike([x.grad], [w.sum(1).expand(16, 32)], slack=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_gradients_have_their_operands_dtype(dtype):
    a, b = leaf((3, 8, 16), dtype=dtype), leaf((16, 8), dtype=dtype)
    found = torch.autograd.grad(by_triton(a, b).sum(), (a, b))
    assert {one.dtype for one in found} == {dtype}
    assert_alike(found, torch.autograd.grad((a @ b).sum(), (a, b)), slack=5e-2)


def test_second_derivatives_are_torchs():
    a, b = leaf((3, 4)), leaf((4, 5))

    def second(multiply):
        first = torch.autograd.grad(multiply(a, b).pow(2).sum(), a, create_graph=True)[0]
        return torch.autograd.grad(first.pow(2).sum(), (a, b))

    assert_alike(second(by_triton), second(torch.matmul), slack=1e-3)


def test_forward_mode_is_torchs():
    a, b, ta, tb = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 5), torch.randn(5, 6)
    forward = torch.autograd.forward_ad
    for tangents in ((ta, tb), (ta, None), (None, tb)):
        found = []
        for multiply in (by_triton, torch.matmul):
            with forward.dual_level():
                duals = [
                    x if t is None else forward.make_dual(x, t)
                    for x, t in zip((a, b), tangents, strict=True)
                ]
                found.append(forward.unpack_dual(multiply(*duals)).tangent)
        assert_alike(found[:1], found[1:])


def test_transforms_are_torchs():
    a, b, square = torch.randn(3, 4, 5), torch.randn(5, 6), torch.randn(3, 3)
    func = torch.func

    def loss(multiply):
        return lambda a, b: multiply(a, b).pow(2).sum()

    for of in (
        lambda f: func.grad(loss(f))(a, b),
        lambda f: func.vmap(f, (0, None))(a, b),
        lambda f: func.vmap(f, (2, 1))(torch.arange(24.0).view(2, 4, 3), torch.ones(4, 3, 2)),
        lambda f: func.vmap(f, (None, 0))(torch.ones(5), torch.ones(3, 5)),
        lambda f: func.vmap(func.vmap(f, (0, None)), (None, 1))(torch.ones(3, 5), torch.ones(5, 2)),
        lambda f: func.jvp(f, (a, b), (a, b))[1],
        lambda f: func.jacrev(f)(square, square),
        lambda f: func.jacfwd(f)(square, square),
        lambda f: func.hessian(lambda x: loss(f)(x, x))(square[:2, :2]),
        lambda f: func.vmap(func.grad(loss(f)), (0, None))(a, b),
    ):
        assert_alike([of(by_triton)], [of(torch.matmul)], slack=1e-3)


def test_a_transform_runs_the_kernels(problems):
    torch.func.grad(lambda a, b: by_triton(a, b).sum())(torch.randn(3, 4), torch.randn(4, 5))
    assert len(problems) == 2


def test_a_backward_pass_follows_the_policy_of_its_forward_pass(problems):
    a, b = leaf((3, 4)), leaf((4, 5))
    with tunekit.policy(backend="triton"):
        c = tunekit.matmul(a, b)
    c.backward(torch.ones(3, 5))
    assert len(problems) == 3


def test_under_autocast_gradients_are_of_the_weights_dtype(problems):
    a, b = leaf((3, 4)), leaf((5, 4))
    with torch.autocast("cpu", torch.bfloat16):
        c = by_triton(a, b.t())
        assert c.dtype is torch.bfloat16
    c.sum().backward()
    assert (a.grad.dtype, b.grad.dtype) == (torch.float32, torch.float32)
    assert {p.dtype for p in problems} == {"bfloat16"}
    assert describe(a.detach(), b.detach().t()).dtype == "float32"


def test_many_gradients_at_once_are_torchs(pretend_gpu):
    def many(multiply):
        return jacobian(lambda x, y: multiply(x, y).sum(0), (a, b), vectorize=True)

    a, b = torch.randn(4, 8), torch.randn(8, 4)
    with tunekit.policy(backend="triton"):
        found = many(tunekit.matmul)
    for ours, theirs in zip(found, many(torch.matmul), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_gpus_operands_are_recorded_with_the_automatic_backend(monkeypatch):
    monkeypatch.setattr(products, "on_gpu", lambda a: True)
    monkeypatch.setattr("tunekit.serving._device_info", lambda *_: _h200())
    a, b = leaf((3, 4)), leaf((4, 5))
    c = tunekit.matmul(a, b, on_miss="fallback")
    assert "_Product" in type(c.grad_fn).__name__
    c.sum().backward()
    assert_alike([a.grad], [b.detach().sum(1).expand(3, 4)])


def _h200():
    from tunekit.device import KNOWN_DEVICES

    return KNOWN_DEVICES["sm_90"]


def test_what_is_functionalized_is_torchs(pretend_gpu):
    a, b = torch.randn(3, 4), torch.randn(4, 5)

    def call(a, b):
        return tunekit.matmul(a, b).add_(1)

    functional = torch.func.functionalize(call)
    assert torch.allclose(functional(a, b), a @ b + 1)
    nested = torch.func.grad(lambda a: torch.func.functionalize(call)(a, b).sum())(a)
    assert torch.allclose(nested, b.sum(1).expand(3, 4))
    layer = torch.func.functionalize(lambda x: tunekit.linear(x, b.t()))
    assert torch.allclose(layer(a), a @ b)
    with tunekit.policy(backend="triton"), pytest.raises(ProblemError, match="traced"):
        functional(a, b)


def test_what_a_transform_multiplies_is_explained(pretend_gpu):
    a, b, seen = torch.randn(3, 4, 16), torch.randn(16, 8), []

    def product(x, y):
        seen.append(tunekit.explain(x, y).key.problem)
        return tunekit.matmul(x, y, on_miss="fallback")

    torch.func.vmap(product, (0, None))(a, b)
    torch.func.vmap(product)(a, b.expand(3, 16, 8))
    torch.func.grad(lambda x: product(x, b).sum())(a[0])
    torch.func.vmap(torch.func.grad(lambda x: product(x, b).sum()))(a)
    sizes = [(problem.batch, problem.m, problem.n, problem.k) for problem in seen]
    assert sizes == [(1, 12, 8, 16), (3, 4, 8, 16), (1, 4, 8, 16), (1, 12, 8, 16)]
