"""What was tried for a key, told from its stored trials."""

from __future__ import annotations

import pytest

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.history import history, history_of, how_sure
from tunekit.key import TuningKey
from tunekit.trial import (
    Best,
    Choice,
    Distance,
    Fingerprint,
    Measurement,
    Provenance,
    Status,
    Trial,
)

DEVICE = KNOWN_DEVICES["sm_90"]
KEY = TuningKey("matmul", 512, 512, 512, "bfloat16", DEVICE.slug)


def config(number):
    return Config("pointer", 16 << number % 4, 16 << number // 4, 32)


def worked(number, us):
    measured = Measurement(us, us, us, us, us, us, 20, "test-1", 0.1)
    return Trial(config(number), Status.OK, measured)


def failed(number, status=Status.COMPILE_ERROR, error="no such layout\nat line 3"):
    return Trial(config(number), status, error=error)


def made_with(compiler, source="source"):
    mark = Fingerprint(source, compiler)
    return Provenance(mark, "test-1", "0", "3", "2", "d", DEVICE.name, "2020-01-01T00:00:00Z")


def test_the_curve_has_a_step_wherever_the_best_became_better():
    trials = [failed(0), worked(1, 30.0), worked(2, 40.0), worked(3, 20.0), worked(4, 20.0)]
    found = history_of(KEY, [t.outcome for t in trials])
    assert found.attempts == 5
    assert [(s.attempt, s.config, s.median_us) for s in found.curve] == [
        (2, config(1), 30.0),
        (4, config(3), 20.0),
    ]


def test_failures_are_counted_by_status_and_reason_with_an_example():
    trials = [
        failed(0, Status.TIMEOUT, None),
        failed(1),
        failed(2, error="no such layout\nelsewhere"),
        failed(3, error="too deep"),
        worked(4, 10.0),
    ]
    found = history_of(KEY, [t.outcome for t in trials])
    assert [(f.status, f.reason, f.count) for f in found.failures] == [
        (Status.COMPILE_ERROR, "no such layout", 2),
        (Status.TIMEOUT, "", 1),
        (Status.COMPILE_ERROR, "too deep", 1),
    ]
    assert found.failures[0].example == trials[1].outcome
    assert found.failed == 4
    assert found.by_status() == {Status.COMPILE_ERROR: 3, Status.TIMEOUT: 1}


def test_a_config_counts_as_it_last_went():
    found = history_of(
        KEY, [t.outcome for t in [failed(0), worked(1, 10.0), worked(0, 5.0), failed(1)]]
    )
    assert (found.attempts, found.failed) == (2, 1)
    assert [step.config for step in found.curve] == [config(0)]


def test_nothing_tried_is_an_empty_history():
    found = history_of(KEY, [t.outcome for t in []])
    assert (found.attempts, found.failures, found.curve) == (0, (), ())


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "cache.db") as opened:
        opened.put_device(DEVICE)
        opened.add_trials(KEY, [(failed(0), made_with("a")), (worked(1, 9.0), made_with("a"))])
        opened.add_trials(KEY, [(worked(0, 8.0), made_with("b")), (failed(2), made_with("b"))])
        yield opened


def test_the_store_tells_it_under_one_compiler_or_all(store):
    assert [step.median_us for step in history(store, KEY, compiler="a").curve] == [9.0]
    both = history(store, KEY)
    assert (both.attempts, both.failed) == (3, 1)
    assert [step.median_us for step in both.curve] == [8.0]


def test_the_store_counts_failures_of_all_keys_at_once(store):
    other = TuningKey("matmul", 1, 512, 512, "bfloat16", DEVICE.slug)
    again = [(failed(2), made_with("b", "newer")), (failed(3, Status.TIMEOUT), made_with("b"))]
    store.add_trials(KEY, again)
    store.add_trials(other, [(worked(0, 1.0), made_with("a"))])
    assert store.failures() == {
        (KEY, "a"): {Status.COMPILE_ERROR: 1},
        (KEY, "b"): {Status.COMPILE_ERROR: 1, Status.TIMEOUT: 1},
    }
    assert store.failures(gpu="elsewhere") == {}


@pytest.mark.parametrize(
    ("distance", "text"),
    [
        (None, "best of 24 of 900 legal configs; how far the best there is may be was not"),
        (Distance(0.0, 0.0), "best of 24 of 900 legal configs: there is no better one"),
        (
            Distance(0.004, 0.0204),
            "expected to be 0.4% slower than the best there is, and at most 2.0% in nine of ten",
        ),
    ],
)
def test_a_row_says_how_sure_it_is(distance, text):
    measured = worked(0, 9.0).measurement
    best = Best(
        KEY, Choice.TRITON, config(0), measured, None, 24, 900, made_with("a"), distance=distance
    )
    assert text in how_sure(best)
    assert "\n" not in how_sure(best)
