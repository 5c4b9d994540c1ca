"""What is installed: the right files in the right places, beside Hugging Face's `kernels`.

The wheel and the sdist are built once, from a copy, so that a build leaves nothing in the checkout.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("tunekit", "kernels", "cache")
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def pyproject():
    tomllib = pytest.importorskip("tomllib", reason="tomllib came with Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def build(source: Path, out: Path, kind: str) -> Path:
    """Build a wheel or an sdist with the build tools installed here, and no network."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(out)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    copy = tmp_path_factory.mktemp("checkout") / "tunekit"
    copy.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=IGNORED)
    for file in ROOT.iterdir():
        if file.suffix in (".toml", ".md", ".in") or file.name == "LICENSE":
            shutil.copy(file, copy / file.name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    return build(checkout, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def sdist(checkout, tmp_path_factory):
    return build(checkout, tmp_path_factory.mktemp("sdist"), "sdist")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sources_as_installed() -> dict[str, bytes]:
    """Return every file of the three source folders under the path it is installed at."""
    files = {}
    for name in SOURCES:
        where = "tunekit" if name == "tunekit" else f"tunekit/{name}"
        for file in (ROOT / name).rglob("*"):  # does not follow the two links
            if file.is_file() and "__pycache__" not in file.parts:
                files[f"{where}/{file.relative_to(ROOT / name).as_posix()}"] = file.read_bytes()
    return files


def test_everything_is_installed_inside_tunekit(wheel):
    top = {name.partition("/")[0] for name in contents(wheel)}
    assert top == {"tunekit", "tunekit_triton-0.1.0.dist-info"}


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel):
    installed = {
        name: data for name, data in contents(wheel).items() if name.startswith("tunekit/")
    }
    expected = sources_as_installed()

    assert sorted(installed) == sorted(expected)
    assert installed == expected
    assert {"tunekit/py.typed", "tunekit/kernels/protocol.py", "tunekit/cache/__init__.py"} <= set(
        installed
    )


def test_the_wheel_names_its_licence_and_its_command(wheel):
    files = contents(wheel)
    (licence,) = (data for name, data in files.items() if name.endswith("licenses/LICENSE"))
    (metadata,) = (data.decode() for name, data in files.items() if name.endswith("/METADATA"))
    (scripts,) = (
        data.decode() for name, data in files.items() if name.endswith("/entry_points.txt")
    )

    assert licence == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.10" in metadata
    assert re.search(r"^tunekit = tunekit\.__main__:run$", scripts, re.MULTILINE)


def test_the_sdist_builds_the_same_wheel(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()

    again = build(source, tmp_path / "wheel", "wheel")

    assert again.name == wheel.name
    assert contents(again) == contents(wheel)


def test_the_sdist_keeps_the_layout_of_the_repository(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"kernels/protocol.py", "cache/__init__.py", "tunekit/key.py", "LICENSE"} <= names
    assert not {name for name in names if name.startswith("tests/")}


def wheel_of_kernels(folder: Path) -> Path:
    """Make a distribution with a top-level package `kernels`, as Hugging Face's is."""
    files = {
        "kernels/__init__.py": b"whose = 'theirs'\n",
        "kernels/protocol.py": b"whose = 'theirs'\n",
        "kernels-9.9.dist-info/METADATA": b"Metadata-Version: 2.1\nName: kernels\nVersion: 9.9\n",
        "kernels-9.9.dist-info/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = "kernels-9.9.dist-info/RECORD"
    rows = [f"{name},sha256={urlsafe_sha256(data)},{len(data)}" for name, data in files.items()]
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    wheel = folder / "kernels-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def urlsafe_sha256(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


LOOK = """
import base64, hashlib, importlib.metadata as metadata, kernels, kernels.protocol
from tunekit.kernels.protocol import Family
assert kernels.whose == kernels.protocol.whose == "theirs", "our wheel overwrote their package"
for name in ("kernels", "tunekit-triton"):
    for file in metadata.files(name):
        if file.hash:
            digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
            found = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            assert found == file.hash.value, f"{file} of {name} was changed"
"""


@pytest.mark.parametrize("ours_first", [True, False], ids=["before", "after"])
def test_installing_beside_hugging_faces_kernels_touches_none_of_it(wheel, tmp_path, ours_first):
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip("pip is not installed here")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    inside = environment / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        inside,
        "install",
        "--no-deps",
        "--no-index",
    ]
    theirs = wheel_of_kernels(tmp_path)
    for file in (wheel, theirs) if ours_first else (theirs, wheel):
        subprocess.run([*install, file], check=True)

    done = subprocess.run(
        [inside, "-I", "-c", LOOK], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_every_package_of_the_tree_is_listed(pyproject):
    listed = set(pyproject["tool"]["setuptools"]["packages"])
    found = set()
    for name in SOURCES:
        for file in (ROOT / name).rglob("*.py"):
            inside = file.parent.relative_to(ROOT).parts
            found.add(".".join(inside if name == "tunekit" else ("tunekit", *inside)))
    assert listed == found


def test_every_listed_package_is_where_the_table_says(pyproject):
    table = pyproject["tool"]["setuptools"]
    for package in table["packages"]:
        # a package without an entry lies in its parent's folder
        parent, _, name = package.rpartition(".")
        fallback = f"{table['package-dir'].get(parent, parent)}/{name}"
        folder = ROOT / table["package-dir"].get(package, fallback)
        assert (folder / "__init__.py").is_file(), package


@pytest.mark.parametrize("name", ["kernels", "cache"])
def test_the_links_show_checkers_the_tree_that_is_installed(name):
    link = ROOT / "tunekit" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name  # relative, so that it survives a clone
    assert link.resolve() == ROOT / name
