"""A row stays valid while its kernel's source does, wherever that source lies."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from tunekit.device import KNOWN_DEVICES
from tunekit.differences import compiler_differences
from tunekit.kernels import current_fingerprint
from tunekit.kernels.fingerprint import (
    CODE_SWITCHES,
    compiler_identity,
    fingerprint,
    keep_compiler_key,
    source_hash,
)
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.pointer import PointerTiles, pointer_kernel
from tunekit.key import Problem

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def add_one(x):
    return x + {increment}

@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, add_one(tl.load(x_ptr + offsets)))
"""


def kernel_from(path: Path, text: str):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module.kernel


def test_moving_a_kernel_to_another_file_and_line_changes_nothing(tmp_path):
    text = SOURCE.format(increment=1)
    here = kernel_from(tmp_path / "here_kernel.py", text)
    there = kernel_from(tmp_path / "there_kernel.py", "# a comment\nX = 1\n\n\n" + text)
    assert source_hash((here,)) == source_hash((there,))


def test_a_change_in_a_function_the_kernel_calls_changes_it(tmp_path):
    one = kernel_from(tmp_path / "one_kernel.py", SOURCE.format(increment=1))
    two = kernel_from(tmp_path / "two_kernel.py", SOURCE.format(increment=2))
    assert source_hash((one,)) != source_hash((two,))


def test_a_change_in_the_kernel_itself_changes_it(tmp_path):
    text = SOURCE.format(increment=1)
    one = kernel_from(tmp_path / "first_kernel.py", text)
    two = kernel_from(tmp_path / "second_kernel.py", text.replace("x_ptr + offsets,", "x_ptr,"))
    assert source_hash((one,)) != source_hash((two,))


def test_the_compiler_is_named_with_its_version():
    identity = compiler_identity()
    assert identity.startswith(f"triton-{triton.__version__}")
    assert fingerprint((pointer_kernel,)).compiler == identity


@pytest.fixture
def fresh_identity(monkeypatch):
    for name in CODE_SWITCHES:
        monkeypatch.delenv(name, raising=False)
    compiler_identity.cache_clear()
    yield monkeypatch
    compiler_identity.cache_clear()


@pytest.mark.parametrize("switch", CODE_SWITCHES)
def test_a_switch_that_changes_the_code_makes_another_compiler(fresh_identity, switch):
    plain = compiler_identity()
    assert "+TRITON" not in plain
    compiler_identity.cache_clear()
    fresh_identity.setenv(switch, "1")
    switched = compiler_identity()
    told = [str(difference) for difference in compiler_differences(plain, switched)]
    assert told == [f"{switch} none -> 1"]


def test_a_setting_that_changes_no_code_leaves_the_compiler_as_it_is(fresh_identity):
    plain = compiler_identity()
    compiler_identity.cache_clear()
    for name in ("TRITON_CACHE_DIR", "TRITON_PRINT_AUTOTUNING", "TRITON_DUMP_PTXAS_LOG"):
        fresh_identity.setenv(name, "1")
    assert compiler_identity() == plain


def test_what_is_not_installed_has_no_fingerprint():
    assert current_fingerprint("matmul", "pointer") == fingerprint((pointer_kernel,))
    assert current_fingerprint("matmul", "unheard-of") is None
    assert current_fingerprint("unheard-of", "pointer") is None


def test_a_wider_space_keeps_the_rows_of_the_narrower(monkeypatch):
    narrow = PointerTiles()
    choices = {**narrow.space.choices, "block_k": (*narrow.space.choices["block_k"], 512)}

    class Wider(PointerTiles):
        space = replace(narrow.space, choices=choices)

    problem, device = Problem("matmul", 512, 512, 512, "float16"), KNOWN_DEVICES["sm_90"]
    before, after = MatmulFamily((narrow,)), MatmulFamily((Wider(),))
    assert len(after.space(problem, device)) > len(before.space(problem, device))
    assert after.fingerprint("pointer") == before.fingerprint("pointer")
    for config in before.space(problem, device).configs[::50]:
        assert after.violation(config, problem, device) is None


def test_triton_hashes_its_own_files_before_the_first_compilation(monkeypatch):
    cache = triton.runtime.cache
    cache.triton_key.cache_clear()
    keep_compiler_key()
    assert cache.triton_key.cache_info().currsize == 1
    monkeypatch.delattr(cache, "triton_key")
    keep_compiler_key()  # a Triton that has no such call does so when it compiles
