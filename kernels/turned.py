"""Turned copies: for operands that tensor cores can only read along K, copied to where K lies.

A warpgroup's product reads 16-bit operands along either dimension, and all others along K alone. So
in the layouts nn, tn and tt one operand or both are copied first, transposed, into a workspace with
lines along K of whole 128 bytes, and a kernel that loads by TMA multiplies what is then layout nt.
An operand that lies along K as it is, and is aligned, is not copied. The copies read and write
(M + N) K elements, little beside M N K products.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.kernels.padded import LINE_BYTES, copy_in_memory
from tunekit.kernels.persistent import PersistentTiles
from tunekit.kernels.protocol import KernelCall, Variant
from tunekit.kernels.stand_ins import interpreting
from tunekit.kernels.tma import TmaTiles, tma_kernel, waiting
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace

TURN_BLOCKS = ((64, 64, 4), (64, 128, 4))
"""What one program may turn: lines of the copy, elements along K, and warps."""

MOST_PARTS = 8
"""Parts of K that are tried: where more pay, there are few tiles, and the copies do not pay."""


@triton.jit
def turn_block(
    source, copy, block, lines, depth, stride_line, stride_depth, leading,
    LINES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Copy one block: `lines` lines of `depth` elements, `leading` apart in the copy."""
    across = tl.cdiv(depth, DEPTH)
    line = block // across * LINES + tl.arange(0, LINES)
    at = block % across * DEPTH + tl.arange(0, DEPTH)
    inside = (line < lines)[:, None] & (at < depth)[None, :]
    # Offsets are 64-bit: a line times its stride passes 2^31 long before memory runs out.
    wide_line = line.to(tl.int64)[:, None]
    wide_at = at.to(tl.int64)[None, :]
    values = tl.load(source + wide_line * stride_line + wide_at * stride_depth, inside, other=0.0)
    tl.store(copy + wide_line * leading + wide_at, values, inside)


