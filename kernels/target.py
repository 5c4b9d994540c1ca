"""Compiling for a GPU that need not be present, along the path a launch takes.

Triton's `JITFunction.warmup` derives the cache key of a compiled kernel from the arguments, the
options and the target, exactly as the launch does. It asks the active driver for the target
alone. So a driver that only answers that, and stand-ins in place of tensors, give the very entry
that the launch will look for, in whatever layout this version of Triton keeps it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Hashable, Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tunekit.device import DeviceInfo
from tunekit.kernels.fingerprint import is_jitted
from tunekit.kernels.launchers import build_launcher
from tunekit.kernels.protocol import KernelCall


def gpu_target(device: DeviceInfo) -> GPUTarget:
    """Return Triton's name of the device's architecture."""
    arch = device.capability if device.backend == "cuda" else device.arch
    return GPUTarget(device.backend, arch, device.warp_size)


class TargetDriver:
    """Stands in for a GPU driver where a kernel is compiled and never launched."""

    def __init__(self, device: DeviceInfo) -> None:
        self._target = gpu_target(device)

    def get_current_target(self) -> GPUTarget:
        """Return the target to compile for."""
        return self._target

    def get_current_device(self) -> tuple[str, object]:
        """Return what Triton's in-process cache is keyed by: one entry for each target."""
        return ("tunekit", self._target)

    def get_current_stream(self, device: Any) -> int:
        """Return a stream no kernel is ever launched on."""
        return 0


def store_binaries_alone() -> None:
    """Have this process leave what a launch loads in Triton's cache, and nothing else.

    The stages before it (Triton's own, LLVM's, PTX) are three quarters of what would be written,
    and read again by every launch that finds it. Who wants them sets TRITON_STORE_BINARY_ONLY=0.
    """
    if "TRITON_STORE_BINARY_ONLY" not in os.environ:
        triton.knobs.compilation.store_binary_only = True


@contextlib.contextmanager
def compiling_for(device: DeviceInfo) -> Iterator[None]:
    """Make Triton compile for `device` inside the block, whatever GPU is there."""
    previous = driver._active
    driver.set_active(TargetDriver(device))
    try:
        yield
    finally:
        driver._active = previous


def compile_call(call: KernelCall, device: DeviceInfo) -> Any:
    """Compile a call's kernels for a device and return Triton's compiled main kernel.

    Raises:
        RuntimeError: the kernels of this process are interpreted, so there is nothing to compile.
    """
    if not all(isinstance(one.kernel, triton.runtime.JITFunction) for one in call.sequence()):
        assert is_jitted(call.kernel)
        raise RuntimeError("TRITON_INTERPRET=1 is set: kernels are interpreted, not compiled")
    with compiling_for(device):
        compiled = [one.compiled() for one in call.sequence()]
        if device.backend == "cuda":
            for one in compiled:
                build_launcher(one)
    return compiled[-1]


def compile_key(call: KernelCall) -> Hashable:
    """Name what Triton compiles a call to: two calls with equal names share the binaries."""
    return tuple(_kernel_key(one) for one in call.sequence())


def _kernel_key(call: KernelCall) -> Hashable:
    settings = {**getattr(call.kernel, "kwargs", {}), **vars(call.kernel)}
    unspecialized = settings.get("do_not_specialize") or ()
    names = call.kernel.arg_names
    signature = tuple(
        _specialization(argument, name not in unspecialized)
        for name, argument in zip(names, call.args, strict=False)
    )
    return call.kernel.fn.__qualname__, signature, tuple(sorted(call.options.items()))


def _specialization(argument: Any, specialize: bool) -> Hashable:
    if isinstance(argument, int):
        width = 32 if -(1 << 31) <= argument < 1 << 31 else 64
        if not specialize:
            return width
        return (width, argument == 1, argument % 16 == 0)
    if hasattr(argument, "block_shape"):
        return str(argument.base.dtype), tuple(argument.block_shape)
    return str(argument.dtype), argument.data_ptr() % 16 == 0
