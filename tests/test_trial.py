"""Trials, best rows and the choice between Triton and the vendor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.config import Config
from tunekit.key import TuningKey
from tunekit.trial import (
    Best,
    Choice,
    Fingerprint,
    Grade,
    Measurement,
    Origin,
    Provenance,
    Status,
    Trial,
    choose,
)

CONFIG = Config("tiles", 64, 64, 32)
KEY = TuningKey("matmul", 64, 64, 64, "bfloat16", "some-gpu")
PROVENANCE = Provenance(
    Fingerprint("source", "compiler"),
    protocol="p",
    tunekit="0",
    triton="0",
    torch="0",
    driver="0",
    device_name="some gpu",
    created_at="2000-01-01T00:00:00Z",
)


def took(low, median, high):
    return Measurement(
        median_us=median,
        low_us=low,
        high_us=high,
        p20_us=low,
        p80_us=high,
        min_us=low,
        repetitions=9,
        protocol="p",
    )


intervals = st.tuples(*[st.floats(0.5, 1e6)] * 3).map(lambda t: took(*sorted(t)))


def test_the_words_that_files_and_rows_hold():
    def words(kind):
        return [member.value for member in kind]

    assert words(Status) == [
        "ok",
        "compile-error",
        "out-of-resources",
        "out-of-memory",
        "launch-error",
        "wrong-result",
        "not-repeatable",
        "timeout",
    ]
    assert words(Origin) == ["measured", "replayed", "imported"]
    assert words(Choice) == ["triton", "vendor"]
    assert words(Grade) == ["exact", "other-compiler", "nearest", "other-gpu", "other-source"]


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_failed_trial_has_no_measurement(status):
    assert Trial(CONFIG, status, error="why").measurement is None
    with pytest.raises(ValueError, match="exactly if it is ok"):
        Trial(CONFIG, status, took(1, 2, 3))


def test_a_trial_that_is_ok_has_a_measurement():
    assert Trial(CONFIG, Status.OK, took(1, 2, 3)).measurement.median_us == 2
    with pytest.raises(ValueError, match="exactly if it is ok"):
        Trial(CONFIG, Status.OK)


@pytest.mark.parametrize(
    ("triton", "vendor", "choice"),
    [
        (took(8, 9, 10), took(11, 12, 13), Choice.TRITON),
        (took(8, 9, 10), took(10, 11, 12), Choice.VENDOR),  # they touch
        (took(8, 9, 10), took(9, 11, 12), Choice.VENDOR),  # they overlap, Triton's median lower
        (took(8, 9, 10), took(8, 9, 10), Choice.VENDOR),
        (took(8, 9, 10), took(1, 20, 30), Choice.VENDOR),  # a vendor too noisy to be beaten
        (took(11, 12, 13), took(8, 9, 10), Choice.VENDOR),
        (took(8, 9, 10), None, Choice.TRITON),
    ],
)
def test_the_vendor_wins_whatever_is_not_clearly_triton(triton, vendor, choice):
    assert choose(triton, vendor) is choice


@given(intervals, intervals)
def test_triton_is_chosen_only_where_no_time_of_its_interval_is_in_the_vendors(triton, vendor):
    chosen = choose(triton, vendor)

    assert (chosen is Choice.TRITON) == (triton.high_us < vendor.low_us)
    if chosen is Choice.TRITON:
        assert triton.median_us < vendor.median_us
        assert choose(vendor, triton) is Choice.VENDOR


def test_a_time_that_is_not_a_number_never_beats_the_vendor():
    assert choose(took(float("nan"), float("nan"), float("nan")), took(8, 9, 10)) is Choice.VENDOR


@pytest.mark.parametrize(("vendor", "ratio"), [(took(1, 12, 13), 1.5), (took(1, 4, 5), 0.5)])
def test_the_ratio_is_above_one_where_triton_is_the_faster(vendor, ratio):
    best = Best(KEY, Choice.TRITON, CONFIG, took(7, 8, 9), vendor, 1, 1, PROVENANCE)
    assert best.ratio == ratio


def test_there_is_no_ratio_without_a_vendor():
    assert Best(KEY, Choice.TRITON, CONFIG, took(7, 8, 9), None, 1, 1, PROVENANCE).ratio is None
