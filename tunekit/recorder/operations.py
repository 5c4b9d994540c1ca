"""Which operations are products, and the problem that each is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tunekit.errors import ProblemError
from tunekit.kernels.operands import describe
from tunekit.key import Problem

PRODUCTS: dict[str, tuple[int, int]] = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::addmm_": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
    "aten::baddbmm_": (1, 2),
    "aten::addbmm": (1, 2),
    "aten::addbmm_": (1, 2),
    "aten::mv": (0, 1),
    "aten::addmv": (1, 2),
    "aten::addmv_": (1, 2),
    "aten::_int_mm": (0, 1),
    "aten::_scaled_mm": (0, 1),
}
"""The operations that every dense product of two matrices ends in, and which arguments are its."""

OWN = "tunekit::matmul"
"""What `tunekit.matmul` is in compiled code."""

UNKNOWN = (
    "aten::_grouped_mm",
    "aten::_scaled_grouped_mm",
    "aten::_scaled_mm_v2",
    "aten::_sparse_mm",
)
"""Products that a `Problem` cannot describe, to be told of."""


class _Matrix:
    """What describes a matrix: one of a batch, or a vector as a single column."""

    def __init__(
        self, tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.shape, self._strides, self._tensor = shape, strides, tensor
        self.dtype = tensor.dtype

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return self._tensor.element_size()

    def data_ptr(self) -> int:
        return _address(self._tensor)


def _address(tensor: torch.Tensor) -> int:
    """Return where a tensor begins; without memory of its own, relative to where it would."""
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
        return int(tensor.storage_offset()) * tensor.element_size()
    return tensor.data_ptr()


def traits(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return everything of an operand that a problem depends on."""
    if tensor.layout is not torch.strided:
        return (tensor.layout,)
    aligned = _address(tensor) % 16 == 0 if _is_static(tensor) else None
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, aligned


def _is_static(tensor: torch.Tensor) -> bool:
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return all(isinstance(size, int) for size in sizes)


def problem_of(
    operation: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, given: Mapping[str, Any]
) -> Problem | str | None:
    """Return the problem of a product, what it is if it is none of tunekit's, or None if empty."""
    name = shown(operation)
    for operand in (a, b):
        if operand.layout is not torch.strided:
            return f"{name} of {operand.layout}".replace("torch.", "")
    if not (_is_static(a) and _is_static(b)):
        return f"{name} with symbolic sizes"
    if not (a.numel() and b.numel()):
        return None
    if a.dtype != b.dtype:
        return f"{name} of {a.dtype} and {b.dtype}".replace("torch.", "")
    scaling = "none" if "scale_a" not in given else _scaling(given, a, b)
    if scaling is None:
        return f"{name} scaled by blocks"
    batch = a.shape[0] if a.dim() == 3 else 1
    try:
        problem = describe(_matrix(a), _matrix(b))  # type: ignore[arg-type]
        aligned = problem.aligned and _batches_aligned(a) and _batches_aligned(b)
        return replace(
            problem, batch=batch, aligned=aligned, scaling=scaling, out_dtype=str(out.dtype)
        )
    except ProblemError:
        return f"{name} in {a.dtype}".replace("torch.", "")


def _matrix(tensor: torch.Tensor) -> _Matrix:
    if tensor.dim() == 1:
        return _Matrix(tensor, (tensor.shape[0], 1), (tensor.stride(0), 1))
    return _Matrix(tensor, tuple(tensor.shape[-2:]), tensor.stride()[-2:])


def _batches_aligned(tensor: torch.Tensor) -> bool:
    if tensor.dim() < 3 or tensor.shape[0] == 1:
        return True
    return tensor.stride(0) * tensor.element_size() % 16 == 0


def _scaling(given: Mapping[str, Any], a: torch.Tensor, b: torch.Tensor) -> str | None:
    sizes = given["scale_a"].numel(), given["scale_b"].numel()
    if sizes == (1, 1):
        return "tensor"
    return "row" if sizes == (a.shape[0], b.shape[1]) else None


_TRACERS = ("torch.distributed.tensor.", "torch.export.", "torch._export.", "torch.fx.")
"""Parts of torch that run operations on fake tensors to learn their shapes, not to compute."""


def is_rehearsed(*operands: torch.Tensor) -> bool:
    """Say whether torch itself runs an operation on fake tensors, to learn what would come out."""
    if not any(isinstance(operand, FakeTensor) for operand in operands):
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_TRACERS):
            return True
        frame = frame.f_back
    return False


def shown(operation: str) -> str:
    return operation.replace("::", ".")
