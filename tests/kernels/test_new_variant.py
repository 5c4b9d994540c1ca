"""CONTRIBUTING's example of a new variant, followed to the letter."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import VARIANTS, MatmulFamily
from tunekit.kernels.reference import guard_is_intact
from tunekit.key import Problem

ROOT = Path(__file__).resolve().parents[2]
H200 = KNOWN_DEVICES["sm_90"]


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """The matmul family with one file and one entry more."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(r"<!-- example: a variant -->\n```python\n(.*?)```", text, re.DOTALL)
    path = tmp_path_factory.mktemp("variant") / "rows.py"
    path.write_text(example)
    spec = importlib.util.spec_from_file_location("rows", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["rows"] = module
    spec.loader.exec_module(module)
    yield MatmulFamily((*VARIANTS, module.Rows()))
    del sys.modules["rows"]


def test_its_configs_are_part_of_the_space(family):
    space = family.space(Problem("matmul", 20, 40, 30, "float16"), H200)
    assert [c.block_n for c in space.configs if c.variant == "rows"] == [16, 32, 64]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_its_results_are_right(family, layout):
    problem = Problem("matmul", 5, 37, 19, "float16", layout=layout, aligned=False)
    index = 0 if torch.cuda.is_available() else -1
    for config in family.space(problem, H200).configs:
        if config.variant == "rows":
            prepared = family.prepare(problem, H200, index=index, seed=0)
            family.poison(prepared)
            family.launch(config, prepared)()
            assert family.error_ratio(prepared) <= 1
            assert guard_is_intact(prepared)


def test_it_has_a_fingerprint_and_breaks_rules_by_name(family):
    assert len(family.fingerprint("rows").source) == 16
    problem = Problem("matmul", 5, 2**31 - 1, 19, "float16", aligned=False)
    config = next(c for c in family.variant("rows").space.candidates())
    assert family.violation(config, problem, H200).rule == "index-range"
