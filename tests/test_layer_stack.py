"""The benchmark of a layer stack runs, at toy size, and its command is one that there is."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

import tunekit
from tunekit.cli import cli
from tunekit.shapes import load_shapes

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPTS))  # as when it is run: it imports its neighbour
    try:
        spec = importlib.util.spec_from_file_location("layer_stack", SCRIPTS / "layer_stack.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPTS))
    return module


TOY = ["--toy", "--device", "cpu", "--layers", "1", "--context", "4", "--seconds", "0.0001"]


def test_it_measures_both_sides_of_every_case(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        script, "start", lambda code: 1.5 if '"tunekit" == "tunekit"' in code else 1.0
    )
    cache = tmp_path / "tuned.db"
    argv = [*TOY, "--no-tune", "--cache", str(cache), "--rounds", "3", "--starts", "2"]
    assert script.main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["case"], row["mode"]) for row in found["cases"]] == [
        ("decode 1", "eager"),
        ("decode 3", "eager"),
        ("prefill 8", "eager"),
    ]
    for row in found["cases"]:
        assert set(row["tokens_per_second"]) == {"torch", "tunekit"}
        for values in (*row["tokens_per_second"].values(), row["speedup"]):
            assert 0 < values["p10"] <= values["median"] <= values["p90"]
        assert row["largest_error"] < 0.05
    first = found["first_result_seconds"]
    assert (first["torch"]["median"], first["tunekit"]["median"]) == (1.0, 1.5)
    assert found["problems"] == []


def test_it_tunes_what_its_layers_multiply_by_a_command_that_there_is(script, tmp_path):
    arguments = script.parse(["--trials", "7"])
    path = tmp_path / "shapes.yaml"
    script.record_shapes(path, script.Sizes(), script.CASES, arguments)
    by_rows = {}
    for shape in load_shapes(path):
        problem = shape.problem
        assert (problem.dtype, problem.layout, problem.aligned) == ("bfloat16", "nt", True)
        by_rows.setdefault(problem.m, {})[problem.n, problem.k] = shape.count
    once = {(4096, 4096): 8, (1024, 4096): 8, (14336, 4096): 8, (4096, 14336): 4}
    assert by_rows == dict.fromkeys((1, 16, 64, 2048), once)
    _, _, module, command, *rest = script.tune_command(path, "cache.db", arguments)
    assert module == "tunekit"
    context = cli.commands[command].make_context(command, rest)
    assert context.params["shapes_file"] == str(path)
    assert (context.params["cache"], context.params["trials"]) == ("cache.db", 7)


def test_a_side_changes_the_layers_only_while_it_runs(script):
    model = script.Stack(script.TOY_SIZES, 1)
    with script.on("tunekit", model):
        assert type(model.layers[0].q) is tunekit.nn.Linear
    with script.on("torch", model):
        assert type(model.layers[0].q) is torch.nn.Linear


@pytest.mark.gpu
def test_it_captures_graphs_on_a_gpu(script, capsys, tmp_path):
    argv = ["--toy", "--no-tune", "--cache", str(tmp_path / "tuned.db"), "--rounds", "3"]
    assert script.main([*argv, "--layers", "1", "--starts", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["mode"] for row in found["cases"]} == {"eager", "graph"}
    assert all(row["largest_error"] < 0.05 for row in found["cases"])
