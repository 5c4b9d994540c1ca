"""The examples run, as a reader would start them: without a GPU, in an empty folder."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, no_gpu):
    monkeypatch.chdir(tmp_path)


def run(monkeypatch, name, *arguments):
    """Run a script in this process: starting another takes longer than most of them."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_a_model_is_recorded_tuned_and_faster(monkeypatch, capsys):
    run(monkeypatch, "tune_a_model.py", "--trials", "6")
    said = capsys.readouterr().out
    assert "products of a pass of 512 tokens" in said
    assert float(said.split(" times as fast")[0].split()[-1]) >= 1.0


def test_a_transformer_is_swapped_and_taken_back(monkeypatch, capsys):
    run(monkeypatch, "transformer.py")
    said = capsys.readouterr().out
    assert "layers.0.linear1" in said
    assert "the model is as it was" in said


def test_the_notebook_runs_from_top_to_bottom(capsys):
    cells = json.loads((EXAMPLES / "tune_a_model.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
    names = {}
    for source in sources:
        exec(compile(source.replace("trials=40", "trials=6"), "notebook", "exec"), names)
    assert "geometric mean" in capsys.readouterr().out


def test_a_notebook_shows_its_progress_in_one_place(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: it is in the group `notebook`")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel", reason="no ipykernel: it is in the group `notebook`")
    notebook = nbformat.read(EXAMPLES / "tune_a_model.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (tuning,) = [cell for cell in cells if "trials=40" in cell.source]
    tuning.source = tuning.source.replace("trials=40", "trials=6")
    notebook.cells = cells[: cells.index(tuning) + 1]
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=where).execute()
    (shown,) = tuning.outputs
    assert shown.output_type == "display_data"
    assert shown.data["text/plain"].startswith("6/6 trials; ")
    assert 'max="6"' in shown.data["text/html"]
    assert "[1/1] 512x6144x4096 bfloat16 nt: " in shown.data["text/plain"]
    kinds = {out.output_type for cell in notebook.cells for out in cell.outputs}
    assert "stream" not in kinds  # nothing was said beside it


def test_the_gate_shuts_and_says_why(tmp_path):
    here = Path(sys.executable).parent
    if not (here / "tunekit").exists():
        pytest.skip("tunekit is not installed in this environment: the script calls it by name")
    (tmp_path / "shapes.yaml").write_text("shapes: [[512, 512, 512]]\n")
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PATH": f"{here}:{os.environ['PATH']}"}
    command = ["bash", EXAMPLES / "ci_gate.sh", "shapes.yaml", "", "9", "replay"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "geometric mean of torch us" in done.stdout
    assert "below 9" in done.stderr
