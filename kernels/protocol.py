"""What the rest of tunekit knows of a kernel family: one small protocol.

The tuner, the search, the measuring and the store speak of problems and configs. They reach the
kernels of a family through `Family` and never import one. A variant hands out a `KernelCall`, which
the launch, the compile pool and the interpreter all use, so that what is compiled ahead is what the
launch asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import Problem
from tunekit.space import Space, VariantSpace, Violation
from tunekit.trial import Fingerprint, Status

Launch = Callable[[], None]
"""A prepared launch on fixed operands: queues the kernel on the current stream."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel and everything it is called with, on real tensors or on stand-ins for them."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    """Compile-time constants and launch options, by name."""
    before: tuple[KernelCall, ...] = ()
    """Launches that prepare this one's operands, in order on the same stream."""

    def compiled(self) -> Any:
        """Compile this one's kernel, or find it compiled; return what Triton makes of it."""
        return self.kernel.warmup(*self.args, grid=self.grid, **self.options)

    def sequence(self) -> tuple[KernelCall, ...]:
        """Return every launch in order."""
        return (*self.before, self)


class Variant(Protocol):
    """One kernel of a family, with its part of the space."""

    @property
    def name(self) -> str:
        """The variant's name in configs."""

    @property
    def space(self) -> VariantSpace:
        """Its choices and rules."""

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The Triton kernels it may launch; their sources make its fingerprint."""

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Say how to launch `config` for these operands (or stand-ins with the same layout).

        A scaled problem has two scales, of A and of B; others have none.
        """

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory one block will use: never under what the compiler takes."""


@dataclass(frozen=True)
class Prepared:
    """The operands of a problem on a device, with the reference result and its tolerance.

    `tolerance` is elementwise: a result is right if it is finite wherever the reference is and
    nowhere further from it than that.
    """

    problem: Problem
    device: DeviceInfo
    a: Any
    b: Any
    out: Any
    reference: Any
    tolerance: Any
    scales: tuple[Any, ...] = ()
    """Float32 scales of A and of B where the problem has them."""


class Family(Protocol):
    """A kind of problem with its kernels."""

    @property
    def name(self) -> str:
        """The family's name in keys."""

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every variant, in the order their configs are enumerated."""

    def space(self, problem: Problem, device: DeviceInfo) -> Space:
        """Return every legal config of the problem on the device."""

    def violation(self, config: Config, problem: Problem, device: DeviceInfo) -> Violation | None:
        """Return the rule a config breaks, or None if it is legal."""

    def fingerprint(self, variant: str) -> Fingerprint:
        """Identify the source of a variant's kernels and the compiler that builds them."""

    def prepare(self, problem: Problem, device: DeviceInfo, *, index: int, seed: int) -> Prepared:
        """Make random operands and their reference on the GPU with this index."""

    def launch(self, config: Config, prepared: Prepared) -> Launch:
        """Compile (or load) a config and return its launch on the prepared operands."""

    def bind(
        self, config: Config, problem: Problem, device: DeviceInfo, *operands: Any
    ) -> Callable[..., None]:
        """Return a launch for any operands with these dtypes, shapes, strides and alignment.

        The operands are A, B, the output and, for a scaled problem, the scales of A and B.
        """

    def default_config(self, problem: Problem, device: DeviceInfo) -> Config:
        """Return a legal config of middling size, for a problem nothing is known of."""

    def error_ratio(self, prepared: Prepared) -> float:
        """Compare the output with the reference: the largest error over the tolerance."""

    def poison(self, prepared: Prepared) -> None:
        """Fill the output with what no right result holds, so that an unwritten element shows."""

    def vendor(self, prepared: Prepared) -> Launch | None:
        """Return the vendor library's call on the same operands, None where it has none."""

    def compile(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Build a config for a device that need not be present, into Triton's own cache.

        Returns the shared memory, in bytes, that one block takes.
        """

    def compile_key(self, config: Config, problem: Problem, device: DeviceInfo) -> Hashable:
        """Name the compilation a config needs: configs with equal names share the binary."""

    def failure(self, error: BaseException) -> tuple[Status, str] | None:
        """Say how a config failed, or None for an error that is not a config's failure."""
