"""The real compiler, for GPUs that are not here: what compiles, and in how much shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.tile_rules import warpgroup_dot
from tunekit.key import Problem

PORTABLE = ("sm_80", "sm_86", "sm_90", "sm_100", "gfx942")
SQUARE = {"family": "matmul", "m": 4096, "n": 4096, "k": 4096}


def compile_all(cases: list[dict], cache: Path) -> list[dict]:
    """Compile the cases in a process that does not interpret."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_cases.py"))],
        input="\n".join(json.dumps(case) for case in cases),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def case(arch: str, config: Config, dtype: str = "bfloat16", **fields) -> dict:
    problem = {**SQUARE, "dtype": dtype, **fields}
    return {"arch": arch, "problem": problem, "config": config.to_dict()}


def test_every_target_compiles_the_corners_and_no_prediction_is_under(tmp_path):
    corners = [
        Config("pointer", 128, 128, 32, 8, 1, 4, 3),
        Config("pointer", 128, 256, 32, 8, 1, 8, 2),
        Config("pointer", 16, 32, 64, 1, 4, 2, 6),
        Config("pointer", 64, 64, 16, 8, 2, 4, 2),
    ]
    whole = settings.default.max_examples >= 1000
    cases = [case(arch, one) for arch in PORTABLE for one in (corners if whole else corners[::3])]
    cases += [case("sm_90", corners[0], "float16", layout=layout) for layout in ("nn", "tn", "tt")]
    cases += [
        case(arch, corners[3], "float32", precision=precision)
        for arch in ("sm_80", "sm_90")
        for precision in ("tf32", "ieee")
    ]
    # small float32 tiles are stored through more than their operands take
    small = [Config("pointer", 64, 32, 16, 8, 1, 4, 2), Config("pointer", 32, 64, 16, 8, 2, 4, 2)]
    cases += [case(arch, one, "float32") for arch in ("sm_80", "sm_86") for one in small]
    cases.append(case("sm_90", corners[0], m=4095, n=4095, k=4095, aligned=False))
    results = compile_all(cases, tmp_path)
    assert len(results) == len(cases)
    for wanted, result in zip(cases, results, strict=True):
        assert result["status"] == "ok", (wanted, result)
        assert result["shared"] <= result["predicted"], (wanted, result)


def test_a_pipelined_tile_is_predicted_to_a_tenth(tmp_path):
    configs = [
        Config("pointer", 128, 128, 64, 8, 1, 8, 4),
        Config("pointer", 64, 64, 64, 8, 1, 4, 3),
    ]
    cases = [case(arch, configs[0]) for arch in ("sm_80", "sm_90", "sm_100")]
    cases += [case(arch, configs[1]) for arch in ("sm_80", "sm_90")]
    for wanted, result in zip(cases, compile_all(cases, tmp_path), strict=True):
        assert result["shared"] <= result["predicted"] <= 1.1 * result["shared"], (wanted, result)


def test_the_shared_memory_limit_of_each_gpu_decides():
    # 128x256x64 in 4 stages takes 144 KiB on sm_80 and 192 KiB on sm_90
    config = Config("pointer", 128, 256, 64, 8, 1, 8, 4)
    problem = Problem(**SQUARE, dtype="bfloat16")
    broken = {
        arch: MATMUL.violation(config, problem, KNOWN_DEVICES[arch])
        for arch in ("sm_80", "sm_86", "sm_90")
    }
    assert broken["sm_80"] is None
    assert broken["sm_90"] is None
    assert broken["sm_86"] is not None
    assert broken["sm_86"].rule == "shared-memory"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_smallest_tile_of_the_space_compiles(dtype, tmp_path):
    problem = Problem(**{**SQUARE, "m": 16}, dtype=dtype)
    cases = []
    for arch in ("sm_80", "sm_90"):
        smallest = min(
            MATMUL.space(problem, KNOWN_DEVICES[arch]).configs,
            key=lambda c: (c.block_k, c.block_m * c.block_n, c.num_warps, c.num_stages),
        )
        cases.append({"arch": arch, "problem": problem.to_dict(), "config": smallest.to_dict()})
    assert [result["status"] for result in compile_all(cases, tmp_path)] == ["ok", "ok"]


def test_sizes_and_strides_of_one_compile(tmp_path):
    # Triton turns an argument that equals 1 into a constant, which not every operation takes
    config = Config("pointer", 16, 32, 16, 1, 2, 2, 2)
    cases = [
        case("sm_90", config, "float16", **{name: 1}, aligned=False) for name in ("m", "n", "k")
    ]
    ones = [[[1, 1], [1, 1], [1, 1]], [[4096, 1], [4096, 1], [1, 4096]]]
    cases += [{**case("sm_90", config, "float16"), "strides": strides} for strides in ones]
    assert [result["status"] for result in compile_all(cases, tmp_path)] == ["ok"] * len(cases)


def test_only_shapes_a_warpgroup_takes_are_counted_as_such():
    h200, a100 = KNOWN_DEVICES["sm_90"], KNOWN_DEVICES["sm_80"]
    half = Problem(**SQUARE, dtype="float16")
    assert warpgroup_dot(Config("pointer", 64, 64, 64), half, h200)
    assert not warpgroup_dot(Config("pointer", 32, 64, 64), half, h200)
    assert not warpgroup_dot(Config("pointer", 64, 64, 64, num_warps=2), half, h200)
    assert not warpgroup_dot(Config("pointer", 64, 64, 64), half, a100)
    full = Problem(**SQUARE, dtype="float32")
    assert not warpgroup_dot(Config("pointer", 64, 64, 64), full, h200)
