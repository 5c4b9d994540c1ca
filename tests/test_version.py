"""One version, wherever it is written."""

from __future__ import annotations

import re
from pathlib import Path

import tunekit
from tunekit.version import VERSION


def test_the_package_the_project_file_and_the_changelog_agree():
    root = Path(__file__).resolve().parents[1]
    project = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert project[1] == VERSION == tunekit.__version__
    assert f"## [{VERSION}]" in (root / "CHANGELOG.md").read_text()
