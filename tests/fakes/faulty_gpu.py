"""A real GPU whose process is made to fault: for tests that need one."""

from __future__ import annotations

from pathlib import Path

import torch
import triton
import triton.language as tl

from tunekit.worker import Opened, open_gpu


@triton.jit
def stray_kernel(pointer):
    """Write where no memory is."""
    tl.store(pointer + (1 << 45), 1.0)


def open_faulty(mark: str, index: int, seed: int) -> Opened:
    """Open the GPU; the third config tried faults, unless the file `mark` says that one has."""
    from tunekit.kernels.matmul_family import MATMUL

    opened = open_gpu(index, seed)
    launch = MATMUL.launch
    tried = []

    def faulty(config, prepared):
        tried.append(config)
        if len(tried) < 3 or Path(mark).exists():
            return launch(config, prepared)
        Path(mark).touch()
        return lambda: stray_kernel[(1,)](torch.empty(1, device="cuda"))

    MATMUL.launch = faulty
    return opened
