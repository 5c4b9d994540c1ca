"""Which errors are a config's own, and what is kept of their text."""

from __future__ import annotations

import pytest
import torch

from tunekit.kernels.failures import LONGEST_TEXT, classify
from tunekit.trial import Status

ILLEGAL = """CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (RuntimeError(ILLEGAL), Status.LAUNCH_ERROR, "an illegal memory access was encountered"),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), Status.LAUNCH_ERROR, "invalid"),
        (RuntimeError("program\nPassManager::run failed"), Status.COMPILE_ERROR, "PassManager"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), Status.OUT_OF_MEMORY, "out of memory"),
        (RuntimeError(""), Status.COMPILE_ERROR, "RuntimeError"),
    ],
)
def test_an_error_of_a_config_has_a_status_and_its_telling_line(error, status, words):
    found, text = classify(error)
    assert found is status
    assert words in text
    assert "\n" not in text
    assert len(text) <= LONGEST_TEXT


@pytest.mark.parametrize("error", [TypeError("a bug"), OSError("disk"), KeyboardInterrupt()])
def test_an_error_that_is_not_a_configs_is_none_of_these(error):
    assert classify(error) is None


def test_a_long_text_is_cut():
    _, text = classify(RuntimeError("x" * 10_000))
    assert len(text) == LONGEST_TEXT
