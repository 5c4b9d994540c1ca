"""Forty calls that `torch.matmul` refuses, to be refused by `tunekit.matmul` in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

import tunekit

Wrong = tuple[str, tuple[Any, ...], dict[str, Any]]


def wrong_calls(device: str = "cpu") -> list[Wrong]:
    """Return what is wrong with each call, and its arguments."""
    one, ones = torch.tensor(1.0, device=device), _maker(device)
    half, double = torch.float16, torch.float64
    gradient = ones(4, 4).requires_grad_()
    return [
        ("inner sizes", (ones(3, 4), ones(5, 6)), {}),
        ("inner sizes of vectors", (ones(3), ones(4)), {}),
        ("vector on the left", (ones(3), ones(4, 5)), {}),
        ("vector on the right", (ones(3, 4), ones(3)), {}),
        ("vector and many matrices", (ones(3), ones(2, 4, 5)), {}),
        ("many matrices and a vector", (ones(2, 3, 4), ones(3)), {}),
        ("inner sizes of many", (ones(2, 3, 4), ones(2, 5, 6)), {}),
        ("inner sizes of many and one", (ones(2, 3, 4), ones(5, 6)), {}),
        ("inner sizes of one and many", (ones(3, 4), ones(2, 5, 6)), {}),
        ("batch sizes", (ones(2, 3, 4), ones(3, 4, 5)), {}),
        ("batch sizes further left", (ones(2, 1, 3, 4), ones(3, 1, 4, 5)), {}),
        ("an empty inner size and another", (ones(3, 0), ones(4, 5)), {}),
        ("an empty batch and another", (ones(0, 3, 4), ones(2, 4, 5)), {}),
        ("a number as a tensor on the left", (one, ones(4, 5)), {}),
        ("a number as a tensor on the right", (ones(3, 4), one), {}),
        ("two numbers as tensors", (one, one), {}),
        ("half and float", (ones(3, 4).to(half), ones(4, 5)), {}),
        ("float and double", (ones(3, 4), ones(4, 5).to(double)), {}),
        ("float and int", (ones(3, 4), ones(4, 5).int()), {}),
        ("float and bool", (ones(3, 4), ones(4, 5).bool()), {}),
        ("float and complex", (ones(3, 4), ones(4, 5).to(torch.complex64)), {}),
        ("dtypes of many matrices", (ones(2, 3, 4), ones(2, 4, 5).to(half)), {}),
        ("dtypes of vectors", (ones(4), ones(4).to(double)), {}),
        ("dtypes of a matrix and a vector", (ones(3, 4), ones(4).to(half)), {}),
        ("bytes of another kind", (ones(3, 4).to(torch.float8_e4m3fn), ones(4, 5)), {}),
        ("a list on the left", ([[1.0]], ones(1, 1)), {}),
        ("a list on the right", (ones(1, 1), [[1.0]]), {}),
        ("a number on the left", (2.0, ones(1, 1)), {}),
        ("a number on the right", (ones(1, 1), 2), {}),
        ("None on the left", (None, ones(1, 1)), {}),
        ("None on the right", (ones(1, 1), None), {}),
        ("one operand", (ones(3, 4),), {}),
        ("an unknown word", (ones(3, 4), ones(4, 5)), {"transpose": True}),
        ("out of another dtype", (ones(3, 4), ones(4, 5)), {"out": ones(3, 5).to(double)}),
        ("out on another device", (ones(3, 4), ones(4, 5)), {"out": ones(3, 5).to("meta")}),
        ("out that overlaps itself", (ones(3, 4), ones(4, 5)), {"out": ones(1, 5).expand(3, 5)}),
        ("out that is a list", (ones(3, 4), ones(4, 5)), {"out": [1.0]}),
        ("out and gradients", (gradient, ones(4, 5)), {"out": ones(4, 5)}),
        ("out that wants a gradient", (ones(4, 4), ones(4, 4)), {"out": gradient}),
        ("out of another dtype, many", (ones(2, 3, 4), ones(2, 4, 5)),
         {"out": ones(2, 3, 5).to(half)}),
        ("out and inner sizes", (ones(3, 4), ones(5, 6)), {"out": ones(3, 6)}),
    ]  # fmt: skip


def _maker(device: str) -> Callable[..., torch.Tensor]:
    """Return a function that makes tensors of ones on a device."""
    return lambda *shape: torch.ones(shape, device=device)


def unlike_torch(device: str = "cpu", **how: Any) -> Iterator[str]:
    """Yield what differs between the two functions' errors, in one line each."""
    for name, arguments, options in wrong_calls(device):
        theirs = _error(torch.matmul, *arguments, **options)
        ours = _error(tunekit.matmul, *arguments, **options, **how)
        if theirs is None:
            yield f"{name}: torch takes it"
        elif type(ours) is not type(theirs):
            yield f"{name}: {ours!r} instead of {theirs!r}"
        elif _kind(ours) != _kind(theirs):
            yield f"{name}: {_kind(ours)!r} instead of {_kind(theirs)!r}"


def _error(function: Callable[..., Any], *arguments: Any, **options: Any) -> BaseException | None:
    try:
        function(*arguments, **options)
    except Exception as error:  # which one it is, is the question
        return error
    return None


def _kind(error: BaseException | None) -> str:
    """Return what a message is about: its first words, without numbers and names of arguments."""
    text = re.sub(r"\W+", " ", re.sub(r"\d+|'\w+'|\"\w+\"", "", str(error))).strip()
    if isinstance(error, TypeError) and ("missing" in text or "unexpected keyword" in text):
        return "missing" if "missing" in text else "unexpected keyword"
    return " ".join(text.split()[:6])
