"""Operands of any rank as those of one product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tunekit.folding import fold, multiplies, pairs, result_shape

SIZES = st.integers(0, 3)


@st.composite
def shapes(draw):
    """Two shapes that often, but not always, can be multiplied."""
    k = draw(SIZES)
    a = (*draw(st.lists(SIZES, max_size=3)), k)
    b = draw(st.sampled_from([(k,), (k, draw(SIZES)), (draw(SIZES), k, 2), (2, 1, k, 3), (k, k)]))
    return a, b


@given(shapes())
def test_shapes_multiply_exactly_where_they_do_in_torch(shapes):
    a, b = torch.ones(shapes[0]), torch.ones(shapes[1])
    try:
        expected = torch.matmul(a, b)
    except RuntimeError:
        assert not multiplies(a.shape, b.shape)
    else:
        assert multiplies(a.shape, b.shape)
        assert result_shape(tuple(a.shape), tuple(b.shape)) == tuple(expected.shape)


@given(st.data())
def test_the_one_product_of_a_fold_is_the_whole_result(data):
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(sizes))))
    a = torch.randn([sizes[i] for i in order]).permute([order.index(i) for i in range(len(sizes))])
    b = torch.randn(data.draw(st.sampled_from([(sizes[-1],), (sizes[-1], 2), (1, sizes[-1], 2)])))
    one = fold(a, b)
    if one is None:
        assert a.dim() > 2
        with pytest.raises(RuntimeError, match="view"):
            a.view(-1, *a.shape[-2:])
        return
    left, right = one.a.of(a), one.b.of(b)
    assert left.dim() == right.dim() in (2, 3)
    if left.dim() == 3:  # the rows are not evenly spaced, the matrices are
        with pytest.raises(RuntimeError, match="view"):
            a.view(-1, a.shape[-1])
    torch.testing.assert_close((left @ right).view(one.out), a @ b)


def test_a_fold_moves_no_memory():
    a, b = torch.randn(3, 4, 5), torch.randn(6, 5).t()
    one = fold(a, b)
    assert one.a.of(a).data_ptr() == a.data_ptr()
    assert one.a.of(a).shape == (12, 5)
    assert one.b.of(b) is b


BATCHES = [
    ((3, 4, 5), (3, 5, 6)), ((4, 5), (3, 5, 6)), ((5,), (2, 5, 6)), ((2, 3, 4, 5), (2, 3, 5, 1)),
    ((2, 3, 4, 5), (1, 5, 6)), ((1, 4, 5), (7, 5, 2)), ((2, 3, 4, 5), (5,)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), BATCHES)
def test_many_matrices_are_one_batch_without_a_copy(a, b):
    a, b = torch.randn(a), torch.randn(b)
    one = fold(a, b)
    left, right = one.a.of(a), one.b.of(b)
    assert left.data_ptr() == a.data_ptr()
    assert right.data_ptr() == b.data_ptr()
    torch.testing.assert_close(torch.matmul(left, right).reshape(one.out), torch.matmul(a, b))


def test_a_matrix_that_serves_every_product_has_no_distance_to_the_next():
    one = fold(torch.ones(4, 5), torch.ones(3, 5, 6))
    assert one.a.shape == (3, 4, 5)
    assert one.a.strides == (0, 5, 1)
    assert one.b.strides == (30, 6, 1)


def test_matrices_that_are_not_evenly_spaced_are_no_one_product():
    a, b = torch.ones(3, 2, 4, 5).transpose(0, 1), torch.ones(2, 3, 5, 6)
    assert fold(a, b) is None
    assert fold(torch.ones(2, 1, 4, 5), torch.ones(3, 5, 6)) is None  # each matrix three times


@pytest.mark.parametrize(("a", "b"), [*BATCHES, ((2, 1, 4, 5), (3, 5, 6))])
def test_the_pairs_of_a_batch_make_up_its_result(a, b):
    a, b = torch.randn(a), torch.randn(b)
    expected = torch.matmul(a, b)
    out = torch.full(expected.shape, float("nan"))
    for left, right, result in pairs(a, b, out):
        result.copy_(left @ right)
    torch.testing.assert_close(out, expected)
