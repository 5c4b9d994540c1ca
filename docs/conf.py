"""The documentation site: `sphinx-build -W --keep-going -b html docs OUT` (group `docs`).

Pages are the Markdown files that are read in the repository too. What lies outside this folder is
shown as a page of its own, and links to it are turned here.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tunekit.cli import cli  # noqa: E402
from tunekit.version import VERSION  # noqa: E402

project = "tunekit"
author = "the tunekit authors"
copyright = author
version = release = VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md", "_build"]
source_suffix = {".md": "markdown"}
root_doc = "index"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
default_role = "code"

html_theme = "furo"
html_title = f"tunekit {VERSION}"
html_copy_source = False

OUTSIDE = {"../CONTRIBUTING.md": "contributing.md", "../CHANGELOG.md": "changelog.md"}
"""Files above this folder, and the pages that show them."""

FOLDERS = {
    "benchmarks/": "benchmarks/index.md",
    "schemas/": "command-line.md",
    "examples/": "examples.md",
    "../examples/": "examples.md",
}
"""A folder is listed where the repository is browsed; here a page stands for it."""


def turn_links(text: str, page: str) -> str:
    """Let links lead to pages: what an included file links from the root, too."""
    if page in ("contributing", "changelog", "adding-a-kernel"):
        return text
    for old, new in {**OUTSIDE, **FOLDERS}.items():
        text = text.replace(f"]({old})", f"]({new})")
    return text


def included(name: str) -> str:
    """Return a file of the root as a page of this folder."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    for old, new in {**OUTSIDE, **FOLDERS}.items():
        text = text.replace(f"]({old.removeprefix('../')})", f"]({new})")
    return text


def section(text: str, heading: str) -> str:
    """Return one section of a page, its heading as the title."""
    body = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return f"# {heading}\n{body}"


def commands() -> str:
    """Return the help of every command, as the program prints it."""
    parts = []
    for name, command in cli.commands.items():
        with click.Context(command, info_name=f"tunekit {name}", max_content_width=96) as context:
            context.terminal_width = 96
            parts.append(f"## tunekit {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def examples() -> str:
    """Return every example with its source."""
    parts = []
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (".py", ".sh"):
            kind = "python" if path.suffix == ".py" else "bash"
            text = path.read_text(encoding="utf-8")
            parts.append(f"## examples/{path.name}\n\n```{kind}\n{text}```\n")
    return "\n".join(parts)


def public_names() -> str:
    """Return what documents every name that tunekit exports: functions first, then classes."""
    import tunekit

    named = [(name, getattr(tunekit, name)) for name in tunekit.__all__ if name[0] != "_"]
    parts = []
    kinds = (
        ("Functions", "autofunction", inspect.isfunction),
        ("Classes", "autoclass", inspect.isclass),
        ("Modules", "automodule", inspect.ismodule),
    )
    for title, kind, fits in kinds:
        parts.append(f"## {title}\n\n```{{eval-rst}}")
        for name, value in named:
            if fits(value):
                members = "" if kind == "autofunction" else "\n   :members:"
                parts.append(f".. {kind}:: tunekit.{name}{members}")
        parts.append("```\n")
    return "\n".join(parts)


def fill(app: object, page: str, source: list[str]) -> None:
    """Give a page what is written elsewhere, once, and turn its links."""
    text = source[0]
    text = text.replace("<!-- all commands -->", commands())
    text = text.replace("<!-- every example -->", examples())
    text = text.replace("<!-- every public name -->", public_names())
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = text.replace(f"<!-- all of {name} -->", included(name))
    kernel = section(included("CONTRIBUTING.md"), "Add a kernel variant")
    text = text.replace("<!-- adding a kernel -->", kernel)
    source[0] = turn_links(text, page)


def plain_stars(
    app: object, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Let a star in a docstring be a star: none of ours is there for emphasis."""
    for place, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [part.replace("*", "\\*") for part in parts[::2]]
        lines[place] = "`".join(parts)


def setup(app: object) -> None:
    """Connect to Sphinx."""
    # before napoleon, which writes stars of its own
    app.connect("autodoc-process-docstring", plain_stars, priority=400)  # type: ignore[attr-defined]
    app.connect("source-read", fill)  # type: ignore[attr-defined]