@triton.jit(
    do_not_specialize=[
        "a_lines", "b_lines", "depth", "a_line", "a_depth", "b_line", "b_depth", "leading",
        "a_blocks",
    ]
)  # fmt: skip
def turning_kernel(
    a, b, a_copy, b_copy, a_lines, b_lines, depth, a_line, a_depth, b_line, b_depth, leading,
    a_blocks,
    A_LINES_UNIT: tl.constexpr, B_LINES_UNIT: tl.constexpr, DEPTH_UNIT: tl.constexpr,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, A_ALONG: tl.constexpr, B_ALONG: tl.constexpr,
    LEADING_UNIT: tl.constexpr, LINES: tl.constexpr, DEPTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Copy the operands that have blocks to copy, a block a program: those of A first.

    Sizes and strides come in their units, so that the compiler knows what divides them. ALONG says
    which stride of an operand is 1: that from line to line (0), that along K (1), or neither (2).
    EARLY lets the launch that reads the copies start; it waits until they are made.
    """
    if EARLY:
        gdc_launch_dependents()
    block = tl.program_id(0)
    if block < a_blocks:
        turn_block(
            a, a_copy, block, a_lines * A_LINES_UNIT, depth * DEPTH_UNIT,
            1 if A_ALONG == 0 else a_line * A_UNIT, 1 if A_ALONG == 1 else a_depth * A_UNIT,
            leading * LEADING_UNIT, LINES, DEPTH,
        )  # fmt: skip
    else:
        turn_block(
            b, b_copy, block - a_blocks, b_lines * B_LINES_UNIT, depth * DEPTH_UNIT,
            1 if B_ALONG == 0 else b_line * B_UNIT, 1 if B_ALONG == 1 else b_depth * B_UNIT,
            leading * LEADING_UNIT, LINES, DEPTH,
        )  # fmt: skip


def as_turned(problem: Problem) -> Problem:
    """Return the problem that is left once the operands are copied."""
    return replace(problem, aligned=True, layout="nt")


def _to_turn(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if rules.tma_multiplies(problem):
        return f"{problem.dtype} {problem.layout} is multiplied as it lies"
    return None


class TurnedTiles:
    """The turned-copy variant as the family knows it, on tiles or on persistent programs."""

    def __init__(self, name: str, multiplier: Variant) -> None:
        self.name = name
        self._multiplier = multiplier
        self._early = multiplier.kernels == (tma_kernel,)
        self.kernels = (turning_kernel, *multiplier.kernels)
        inner = multiplier.space
        choices = {**inner.choices, "copy": tuple(range(len(TURN_BLOCKS)))}
        if "shared" in choices:
            choices["shared"] = (0,)  # no launch has all parts at once and starts early
        choices["split_k"] = tuple(parts for parts in choices["split_k"] if parts <= MOST_PARTS)
        self.space = VariantSpace(
            variant=name,
            choices=choices,
            rules=(
                Rule("along-k", _to_turn, ("variant",)),
                rules.SINGLE,
                *(rule.on(as_turned) for rule in inner.rules),
            ),
            worth=tuple(rule.on(as_turned) for rule in inner.worth),
        )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch the copies, then the multiplication of what is there then."""
        keep_a = problem.aligned and problem.layout[0] == "n"
        keep_b = problem.aligned and problem.layout[1] == "t"
        line = LINE_BYTES // ITEMSIZE[problem.dtype]
        leading = rules.ceil_div(problem.k, line) * line
        a_copy = a if keep_a else copy_in_memory(a, "a", (leading, 1), problem.m * leading)
        b_copy = b if keep_b else copy_in_memory(b, "b", (1, leading), problem.n * leading)
        lines, depth, warps = TURN_BLOCKS[config.switch("copy")]
        across = rules.ceil_div(problem.k, depth)
        a_blocks = 0 if keep_a else rules.ceil_div(problem.m, lines) * across
        b_blocks = 0 if keep_b else rules.ceil_div(problem.n, lines) * across
        sizes, units = _in_units(problem, a, b)
        copies = KernelCall(
            turning_kernel,
            (a_blocks + b_blocks,),
            (a, b, a_copy, b_copy, *sizes, leading // line, a_blocks),
            {
                **units,
                "LEADING_UNIT": line,
                "LINES": lines,
                "DEPTH": depth,
                "EARLY": self._early and not interpreting(),
                "num_warps": warps,
            },
        )
        product = self._multiplier.call(
            config, as_turned(problem), device, a_copy, b_copy, out, *scales
        )
        product = replace(product, before=(copies,))
        return waiting(product) if self._early else product

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return self._multiplier.shared_bytes(config, as_turned(problem), device)


def unit_of(strides: tuple[int, int], whole: int) -> int:
    """Return the unit that a matrix's strides come in, at most `whole` elements.

    A stride of 1 is a constant of the kernel, and the unit that of the other. What passes 32 bits
    stays in elements: only so does it arrive as a 64-bit argument.
    """
    apart = [stride for stride in strides if stride != 1] or [1]
    return gcd(*apart, whole) if max(apart) < 1 << 31 else 1


def _in_units(problem: Problem, a: Any, b: Any) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the sizes and strides of both operands in their units, and the units by name."""
    whole = 16 // ITEMSIZE[problem.dtype]
    a_line, a_depth = a.stride()
    b_depth, b_line = b.stride()
    units: dict[str, int] = {"DEPTH_UNIT": gcd(problem.k, whole)}
    strides: list[int] = []
    for name, size, line, depth in (
        ("A", problem.m, a_line, a_depth), ("B", problem.n, b_line, b_depth)
    ):  # fmt: skip
        units[f"{name}_LINES_UNIT"] = gcd(size, whole)
        units[f"{name}_ALONG"] = 1 if depth == 1 else 0 if line == 1 else 2
        units[f"{name}_UNIT"] = unit_of((line, depth), whole)
        strides += [line // units[f"{name}_UNIT"], depth // units[f"{name}_UNIT"]]
    sizes = (
        problem.m // units["A_LINES_UNIT"], problem.n // units["B_LINES_UNIT"],
        problem.k // units["DEPTH_UNIT"], *strides,
    )  # fmt: skip
    return sizes, units


TURNED = (
    TurnedTiles("turned", TmaTiles()),
    TurnedTiles("turned-persistent", PersistentTiles()),
)
"""Both variants of the file."""
