"""The swapped-operand variant, run for real in Triton's interpreter (on a GPU, compiled)."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels import Prepared
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.partials import COUNTED
from tunekit.kernels.reference import guard_is_intact
from tunekit.kernels.swapped import SwappedOperands, transposed
from tunekit.key import LAYOUTS, Problem

H200 = KNOWN_DEVICES["sm_90"]
INDEX = 0 if torch.cuda.is_available() else -1
PLACE = "cuda" if torch.cuda.is_available() else "cpu"
FAMILY = MatmulFamily((SwappedOperands(),))


def config(*tile: int, tma: int = 0, shared: int = 0, **fields: int) -> Config:
    return Config("swapped", *tile, switches=(("shared", shared), ("tma", tma)), **fields)


def run(problem: Problem, chosen: Config, seed: int = 0) -> Prepared:
    """Run a config, legal or not, on operands ringed with NaN and a poisoned output."""
    prepared = FAMILY.prepare(problem, H200, index=INDEX, seed=seed)
    FAMILY.poison(prepared)
    call = SwappedOperands().call(
        chosen, problem, H200, prepared.a, prepared.b, prepared.out
    )  # fmt: skip
    call.kernel[call.grid](*call.args, **call.options)
    return prepared


def assert_right(problem: Problem, chosen: Config, seed: int = 0) -> Prepared:
    prepared = run(problem, chosen, seed)
    assert FAMILY.error_ratio(prepared) <= 1, f"{chosen} is wrong for {problem}"
    assert guard_is_intact(prepared), f"{chosen} wrote outside the output of {problem}"
    return prepared


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    dtype = draw(st.sampled_from(("float16", "bfloat16", "float32")))
    layout = draw(st.sampled_from(LAYOUTS))
    precision = draw(st.sampled_from(("ieee", "tf32")))
    tf32 = dtype == "float32" and precision == "tf32" and layout == "nt"
    problem = Problem(
        "matmul",
        draw(st.integers(1, 70)),
        draw(st.integers(1, 200)),
        draw(st.integers(1, 500)),
        dtype,
        precision="tf32" if tf32 else "ieee",
        layout=layout,
        aligned=draw(st.booleans()),
    )
    configs = FAMILY.space(problem, H200).configs
    if not configs:
        return problem, config(16, 64, 64, num_stages=2)
    return problem, configs[draw(st.integers(0, len(configs) - 1))]


@given(problem_and_config(), st.integers(0, 3))
def test_any_legal_config_is_right_for_any_problem(case, seed):
    assert_right(*case, seed)


@pytest.mark.parametrize("tma", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_layout_with_and_without_descriptors(tma, layout, dtype):
    problem = Problem("matmul", 24, 136, 200, dtype, layout=layout)
    assert_right(problem, config(32, 64, 64, tma=tma, split_k=2))


@pytest.mark.parametrize("m", range(1, 16))
@pytest.mark.parametrize("tma", [0, 1])
def test_every_m_below_the_smallest_tile(m, tma):
    problem = Problem("matmul", m, 72, 136, "float16")
    assert_right(problem, config(16, 64, 64, tma=tma))


@pytest.mark.parametrize("block_k", [64, 128, 256])
@pytest.mark.parametrize("k", [1, 7, 63, 65, 300])
def test_a_k_tail_is_masked(block_k, k):
    assert_right(Problem("matmul", 5, 70, k, "float32", aligned=False), config(16, 64, block_k))


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("split_k", [2, 4, 8, 16])
def test_split_k_repeats_bit_by_bit_and_leaves_its_counters_ready(split_k, shared):
    problem = Problem("matmul", 3, 130, 64 * 33, "float16")
    chosen = config(16, 64, 64, split_k=split_k, shared=shared)
    prepared = assert_right(problem, chosen)
    first = prepared.out.clone()
    call = SwappedOperands().call(
        chosen, problem, H200, prepared.a, prepared.b, prepared.out
    )  # fmt: skip
    for _ in range(2):
        FAMILY.poison(prepared)
        call.kernel[call.grid](*call.args, **call.options)
        assert torch.equal(prepared.out, first)
    counters = call.args[4]
    assert counters.dtype == torch.int32
    assert not counters[0::2].any()
    assert not (counters[1::2] % COUNTED.value).any()


@pytest.mark.parametrize("split_k", [2, 8])
def test_the_counter_of_shared_sums_may_wrap(split_k):
    problem = Problem("matmul", 3, 130, 64 * 33, "float16")
    chosen = config(16, 64, 64, split_k=split_k, shared=1)
    prepared = assert_right(problem, chosen)
    first = prepared.out.clone()
    call = SwappedOperands().call(
        chosen, problem, H200, prepared.a, prepared.b, prepared.out
    )  # fmt: skip
    counters = call.args[4]
    counters[1::2] = 2**31 - COUNTED.value
    for _ in range(2):
        FAMILY.poison(prepared)
        call.kernel[call.grid](*call.args, **call.options)
        assert torch.equal(prepared.out, first)
    assert counters[1] == -(2**31) + COUNTED.value
    counters.zero_()


def test_an_output_with_gaps_and_strided_operands():
    a = torch.randn(20, 300, device=PLACE)[::2, ::3]
    b = torch.randn(200, 140, device=PLACE)[::2, ::2]
    memory = torch.full((20, 140), math.nan, device=PLACE)
    out = memory[::2, ::2]
    problem = Problem("matmul", 10, 70, 100, "float32", aligned=False)
    call = SwappedOperands().call(config(16, 64, 64), problem, H200, a, b, out)
    call.kernel[call.grid](*call.args, **call.options)
    assert torch.allclose(out, a @ b, atol=1e-4)
    assert torch.isnan(memory[1::2]).all()
    assert torch.isnan(memory[:, 1::2]).all()


def test_the_transposed_problem_names_the_same_memory():
    problem = Problem("matmul", 16, 4096, 512, "bfloat16", layout="nn")
    turned = transposed(problem)
    assert (turned.m, turned.n, turned.layout) == (4096, 16, "tt")
    assert transposed(turned) == problem


@pytest.mark.parametrize(
    ("changes", "chosen", "rule"),
    [
        ({"aligned": False}, config(16, 64, 64, tma=1, num_stages=6, split_k=2), "tma"),
        ({"n": 28672}, config(16, 256, 256, num_stages=4, num_warps=8), "shared-memory"),
        ({}, config(16, 64, 64, num_stages=4, shared=1), "shared-sum"),
        ({}, config(16, 64, 64, num_stages=4, split_k=4, shared=1), "shared-sum"),
        ({"n": 64}, config(16, 64, 64, num_stages=4, split_k=256, shared=1), "split_k-choice"),
    ],
)
def test_what_is_not_legal_is_refused_by_its_rule(changes, chosen, rule):
    problem = dataclasses.replace(Problem("matmul", 16, 4096, 4096, "bfloat16"), **changes)
    assert FAMILY.violation(chosen, problem, H200).rule == rule


@pytest.mark.parametrize(
    ("changes", "chosen", "rule"),
    [
        ({"m": 129}, config(128, 64, 64), "few-rows"),
        ({}, config(32, 64, 64, num_stages=6, split_k=2), "few-rows"),
        ({}, config(16, 64, 64, num_warps=8, num_stages=6, split_k=2), "mma-rows"),
        ({}, config(16, 64, 64, num_stages=2, split_k=2), "in-flight"),
        ({}, config(16, 128, 128, num_stages=6), "parallel"),
        ({}, config(16, 64, 64, num_warps=2, num_stages=6, split_k=2), "mma-rows"),
        ({"n": 1024, "m": 64}, config(64, 64, 64, num_stages=6, split_k=4, shared=1), "sum"),
        ({"n": 64, "k": 65536}, config(16, 64, 64, num_stages=6, split_k=64), "sum"),
    ],
)
def test_what_is_not_worth_a_trial_is_doubted_by_its_rule(changes, chosen, rule):
    problem = dataclasses.replace(Problem("matmul", 16, 4096, 4096, "bfloat16"), **changes)
    assert SwappedOperands.space.doubt(chosen, problem, H200).rule == rule


@pytest.mark.parametrize("m", [1, 16, 64, 128])
def test_the_space_is_small_and_holds_descriptors_only_where_they_exist(m):
    problem = Problem("matmul", m, 4096, 4096, "bfloat16")
    configs = FAMILY.space(problem, H200).configs
    assert 50 <= len(configs) <= 600
    assert {c.switch("tma") for c in configs} == {0, 1}
    ampere = FAMILY.space(problem, KNOWN_DEVICES["sm_80"]).configs
    assert {c.switch("tma") for c in ampere} == {0}


def test_corners_compile_for_every_target_and_need_the_shared_memory_predicted(compile_corners):
    problem = {"family": "matmul", "m": 16, "n": 4096, "k": 4096, "dtype": "bfloat16"}
    cases = [("sm_90", problem), ("sm_90", {**problem, "m": 64, "layout": "nn"})]
    cases += [(arch, problem) for arch in ("sm_80", "sm_86", "sm_100", "gfx942")]
    for found in compile_corners("tunekit.kernels.swapped:SwappedOperands", cases):
        assert found["shared"] <= found["predicted"] <= 1.1 * found["shared"], found
        if found["config"].startswith("sm_90"):
            # 32 rows of weights are fewer than a warpgroup multiplies: more programs instead
            warpgroup = "x32x" not in found["config"].split("swapped")[1]
            assert ("wgmma.mma_async" in found["ptx"]) is warpgroup, found
            loads = "cp.async.bulk.tensor" if "tma=1" in found["config"] else "cp.async.cg"
            assert loads in found["ptx"], found
