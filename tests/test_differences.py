"""What is said of a row that was made elsewhere: which field, what it was, and what it is here."""

from __future__ import annotations

import pytest

from tunekit.differences import Difference, compiler_differences, version_differences
from tunekit.trial import Fingerprint, Provenance


@pytest.mark.parametrize(
    ("stored", "here", "expected"),
    [
        ("triton-3.6.0", "triton-3.6.0", []),
        ("triton-3.6.0", "triton-3.9.0", ["triton 3.6.0 -> 3.9.0"]),
        ("triton-3.6.0+ptxas-12.8", "triton-3.6.0+ptxas-12.9", ["ptxas 12.8 -> 12.9"]),
        ("triton-3.6.0", "triton-3.6.0+ptxas-12.9", ["ptxas none -> 12.9"]),
        ("triton-3.6.0+ptxas-12.9", "triton-3.6.0", ["ptxas 12.9 -> none"]),
        ("triton-3.6.0+git1a2b+ptxas-12.8", "triton-3.6.0+ptxas-12.8",
         ["triton 3.6.0+git1a2b -> 3.6.0"]),
        ("triton-3.6.0+FP_FUSION-0", "triton-3.6.0", ["FP_FUSION 0 -> none"]),
        ("clang of a friend", "triton-3.6.0", ["compiler clang of a friend -> triton-3.6.0"]),
        ("", "triton-3.6.0", ["compiler  -> triton-3.6.0"]),
    ],
)  # fmt: skip
def test_compilers_are_told_apart_part_by_part(stored, here, expected):
    assert [str(difference) for difference in compiler_differences(stored, here)] == expected


def test_a_version_nobody_knows_is_no_difference():
    stored = Provenance(Fingerprint("", ""), "p", "0", "3", "2.11", "unknown", "GPU", "2020-01-01")
    assert list(version_differences(stored, {"driver": "580.1", "torch": "2.11"})) == []
    assert list(version_differences(stored, {"torch": ""})) == []
    (found,) = version_differences(stored, {"torch": "2.13"})
    assert found == Difference("torch", "2.11", "2.13")
    assert found.to_dict() == {"field": "torch", "stored": "2.11", "here": "2.13"}
