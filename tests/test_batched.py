"""Many matrices at once: one launch of one kernel, with the batch on the grid."""

from __future__ import annotations

import pytest
import torch

import tunekit
from tunekit import products

PLACE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def fresh():
    tunekit.reload()
    with tunekit.policy(backend="triton", on_miss="fallback"):
        yield
    tunekit.reload()


def random(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).half().to(PLACE)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 20, 40), (3, 40, 24)), ((20, 40), (3, 40, 24)), ((2, 3, 5, 40), (2, 3, 40, 8)),
     ((2, 3, 5, 40), (40, 8)), ((40,), (3, 40, 24)), ((3, 20, 40), (1, 40, 24))],
)  # fmt: skip
def test_ranks_and_broadcasting_are_torchs(a, b):
    a, b = random(*a), random(*b)
    wide = torch.matmul(a.float(), b.float())
    found = tunekit.matmul(a, b)
    assert found.shape == wide.shape
    torch.testing.assert_close(found.float(), wide, rtol=2e-3, atol=2e-2)
    assert len(products.STATE.misses) == 1  # one product, however many matrices


def test_the_key_counts_the_matrices():
    tunekit.matmul(random(3, 20, 40), random(3, 40, 24))
    (key,) = products.STATE.misses
    assert (key.batch, key.m, key.n, key.k) == (3, 20, 24, 40)


def test_heads_between_rows_are_not_copied():
    # (rows, heads, columns), as attention holds them
    q, k = random(20, 3, 40).transpose(0, 1), random(24, 3, 40).transpose(0, 1).mT
    found = tunekit.matmul(q, k)
    torch.testing.assert_close(found.float(), q.float() @ k.float(), rtol=2e-3, atol=2e-2)
    (key,) = products.STATE.misses
    assert (key.batch, key.layout, key.aligned) == (3, "nt", True)


def test_what_is_not_evenly_spaced_is_multiplied_all_the_same():
    a, b = random(3, 2, 8, 16).transpose(0, 1), random(2, 3, 16, 8)
    wide = torch.matmul(a.float(), b.float())
    torch.testing.assert_close(tunekit.matmul(a, b).float(), wide, rtol=2e-3, atol=2e-2)


def test_gradients_of_a_batch_are_torchs():
    a, b = random(3, 8, 16).requires_grad_(), random(1, 16, 8).requires_grad_()
    found = torch.autograd.grad(tunekit.matmul(a, b).float().square().sum(), (a, b))
    wide = [one.detach().float().requires_grad_() for one in (a, b)]
    wanted = torch.autograd.grad(torch.matmul(*wide).square().sum(), wide)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.float(), theirs, rtol=2e-2, atol=0.1)
