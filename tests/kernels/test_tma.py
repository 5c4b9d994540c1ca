"""The TMA-tile variant, run for real in Triton's interpreter (on a Hopper GPU, compiled)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from trying import H200, HOPPER_HERE, Trying, needs_descriptors, place

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.descriptors import describes, descriptor
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.stand_ins import StandIn
from tunekit.kernels.tma import TmaTiles, tma_kernel
from tunekit.key import Problem

FAMILY = MatmulFamily((TmaTiles(),))
LAYOUTS = ("nn", "nt", "tn", "tt")
TRYING = Trying(FAMILY, on_gpu=HOPPER_HERE)
run, assert_right = TRYING.run, TRYING.assert_right
PLACE = place(TRYING.on_gpu)
pytestmark = needs_descriptors


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    dtype = draw(st.sampled_from(("float16", "bfloat16", "float32")))
    wide = dtype == "float32"
    problem = Problem(
        "matmul",
        draw(st.integers(33, 300)),
        draw(st.integers(17, 300)),
        draw(st.integers(1, 300)),
        dtype,
        precision="tf32" if wide else "ieee",
        layout="nt" if wide else draw(st.sampled_from(LAYOUTS)),
    )
    configs = FAMILY.space(problem, H200).configs
    assume(configs)
    return problem, configs[draw(st.integers(0, len(configs) - 1))]


def config(*tile: int, shared: int = 0, **fields: int) -> Config:
    return Config("tma", *tile, switches=(("shared", shared),), **fields)


@given(problem_and_config(), st.integers(0, 3))
def test_any_legal_config_is_right_for_any_aligned_problem(case, seed):
    problem, chosen = case
    assert_right(problem, chosen, seed)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_sizes_with_padded_leading_dimensions(layout):
    # every edge is inside a tile, and the padding between lines is NaN
    problem = Problem("matmul", 127, 129, 65, "float16", layout=layout)
    assert_right(problem, config(64, 64, 64, num_stages=2))


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("split_k", [2, 4])
def test_split_k_repeats_bit_by_bit(split_k, shared):
    problem = Problem("matmul", 70, 40, 64 * 8, "float16")
    stages = 3 if split_k == 2 else 2
    chosen = config(64, 32, 64, split_k=split_k, num_stages=stages, shared=shared)
    prepared = run(problem, chosen)
    first = prepared.out.clone()
    assert FAMILY.error_ratio(prepared) <= 1
    launch = FAMILY.launch(chosen, prepared)
    for _ in range(2):  # the same counters serve the second launch
        FAMILY.poison(prepared)
        launch()
        assert torch.equal(prepared.out, first)


def test_an_output_with_gaps_keeps_them():
    problem = Problem("matmul", 66, 40, 64, "float16")
    a = torch.randn(66, 64).half().to(PLACE)
    b = torch.randn(40, 64).half().to(PLACE).t()
    memory = torch.full((132, 80), math.nan, dtype=torch.float16, device=PLACE)
    out = memory[::2, ::2]
    chosen = config(64, 32, 64, num_stages=2)
    FAMILY.bind(chosen, problem, H200, a, b, out)(a, b, out)
    assert torch.allclose(out.float(), a.float() @ b.float(), atol=0.05)
    assert torch.isnan(memory[1::2]).all()
    assert torch.isnan(memory[:, 1::2]).all()


def test_unaligned_operands_are_refused_by_name():
    problem = Problem("matmul", 64, 64, 65, "float16", aligned=False)
    broken = FAMILY.violation(config(64, 64, 64), problem, H200)
    assert broken is not None
    assert broken.rule == "tma"


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_120", "gfx942"])
def test_other_hardware_has_no_config(arch):
    problem = Problem("matmul", 512, 512, 512, "bfloat16")
    space = FAMILY.space(problem, KNOWN_DEVICES[arch])
    assert not space.configs
    assert space.pruned["tma"]


def test_a_space_is_small_and_holds_what_an_expert_would_try():
    configs = set(FAMILY.space(Problem("matmul", 4096, 4096, 4096, "bfloat16"), H200).configs)
    assert 0 < len(configs) < 400
    assert config(128, 256, 64, group_size=8, num_warps=8, num_stages=4) in configs
    assert config(128, 128, 64, group_size=8, num_warps=4, num_stages=3) in configs


@pytest.mark.parametrize("stored", [True, False])
def test_a_single_line_may_have_any_stride(stored):
    shape, strides = ((1, 24), (7, 1)) if stored else ((24, 1), (1, 7))
    line = StandIn(torch.float16, shape, strides)
    made = descriptor(line, stored=stored, block_rows=64, block_columns=64)
    assert list(made.shape) == [1, 24]
    assert made.strides[0] * 2 % 16 == 0


def test_which_outputs_a_descriptor_can_lie_on():
    dense = StandIn(torch.float16, (10, 40), (40, 1))
    assert describes(dense)
    assert describes(StandIn(torch.float16, (1, 40), (39, 1)))
    assert not describes(StandIn(torch.float16, (1, 39), (40, 1)))
    assert not describes(StandIn(torch.float16, (1, 1), (1, 1)))
    assert not describes(StandIn(torch.float16, (10, 39), (39, 1)))
    assert not describes(StandIn(torch.float16, (10, 40), (1, 16)))
    assert not describes(StandIn(torch.float16, (10, 40), (40, 1), aligned=False))


@pytest.mark.parametrize(
    ("m", "n", "described"),
    [(200, 192, True), (64, 192, False), (200, 64, False), (200, 200, False)],
    ids=["tiles each way", "one row", "one column", "rows of no whole lines"],
)
def test_the_epilogue_stores_by_tma_where_that_pays(m, n, described):
    problem = Problem("matmul", m, n, 64, "float16")
    chosen = config(64, 64, 64, num_stages=2)
    prepared = assert_right(problem, chosen)
    operands = (prepared.a, prepared.b, prepared.out)
    call = TmaTiles().call(chosen, problem, H200, *operands)
    assert call.options["C_DESCRIBED"] is described


def test_parts_and_batches_are_stored_through_pointers():
    out = StandIn(torch.float16, (256, 256), (256, 1))
    a, b = (
        StandIn(torch.float16, (256, 256), (256, 1)),
        StandIn(torch.float16, (256, 256), (1, 256)),
    )
    problem = Problem("matmul", 256, 256, 256, "float16")
    split = config(64, 64, 64, split_k=2, num_stages=2)
    assert not TmaTiles().call(split, problem, H200, a, b, out).options["C_DESCRIBED"]
    whole = config(64, 64, 64, num_stages=2)
    assert TmaTiles().call(whole, problem, H200, a, b, out).options["C_DESCRIBED"]
    wider = Problem("matmul", 256, 256, 256, "float16", "float32")
    out = StandIn(torch.float32, (256, 256), (256, 1))
    assert not TmaTiles().call(whole, wider, H200, a, b, out).options["C_DESCRIBED"]


def test_corners_compile_and_need_the_shared_memory_predicted(compile_corners):
    cases = [
        ("sm_90", dict(family="matmul", m=4096, n=4096, k=4096, dtype="bfloat16", layout="nt")),
        ("sm_90", dict(family="matmul", m=64, n=4096, k=8192, dtype="float16", layout="tn")),
        ("sm_100", dict(family="matmul", m=1024, n=1024, k=1024, dtype="bfloat16", layout="nt")),
    ]
    for found in compile_corners("tunekit.kernels.tma:TmaTiles", cases):
        assert found["shared"] <= found["predicted"] <= 1.1 * found["shared"], found["config"]
        assert "cp.async.bulk.tensor" in found["ptx"], found["config"]
        assert found["config"].startswith("sm_100") or "wgmma.mma_async" in found["ptx"]


def test_the_variant_declares_its_kernel():
    assert FAMILY.variant("tma").kernels == (tma_kernel,)
