"""Budgets."""

from __future__ import annotations

import math

import pytest

from tunekit.search import DEFAULT_TRIALS, Budget


@pytest.mark.parametrize("field", ["trials", "seconds", "patience"])
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_a_limit_is_above_0(field, value):
    with pytest.raises(ValueError, match=field):
        Budget(**{field: value})


def test_no_limit_is_never_reached():
    assert not Budget().spent(10**6, 10**6)
    assert not Budget().late(1e9)
    assert Budget().target(36) == 36


def test_each_limit_is_reached():
    budget = Budget(trials=10, seconds=2.5, patience=4)
    assert not budget.spent(9, 3)
    assert budget.spent(10, 0)
    assert budget.spent(5, 4)
    assert not budget.late(2.4)
    assert budget.late(2.5)
    assert budget.target(36) == 10
    assert budget.target(7) == 7


def test_only_a_sweep_is_unlimited_by_default():
    assert Budget.for_sampler("tpe", None, None) == Budget(trials=DEFAULT_TRIALS)
    assert Budget.for_sampler("exhaustive", None, None) == Budget()
    assert Budget.for_sampler("exhaustive", 5, None) == Budget(trials=5)
    assert Budget.for_sampler("tpe", None, 3.0) == Budget(seconds=3.0)
