"""Turned copies: operands that lie across K are copied to where they lie along it, then nt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from trying import H200, HOPPER_HERE, Trying, needs_descriptors, place

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.pointer import PointerTiles
from tunekit.kernels.stand_ins import stand_ins
from tunekit.kernels.turned import TURN_BLOCKS, TURNED
from tunekit.key import Problem

FAMILY = MatmulFamily(TURNED)
TRYING = Trying(FAMILY, on_gpu=HOPPER_HERE)
PLACE = place(TRYING.on_gpu)
pytestmark = needs_descriptors

ARITHMETIC = {
    "tf32": {"dtype": "float32", "precision": "tf32"},
    "int8": {"dtype": "int8", "out_dtype": "int32"},
    "e4m3": {"dtype": "float8_e4m3fn", "out_dtype": "bfloat16", "scaling": "row"},
}


def config(*tile: int, copy: int = 0, **fields: int) -> Config:
    return Config("turned", *tile, switches=(("copy", copy), ("shared", 0)), **fields)


@st.composite
def problem_and_config(draw: st.DrawFn) -> tuple[Problem, Config]:
    problem = Problem(
        "matmul",
        draw(st.integers(1, 140)),
        draw(st.integers(1, 140)),
        draw(st.integers(1, 300)),
        layout=draw(st.sampled_from(("nn", "tn", "tt"))),
        aligned=draw(st.booleans()),
        **draw(st.sampled_from(list(ARITHMETIC.values()))),
    )
    configs = FAMILY.space(problem, H200).configs
    assume(configs)
    return problem, configs[draw(st.integers(0, len(configs) - 1))]


@settings(max_examples=max(10, settings.default.max_examples // 3))
@given(problem_and_config(), st.integers(0, 3))
def test_any_config_is_right_on_operands_ringed_with_nan(case, seed):
    TRYING.assert_right(*case, seed)


@pytest.mark.parametrize("copy", range(len(TURN_BLOCKS)))
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_every_block_reaches_every_edge(copy, layout):
    problem = Problem("matmul", 65, 130, 257, layout=layout, **ARITHMETIC["int8"], aligned=False)
    TRYING.assert_right(problem, config(64, 64, 128, copy=copy, num_stages=2))


def test_only_what_lies_across_k_is_copied():
    problem = Problem("matmul", 256, 128, 512, layout="nn", **ARITHMETIC["tf32"])
    a, b, out = stand_ins(problem)
    copies, product = TURNED[0].call(config(64, 64, 64), problem, H200, a, b, out).sequence()
    assert product.args[0].base is a
    assert product.args[1].base.strides == (1, 512)
    assert copies.grid == (2 * 8,)  # blocks of 64 x 64 of B alone


def test_operands_without_a_contiguous_dimension():
    a = torch.randint(-9, 9, (96, 160)).to(torch.int8).to(PLACE)[::2, ::2]
    b = torch.randint(-9, 9, (160, 128)).to(torch.int8).to(PLACE)[::2, ::2]
    out = torch.full((48, 64), -1, dtype=torch.int32, device=PLACE)
    problem = Problem("matmul", 48, 64, 80, layout="nn", aligned=False, **ARITHMETIC["int8"])
    FAMILY.bind(config(64, 64, 128, num_stages=2), problem, H200, a, b, out)(a, b, out)
    assert torch.equal(out.double(), a.double() @ b.double())


def test_what_is_multiplied_as_it_lies_is_not_turned():
    as_it_lies = [
        Problem("matmul", 256, 256, 256, "float16", layout="nn"),
        Problem("matmul", 256, 256, 256, layout="nt", **ARITHMETIC["tf32"]),
        Problem("matmul", 256, 256, 256, layout="nt", **ARITHMETIC["int8"]),
    ]
    for problem in as_it_lies:
        space = FAMILY.space(problem, H200)
        assert not space.configs
        assert space.pruned["along-k"]
    full = Problem("matmul", 256, 256, 256, "float32", layout="nn")
    assert not FAMILY.space(full, H200).configs  # no tensor core multiplies full float32
    turned = Problem("matmul", 256, 256, 256, layout="nn", **ARITHMETIC["tf32"])
    assert not FAMILY.space(turned, KNOWN_DEVICES["sm_80"]).configs


def test_large_products_across_k_try_few_pointer_tiles():
    problem = Problem("matmul", 4096, 4096, 4096, layout="nn", **ARITHMETIC["tf32"])
    count: dict[str, int] = {}
    for one in MatmulFamily((PointerTiles(), *TURNED)).space(problem, H200).configs:
        count[one.variant] = count.get(one.variant, 0) + 1
    assert count["turned"] >= 50
    assert count.get("pointer", 0) < count["turned"] + count["turned-persistent"]


COPY_LOADS = """
import sys
from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.stand_ins import stand_ins
from tunekit.kernels.target import compiling_for
device = KNOWN_DEVICES["sm_90"]
cases = [
    ("padded", dict(dtype="bfloat16", m=1000, n=1000, k=1000)),
    ("turned", dict(dtype="float32", precision="tf32", m=1000, n=1000, k=1000, layout="nn")),
    ("turned", dict(dtype="int8", out_dtype="int32", m=4096, n=4096, k=4096, layout="tn")),
]
for name, fields in cases:
    problem = Problem("matmul", **fields)
    own = MATMUL.variant(name).space
    worth = (c for c in own.candidates() if own.doubt(c, problem, device) is None)
    config = next(c for c in worth if own.violation(c, problem, device) is None)
    copies = MATMUL.variant(name).call(config, problem, device, *stand_ins(problem)).before[0]
    with compiling_for(device):
        built = copies.kernel.warmup(*copies.args, grid=copies.grid, **copies.options)
    ptx = built.asm["ptx"]
    print(ptx.count("ld.global.v4.b32"), ptx.count("ld.global."), ptx.count("st.global.v4.b32"),
          ptx.count("st.global."), flush=True)
sys.stdout.flush()
import os
os._exit(0)
"""


def test_copies_of_aligned_operands_move_whole_vectors(tmp_path: Path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-W", "ignore", "-c", COPY_LOADS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for line in done.stdout.splitlines():
        wide_loads, loads, wide_stores, stores = map(int, line.split())
        assert wide_loads == loads > 0
        assert wide_stores == stores > 0
