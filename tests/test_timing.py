"""The arithmetic of a measurement: quantiles, the interval of a median, the size of the flush."""

from __future__ import annotations

import dataclasses
import random
import statistics

import pytest

from tunekit.device import KNOWN_DEVICES
from tunekit.timing import Gate, Timer, flush_bytes, is_wide, quantile, rounds_for, summarize

H200 = KNOWN_DEVICES["sm_90"]


def test_a_summary_is_that_of_its_times():
    measurement = summarize([5.0, 1.0, 3.0, 2.0, 4.0], error_ratio=0.5, final=True)
    assert measurement.median_us == 3.0
    assert measurement.min_us == 1.0
    assert (measurement.low_us, measurement.high_us) == (1.0, 5.0)
    assert measurement.p20_us == pytest.approx(1.8)
    assert measurement.p80_us == pytest.approx(4.2)
    assert measurement.repetitions == 5
    assert measurement.final
    assert not measurement.contended
    assert summarize([1.0], error_ratio=None, throttled=True).throttled


def test_the_interval_holds_the_true_median_about_as_often_as_it_says():
    rng = random.Random(1)
    held = 0
    for _ in range(400):
        times = [rng.lognormvariate(0, 0.05) for _ in range(41)]  # true median 1
        measurement = summarize(times, error_ratio=None)
        held += measurement.low_us <= 1 <= measurement.high_us
    assert held >= 0.93 * 400


def test_one_slow_launch_does_not_move_the_result():
    calm = [10.0 + 0.01 * i for i in range(21)]
    disturbed = [*calm[:-1], 1000.0]
    assert (
        summarize(disturbed, error_ratio=None).median_us
        == summarize(calm, error_ratio=None).median_us
    )


def test_quantiles_agree_with_the_standard_library():
    times = sorted(random.Random(2).random() for _ in range(50))
    expected = statistics.quantiles(times, n=10, method="inclusive")
    assert quantile(times, 0.2) == pytest.approx(expected[1])
    assert quantile(times, 0.8) == pytest.approx(expected[7])
    assert quantile([7.0], 0.5) == 7.0


@pytest.mark.parametrize("l2_mib", [4, 50, 256])
def test_the_flush_is_larger_than_the_cache(l2_mib):
    device = dataclasses.replace(H200, l2_bytes=l2_mib << 20)
    assert flush_bytes(device, 100 << 30) >= 2 * device.l2_bytes


def test_the_flush_leaves_half_of_what_is_free_but_is_never_smaller_than_the_cache():
    assert flush_bytes(H200, 200 << 20) == 100 << 20
    assert flush_bytes(H200, 100 << 20) == H200.l2_bytes
    assert flush_bytes(H200, 0) == H200.l2_bytes  # out of memory, rather than timed warm


def test_rounds_fill_the_budget_within_bounds():
    def rounds(once_us):
        return rounds_for(once_us, 250.0, (31, 201), most_ms=5000.0)

    assert rounds(10.0) == 201
    assert rounds(2440.0) == 100
    assert rounds(20e3) == 31
    assert rounds(1e6) == 5
    assert rounds(60e6) == 1
    assert all(rounds(us) * us <= max(us, 5e6) for us in (1e5, 3e5, 1e6, 7e6))


def test_launches_that_shared_the_gpu_lie_far_apart():
    rng = random.Random(3)
    alone = [rng.gauss(10, 0.3) for _ in range(101)]
    assert not is_wide(alone)
    assert not is_wide([*alone[:90], *[2000.0] * 11])  # a few outliers are any machine's
    assert is_wide([*alone[:70], *[2000.0] * 31])
    assert not is_wide([1.0, 1.0, 1.6, 1.6, 1.6])  # ticks of the clock


def test_the_gate_is_somewhat_longer_than_queueing_takes():
    gate = Gate()
    for _ in range(5):
        gate.learn(60.0, held=True)
    assert gate.us == pytest.approx(90.0)
    assert gate.cycles(120) / Gate.CYCLES_PER_US == pytest.approx(90.0 * 120 + Gate.EXTRA_US)
    gate.learn(1.0, held=True)
    assert Gate.LEAST_US < gate.us < 90.0


def test_a_host_that_is_late_for_a_moment_costs_no_longer_gates_for_ever():
    gate = Gate()
    for _ in range(10):  # held up in the middle of a queue, again and again
        gate.learn(5000.0, held=False)
        assert gate.us == Gate.MOST_US
        for _ in range(8):
            gate.learn(40.0, held=True)
        assert gate.us < 65.0


def test_a_gate_that_was_too_short_at_least_doubles():
    gate = Gate()
    gate.learn(18.0, held=False)
    assert gate.us == 2 * Gate.LEAST_US
    gate.learn(100.0, held=False)
    assert gate.us == 150.0


class CountedTimer(Timer):
    """A timer whose launches take a fixed time and touch no device."""

    def __init__(self, us):
        self.us, self.launched = us, 0

    def rounds(self, launches, rounds, *, seed=0):
        self.launched += rounds
        return [[self.us] * rounds for _ in launches]


@pytest.mark.parametrize(("us", "least", "most"), [(2e6, 1, 1), (10e3, 3, 4), (5.0, 300, 700)])
def test_the_warm_up_goes_by_time_and_not_by_count(us, least, most):
    timer = CountedTimer(us)
    timer.warm_up(lambda: None, 30.0)
    assert least <= timer.launched <= most


class FakeCuda:
    """A host that needs a while to queue a launch, and a device that a gate holds."""

    def __init__(self, monkeypatch, host_us):
        self.now_us = self.opens_us = 0.0
        self.host_us = host_us
        self.queued = 0
        self.gates_us = []
        monkeypatch.setattr("tunekit.timing._event", lambda: self)
        monkeypatch.setattr("tunekit.timing.time.perf_counter", lambda: self.now_us / 1e6)
        monkeypatch.setattr("torch.cuda._sleep", self.sleep)
        monkeypatch.setattr("torch.cuda.synchronize", lambda index: None)
        monkeypatch.setattr("torch.sum", lambda *args, **rest: None)

    def sleep(self, cycles):
        self.gates_us.append(cycles / Gate.CYCLES_PER_US)
        self.opens_us = self.now_us + self.gates_us[-1]

    def record(self):
        pass

    def query(self):
        return self.now_us >= self.opens_us

    def elapsed_time(self, end):
        return 0.01

    def launch(self):
        self.queued += 1
        self.now_us += self.host_us(self.queued)


def test_a_timer_queues_again_behind_a_longer_gate_and_goes_back_to_a_shorter(monkeypatch):
    def host_us(launch):
        return 2000.0 if 150 <= launch < 160 else 50.0

    cuda = FakeCuda(monkeypatch, host_us)
    timer = Timer.__new__(Timer)
    timer._flush = timer._sink = None
    timer._index, timer._gate, timer.late = 0, Gate(), 0
    times = timer.rounds([cuda.launch], 600)[0]
    assert times == [10.0] * 600
    assert timer.late == 0
    assert cuda.queued == (5 + 2) * 120  # one queue at first, and the one that was held up
    assert max(cuda.gates_us) > 120 * 150.0
    assert cuda.gates_us[-1] < 120 * 120.0
