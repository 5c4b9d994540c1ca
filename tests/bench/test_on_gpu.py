"""Timing on a GPU: with made-up launches and a made-up clock, and on a real GPU if there is one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from tunekit.bench.fixed_lists import list_of_15
from tunekit.bench.on_gpu import GpuTimes, copying, multiplying
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES, detect
from tunekit.key import Problem
from tunekit.timing import Gpu
from tunekit.trial import Status

H200 = KNOWN_DEVICES["sm_90"]
PROBLEM = Problem("matmul", 256, 256, 256, "bfloat16")
OURS = Config("pointer", 64, 64, 32)


class FakeTimer:
    """Reads the time of a launch off the launch, and notes what ran in the same rounds."""

    def __init__(self):
        self.together = []

    def warm_up(self, launch, milliseconds):
        launch()

    def rounds(self, launches, rounds, *, seed=0):
        self.together.append((len(launches), rounds))
        return [[launch.us + step / 1000 for step in range(rounds)] for launch in launches]


class FakeGpu:
    device, index = H200, 0

    def __init__(self):
        self.clock = FakeTimer()

    def use(self):
        return nullcontext()

    def timer(self):
        return self.clock

    def release(self):
        pass


class FakeFamily:
    """Every config takes a time by its tile; `faults` says which raise, `wrong` which err."""

    def __init__(self, faults=(), wrong=(), illegal=()):
        self.faults, self.wrong, self.illegal = faults, wrong, illegal
        self.last, self.poisoned = None, 0

    def prepare(self, problem, device, *, index, seed):
        return SimpleNamespace(problem=problem, a="a", b="b")

    def launch(self, config, prepared):
        if config in self.faults:
            raise RuntimeError("too many resources")
        return self._made(1000 / config.block_m, config)

    def vendor(self, prepared):
        return self._made(12.0, None)

    def _made(self, us, config):
        def launch():
            self.last = config

        launch.us = us
        return launch

    def poison(self, prepared):
        self.poisoned += 1

    def error_ratio(self, prepared):
        return 9.0 if self.last in self.wrong else 0.5

    def violation(self, config, problem, device):
        return "too large" if config in self.illegal else None

    def failure(self, error):
        return (Status.OUT_OF_RESOURCES, str(error)) if isinstance(error, RuntimeError) else None


def inductor(a, b):
    def launch():
        pass

    launch.us = 11.0
    return launch


def timed(family, config=OURS, against=("torch", "inductor", "triton-list")):
    gpu = FakeGpu()
    times = GpuTimes(gpu, families=lambda name: family, inductor=inductor)
    return times.time(PROBLEM, config, against), gpu.clock


def test_all_are_timed_in_the_same_rounds():
    found, clock = timed(FakeFamily())
    assert clock.together[-1] == (4, 41)
    medians = {name: m.median_us for name, m in found.times.items()}
    assert medians == pytest.approx(
        {"tunekit": 1000 / 64, "torch": 12.0, "inductor": 11.0, "triton-list": 1000 / 256}, abs=0.1
    )
    assert found.times["tunekit"].error_ratio == 0.5
    assert found.left_out == {}


def test_where_the_row_says_vendor_the_vendors_call_is_ours():
    found, _ = timed(FakeFamily(), None, ("torch",))
    assert found.times["tunekit"].median_us == found.times["torch"].median_us


def test_every_triton_config_is_verified_on_a_poisoned_result():
    family = FakeFamily()
    timed(family)
    assert family.poisoned == 16  # ours and the fifteen


def test_a_config_that_fails_or_errs_is_left_out_and_the_rest_is_timed():
    found, _ = timed(FakeFamily(faults=[OURS]))
    assert "out-of-resources: too many resources" in found.left_out["tunekit"]
    assert set(found.times) == {"torch", "inductor", "triton-list"}

    found, _ = timed(FakeFamily(wrong=[OURS]))
    assert found.left_out == {"tunekit": f"{OURS}: its result is wrong"}


def test_of_the_list_only_what_is_legal_and_right_competes():
    large = [config for config in list_of_15() if config.block_m == 256]
    found, _ = timed(FakeFamily(wrong=large))
    assert found.times["triton-list"].median_us == pytest.approx(1000 / 128, abs=0.1)
    found, _ = timed(FakeFamily(illegal=list_of_15()))
    assert found.left_out == {"triton-list": "no config of the list runs for this problem"}


def test_a_fault_of_tunekits_own_is_raised():
    class Broken(FakeFamily):
        def launch(self, config, prepared):
            raise TypeError("a bug")

    with pytest.raises(TypeError):
        timed(Broken())


def test_the_ceilings_are_rates_of_a_copy_and_a_product(monkeypatch):
    monkeypatch.setattr("tunekit.bench.on_gpu.copying", lambda place, size: inductor(None, None))
    monkeypatch.setattr("tunekit.bench.on_gpu.multiplying", lambda *shape: inductor(None, None))
    found = GpuTimes(FakeGpu()).ceilings(["bfloat16"])
    us = 11.0 + 20 / 1000  # the middle of 41 rounds
    assert found.gb_per_s == pytest.approx(2 * (1 << 30) / us / 1e3)
    assert found.tflops == {"bfloat16": pytest.approx(2 * 8192**3 / us / 1e6)}


def test_what_the_ceilings_time_does_what_it_says():
    cpu = torch.device("cpu")
    copying(cpu, 64)()
    launch = multiplying(cpu, "float32", 8)
    launch()
    cells = dict(zip(launch.__code__.co_freevars, launch.__closure__, strict=True))
    a, b, out = (cells[name].cell_contents for name in ("a", "b", "out"))
    torch.testing.assert_close(out, a @ b)
    assert b.stride() == (1, 8)


@pytest.mark.gpu
def test_on_a_real_gpu_all_are_timed():
    times = GpuTimes(Gpu(detect(0), 0), rounds=11)
    found = times.time(PROBLEM, OURS, ("torch", "triton-list"))
    assert set(found.times) == {"tunekit", "torch", "triton-list"}
    assert all(measured.median_us > 1 for measured in found.times.values())
    ceilings = times.ceilings(["bfloat16"])
    assert ceilings.gb_per_s > 10
    assert ceilings.tflops["bfloat16"] > 1
