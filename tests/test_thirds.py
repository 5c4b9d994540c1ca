"""Shapes files of other dtypes and layouts, and the page that is written of their recordings."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tunekit.recording import Recording
from tunekit.replay import shipped_recordings
from tunekit.shapes import load_shapes

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "benchmarks" / "thirds"
FILES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.fixture(scope="module")
def script():
    path = ROOT / "scripts" / "thirds_table.py"
    spec = importlib.util.spec_from_file_location("thirds_table", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", FILES)
def test_a_file_holds_a_third_of_the_suite_in_one_arithmetic(name, script):
    problems = [shape.problem for shape in load_shapes(FOLDER / f"{name}.yaml")]
    assert len(problems) == len(set(problems)) >= 10
    assert len({(p.dtype, p.out_dtype, p.precision, p.scaling) for p in problems}) == 1
    layouts = {p.layout for p in problems}
    assert all(name in script.TARGETS or f"{name} {layout}" in script.TARGETS for layout in layouts)


def test_the_page_has_a_table_of_each_file_and_names_what_is_not_recorded(script, tmp_path):
    (tmp_path / "fp16.yaml").write_text((FOLDER / "fp16.yaml").read_text())
    (tmp_path / "other.yaml").write_text("shapes: [[3, 5, 7], [512, 512, 512]]\n")
    shipped = Recording.load(shipped_recordings()[0])
    halves = {p: found for p, found in shipped.problems.items() if p.dtype == "float16"}
    lines = [script.line_of(problem, found) for problem, found in halves.items()]
    told = script.means("fp16", lines)[0]
    assert told.startswith("Geometric means of the vendor's time over ours: nt: **")
    assert told.endswith("of 1.00 aimed at.")
    assert len(script.table(lines)) == len(halves) + 2
    page = script.page(tmp_path, shipped)
    assert "\n".join(script.section("fp16", lines)) in page
    assert page.count("## ") == 3  # and what is behind
    assert "Not recorded yet: 1 of other.\n" in page


def test_the_committed_page_is_that_of_the_shipped_recording(script):
    written = (FOLDER.parent / "thirds.md").read_text()
    assert written == script.page(FOLDER, Recording.load(shipped_recordings()[0]))
    assert "Not recorded" not in written
