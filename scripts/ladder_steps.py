"""The steps of the ladder as `ladder.py` runs them: compiled ahead, launched, loops timed."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
import triton

from tunekit.device import DeviceInfo
from tunekit.kernels import Launch, Prepared
from tunekit.kernels.ladder import (
    BLOCK,
    GROUP_SIZE,
    LIST_OF_15,
    blocked_loops,
    listed_config,
    three_loops,
)
from tunekit.kernels.ladder.blockwise import blockwise_kernel
from tunekit.kernels.ladder.grouped import grouped_kernel
from tunekit.kernels.ladder.listed import listed_kernel
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import torch_dtype
from tunekit.kernels.stand_ins import StandIn
from tunekit.kernels.target import compiling_for
from tunekit.key import Problem

LOOP_SIZES = (26, 64)
COMPILERS = 8


def loop_times() -> list[dict[str, Any]]:
    """Time the loops in Python: the least of three runs, in seconds."""
    steps: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "three loops": three_loops,
        "blocked loops": blocked_loops,
    }
    found = []
    for size in LOOP_SIZES:
        a, b = torch.randn(size, size), torch.randn(size, size)
        for name, step in steps.items():
            times = []
            for _ in range(3):
                started = time.perf_counter()
                result = step(a, b)
                times.append(time.perf_counter() - started)
            if not torch.allclose(result.double(), a.double() @ b.double(), atol=1e-4):
                raise SystemExit(f"{name} is wrong at {size}")
            found.append({"step": name, "size": size, "seconds": min(times)})
    return found


def compile_steps(device: DeviceInfo, problems: Sequence[Problem]) -> None:
    """Build the Triton steps into Triton's own cache, in several processes."""
    kinds = {(p.dtype, p.precision): p.m for p in problems}
    jobs = [
        (device, dtype, precision, size, entry)
        for (dtype, precision), size in kinds.items()
        for entry in (None, *LIST_OF_15)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(COMPILERS, mp_context=context) as pool:
        failed = [text for text in pool.map(compile_step, jobs) if text]
    for text in failed:
        say(text)


def compile_step(
    job: tuple[DeviceInfo, str, str, int, tuple[int, int, int, int, int] | None],
) -> str:
    """Build one config of the list, or for None both steps with one block; say what failed."""
    device, dtype, precision, size, entry = job
    matrix = StandIn(torch_dtype(dtype), (size, size), (size, 1))
    sizes = (size, size, size, *(3 * matrix.strides))
    arithmetic = {"PRECISION": precision, "UPCAST": False}
    calls: list[tuple[Any, dict[str, Any]]] = (
        [
            (blockwise_kernel, {"BLOCK": BLOCK}),
            (grouped_kernel, {"BLOCK": BLOCK, "GROUP_SIZE": GROUP_SIZE}),
        ]
        if entry is None
        else [(listed_kernel.fn, listed_config(*entry).all_kwargs())]
    )
    with compiling_for(device):
        for kernel, options in calls:
            try:
                kernel.warmup(matrix, matrix, matrix, *sizes, grid=(1,), **options, **arithmetic)
            except Exception as error:
                if MATMUL.failure(error) is None:
                    raise
                return f"{dtype} {precision} {entry}: {error}"
    return ""


def quick_bench(kernel_call: Callable[[], object], quantiles: Sequence[float]) -> Any:
    """Time a config as Triton's autotuner does, in an eighth of its time."""
    return triton.testing.do_bench(kernel_call, warmup=3, rep=12, quantiles=quantiles)


def step_launch(step: Callable[..., None], prepared: Prepared) -> Launch:
    """Return a step's launch on prepared operands."""
    return partial(step, prepared.a, prepared.b, prepared.out, precision=prepared.problem.precision)


def say(text: str) -> None:
    """Tell the person who waits."""
    print(text, file=sys.stderr, flush=True)
