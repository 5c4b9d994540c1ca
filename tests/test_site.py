"""The site is built from the pages with no warning, and every link in it leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for name in ("furo", "myst_parser", "sphinx"):  # the last: a part of it breaks scipy
        pytest.importorskip(name, reason=f"no {name}: it is in the group `docs`")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run([*command, ROOT / "docs", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_builds_without_a_warning(site):
    assert (site / "index.html").exists()


def test_every_link_within_the_site_leads_somewhere(site):
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    wrong = []
    for path, text in texts.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / unquote(file.split("?")[0])).resolve() if file else path
            found = target.exists() and (not anchor or f'id="{anchor}"' in texts.get(target, ""))
            if not found:
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert not wrong


def test_the_reference_has_every_command_and_every_public_name(site):
    from tunekit import __all__
    from tunekit.cli import cli

    page = (site / "command-line.html").read_text(encoding="utf-8")
    assert all(f"Usage: tunekit {name} [OPTIONS]" in page for name in cli.commands)
    api = (site / "api.html").read_text(encoding="utf-8")
    public = {name for name in __all__ if not name.startswith("_")}
    missing = {n for n in public if not re.search(rf'id="(module-)?tunekit\.{n}[".]', api)}
    assert not missing
