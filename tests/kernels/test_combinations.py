"""Every dtype, scaling, output and batch that the family takes, in every variant that takes it.

In the interpreter (on a GPU, compiled), on operands ringed with NaN and a poisoned output.
"""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace

import pytest
import torch
from trying import H200, HOPPER_HERE, Trying, needs_descriptors

from tunekit.config import Config
from tunekit.errors import ConfigError
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe
from tunekit.kernels.problems import OUTPUTS
from tunekit.key import Problem

TRYING = Trying(MATMUL, on_gpu=HOPPER_HERE)
pytestmark = needs_descriptors

SMALL = Problem("matmul", 70, 72, 96, "float16")
COMBINATIONS = {
    "half to float32": {"out_dtype": "float32"},
    "int8": {"dtype": "int8", "out_dtype": "int32", "k": 160},
    "e4m3": {"dtype": "float8_e4m3fn", "out_dtype": "bfloat16", "k": 160},
    "e5m2": {"dtype": "float8_e5m2", "out_dtype": "float16", "k": 160},
    "e4m3 per tensor": {"dtype": "float8_e4m3fn", "out_dtype": "bfloat16", "scaling": "tensor"},
    "e4m3 per row": {"dtype": "float8_e4m3fn", "out_dtype": "float32", "scaling": "row"},
    "tf32": {"dtype": "float32", "precision": "tf32"},
    "batched": {"batch": 3},
    "batched int8": {"batch": 2, "dtype": "int8", "out_dtype": "int32"},
}


def problem_of(name: str, **fields) -> Problem:
    """Return the small problem of a combination, its output dtype following the operands'."""
    plain = {**SMALL.to_dict(), "out_dtype": "", **COMBINATIONS[name], **fields}
    return Problem(**plain)


@functools.cache
def shuffled(variant: str) -> list[Config]:
    """Return a variant's configs, legal or not, in an order that is the same each time."""
    candidates = list(MATMUL.variant(variant).space.candidates())
    return random.Random(0).sample(candidates, len(candidates))


def some_configs(problem: Problem, variant: str, most: int, *, parts: int = 1) -> list[Config]:
    """Return a few legal configs of a variant, without enumerating its whole space."""
    space = MATMUL.variant(variant).space
    alike = (c for c in shuffled(variant) if c.split_k == parts and c.num_stages <= 4)
    legal = (c for c in alike if space.violation(c, problem, H200) is None)
    worth = (c for c in legal if space.doubt(c, problem, H200) is None)
    found = list(itertools.islice(worth, most))
    return found


ACROSS = [("int8", "nn"), ("tf32", "nn"), ("e4m3 per row", "tn"), ("batched", "tn")]


@pytest.mark.parametrize(("name", "layout"), [*((name, "nt") for name in COMBINATIONS), *ACROSS])
def test_every_variant_is_right_in_each_combination(name, layout):
    problem = problem_of(name, layout=layout)
    tried = set()
    for variant in MATMUL.variants:
        if variant.name == "gluon" and not TRYING.on_gpu:
            continue  # Gluon has no interpreter
        for config in some_configs(problem, variant.name, 1):
            TRYING.assert_right(problem, config)
            tried.add(variant.name)
    assert "pointer" in tried


@pytest.mark.parametrize("name", ["int8", "e4m3", "e4m3 per row", "batched"])
@pytest.mark.parametrize("sizes", [(1, 40, 64), (65, 1, 80), (5, 33, 7)])
def test_odd_sizes_and_single_rows(name, sizes):
    m, n, k = sizes
    problem = problem_of(name, m=m, n=n, k=k, layout="nt", aligned=False)
    for variant in ("pointer", "gemv", "swapped"):
        for config in some_configs(problem, variant, 1):
            TRYING.assert_right(problem, config)


@pytest.mark.parametrize(
    ("name", "variant"),
    [("int8", "pointer"), ("int8", "gemv"), ("int8", "tma"), ("e4m3 per row", "swapped"),
     ("batched", "tma"), ("batched", "pointer")],
)  # fmt: skip
def test_parts_of_a_sum_in_each_combination(name, variant):
    m, k = (1, 4096) if variant == "gemv" else (33, 1024)
    problem = problem_of(name, m=m, n=48, k=k, batch=2 if name == "batched" else 1)
    (config,) = some_configs(problem, variant, 1, parts=4)
    first = TRYING.assert_right(problem, config).out.clone()
    assert torch.equal(first, TRYING.run(problem, config).out)


