"""Times taken on a GPU, in this process: everything of a problem in the same interleaved rounds.

Every Triton config is verified before it is timed. What is compared is known to run: a config comes
from the store, where it was proven, and those of the fixed list are a simple kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tunekit.bench.fixed_lists import list_of_15
from tunekit.bench.results import INDUCTOR, TORCH, TRITON_LIST, TUNEKIT, Ceilings, Timed
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import Family, Launch, Prepared, family
from tunekit.key import Problem
from tunekit.timing import Gpu, quantile, summarize
from tunekit.trial import PROTOCOL, Origin

ROUNDS = 41
"""Rounds in which everything is timed once, in shuffled order."""

_LIST_ROUNDS = 9
"""Rounds by which the best of the fixed list is chosen, as Triton's autotuner would."""

_WARM_UP_MS = 30.0
_COPY_BYTES = 1 << 30
_PEAK_SIZE = 8192


def compiled(a: torch.Tensor, b: torch.Tensor) -> Launch:
    """Return what Inductor makes of the product, tuned by its own search."""
    torch.compiler.reset()
    product = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs", dynamic=False)
    product(a, b)

    def launch() -> None:
        product(a, b)

    return launch


class GpuTimes:
    """Implements `Times` by measuring."""

    def __init__(
        self,
        gpu: Gpu,
        *,
        families: Callable[[str], Family] = family,
        inductor: Callable[[Any, Any], Launch] = compiled,
        rounds: int = ROUNDS,
        seed: int = 0,
    ) -> None:
        self._gpu = gpu
        self._families = families
        self._inductor = inductor
        self._rounds = rounds
        self._seed = seed
        self._timer = gpu.timer()

    @property
    def device(self) -> DeviceInfo:
        """The GPU."""
        return self._gpu.device

    @property
    def origin(self) -> Origin:
        """`MEASURED`."""
        return Origin.MEASURED

    @property
    def protocol(self) -> str:
        """How times are taken."""
        return PROTOCOL

    def time(self, problem: Problem, config: Config | None, against: Sequence[str]) -> Timed:
        """Time what tunekit runs for a problem, and the others, interleaved."""
        with self._gpu.use():
            return self._time(problem, config, against)

    def _time(self, problem: Problem, config: Config | None, against: Sequence[str]) -> Timed:
        kernels = self._families(problem.family)
        prepared = kernels.prepare(
            problem, self._gpu.device, index=self._gpu.index, seed=self._seed
        )
        vendor = kernels.vendor(prepared) or f"torch has no call for {problem}"
        launches: dict[str, Launch] = {}
        errors: dict[str, float] = {}
        left_out: dict[str, str] = {}
        ours = vendor if config is None else self._proven(kernels, config, prepared)
        self._enter(TUNEKIT, ours, launches, errors, left_out)
        if TORCH in against:
            self._enter(TORCH, vendor, launches, errors, left_out)
        if TRITON_LIST in against:
            best = self._best_of_list(kernels, prepared)
            self._enter(TRITON_LIST, best, launches, errors, left_out)
        if INDUCTOR in against:
            launches[INDUCTOR] = self._inductor(prepared.a, prepared.b)
        names = list(launches)
        if not names:
            return Timed({}, left_out)
        self._timer.warm_up(launches[names[-1]] if isinstance(vendor, str) else vendor, _WARM_UP_MS)
        rows = self._timer.rounds([launches[name] for name in names], self._rounds, seed=self._seed)
        times = {
            name: summarize(row, error_ratio=errors.get(name), final=True)
            for name, row in zip(names, rows, strict=True)
        }
        return Timed(times, left_out)

    @staticmethod
    def _enter(
        name: str,
        entrant: Launch | tuple[Launch, float] | str,
        launches: dict[str, Launch],
        errors: dict[str, float],
        left_out: dict[str, str],
    ) -> None:
        """Sort an entrant: a launch, one with its error ratio, or why there is none."""
        if isinstance(entrant, str):
            left_out[name] = entrant
        elif isinstance(entrant, tuple):
            launches[name], errors[name] = entrant
        else:
            launches[name] = entrant

    def _proven(
        self, kernels: Family, config: Config, prepared: Prepared
    ) -> tuple[Launch, float] | str:
        """Return a config's launch and its error ratio, or why it is not to be timed."""
        try:
            launch = kernels.launch(config, prepared)
            kernels.poison(prepared)
            launch()
            ratio = kernels.error_ratio(prepared)
        except Exception as error:  # the config's own code: what is not its failure is raised again
            failure = kernels.failure(error)
            if failure is None:
                raise
            return f"{config}: {failure[0].value}: {failure[1]}"
        return (launch, ratio) if ratio <= 1 else f"{config}: its result is wrong"

    def _best_of_list(self, kernels: Family, prepared: Prepared) -> tuple[Launch, float] | str:
        """Return the fastest of the fixed list, of those that run for this problem."""
        device, ready = self._gpu.device, []
        for config in list_of_15():
            if kernels.violation(config, prepared.problem, device) is None:
                proven = self._proven(kernels, config, prepared)
                if not isinstance(proven, str):
                    ready.append(proven)
        if not ready:
            return "no config of the list runs for this problem"
        rows = self._timer.rounds([launch for launch, _ in ready], _LIST_ROUNDS, seed=self._seed)
        medians = [quantile(sorted(row), 0.5) for row in rows]
        return ready[medians.index(min(medians))]

    def ceilings(self, dtypes: Iterable[str]) -> Ceilings:
        """Measure a large copy, and a large product of the vendor's in each dtype."""
        with self._gpu.use():
            place = torch.device("cuda", self._gpu.index)
            rate = 2 * _COPY_BYTES / self._median(copying(place, _COPY_BYTES)) / 1e3
            flops = 2 * _PEAK_SIZE**3
            tflops = {
                dtype: flops / self._median(multiplying(place, dtype, _PEAK_SIZE)) / 1e6
                for dtype in dtypes
            }
        self._gpu.release()
        return Ceilings(rate, tflops)

    def _median(self, launch: Launch) -> float:
        self._timer.warm_up(launch, _WARM_UP_MS)
        return quantile(sorted(self._timer.rounds([launch], self._rounds)[0]), 0.5)


def copying(place: torch.device, size: int) -> Launch:
    """Return a copy of so many bytes."""
    source = torch.empty(size, dtype=torch.int8, device=place).random_()
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    return copy


def multiplying(place: torch.device, dtype: str, size: int) -> Launch:
    """Return torch's own product of two random squares, B as `nn.Linear` keeps its weights."""
    kind = getattr(torch, dtype)
    a = torch.randn(size, size, device=place).to(kind)
    b = torch.randn(size, size, device=place).to(kind).t()
    out = torch.empty(size, size, dtype=kind, device=place)

    def multiply() -> None:
        torch.mm(a, b, out=out)

    return multiply
