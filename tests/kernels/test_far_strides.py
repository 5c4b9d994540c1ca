"""Strides that pass 32 bits reach a kernel whole: in units they would fit, and overflow in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trying import H200

from tunekit.config import Config
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.stand_ins import in_unit, stand_ins
from tunekit.key import Problem

FAR = 1 << 31
TILES = {"num_warps": 4, "num_stages": 2}


def full(layout: str, precision: str) -> Problem:
    return Problem("matmul", 64, 64, 64, "float32", precision=precision, layout=layout)


HALF = Problem("matmul", 16, 64, 72, "float16", layout="nt")
SHARED, COPY = ("shared", 0), ("copy", 1)
CASES = [
    # operand, its strides, which of what a kernel is given is far
    (HALF, Config("phased", 64, 32, 64, **TILES), 2, (FAR // 8, 1), FAR),
    (HALF, Config("tma", 64, 32, 64, switches=(SHARED,), **TILES), 2, (FAR, 1), FAR),
    (replace(HALF, k=65, aligned=False),
     Config("padded", 64, 32, 64, switches=(COPY, SHARED), **TILES), 0, (FAR, 1), FAR),
    (full("nt", "ieee"), Config("turned-pointer", 16, 16, 16, **TILES), 1, (1, FAR), FAR),
    (full("nn", "tf32"),
     Config("turned", 64, 32, 32, switches=(COPY, SHARED), **TILES), 1, (FAR, 1), FAR),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "config", "which", "strides", "far"), CASES)
def test_a_far_stride_is_an_argument_of_64_bits(problem, config, which, strides, far):
    operands = list(stand_ins(problem))
    operands[which] = replace(operands[which], strides=strides)
    assert MATMUL.violation(config, problem, H200) is None
    call = MATMUL.variant(config.variant).call(config, problem, H200, *operands)
    numbers = [one for part in call.sequence() for one in part.args if isinstance(one, int)]
    assert far in numbers


def test_a_unit_is_of_what_fits_32_bits():
    assert in_unit(FAR - 8, 2) == (FAR // 8 - 1, 8)
    assert in_unit(FAR, 2) == (FAR, 1)