@pytest.mark.parametrize("variant", ["pointer", "tma", "persistent", "swapped"])
@pytest.mark.parametrize("shared", ["a", "b"])
def test_one_matrix_serves_every_product_of_a_batch(variant, shared):
    place = "cuda" if TRYING.on_gpu else "cpu"
    a, b = torch.randn(4, 40, 64).half().to(place), torch.randn(4, 48, 64).half().to(place).mT
    if shared == "a":
        a = a[:1].expand(4, 40, 64)
    else:
        b = b[:1].expand(4, 64, 48)
    out = torch.full((4, 40, 48), torch.nan, dtype=torch.float16, device=place)
    problem = describe(a, b)
    assert (problem.batch, problem.layout, problem.aligned) == (4, "nt", True)
    (config,) = some_configs(problem, variant, 1)
    MATMUL.bind(config, problem, H200, a, b, out)(a, b, out)
    assert torch.allclose(out.float(), a.float() @ b.float(), atol=0.05)


@pytest.mark.parametrize("variant", ["pointer", "tma", "persistent"])
def test_matrices_that_lie_between_each_other(variant):
    # as attention holds them: (rows, matrices, columns), so the rows of one are far apart
    place = "cuda" if TRYING.on_gpu else "cpu"
    a = torch.randn(40, 3, 64).half().to(place).transpose(0, 1)
    b = torch.randn(48, 3, 64).half().to(place).transpose(0, 1).mT
    memory = torch.full((40, 3, 48), torch.nan, dtype=torch.float16, device=place)
    out = memory.transpose(0, 1)
    problem = describe(a, b)
    assert (problem.batch, problem.layout, problem.aligned) == (3, "nt", True)
    (config,) = some_configs(problem, variant, 1)
    MATMUL.bind(config, problem, H200, a, b, out)(a, b, out)
    assert torch.allclose(out.float(), a.float() @ b.float(), atol=0.05)


def test_matrices_whose_distance_is_no_multiple_of_16_bytes_are_unaligned():
    a = torch.randn(3, 1, 12).half()
    assert not describe(a, a.mT).aligned
    assert describe(a[:1], a[:1].mT).aligned
    assert not Problem("matmul", 1, 8, 12, "float16", batch=3).naturally_aligned()


def test_what_no_kernel_computes_is_refused_by_name():
    refused = {
        "int8 operands give out_dtype int32": {"dtype": "int8", "out_dtype": ""},
        "give out_dtype bfloat16 or float16 or float32": {
            "dtype": "float8_e4m3fn", "out_dtype": ""
        },
        "scaling is for float8": {"scaling": "row"},
        "scaled products are not batched": {
            "dtype": "float8_e5m2", "out_dtype": "bfloat16", "scaling": "row", "batch": 2
        },
        "int32 operands are not supported": {"dtype": "int32", "out_dtype": ""},
        "float16 operands give": {"out_dtype": "bfloat16"},
    }  # fmt: skip
    for text, fields in refused.items():
        problem = Problem(**{**SMALL.to_dict(), "out_dtype": "", **fields})
        with pytest.raises(ConfigError, match=text):
            MATMUL.space(problem, H200)


@pytest.mark.parametrize("dtype", OUTPUTS)
def test_sums_of_int8_are_exact_and_of_others_near(dtype):
    # values at both ends: int8 products summed in anything narrower would wrap
    problem = Problem("matmul", 32, 32, 64, dtype, OUTPUTS[dtype][0])
    prepared = MATMUL.prepare(problem, H200, index=TRYING.index, seed=0)
    if dtype == "int8":
        extreme = replace(prepared)
        extreme.a.fill_(127)
        extreme.b.fill_(-128)
        config = some_configs(problem, "pointer", 1)[0]
        MATMUL.launch(config, extreme)()
        assert (extreme.out == 64 * 127 * -128).all()
    else:
        assert prepared.tolerance.max() < 0.2 * prepared.reference.abs().max()
