"""Every command and every piece of Python in the guides is run, page by page, as it stands."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from tests.test_help_examples import EXAMPLES, NEEDS_PACKAGES, prepare, run, settle

ROOT = Path(__file__).parents[1]
GUIDES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
NOT_GUIDES = ("architecture", "exchange")  # the design, and a format: their commands are the help's
PAGES = [page for page in GUIDES if page.stem not in NOT_GUIDES]

RUNNING = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

ON_A_GPU = ('device="cuda"', "tunekit.warmup(")
"""Python that holds one of these makes something on a GPU: tests/test_forecast.py has its like."""

OF_HELP = {line for _, line in EXAMPLES}
"""What is an example of a help text too is run as such, and not once more."""

FINDS = ("--check", "--fail-below")
"""Options with which exit code 1 is an answer."""


def steps(page):
    """Give what a page asks the reader to run: lines of a shell, and blocks of Python."""
    for kind, block in RUNNING.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            yield kind, block
        else:
            for line in block.splitlines():
                if line.startswith("tunekit "):
                    yield kind, line.partition("  #")[0].strip()


def given():
    """Return what the pages take as given: operands, and a model of linear layers."""
    import torch

    import tunekit

    class Transformer(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(2)])
            self.head = torch.nn.Linear(4096, 512, dtype=torch.bfloat16)

        def forward(self, x):
            return self.head(x) if x.shape[-1] == 4096 else self.layers[1](self.layers[0](x))

    x, weight = torch.ones(4, 8), torch.ones(6, 8)
    return {
        **{"torch": torch, "tunekit": tunekit, "Transformer": Transformer, "config": None},
        **{"x": x, "w": weight, "weight": weight, "bias": torch.ones(6)},
        "model": Transformer(None),
    }


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("guides"))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_what_a_page_says_runs(page, prepared, tmp_path, monkeypatch, capsys, no_gpu):
    settle(prepared, tmp_path, monkeypatch)
    names = given()
    for kind, text in steps(page):
        if kind == "python":
            if not any(words in text for words in ON_A_GPU):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    exec(compile(text, page.name, "exec"), names)
            continue
        if text in OF_HELP or not _can_run(text):
            continue
        code = run(text)
        said = capsys.readouterr()
        assert code in ((0, 1) if any(o in text for o in FINDS) else (0,)), text + said.err


def _can_run(line):
    """Say whether what a command needs beside tunekit is installed."""
    if line.split()[1] not in NEEDS_PACKAGES:
        return True
    try:
        for name in NEEDS_PACKAGES[line.split()[1]]:
            __import__(name)
    except ModuleNotFoundError:
        return False
    return True


def test_the_guides_have_commands():
    assert sum(len(list(steps(page))) for page in PAGES) > 30
