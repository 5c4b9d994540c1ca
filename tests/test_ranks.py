"""Processes that read the same cache choose alike, whenever they start and however they read it."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "ranks.py"


@pytest.fixture(scope="module")
def ranks():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("ranks", SCRIPT)
    module = sys.modules["ranks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ranks"]


def test_ranks_choose_alike_one_late_and_one_with_a_cache_it_may_not_write(ranks):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is for root alone
        found = ranks.run(Path(folder), ranks=4, problems=200, rows=80, start="fork")
    assert found["alike"], found["differing"]
    assert set(found["grades"]) >= {"exact", "nearest", "none"}
    assert found["stored_while_they_ran"] > 0


def test_a_rank_that_chose_otherwise_is_named(ranks):
    answers = {0: ["a", "b"], 1: ["a", "b"], 2: ["a", "c"]}
    assert ranks.unlike(answers) == ["problem 1: c on rank 2, b on rank 0"]
