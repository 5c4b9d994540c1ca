"""The matmul family's space: what the fast enumeration finds is what legality says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import ConfigError, ProblemError
from tunekit.kernels import family
from tunekit.kernels.matmul_family import MATMUL
from tunekit.key import Problem


@pytest.mark.parametrize(
    ("arch", "size"),
    [
        *(("sm_90", size) for size in ((1, 33, 40), (100, 256, 1000), (4096, 512, 64))),
        ("sm_75", (100, 256, 1000)),
        ("sm_86", (1, 33, 40)),
        ("gfx942", (4096, 512, 64)),
    ],
)
def test_the_space_is_exactly_what_is_legal(arch, size):
    device, problem = KNOWN_DEVICES[arch], Problem("matmul", *size, "float16")
    space = MATMUL.space(problem, device)
    candidates = [c for variant in MATMUL.variants for c in variant.space.candidates()]
    assert len(space) + sum(space.pruned.values()) == len(candidates)
    # One by one it takes long: every one with `--hypothesis-profile full`, else one in seven.
    every = 1 if settings.default.max_examples >= 1000 else 7
    asked = {c: None for c in (*candidates[::every], *space.configs)}
    legal = {c for c in asked if MATMUL.violation(c, problem, device) is None}
    doubts = {v.name: v.space.doubt for v in MATMUL.variants}
    worth = {c for c in legal if not doubts[c.variant](c, problem, device)}
    assert set(space.configs) == worth
    assert space.configs == tuple(c for c in candidates if c in worth)
    assert worth


def test_a_config_is_refused_by_the_name_of_its_rule():
    problem, device = Problem("matmul", 64, 64, 64, "float16"), KNOWN_DEVICES["sm_90"]
    cases = {
        Config("nonesuch", 16, 16, 16): "variant",
        Config("pointer", 16, 48, 16): "block_n-choice",
        Config("pointer", 16, 64, 16, split_k=8): "split-k",
        Config("pointer", 256, 256, 16, num_warps=4): "registers",
        Config("pointer", 256, 128, 256, num_warps=8, num_stages=6): "shared-memory",
        Config("tma", 64, 64, 64, num_warps=3): "num_warps-choice",
    }
    found = {config: MATMUL.violation(config, problem, device) for config in cases}
    assert {config: broken and broken.rule for config, broken in found.items()} == cases


def test_a_dtype_without_kernels_is_refused_before_any_search():
    problem = Problem("matmul", 64, 64, 64, "int32")
    with pytest.raises(ConfigError, match=r"int32.*float16, bfloat16, float32"):
        MATMUL.space(problem, KNOWN_DEVICES["sm_80"])


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_float8_has_no_config_where_there_is_no_such_hardware(arch):
    problem = Problem("matmul", 64, 64, 64, "float8_e4m3fn", "bfloat16")
    space = MATMUL.space(problem, KNOWN_DEVICES[arch])
    assert {config.variant for config in space.configs} <= {"gemv"}
    assert space.pruned["dtype-support"]


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "gfx942"])
def test_one_row_of_float8_has_configs_where_the_compiler_can_read_it(arch):
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        row = Problem("matmul", 1, 64, 1024, dtype, "bfloat16")
        readable = dtype == "float8_e5m2" or arch in ("sm_89", "gfx942")
        assert bool(MATMUL.space(row, KNOWN_DEVICES[arch]).configs) == readable


def test_an_unknown_family_is_an_error_that_lists_those_there_are():
    with pytest.raises(ProblemError, match="use one of matmul"):
        family("convolution")


def test_the_default_config_is_legal_from_the_smallest_problem_to_the_largest():
    for size in ((1, 1, 1), (3, 5, 7), (64, 64, 65536), (8192, 8192, 8192)):
        problem = Problem("matmul", *size, "float16")
        for arch in ("sm_75", "sm_90"):
            config = MATMUL.default_config(problem, KNOWN_DEVICES[arch])
            assert MATMUL.violation(config, problem, KNOWN_DEVICES[arch]) is None


def test_what_is_legal_but_not_worth_a_trial_is_doubted_by_name():
    problem, device = Problem("matmul", 64, 64, 64, "float16"), KNOWN_DEVICES["sm_80"]
    cases = {
        Config("pointer", 128, 16, 16): "oversized-tile",
        Config("pointer", 16, 16, 16, num_warps=8): "idle-threads",
        Config("pointer", 16, 64, 16, split_k=4): "idle-split",
        Config("pointer", 32, 32, 16, num_stages=6): "stages",
        Config("pointer", 32, 32, 16, group_size=8): "one-order",
    }
    space = MATMUL.variant("pointer").space
    assert all(MATMUL.violation(config, problem, device) is None for config in cases)
    found = {config: space.doubt(config, problem, device) for config in cases}
    assert {config: broken and broken.rule for config, broken in found.items()} == cases


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("k", [1, 16, 17])
def test_large_products_along_a_short_k_have_configs(k, arch):
    for dtype, out in (("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32")):
        for layout in ("nt", "nn", "tn"):
            size = (8192, 4096, k) if layout != "tn" else (4096, 4096, k)
            aligned = Problem("matmul", *size, dtype, out, layout=layout).naturally_aligned()
            problem = Problem("matmul", *size, dtype, out, layout=layout, aligned=aligned)
            space = MATMUL.space(problem, KNOWN_DEVICES[arch])
            assert space.configs, problem
    batch = Problem("matmul", 64, 256, 1024, "bfloat16", batch=1023)
    assert MATMUL.space(replace(batch, k=16), KNOWN_DEVICES[arch]).configs


def test_what_takes_the_compiler_many_times_as_long_is_not_tried():
    wide = Config("pointer", 32, 256, 256, num_warps=2, num_stages=2)
    whole = Problem("matmul", 1024, 1024, 1024, "bfloat16")
    odd = Problem("matmul", 1023, 1023, 1023, "bfloat16", aligned=False)
    device, doubt = KNOWN_DEVICES["sm_90"], MATMUL.variant("pointer").space.doubt
    assert doubt(wide, whole, device).rule in ("unrolled", "left-to-tma")
    assert doubt(wide, odd, device).rule == "unrolled"
    # A list that people start from has this tile of 8 bits.
    usual = Config("pointer", 128, 256, 128, num_warps=8, num_stages=3)
    bits8 = Problem("matmul", 4096, 4096, 4096, "float8_e4m3fn", "bfloat16")
    assert doubt(usual, bits8, KNOWN_DEVICES["sm_89"]) is None
    loads = Config("pointer", 64, 128, 128, num_warps=4, num_stages=2)
    assert doubt(loads, odd, device) is None
    more = Config("pointer", 128, 128, 128, num_warps=4, num_stages=2)
    assert doubt(more, odd, device).rule == "unrolled"
    assert doubt(more, whole, KNOWN_DEVICES["sm_80"]).rule == "unrolled"


@pytest.mark.parametrize("size", [(1, 1, 2**31 - 1), (2**31 - 1, 1, 64), (64, 2**31 - 1, 64)])
def test_sizes_whose_tiles_pass_32_bits_have_no_config(size):
    problem, device = Problem("matmul", *size, "float16"), KNOWN_DEVICES["sm_90"]
    tma = Config("tma", 64, 64, 64, num_stages=3, switches=(("shared", 0),))
    for config in (Config("pointer", 16, 16, 16), tma):
        broken = MATMUL.violation(config, problem, device)
        assert broken is not None
        assert broken.rule in ("index-range", "oversized-tile")


def test_parts_of_a_sum_whose_steps_pass_32_bits_are_refused():
    problem, device = Problem("matmul", 1, 1, 2**30, "float16"), KNOWN_DEVICES["sm_90"]
    split = Config("pointer", 16, 16, 16, split_k=32, num_warps=2, num_stages=2)
    assert MATMUL.violation(split, problem, device).rule == "index-range"
    assert all(
        MATMUL.violation(c, problem, device) is None
        for c in MATMUL.space(problem, device).configs[:50]
    )


@pytest.mark.parametrize("size", [(1, 1, 1), (16, 16, 16), (7, 9, 33), (1, 1, 10**6)])
def test_no_problem_is_left_without_a_config_on_wide_wavefronts(size):
    problem = Problem("matmul", *size, "float16")
    assert len(MATMUL.space(problem, KNOWN_DEVICES["gfx942"])) > 0
