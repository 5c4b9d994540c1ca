"""What the documents name is there: files, commands, options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_every_link_to_a_file_leads_somewhere(document):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    files = [target for target in targets if "://" not in target]
    missing = [target for target in files if not (document.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_every_command_line_is_one_that_tunekit_takes(document):
    click = pytest.importorskip("click")
    from tunekit.cli import cli

    lines = re.findall(
        r"(?:^|bin/|`)tunekit ([a-z-][^`#&|\n]*)", document.read_text(), re.MULTILINE
    )
    for line in lines:
        name, _, rest = line.strip().partition(" ")
        assert name in cli.commands, line
        options = {
            option
            for parameter in cli.commands[name].params
            if isinstance(parameter, click.Option)
            for option in parameter.opts
        }
        own = re.split(r"(?<!\S)--(?!\S)", rest)[0]  # what follows is another program's
        used = re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", own)
        assert set(used) <= options | {"--help"}, line


@pytest.mark.parametrize("name", ["tune", "test"])
def test_the_readme_marks_each_of_its_two_commands_once(name):
    marked = re.findall(
        rf"^<!-- command: {name} -->\n```bash\n(.+)\n```$",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    assert len(marked) == 1
    assert "\n" not in marked[0]


def test_the_architecture_page_has_the_layers_that_are_checked():
    tomllib = pytest.importorskip("tomllib", reason="tomllib came with Python 3.11")
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    checked = [set(layer.split(" | ")) for layer in linter["contracts"][0]["layers"]]
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)

    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == checked
