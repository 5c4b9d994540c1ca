"""The examples run, as a reader would start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a command in an empty folder, with no GPU to be seen."""
    here = Path(sys.executable).parent
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"CUDA_VISIBLE_DEVICES": "", "PATH": f"{here}{os.pathsep}{env['PATH']}"}

    def start(*command):
        return subprocess.run(
            [str(part) for part in command], cwd=tmp_path, env=env, capture_output=True, text=True
        )

    return start


def test_a_model_is_recorded_tuned_and_faster(run):
    done = run(sys.executable, EXAMPLES / "tune_a_model.py", "--trials", "12")
    assert done.returncode == 0, done.stderr
    assert "products of a pass of 512 tokens" in done.stdout
    assert float(done.stdout.split(" times as fast")[0].split()[-1]) >= 1.0


def test_a_transformer_is_swapped_and_taken_back(run):
    done = run(sys.executable, EXAMPLES / "transformer.py")
    assert done.returncode == 0, done.stderr
    assert "layers.0.linear1" in done.stdout
    assert "the model is as it was" in done.stdout


def test_the_notebook_runs_from_top_to_bottom(run, tmp_path):
    cells = json.loads((EXAMPLES / "tune_a_model.ipynb").read_text())["cells"]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
    code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    (tmp_path / "cells.py").write_text(code)
    done = run(sys.executable, tmp_path / "cells.py")
    assert done.returncode == 0, done.stderr
    assert "geometric mean" in done.stdout


def test_the_gate_shuts_and_says_why(run, tmp_path):
    (tmp_path / "shapes.yaml").write_text("shapes: [[512, 512, 512]]\n")
    tunekit = Path(sys.executable).with_name("tunekit")
    if not tunekit.exists():
        pytest.skip("tunekit is not installed in this environment: the script calls it by name")
    done = run("bash", EXAMPLES / "ci_gate.sh", "shapes.yaml", "", "9")
    assert done.returncode == 1
    assert "geometric mean of torch us" in done.stdout
    assert "below 9" in done.stderr
