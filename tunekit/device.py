"""The GPU as the space and the key see it: limits, identity, and how to find the one present."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunekit import cuda_driver
from tunekit.errors import DeviceError


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What legality and identity need to know of a GPU. Sizes are in bytes."""

    name: str
    backend: str
    """Triton's backend: `cuda` or `hip`."""
    arch: str
    """`sm_90`, `gfx942`."""
    multiprocessors: int
    shared_bytes: int
    """Shared memory one block may use (the opt-in limit)."""
    l2_bytes: int
    memory_bytes: int
    warp_size: int = 32

    @property
    def slug(self) -> str:
        """Name of the GPU kind in keys and files: product, architecture, multiprocessors.

        A MIG slice or a cut-down card has another number of multiprocessors, and so another slug;
        cards of one chip that differ in form, memory or power (SXM, PCIe, NVL, Laptop, D) have
        another product name. See `product_slug` for what counts as the same name.
        """
        product = product_slug(self.name)
        return f"{product}-{self.arch.replace('_', '')}-{self.multiprocessors}"

    @property
    def capability(self) -> int:
        """Compute capability of a CUDA device as Triton writes it (90 for 9.0), else 0."""
        return _capability(self.arch)


@functools.cache
def _capability(arch: str) -> int:
    found = re.fullmatch(r"sm_(\d+)a?", arch)
    return int(found.group(1)) if found else 0


_MARKS = re.compile(r"[\u00a9\u00ae\u2122\u2120]|\((?:r|c|tm|sm)\)", re.IGNORECASE)
_MAKER = re.compile(r"^((nvidia|amd)(-corporation|-inc)?-)+")
_SIZE = re.compile(r"\b(\d+)-(?=gb\b)")
_MAKES = (
    (re.compile(r"(geforce|gtx|rtx|titan|[abhl]\d|g[hb]\d|graphics-device)"), "nvidia-"),
    (re.compile(r"(instinct|radeon)"), "amd-"),
    (re.compile(r"mi\d{3}"), "amd-instinct-"),
)
_SPELLINGS = {
    "nvidia-a100-pcie-80gb": "nvidia-a100-80gb-pcie",
    "nvidia-h100-sxm5-80gb": "nvidia-h100-80gb-hbm3",
    "nvidia-h100-80gb-sxm5": "nvidia-h100-80gb-hbm3",
    "nvidia-h100-sxm-80gb": "nvidia-h100-80gb-hbm3",
    "nvidia-h100-pcie-80gb": "nvidia-h100-pcie",
    "nvidia-h100-80gb-pcie": "nvidia-h100-pcie",
    "nvidia-t4": "tesla-t4",
    "t4": "tesla-t4",
}
"""Products that go by two names; the second is the one that current drivers report."""


@functools.lru_cache(maxsize=256)
def product_slug(name: str) -> str:
    """Return a product's name as it stands in slugs: the same for any spelling of one product.

    The rule. Case, spaces, punctuation and trademark signs say nothing. Nor does the maker: drivers
    before 470 left out `NVIDIA`, so it is put before what is a product of theirs, and left out
    before the brands (Tesla, Quadro, GRID) that drivers still report without it. A few products go
    by two names, which `_SPELLINGS` lists.

    Every other word counts. A needless difference costs little, since rows of a GPU with the same
    architecture and number of multiprocessors are served at grade `other-gpu`. To take two
    products for one would serve, as exact, times from another memory or power limit. So a virtual
    function (`MI300X VF`), a vGPU profile (`GRID A100-40C`), `OAM` and `LS` have their own slugs.
    """
    words = re.sub(r"[^a-z0-9]+", "-", _MARKS.sub(" ", name).lower()).strip("-")
    words = _SIZE.sub(r"\1", words)
    maker, bare = _MAKER.match(words), _MAKER.sub("", words)
    if bare.startswith(("tesla-", "quadro-", "grid-")):
        words = bare
    elif maker is not None:
        words = f"{maker.group(2)}-{bare}"
    else:
        words = next((make + bare for rule, make in _MAKES if rule.match(bare)), bare)
    return _SPELLINGS.get(words, words) or "gpu"


_KB = 1024
KNOWN_DEVICES: dict[str, DeviceInfo] = {
    info.arch: info
    for info in (
        DeviceInfo("NVIDIA T4", "cuda", "sm_75", 40, 64 * _KB, 4 << 20, 16 << 30),
        DeviceInfo("NVIDIA A100-SXM4-80GB", "cuda", "sm_80", 108, 163 * _KB, 40 << 20, 80 << 30),
        DeviceInfo("NVIDIA A10", "cuda", "sm_86", 72, 99 * _KB, 6 << 20, 24 << 30),
        DeviceInfo("NVIDIA L4", "cuda", "sm_89", 58, 99 * _KB, 48 << 20, 24 << 30),
        DeviceInfo("NVIDIA H200", "cuda", "sm_90", 132, 227 * _KB, 60 << 20, 141 << 30),
        DeviceInfo("NVIDIA B200", "cuda", "sm_100", 148, 227 * _KB, 126 << 20, 180 << 30),
        DeviceInfo("NVIDIA GeForce RTX 5090", "cuda", "sm_120", 170, 99 * _KB, 96 << 20, 32 << 30),
        DeviceInfo("AMD Instinct MI300X", "hip", "gfx942", 304, 64 * _KB, 4 << 20, 192 << 30, 64),
    )
}
"""One GPU of each architecture, for compiling and checking legality without one present."""


