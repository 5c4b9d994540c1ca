"""What CUDA's driver says of a GPU, for a process that has not loaded torch, which takes seconds.

A process that has asked the driver must not be forked into one that uses a GPU.
"""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Properties:
    """What is asked for, by the names that torch has for it."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    shared_memory_per_block_optin: int
    L2_cache_size: int
    total_memory: int
    warp_size: int
    uuid: str


_ATTRIBUTES = {
    "major": 75,
    "minor": 76,
    "multi_processor_count": 16,
    "shared_memory_per_block_optin": 97,
    "L2_cache_size": 38,
    "warp_size": 10,
}
"""`CUdevice_attribute` of the driver's interface, whose numbers do not change."""


class _Failed(Exception):
    """The driver has refused a call."""


def properties(index: int, *, cuda: str) -> Properties | None:
    """Describe the GPU that CUDA gives this index, or return None where the driver cannot.

    It cannot if it is too old for programs built with this version of CUDA, as torch would say.
    """
    try:
        return _properties(ctypes.CDLL("libcuda.so.1"), index, int(cuda.partition(".")[0]))
    except (OSError, AttributeError, ValueError, _Failed):  # no such library, or one too old
        return None


def _properties(driver: Any, index: int, cuda_major: int) -> Properties:
    version, device, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name, number = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    _call(driver.cuInit, 0)
    _call(driver.cuDriverGetVersion, ctypes.byref(version))
    if version.value // 1000 < cuda_major:
        raise _Failed
    _call(driver.cuDeviceGet, ctypes.byref(device), index)
    _call(driver.cuDeviceGetName, name, len(name), device)
    _call(driver.cuDeviceTotalMem_v2, ctypes.byref(memory), device)
    _call(driver.cuDeviceGetUuid, ctypes.byref(number), device)
    found = {}
    for attribute, place in _ATTRIBUTES.items():
        value = ctypes.c_int()
        _call(driver.cuDeviceGetAttribute, ctypes.byref(value), place, device)
        found[attribute] = value.value
    return Properties(
        name=name.value.decode(),
        total_memory=memory.value,
        uuid=str(uuid.UUID(bytes=bytes(number))),
        **found,
    )


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) != 0:
        raise _Failed
