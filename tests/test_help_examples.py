"""Every example in `tunekit COMMAND --help` is run, as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tunekit.cli import cli, main

MOST_TRIALS = "12"
"""What the examples of `tune` are cut to, at random: they are run to see that they run."""

NEEDS_GPU = {
    "tunekit tune --shapes shapes.yaml --sampler exhaustive --record sweep.json.gz",
    "tunekit bench --shapes shapes.yaml --against torch,inductor,triton-list",
    "tunekit import-cache matmul_kernel.autotune.json --shape 512,1024,256,float16,nn",
}
"""Without one each is an error that says so."""

NEEDS_PACKAGES = {"report": ("jinja2", "vl_convert")}


PROGRAM = """\
import torch

x = torch.ones(512, 512, dtype=torch.bfloat16)
x @ x.t()
"""
"""What the examples record."""


def examples():
    """Give each example with its command: what begins with `tunekit` in an unwrapped block."""
    for name, command in sorted(cli.commands.items()):
        blocks = re.findall(r"\x08\n(.*?)(?:\n\n|\Z)", command.help, re.S)
        for line in "\n".join(blocks).splitlines():
            if line.strip().startswith("tunekit "):
                yield name, line.strip()


EXAMPLES = list(examples())


def run(line):
    """Run a line in this process; what a shell would do with the output is left out."""
    words = shlex.split(line.partition("|")[0].partition(">")[0])[1:]
    if words[0] == "tune" and "--stale" not in words:
        words = [MOST_TRIALS if word == "200" else word for word in words]
        words += [] if "--trials" in words else ["--trials", MOST_TRIALS]
        words += [] if "--sampler" in words else ["--sampler", "random"]
    return main(words)


def prepare(folder):
    """Put into a folder what the examples name: a shapes file, a cache, exports, a timing file."""
    (folder / "shapes.yaml").write_text("shapes: [[512, 512, 512], [512, 4096, 4096]]\n")
    cache = ["--cache", str(folder / "tunekit.db")]
    tune = ["tune", "--shapes", str(folder / "shapes.yaml"), "--device", "replay", "--quiet"]
    assert main([*tune, "--sampler", "random", "--trials", MOST_TRIALS, *cache]) == 0
    for argv in (["-o", "tuned.json"], ["--format", "sqlite", "-o", "tuned.db"]):
        argv[-1] = str(folder / argv[-1])
        assert main(["export-cache", *argv, *cache]) == 0
    timings = Path(__file__).parent / "cache" / "assets" / "matmul_kernel.autotune.json"
    (folder / timings.name).write_bytes(timings.read_bytes())
    (folder / "my").mkdir()
    for program in ("generate.py", "script.py", "train.py", "my/training.py"):
        (folder / program).write_text(PROGRAM)
    return folder


def settle(prepared, folder, monkeypatch):
    """Work in a copy of a prepared folder, where `python` is the one that runs this."""
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    here = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize(("command", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_runs(command, line, prepared, tmp_path, monkeypatch, capsys, request):
    for package in NEEDS_PACKAGES.get(command, ()):
        pytest.importorskip(package, reason=f"no {package}: install tunekit-triton[report]")
    settle(prepared, tmp_path, monkeypatch)
    if command != "doctor":  # to which a GPU that torch does not see is a problem
        request.getfixturevalue("no_gpu")
    code = run(line)
    said = capsys.readouterr()
    if line in NEEDS_GPU:
        assert code == 1
        assert "GPU" in said.err
        assert said.err.count("\n") <= 2
    elif "--check" in line or "--fail-below" in line:
        assert code in (0, 1), said.err  # what they found
    else:
        assert code == 0, said.err


def test_every_command_has_examples():
    assert {command for command, _ in EXAMPLES} == set(cli.commands)