def cuda_available() -> bool:
    """Say whether a usable CUDA (or ROCm) device is present."""
    import torch

    return bool(torch.cuda.is_available())


def nvidia_gpus() -> int | None:
    """Count the NVIDIA GPUs that this process may use, or return None where only torch can say.

    It takes no time, where torch takes seconds to load.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            there = int(pynvml.nvmlDeviceGetCount())
            divided = any(_is_divided(pynvml, index) for index in range(there))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:  # no driver, or a GPU that is somebody else's
        return None
    if divided or not there:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    names = [name.strip() for name in visible.split(",")]
    plain = all(re.fullmatch("[0-9]+", name) and int(name) < there for name in names)
    return len(names) if plain and len(set(names)) == len(names) else None


def _is_divided(nvml: Any, index: int) -> bool:
    """Say whether a GPU is divided into instances (MIG), which torch numbers in its own way."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError_NotSupported:
        return False


def cuda_expected() -> bool:
    """Say whether there is a GPU to measure on, without loading torch where that can be told.

    Where the driver answers and CUDA still does not work, the process that opens the GPU says so.
    """
    if "torch" in sys.modules or not nvidia_gpus():
        return cuda_available()
    build = _torch_build()
    return cuda_available() if build is None else bool(build.get("cuda"))


@functools.cache
def torch_version() -> str:
    """Return torch's version. It is not loaded for it, which takes seconds."""
    build = None if "torch" in sys.modules else _torch_build()
    if build and "__version__" in build:
        return str(build["__version__"])
    import torch

    return str(torch.__version__)


def _torch_build() -> dict[str, Any] | None:
    """Return what torch's file of versions says: nothing without torch, None without the file."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return {}
    version = Path(found.origin).with_name("version.py")
    return runpy.run_path(str(version)) if version.exists() else None


def detect(index: int = 0) -> DeviceInfo:
    """Describe a GPU that is present.

    Raises:
        DeviceError: there is no such device.
    """
    import torch

    _check(index, _torch_gpus())
    return describe(torch.cuda.get_device_properties(index))


def require(index: int) -> None:
    """Make sure that there is a GPU with this index, without making a context on it.

    Where the driver tells how many there are, torch is not loaded.

    Raises:
        DeviceError: there is no such device.
    """
    _check(index, gpu_count())


def gpu_count() -> int:
    """Return how many GPUs there are, which torch is loaded for only if the driver cannot say.

    Raises:
        DeviceError: there is none that can be used.
    """
    return nvidia_gpus() or _torch_gpus()


def _check(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise DeviceError(f"there is no device cuda:{index}: this machine has {count}")


def _torch_gpus() -> int:
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("no CUDA device is usable here: run with --device replay, or on a GPU")
    return torch.cuda.device_count()


def detect_early(index: int) -> tuple[DeviceInfo, str] | None:
    """Describe a GPU, and name the very GPU, before torch is loaded; None where only torch can.

    See `cuda_driver` for what this process may not do any more.
    """
    build = _torch_build()
    cuda = build.get("cuda") if build else None
    if not cuda or nvidia_gpus() is None:
        return None
    seen = cuda_driver.properties(index, cuda=str(cuda))
    return None if seen is None else (describe(seen, hip=False), _uuid(seen, index))


def describe(properties: Any, *, hip: bool | None = None) -> DeviceInfo:
    """Translate a device's properties, torch's or the driver's; `hip` says whose build asks."""
    if hip is None:
        import torch

        hip = getattr(torch.version, "hip", None) is not None
    arch = (
        str(properties.gcnArchName).split(":")[0]
        if hip
        else f"sm_{properties.major}{properties.minor}"
    )
    fallback = KNOWN_DEVICES.get(arch)
    shared = getattr(properties, "shared_memory_per_block_optin", None)
    if not shared:
        shared = fallback.shared_bytes if fallback else 48 * _KB
    return DeviceInfo(
        name=properties.name,
        backend="hip" if hip else "cuda",
        arch=arch,
        multiprocessors=properties.multi_processor_count,
        shared_bytes=int(shared),
        l2_bytes=int(getattr(properties, "L2_cache_size", 0) or (32 << 20)),
        memory_bytes=int(properties.total_memory),
        warp_size=int(getattr(properties, "warp_size", 32)),
    )


def gpu_uuid(index: int) -> str:
    """Return the identity of the very GPU with this index, as NVML writes it."""
    import torch

    return _uuid(torch.cuda.get_device_properties(index), index)


def _uuid(properties: Any, index: int) -> str:
    found = str(getattr(properties, "uuid", None) or f"{describe(properties).slug}-{index}")
    return found if found.startswith(("GPU-", "MIG-")) else f"GPU-{found}"


def driver_version() -> str:
    """Return the GPU driver's version, or `unknown` where NVML cannot say."""
    try:
        import pynvml
    except ImportError:
        return "unknown"
    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return "unknown"
