"""What the tests of the kernels share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

Found = list[dict[str, Any]]


@pytest.fixture
def compile_corners() -> Callable[[str, list[tuple[str, dict[str, Any]]]], Found]:
    """Give the function that compiles the first, last and up to two other configs of each case.

    By default it is the first and the last; `--hypothesis-profile full` compiles the others too.

    It takes `module:Class` of a variant, and cases: an architecture and a problem's fields. It
    returns what was compiled, the shared bytes the compiler takes and those the variant predicts.
    """

    def compile_(variant: str, cases: list[tuple[str, dict[str, Any]]]) -> Found:
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        script = str(Path(__file__).with_name("corners.py"))
        others = 2 if settings.default.max_examples >= 1000 else 0
        command = [sys.executable, "-W", "ignore", script, variant, json.dumps(cases), str(others)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return compile_
