"""Draws the examples of `random_products.py` by their numbers, and tries them."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from random_operands import Example, draw

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import Prepared
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.reference import error_ratio, expected, fill_with_poison
from tunekit.kernels.stand_ins import interpreting
from tunekit.kernels.target import compile_key
from tunekit.key import Problem

ATTEMPTS = 400
"""How often an example is drawn again before it is given up."""

MOST_TO_SETTLE = 2000
"""How many numbers decide at most which kernels there are."""

CONFIGS_EACH = 5
"""Configs of a variant in each of the problems that they are drawn from."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one number; without a variant no example was found for it."""

    number: int
    variant: str = ""
    dtype: str = ""
    error_ratio: float = 0.0
    failure: dict[str, Any] | None = None


class Drawing:
    """Draws the example of a number, of those that need no other kernels than it knows.

    Until `kernels` are known an example may bring its own.
    """

    def __init__(
        self, seed: int, device: DeviceInfo, pool: list[Config], kernels: int, known: Iterable[str]
    ) -> None:
        self.seed, self.device, self.pool = seed, device, pool
        self.by_variant: dict[str, list[Config]] = {}
        for config in pool:
            self.by_variant.setdefault(config.variant, []).append(config)
        self.kernels, self.known = kernels, set(known)
        self.place = torch.device("cpu" if interpreting() else "cuda")

    def settle(self) -> list[int]:
        """Decide which kernels there are; return the numbers whose examples need them all."""
        numbers: list[int] = []
        for number in range(MOST_TO_SETTLE):
            before = len(self.known)
            if before >= self.kernels:
                break
            if self.drawn(number) is not None and len(self.known) > before:
                numbers.append(number)
        self.kernels = len(self.known)
        return numbers

    def drawn(self, number: int) -> tuple[Example, Config] | None:
        """Draw until a config is legal and its kernels are among those that may be compiled."""
        rng = random.Random(f"{self.seed}/{number}")
        for _ in range(ATTEMPTS):
            example = draw(rng, self.place)
            for config in self._in_order(rng):
                if MATMUL.violation(config, example.problem, self.device) is None:
                    keys = self._keys(example, config)
                    if keys <= self.known or len(self.known | keys) <= self.kernels:
                        self.known |= keys
                        return example, config
        return None

    def _in_order(self, rng: random.Random) -> list[Config]:
        """Return the pool, a variant after the other: else what is always legal is drawn."""
        order = rng.sample(list(self.by_variant.values()), len(self.by_variant))
        return [config for configs in order for config in rng.sample(configs, len(configs))]

    def outcome(self, number: int) -> Outcome:
        """Draw the example of a number, and try it."""
        drawn = self.drawn(number)
        if drawn is None:
            return Outcome(number)
        example, config = drawn
        fault, ratio = tried(example, config, self.device)
        failure = None
        if fault:
            strides = [tuple(one.stride()) for one in (example.a, example.b, example.out)]
            failure = {
                "number": number, "problem": str(example.problem), "config": str(config),
                "forms": example.forms, "strides": strides, "fault": fault,
            }  # fmt: skip
        return Outcome(number, config.variant, example.problem.dtype, ratio, failure)

    def _keys(self, example: Example, config: Config) -> set[str]:
        """Name the kernels that an example needs."""
        operands = (example.a, example.b, example.out, *example.scales)
        call = MATMUL.variant(config.variant).call(config, example.problem, self.device, *operands)
        names = [repr(compile_key(one)) for one in call.sequence()]
        return {hashlib.sha256(name.encode()).hexdigest()[:16] for name in names}


_drawing: Drawing
"""In a process that tries examples for another: what it draws them by."""


def _begin(seed: int, device: DeviceInfo, pool: list[Config], known: list[str]) -> None:
    global _drawing
    _drawing = Drawing(seed, device, pool, len(known), known)


def _outcome(number: int) -> Outcome:
    return _drawing.outcome(number)


@contextmanager
def trying(drawing: Drawing, jobs: int) -> Iterator[Callable[[Iterable[int]], Iterable[Outcome]]]:
    """Give what tries the examples of some numbers, in order, here or in so many processes."""
    if jobs == 1:
        yield lambda numbers: map(drawing.outcome, numbers)
        return
    told = (drawing.seed, drawing.device, drawing.pool, sorted(drawing.known))
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, told) as pool:
        yield lambda numbers: pool.map(_outcome, numbers)


def config_pool(device: DeviceInfo) -> list[Config]:
    """Draw configs of every variant from the spaces of a few kinds of problems."""
    rng = random.Random(0)
    problems = [
        Problem("matmul", 512, 512, 512, "bfloat16"),
        Problem("matmul", 512, 768, 1024, "float16", layout="nn", batch=2),
        Problem("matmul", 511, 513, 515, "float16", aligned=False),
        Problem("matmul", 512, 512, 512, "float32", precision="tf32", layout="nn"),
        Problem("matmul", 512, 512, 2048, "int8", "int32"),
        Problem("matmul", 16, 1024, 1024, "float8_e4m3fn", "bfloat16", scaling="row"),
        Problem("matmul", 1, 1024, 1024, "bfloat16"),
        Problem("matmul", 512, 512, 1000, "bfloat16"),
        Problem("matmul", 256, 256, 256, "float32", precision="ieee"),
        Problem("matmul", 40, 48, 33, "float32", aligned=False),
    ]
    pool: dict[Config, None] = {}
    for problem in problems:
        by_variant: dict[str, list[Config]] = {}
        for config in MATMUL.space(problem, device).configs:
            if not (interpreting() and config.variant == "gluon"):  # it has no interpreter
                by_variant.setdefault(config.variant, []).append(config)
        for configs in by_variant.values():
            pool.update(dict.fromkeys(rng.sample(configs, min(CONFIGS_EACH, len(configs)))))
    return list(pool)


def tried(example: Example, config: Config, device: DeviceInfo) -> tuple[str, float]:
    """Run an example; returns what is wrong, or nothing, and its error over the tolerance."""
    problem = example.problem
    operands = (example.a, example.b, example.out, *example.scales)
    MATMUL.bind(config, problem, device, *operands)(*operands)
    reference, tolerance = expected(problem, example.a, example.b, example.scales)
    if example.a.stride(-1) == 0 and example.b.stride(-2) == 0:
        # Every term of a sum is the same, and so is its rounding: errors grow as K, not sqrt(K).
        tolerance *= math.sqrt(problem.k)
    prepared = Prepared(
        problem, device, example.a, example.b, example.out, reference, tolerance, example.scales
    )
    ratio = error_ratio(prepared)
    if not ratio <= 1:
        return f"off by {ratio:.3g} times the tolerance", ratio
    return ("" if surroundings_are_intact(example.out) else "wrote outside its output"), ratio


def surroundings_are_intact(out: torch.Tensor) -> bool:
    """Say whether nothing but the output's own elements was written."""
    fill_with_poison(out)
    memory = out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)
    poison = torch.empty_like(memory[:1])
    fill_with_poison(poison)
    if out.is_floating_point():
        return bool(memory.isnan().all())
    return bool((memory == poison).all())
