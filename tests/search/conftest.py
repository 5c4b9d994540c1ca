"""Made-up problems and trials that the tests of the search share."""

from __future__ import annotations

import pytest

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem
from tunekit.space import Space
from tunekit.trial import Measurement, Status, Trial

DEVICE = KNOWN_DEVICES["sm_90"]
CONFIGS = tuple(
    Config("tma", m, n, k, 1, 1, w, s)
    for m in (64, 128, 256)
    for n in (32, 64, 128)
    for k in (32, 64)
    for w, s in ((4, 3), (8, 3), (4, 5))
)


class World:
    """Problems whose times follow one rule: a tile near the sizes is fast, and stages help."""

    device = DEVICE
    configs = CONFIGS

    def problem(self, m, n=4096, k=4096):
        return Problem("matmul", m, n, k, "bfloat16")

    def space(self, problem, configs=CONFIGS):
        return Space(problem, DEVICE, tuple(configs))

    def time_us(self, problem, config):
        import math

        want = 256 if problem.m > 1024 else 64
        off = abs(math.log2(config.block_m / want)) + abs(math.log2(config.block_n / 64))
        off += 0.4 * (config.num_stages == 3) + 0.2 * (config.block_k == 32)
        return problem.m * (0.2 + 0.1 * off)

    def trial(self, problem, config, **changes):
        time = self.time_us(problem, config)
        fields = {
            "median_us": time, "low_us": time, "high_us": time, "p20_us": time, "p80_us": time,
            "min_us": time, "repetitions": 9, "protocol": "fake-1", "error_ratio": 0.1,
        }  # fmt: skip
        return Trial(config, Status.OK, Measurement(**(fields | changes)))

    def failed(self, config, status=Status.COMPILE_ERROR):
        return Trial(config, status, error="boom")

    def trials(self, problem, configs=CONFIGS):
        return [self.trial(problem, config) for config in configs]


@pytest.fixture
def world():
    return World()
