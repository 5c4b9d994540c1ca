"""Run one variant on operands ringed with NaN: on a GPU that can, else in the interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES, DeviceInfo, detect
from tunekit.kernels import Prepared
from tunekit.kernels.matmul_family import MatmulFamily
from tunekit.kernels.reference import guard_is_intact
from tunekit.key import Problem

H200 = KNOWN_DEVICES["sm_90"]

GPU_HERE = torch.cuda.is_available()
HOPPER_HERE = GPU_HERE and detect().arch == H200.arch
needs_descriptors = pytest.mark.skipif(
    GPU_HERE and not HOPPER_HERE, reason="the GPU here has no such descriptors"
)


def place(on_gpu: bool) -> str:
    """Return where operands belong."""
    return "cuda" if on_gpu else "cpu"


@dataclass(frozen=True)
class Trying:
    """A variant, and the device whose rules its configs keep."""

    family: MatmulFamily
    device: DeviceInfo = H200
    on_gpu: bool = GPU_HERE

    @property
    def index(self) -> int:
        """The GPU's index, negative for the CPU."""
        return 0 if self.on_gpu else -1

    def run(self, problem: Problem, config: Config, seed: int = 0) -> Prepared:
        """Run a config on random operands ringed with NaN and a poisoned output."""
        prepared = self.family.prepare(problem, self.device, index=self.index, seed=seed)
        self.family.poison(prepared)
        self.family.launch(config, prepared)()
        return prepared

    def assert_right(self, problem: Problem, config: Config, seed: int = 0) -> Prepared:
        """Run a config and hold its result to the reference, and what lies around to be intact."""
        prepared = self.run(problem, config, seed)
        assert self.family.error_ratio(prepared) <= 1, f"{config} is wrong for {problem}"
        assert guard_is_intact(prepared), f"{config} wrote outside the output of {problem}"
        return prepared
