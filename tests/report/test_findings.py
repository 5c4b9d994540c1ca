"""What the trials of a key, and of all keys, say: every number by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.config import Config
from tunekit.key import TuningKey
from tunekit.report import findings, overview
from tunekit.report.findings import (
    MAX_REASON,
    PARAMETERS,
    Cell,
    importance,
    shortened,
)
from tunekit.trial import Measurement, Status, Trial

KEY = TuningKey("matmul", 64, 64, 64, "float16", "gpu")


def ok(us, *, variant="pointer", m=64, n=64, k=32, stages=2, warps=4):
    config = Config(variant, m, n, k, num_warps=warps, num_stages=stages)
    return Trial(config, Status.OK, Measurement(us, us, us, us, us, us, 9, "test-1", 0.1))


def failed(status=Status.COMPILE_ERROR, error="no registers", m=16):
    return Trial(Config("pointer", m, 64, 32), status, error=error)


def test_a_cell_is_the_fastest_of_its_tile():
    found = find(KEY, [ok(9.0, m=64, n=128), ok(8.0, m=64, n=128, k=64), ok(5.0, m=32), failed()])
    assert found.tiles == (Cell(64, 32, 5.0, 1), Cell(128, 64, 8.0, 2))
    assert found.pipeline == (Cell(32, 2, 5.0, 2), Cell(64, 2, 8.0, 1))
    assert found.best_us == 5.0


def test_failures_are_counted_by_status():
    found = find(KEY, [failed(m=16), failed(m=32), failed(Status.TIMEOUT, "60 s", m=64), ok(1)])
    assert found.failures == [("compile-error", 2), ("timeout", 1)]
    assert found.history.attempts == 4
    assert find(KEY, [failed()]).best_us is None


def test_a_parameter_that_decides_everything_explains_everything():
    ran = [(t.config, t.measurement.median_us) for t in (
        ok(10.0, m=64, warps=4), ok(10.0, m=64, warps=8), ok(20.0, m=128, warps=4),
        ok(20.0, m=128, warps=8),
    )]  # fmt: skip
    assert dict(importance(ran)) == pytest.approx({"block_m": 1.0, "num_warps": 0.0})


def test_importance_is_that_of_an_analysis_of_variance():
    # log2 of the times: 1, 2 with 4 warps and 3, 6 with 8; by hand, total 14, within 0.5 + 4.5
    ran = [(ok(1, warps=w).config, 2.0**power) for w, power in ((4, 1), (4, 2), (8, 3), (8, 6))]
    assert dict(importance(ran))["num_warps"] == pytest.approx(1 - 5 / 14 * 3 / 2)


def test_nothing_is_said_of_too_few_or_equal_times():
    same = [(ok(3.0, m=m).config, 3.0) for m in (16, 32, 32)]
    assert importance(same) == ()
    assert importance(same[:2]) == ()


@given(
    st.lists(
        st.tuples(st.sampled_from((16, 32, 64)), st.sampled_from((2, 4)), st.floats(0.5, 1e6)),
        max_size=20,
    )
)
def test_shares_are_shares_whatever_was_tried(rows):
    shares = importance([(ok(1, m=m, stages=s).config, us) for m, s, us in rows])
    assert {name for name, _ in shares} <= set(PARAMETERS)
    assert all(0 <= share <= 1 for _, share in shares)


def test_a_reason_is_one_line_of_bounded_length():
    assert shortened(" a\nb ") == "a b"
    assert len(shortened("x" * 999)) == MAX_REASON


def find(key, trials):
    return findings.find(key, [trial.outcome for trial in trials])


def entries(*keys):
    return [SimpleNamespace(findings=find(KEY, trials)) for trials in keys]


def test_keys_are_averaged_each_against_its_own_fastest():
    found = overview.learning(
        entries([ok(8.0), ok(4.0, m=32)], [failed(), ok(30.0), ok(10.0, m=32)], [])
    )
    assert [(p.trial, p.keys) for p in found] == [(1, 1), (2, 2), (3, 2)]
    assert [p.slowdown for p in found] == pytest.approx([2.0, math.sqrt(3), 1.0])

    tiles = overview.tiles(entries([ok(8.0), ok(4.0, m=32)], [ok(5.0)]))
    assert [(t.x, t.y, t.keys) for t in tiles] == [(64, 32, 1), (64, 64, 2)]
    assert [t.slowdown for t in tiles] == pytest.approx([1.0, math.sqrt(2)])


def test_nothing_gives_nothing():
    assert overview.learning([]) == overview.tiles([]) == overview.importance([]) == []
    assert overview.geometric_mean([]) is None
