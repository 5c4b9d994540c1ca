"""Turned copies without tensor cores: an operand that lies along K, copied to lie across it.

Full float32 is multiplied by the threads, each of which reads its rows of A and its columns of B
from shared memory. A warp's threads share rows and have columns of their own, so where B lies along
K (layouts nt and tt) their reads meet in the same banks and take twice as long as the products. So
B is copied first, to where it lies along N, and pointer tiles multiply what is then layout nn or
tn. Where rows are few it is A that is little: copied to lie along M, it is the second operand of
the swapped product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.kernels.padded import LINE_BYTES, copy_in_memory
from tunekit.kernels.pointer import PointerTiles
from tunekit.kernels.protocol import KernelCall, Variant
from tunekit.kernels.swapped import SwappedOperands
from tunekit.kernels.turned import TURN_BLOCKS, turning_kernel, unit_of
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace

LEAST_USES = 64
"""Products that each copied element takes part in: with fewer the copy does not pay."""


def turned_copy(matrix: Any, purpose: str, problem: Problem) -> tuple[Any, KernelCall]:
    """Return the copy of a matrix along K that lies across it, and the launch that makes it.

    `purpose` is "a" or "b". The copy's lines are of whole 128 bytes.
    """
    size = ITEMSIZE[problem.dtype]
    whole, line = 16 // size, LINE_BYTES // size
    other = problem.m if purpose == "a" else problem.n
    leading = rules.ceil_div(other, line) * line
    row, column = matrix.stride()
    along_k, across = (column, row) if purpose == "a" else (row, column)
    strides = (1, leading) if purpose == "a" else (leading, 1)
    copy = copy_in_memory(matrix, purpose, strides, problem.k * leading)
    lines, depth, warps = TURN_BLOCKS[0]
    blocks = rules.ceil_div(problem.k, lines) * rules.ceil_div(other, depth)
    unit = unit_of((along_k, across), whole)
    sizes = (problem.k // gcd(problem.k, whole), other // gcd(other, whole))
    apart = (along_k // unit, across // unit)
    options = {
        "DEPTH_UNIT": gcd(other, whole),
        "LEADING_UNIT": line,
        "LINES": lines,
        "DEPTH": depth,
        "EARLY": False,
        "num_warps": warps,
    }
    for name in ("A", "B"):  # the kernel could copy two: all blocks are of the first
        options[f"{name}_LINES_UNIT"] = gcd(problem.k, whole)
        options[f"{name}_UNIT"] = unit
        options[f"{name}_ALONG"] = 0 if along_k == 1 else 1 if across == 1 else 2
    args = (
        matrix, matrix, copy, copy, sizes[0], sizes[0], sizes[1], *apart, *apart,
        leading // line, blocks,
    )  # fmt: skip
    return copy, KernelCall(turning_kernel, (blocks,), args, options)


def _pays(uses: Callable[[Problem], int]) -> Rule:
    def check(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
        found = uses(problem)
        return None if found >= LEAST_USES else f"a copy whose elements are used {found} times"

    return Rule("copy", check, ("variant",))


@dataclass(frozen=True)
class _Side:
    """Which operand is copied, in which layouts, and how often its elements are used."""

    operand: str
    layouts: dict[str, str]
    """The layouts in which it lies along K, and what each is with the copy."""
    uses: Callable[[Problem], int]


_OF_B = _Side("b", {"nt": "nn", "tt": "tn"}, lambda problem: problem.m)
_OF_A = _Side("a", {"nt": "tt"}, lambda problem: problem.n)


class TurnedForThreads:
    """The turned-copy variants of full float32 as the family knows them."""

    def __init__(self, name: str, multiplier: Variant, side: _Side) -> None:
        self.name = name
        self.kernels = (turning_kernel, *multiplier.kernels)
        self._multiplier = multiplier
        self._side = side
        inner = multiplier.space
        off = {switch: (0,) for switch in ("tma", "shared") if switch in inner.choices}
        self.space = VariantSpace(
            variant=name,
            choices={**inner.choices, **off},
            rules=(
                Rule("along-k", self._lies_along_k, ("variant",)),
                rules.SINGLE,
                *(rule.on(self._left) for rule in inner.rules),
            ),
            worth=(_pays(side.uses), *(rule.on(self._left) for rule in inner.worth)),
        )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch the copy, then the multiplication with it."""
        if self._side.operand == "a":
            a, copying = turned_copy(a, "a", problem)
        else:
            b, copying = turned_copy(b, "b", problem)
        product = self._multiplier.call(config, self._left(problem), device, a, b, out, *scales)
        return replace(product, before=(copying,))

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return self._multiplier.shared_bytes(config, self._left(problem), device)

    def _left(self, problem: Problem) -> Problem:
        """Return the problem that is left once the operand is copied."""
        return replace(problem, layout=self._side.layouts.get(problem.layout, problem.layout))

    def _lies_along_k(self, config: Config, problem: Problem, device: DeviceInfo) -> str | None:
        if problem.dtype != "float32" or problem.precision != "ieee":
            return f"{problem.dtype} in {problem.precision} is not multiplied by threads alone"
        if problem.layout not in self._side.layouts:
            return f"{problem.layout} is multiplied as it lies"
        return None


TURNED_FMA = (
    TurnedForThreads("turned-pointer", PointerTiles(), _OF_B),
    TurnedForThreads("turned-swapped", SwappedOperands(), _OF_A),
)
"""Both variants of the file."""
