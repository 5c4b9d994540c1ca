"""The script of random products: it finds what is wrong, and goes on where it ended."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path

import pytest
import torch

from tunekit.config import Config

POOL = [
    Config("pointer", 32, 32, 32, num_stages=2),
    Config("pointer", 64, 16, 64, num_warps=2, num_stages=2),
    Config("tma", 64, 64, 64, num_stages=2, switches=(("shared", 0),)),
]
"""A few configs: to enumerate every space takes seconds."""

SCRIPTS = Path(__file__).parents[1] / "scripts"
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="reduced for the interpreter; the script itself is for GPUs"
)


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    before = torch.backends.cuda.matmul.fp32_precision
    names = ("random_operands", "random_trying", "random_products")
    yield [importlib.import_module(name) for name in names]
    torch.backends.cuda.matmul.fp32_precision = before
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def run(scripts, tmp_path, monkeypatch):
    """Return a function that runs the script and gives its exit status and what it wrote."""

    def call(*options: str):
        kept = tmp_path / "random.json"
        monkeypatch.setattr(sys, "argv", ["x", "-o", str(kept), *options])
        monkeypatch.setattr(scripts[2], "config_pool", lambda device: POOL)
        return scripts[2].main(), json.loads(kept.read_text())

    return call


def test_examples_are_right_and_a_second_run_goes_on(run):
    status, found = run("--examples", "4", "--kernels", "12")
    assert (status, found["examples"], found["failures"]) == (0, 4, [])
    assert found["worst_error_ratio"] <= 1
    kernels = set(found["kernels"])
    assert len(kernels) <= 12
    status, again = run("--examples", "6", "--kernels", "12")
    assert (status, again["examples"]) == (0, 6)
    assert again["next"] > found["next"] >= 4
    assert kernels <= set(again["kernels"])
    assert len(again["kernels"]) <= 12


def test_processes_find_what_one_finds(run):
    _, alone = run("--examples", "8", "--kernels", "6", "--seed", "3")
    Path(sys.argv[2]).unlink()
    status, shared = run("--examples", "8", "--kernels", "6", "--seed", "3", "--jobs", "2")
    assert status == 0
    for name in ("next", "examples", "kernels", "by_variant", "by_dtype", "worst_error_ratio"):
        assert shared[name] == alone[name], name


def test_a_wrong_result_and_a_write_outside_are_found(run, scripts, monkeypatch):
    trying = scripts[1]

    def wrong(config, problem, device, *operands):
        def launch(a, b, out, *rest):
            out.fill_(3)

        return launch

    def outside(config, problem, device, *operands):
        def launch(a, b, out, *scales):
            prepared, _ = trying.expected(problem, a, b, scales)
            out.copy_(prepared.view(out.shape))
            out.as_strided((1,), (1,), 3).fill_(1)  # in the poison before the output

        return launch

    for fault, text in ((wrong, "times the tolerance"), (outside, "wrote outside")):
        monkeypatch.setattr(trying.MATMUL, "bind", fault)
        status, found = run("--examples", "1", "--seed", "0")
        assert status == 1
        assert text in found["failures"][0]["fault"]
        assert found["failures"][0]["number"] == 0
        Path(sys.argv[2]).unlink()


def test_every_kind_of_operand_is_drawn(scripts):
    operands = scripts[0]
    rng, seen = random.Random(1), set()
    for _ in range(250):
        one = operands.draw(rng, torch.device("cpu"))
        seen |= {one.problem.dtype, one.problem.scaling, one.problem.precision, *one.forms}
        seen.add("batched" if one.problem.batch > 1 else "single")
        seen.add("aligned" if one.problem.aligned else "unaligned")
        assert one.a.shape[-1] == one.b.shape[-2]
    wanted = {"int8", "float8_e4m3fn", "float8_e5m2", "float32", "tensor", "row", "tf32"}
    assert wanted | set(operands.FORMS) | {"batched", "single", "aligned", "unaligned"} <= seen
