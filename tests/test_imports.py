"""What importing tunekit loads and what it leaves alone. Each import runs in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TUNERS_OWN = ("optuna", "sklearn", "yaml", "rich", "click")


@pytest.fixture
def python(tmp_path):
    """Return a function that runs code in a new interpreter, away from the checkout."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def loaded(python):
    """Return a function that says which top-level packages a statement leaves loaded."""

    def packages(statement: str) -> set[str]:
        names = json.loads(
            python(f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))")
        )
        return {name.partition(".")[0] for name in names}

    return packages


def test_importing_tunekit_loads_nothing_but_the_standard_library(loaded):
    without, with_tunekit = loaded("pass"), loaded("import tunekit")
    added = with_tunekit - without - set(sys.stdlib_module_names)
    assert added == {"tunekit"}


def test_what_tunekit_exports_is_there_at_first_use(python):
    out = python(
        "import tunekit\n"
        "assert set(tunekit.__all__) <= set(dir(tunekit))\n"
        "for name in tunekit.__all__: assert getattr(tunekit, name) is not None, name\n"
        "assert callable(tunekit.matmul) and callable(tunekit.tune)\n"
        "print(tunekit.Problem('matmul', 1, 2, 3, 'bf16'))\n"
    )
    assert out == "1x2x3 bfloat16 nt\n"


def test_a_name_tunekit_lacks_is_an_attribute_error(python):
    python(
        "import tunekit\n"
        "try: tunekit.nothing\n"
        "except AttributeError as error: assert 'nothing' in str(error)\n"
        "else: raise SystemExit('no error')\n"
    )


@pytest.mark.parametrize("statement", ["import tunekit.dispatch", "from tunekit import nn, record"])
def test_the_run_time_loads_nothing_of_the_tuner_and_leaves_triton_and_sql_for_later(
    loaded, statement
):
    assert not loaded(statement) & {*TUNERS_OWN, "sqlalchemy", "triton"}


def test_no_module_of_tunekit_touches_the_gpu_when_imported(python):
    # Every way to a CUDA context is closed, so this holds for a GPU also where there is none.
    python(
        "import importlib, pkgutil, torch\n"
        "def touched(*args, **kwargs): raise SystemExit('the GPU was touched at import')\n"
        "for name in ('_lazy_init', 'is_available', 'device_count', 'current_device', 'init'):\n"
        "    setattr(torch.cuda, name, touched)\n"
        "import tunekit\n"
        "names = [m.name for m in pkgutil.walk_packages(tunekit.__path__, 'tunekit.')]\n"
        "assert 'tunekit.kernels.protocol' in names and 'tunekit.key' in names, names\n"
        "for name in names:\n"
        "    if not name.endswith('__main__'): importlib.import_module(name)\n"
        "assert not torch.cuda.is_initialized()\n"
    )


@pytest.mark.gpu
def test_importing_tunekit_makes_no_cuda_context(python):
    python(
        "import torch, tunekit, tunekit.dispatch\n"
        "assert torch.cuda.is_available() and not torch.cuda.is_initialized()\n"
    )


def test_the_import_contracts_hold():
    lint_imports = Path(sys.executable).with_name("lint-imports")
    if not lint_imports.exists():
        pytest.skip("import-linter is not installed: it is in the group `lint`")
    done = subprocess.run([lint_imports], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("contract", "exempt"),
    [
        ("Only the store imports SQLAlchemy", "cache"),
        ("Only the search imports Optuna", "search"),
        ("Only the search imports scikit-learn", "search"),
    ],
)
def test_a_contract_for_all_modules_but_one_names_all_others(contract, exempt):
    tomllib = pytest.importorskip("tomllib", reason="tomllib came with Python 3.11")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (named,) = (c["source_modules"] for c in contracts["contracts"] if c["name"] == contract)
    layers = " | ".join(contracts["contracts"][0]["layers"]).split(" | ")

    assert sorted(named) == sorted(f"tunekit.{name}" for name in layers if name != exempt)


@pytest.mark.parametrize(
    "name",
    [
        "explain", "linear", "matmul", "policy", "record", "reload", "replace_linear", "tune",
        "warmup",
    ],
)  # fmt: skip
def test_no_module_takes_the_name_of_a_public_function(name):
    # importing such a module would put it in the function's place
    assert not list((ROOT / "tunekit").glob(f"{name}/__init__.py"))
    assert not (ROOT / "tunekit" / f"{name}.py").exists()


def test_what_is_started_first_for_a_tune_loads_neither_torch_nor_the_tuner(loaded):
    """The processes it starts take seconds to load what they need, and do so meanwhile."""
    first = loaded("import tunekit.cli_tune, tunekit.gpu_runner")
    assert not first & {"torch", "triton", "numpy", "sqlalchemy", "rich", *TUNERS_OWN} - {"yaml"}


def test_the_kernels_load_without_torch(loaded):
    """Compilers, and a run's own process, need none of it."""
    first = loaded(
        "from tunekit.kernels import family\n"
        "from tunekit.fleet.identity import made_by\n"
        "from tunekit.trial import Origin\n"
        "assert made_by(Origin.MEASURED)['torch']"
    )
    assert "triton" in first
    assert "torch" not in first


def test_torchs_version_is_known_without_loading_it(python):
    out = python(
        "import sys\n"
        "from tunekit.device import torch_version\n"
        "early = torch_version()\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "print(early == str(torch.__version__) == torch_version())\n"
    )
    assert out == "True\n"
