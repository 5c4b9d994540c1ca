"""The matmul family: C (m, n) = A (m, k) @ B (k, n), in tuned Triton kernels.

What needs torch is loaded where operands are made: compilers never load it.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Hashable
from typing import Any

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import ConfigError
from tunekit.kernels.composite import CompositeTiles
from tunekit.kernels.failures import classify
from tunekit.kernels.fingerprint import fingerprint
from tunekit.kernels.gemv import MatrixVector
from tunekit.kernels.launching import fixed, prepared
from tunekit.kernels.padded import PaddedTiles
from tunekit.kernels.persistent import PersistentTiles
from tunekit.kernels.phased import PhasedRows
from tunekit.kernels.pointer import PointerTiles
from tunekit.kernels.problems import unsupported
from tunekit.kernels.protocol import KernelCall, Launch, Prepared, Variant
from tunekit.kernels.stand_ins import interpreting, stand_ins
from tunekit.kernels.streamk import StreamK
from tunekit.kernels.swapped import SwappedOperands
from tunekit.kernels.target import compile_call, compile_key
from tunekit.kernels.tma import TmaTiles
from tunekit.kernels.turned import TURNED
from tunekit.kernels.turned_fma import TURNED_FMA
from tunekit.key import Problem
from tunekit.space import FIELDS, Space, Violation, enumerate_space, find_violation
from tunekit.trial import Fingerprint, Status


def warp_specialised() -> tuple[Variant, ...]:
    """Return the variant written in Gluon, or nothing where this Triton lacks what it needs."""
    try:
        from tunekit.kernels.gluon_tma import WarpSpecialised
    except (ImportError, AttributeError):
        return ()
    return (WarpSpecialised(),)


VARIANTS: tuple[Variant, ...] = (
    PointerTiles(),
    TmaTiles(),
    PersistentTiles(),
    StreamK(),
    CompositeTiles(),
    SwappedOperands(),
    MatrixVector(),
    PaddedTiles(),
    PhasedRows(),
    *TURNED,
    *TURNED_FMA,
    *warp_specialised(),
)
"""Every variant of the family. A new one is one file and its entry here."""


class MatmulFamily:
    """Products of two matrices, as `Family` describes a kind of problem."""

    name = "matmul"

    def __init__(self, variants: tuple[Variant, ...]) -> None:
        self.variants = variants
        self._by_name = {variant.name: variant for variant in variants}
        self._spaces = tuple(variant.space for variant in variants)
        self._fingerprints: dict[str, Fingerprint] = {}
        self.space = functools.lru_cache(maxsize=256)(self._space)
        self._middling = functools.cache(self._pointer_configs)

    def variant(self, name: str) -> Variant:
        """Return a variant by name.

        Raises:
            ConfigError: there is no such variant.
        """
        if name not in self._by_name:
            raise ConfigError(f"unknown variant {name!r}: use one of {', '.join(self._by_name)}")
        return self._by_name[name]

    def _space(self, problem: Problem, device: DeviceInfo) -> Space:
        reason = unsupported(problem)
        if reason is not None:
            raise ConfigError(f"{problem}: {reason}")
        return enumerate_space(self._spaces, problem, device)

    def violation(self, config: Config, problem: Problem, device: DeviceInfo) -> Violation | None:
        """Return the rule a config breaks, or None if it is legal."""
        reason = unsupported(problem)
        if reason is not None:
            return Violation("problem", reason)
        return find_violation(self._spaces, config, problem, device)

    def fingerprint(self, variant: str) -> Fingerprint:
        """Identify the source of a variant's kernels and the compiler that builds them."""
        if variant not in self._fingerprints:
            self._fingerprints[variant] = fingerprint(self.variant(variant).kernels)
        return self._fingerprints[variant]

    def prepare(self, problem: Problem, device: DeviceInfo, *, index: int, seed: int) -> Prepared:
        """Make random operands and their reference; a negative index means the CPU."""
        import torch

        from tunekit.kernels import reference

        place = torch.device("cpu") if index < 0 else torch.device("cuda", index)
        return reference.prepare(problem, device, place=place, seed=seed)

    def launch(self, config: Config, prepared: Prepared) -> Launch:
        """Compile (or load) a config and return its launch on the prepared operands."""
        operands = (prepared.a, prepared.b, prepared.out, *prepared.scales)
        return _launch(self._call(config, prepared.problem, prepared.device, *operands))

    def bind(
        self, config: Config, problem: Problem, device: DeviceInfo, *operands: Any
    ) -> Callable[..., None]:
        """Return a launch for any operands with these dtypes, shapes, strides and alignment."""
        self._require_legal(config, problem, device)
        variant = self.variant(config.variant)

        def call(*tensors: Any) -> KernelCall:
            return variant.call(config, problem, device, *tensors)

        if not interpreting():
            return prepared(call, *operands)
        _interpretable(call(*operands))
        forms = [(tuple(one.shape), one.stride()) for one in operands]

        def interpret(*tensors: Any) -> None:
            views = [one.as_strided(*form) for one, form in zip(tensors, forms, strict=True)]
            _launch(call(*views))()

        return interpret

    def default_config(self, problem: Problem, device: DeviceInfo) -> Config:
        """Return the legal pointer config nearest to 64x64x32, 4 warps, 3 stages, undivided."""
        for config in self._middling():
            if self.violation(config, problem, device) is None:
                return config
        raise ConfigError(f"no pointer config is legal for {problem} on {device.name}")

    def _pointer_configs(self) -> tuple[Config, ...]:
        """Return the pointer variant's configs, those of middling size first."""
        wanted = Config("pointer", 64, 64, 32, group_size=8)
        candidates = self.variant(wanted.variant).space.candidates()
        return tuple(sorted(candidates, key=lambda config: (_apart(config, wanted), config)))

    def error_ratio(self, prepared: Prepared) -> float:
        """Compare the output with the reference: the largest error over the tolerance."""
        from tunekit.kernels import reference

        return reference.error_ratio(prepared)

    def poison(self, prepared: Prepared) -> None:
        """Fill the output with NaN, or with what no sum of integers here is."""
        from tunekit.kernels import reference

        reference.fill_with_poison(prepared.out)

    def vendor(self, prepared: Prepared) -> Launch | None:
        """Return torch's call on the same operands and in the same precision, if it has one."""
        from tunekit.kernels.vendor import vendor_call

        return vendor_call(prepared)

    def compile(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Build a config for a device that need not be present; returns its shared bytes."""
        call = self._call(config, problem, device, *stand_ins(problem))
        return int(compile_call(call, device).metadata.shared)

    def compile_key(self, config: Config, problem: Problem, device: DeviceInfo) -> Hashable:
        """Name the compilation a config needs."""
        return compile_key(self._call(config, problem, device, *stand_ins(problem)))

    def failure(self, error: BaseException) -> tuple[Status, str] | None:
        """Say how a config failed, or None for an error that is not a config's failure."""
        return classify(error)

    def _call(
        self, config: Config, problem: Problem, device: DeviceInfo, *operands: Any
    ) -> KernelCall:
        self._require_legal(config, problem, device)
        return self.variant(config.variant).call(config, problem, device, *operands)

    def _require_legal(self, config: Config, problem: Problem, device: DeviceInfo) -> None:
        broken = self.violation(config, problem, device)
        if broken is not None:
            raise ConfigError(f"{config} is not legal for {problem}: {broken}")


def _apart(a: Config, b: Config) -> float:
    """Return how far two configs are apart: the sum of |log2| of their fields' ratios."""
    return sum(abs(math.log2(getattr(a, name) / getattr(b, name))) for name in FIELDS)


_interpreter = threading.RLock()
"""Triton's interpreter keeps the running program in module state: one launch at a time."""


def _after_fork() -> None:
    global _interpreter
    _interpreter = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _interpretable(call: KernelCall) -> None:
    if type(call.kernel).__name__ != "InterpretedFunction":
        raise RuntimeError(f"{call.kernel.fn.__name__} cannot run in Triton's interpreter")


def _interpret(call: KernelCall) -> None:
    _interpretable(call)
    with _interpreter:
        for one in call.sequence():
            one.kernel[one.grid](*one.args, **one.options)


def _launch(call: KernelCall) -> Launch:
    if interpreting():
        return functools.partial(_interpret, call)
    return fixed(call)


MATMUL = MatmulFamily(VARIANTS)
