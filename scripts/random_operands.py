"""Random operands for `random_products.py`: dtypes, shapes, strides, offsets, batches.

Sizes and distances of one example are of one class, `whole` (multiples of 16, lines 256 elements
apart or multiples of that), `eighth` (multiples of 8), or `odd`: a kernel is compiled for what
divides its arguments, so examples of one class share kernels, and thousands of them need few.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from tunekit.kernels.operands import describe
from tunekit.kernels.reference import GUARD, fill_with_poison
from tunekit.key import Problem

ARITHMETIC = (
    ("float16", "float16", "ieee", "none"),
    ("bfloat16", "bfloat16", "ieee", "none"),
    ("bfloat16", "float32", "ieee", "none"),
    ("float32", "float32", "ieee", "none"),
    ("float32", "float32", "tf32", "none"),
    ("int8", "int32", "ieee", "none"),
    ("float8_e4m3fn", "bfloat16", "ieee", "tensor"),
    ("float8_e4m3fn", "bfloat16", "ieee", "row"),
    ("float8_e5m2", "float16", "ieee", "none"),
)
"""Operands' dtype, the result's, float32 precision, scaling."""

CLASSES = ("whole", "whole", "eighth", "odd")
FORMS = ("dense", "dense", "apart", "offset", "stepped", "repeated")
"""How an operand lies: dense, lines apart, from a later element, every second one, one line."""

MOST = {"cuda": 1200, "cpu": 96}
"""The largest usual size; now and then one is eight times that."""


@dataclass(frozen=True)
class Example:
    """Two operands, the scales and an output of one product."""

    problem: Problem
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    scales: tuple[torch.Tensor, ...]
    forms: tuple[str, str, str]


def draw(rng: random.Random, place: torch.device) -> Example:
    """Make the operands of one example, all of them by this generator of random numbers."""
    dtype, out_dtype, precision, scaling = rng.choice(ARITHMETIC)
    kind = rng.choice(CLASSES)
    most = MOST[place.type]
    m, n, k = (_size(rng, kind, most) for _ in range(3))
    if rng.random() < 0.1:
        m, n = (1, n) if rng.random() < 0.5 else (m, 1)
    batch = rng.choice((1, 1, 1, 2, 5)) if scaling == "none" else 1
    layout = rng.choice(("nt", "nt", "nn", "tn", "tt"))
    generator = torch.Generator(device=place).manual_seed(rng.randrange(1 << 31))
    forms = rng.choice(FORMS), rng.choice(FORMS), rng.choice(("dense", "dense", "apart", "stepped"))
    a = _operand(rng, kind, (batch, m, k), layout[0], dtype, forms[0], generator, place)
    b = _operand(rng, kind, (batch, k, n), layout[1], dtype, forms[1], generator, place)
    out = _memory(rng, kind, (batch, m, n), "n", out_dtype, forms[2], place)
    if batch == 1:
        a, b, out = a[0], b[0], out[0]
    elif rng.random() < 0.2:
        b = b[:1].expand(b.shape)  # one matrix for all
    wide = torch.float32
    shapes = {"none": (), "tensor": ((), ()), "row": ((m, 1), (1, n))}[scaling]
    scales = tuple(
        torch.empty(shape, dtype=wide, device=place).uniform_(0.5, 1.5, generator=generator)
        for shape in shapes
    )
    torch.backends.cuda.matmul.fp32_precision = precision if dtype == "float32" else "ieee"
    problem = describe(a, b, out_dtype=out.dtype, scaling=scaling)
    return Example(problem, a, b, out, scales, forms)


def _size(rng: random.Random, kind: str, most: int) -> int:
    """Draw a size of a class, as often small as large."""
    if rng.random() < 0.02:
        most *= 8
    size = int(2 ** rng.uniform(0, most.bit_length() - 1 + 0.2))
    return _rounded(size, kind)


def _rounded(size: int, kind: str) -> int:
    step = {"whole": 16, "eighth": 8, "odd": 1}[kind]
    if kind == "odd":
        return size | 1
    size = max(step, size // step * step)
    return size + 8 if kind == "eighth" and size % 16 == 0 else size


def _apart(length: int, kind: str, rng: random.Random) -> int:
    """Return a distance of lines that are at least `length` long."""
    if kind == "whole":
        return (length + 255 + 256 * rng.randrange(2)) // 256 * 256
    return _rounded(length + rng.randrange(1, 40), kind) if kind == "odd" else length + 16


def _memory(
    rng: random.Random, kind: str, shape: tuple[int, int, int], layout: str, dtype: str,
    form: str, place: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Return poisoned memory seen as an operand: (batch, rows, columns) in a layout and form."""
    batch, rows, columns = shape
    lines, length = (rows, columns) if layout == "n" else (columns, rows)
    step = 2 if form == "stepped" else 1
    whole = kind == "whole" and dtype != "float64"
    leading = length * step
    if form == "apart" or whole:
        leading = _apart(leading, kind, rng)
    between = lines * leading if form != "repeated" else leading
    if form == "repeated":
        leading = 0
    offset = GUARD
    if form == "offset":
        offset += 256 if kind == "whole" else 1
    extent = (batch - 1) * between + (lines - 1) * leading + (length - 1) * step + 1
    memory = torch.empty(extent + offset + GUARD, dtype=getattr(torch, dtype), device=place)
    fill_with_poison(memory)
    strides = (between, leading, step) if layout == "n" else (between, step, leading)
    return memory.as_strided(shape, strides, offset)


def _operand(
    rng: random.Random, kind: str, shape: tuple[int, int, int], layout: str, dtype: str,
    form: str, generator: torch.Generator, place: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Return an operand with random numbers in it and poison around it."""
    made = _memory(rng, kind, shape, layout, dtype, form, place)
    lines = 1 if layout == "n" else 2
    target = made.narrow(lines, 0, 1) if form == "repeated" else made
    if dtype == "int8":
        values = torch.randint(
            -127, 128, target.shape, dtype=torch.int8, device=place, generator=generator
        )
    else:
        values = torch.empty(target.shape, dtype=torch.float32, device=place)
        values.normal_(generator=generator)
    target.copy_(values)
    return made
