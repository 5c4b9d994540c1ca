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


def test_the_gate_is_as_long_as_the_device_would_overtake_the_host():
    gate = Gate()
    for _ in range(5):
        gate.learn(120 * 60.0, 40.0, 120, held=True)
    lead = Gate.MARGIN * 120 * 60.0 - 119 * 40.0
    assert gate.cycles(120) / Gate.CYCLES_PER_US == pytest.approx(lead)
    for _ in range(12):
        gate.learn(120 * 20.0, 40.0, 120, held=True)  # the flush alone takes longer than that
    assert gate.us == pytest.approx(Gate.LEAST_US, abs=0.1)


def test_a_host_that_is_late_for_a_moment_costs_no_longer_gates_for_ever():
    gate = Gate()
    for _ in range(10):  # held up in the middle of a queue, again and again
        gate.learn(120 * 5000.0, 40.0, 120, held=False)
        assert gate.us == Gate.MOST_US
        for _ in range(8):
            gate.learn(120 * 25.0, 40.0, 120, held=True)
        assert gate.us < 10.0


def test_a_gate_that_was_too_short_at_least_doubles():
    gate = Gate()
    for launches in (1, 24):
        before = gate.cycles(launches)
        gate.learn(18.0 * launches, 40.0, launches, held=False)
        assert gate.cycles(launches) >= 2 * before - Gate.CYCLES_PER_US * Gate.EXTRA_US
        assert gate.cycles(launches) > before


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
    """A device that runs what a host queues, which needs a while for each launch."""

    flush_us, launch_us = 40.0, 10.0

    def __init__(self, monkeypatch, host_us):
        self.now_us = self.free_us = 0.0
        self.host_us = host_us
        self.queued = 0
        self.gates_us = []
        self.late = []
        monkeypatch.setattr("tunekit.timing._event", lambda: FakeEvent(self))
        monkeypatch.setattr("tunekit.timing.time.perf_counter", lambda: self.now_us / 1e6)
        monkeypatch.setattr("torch.cuda._sleep", self.sleep)
        monkeypatch.setattr("torch.cuda.synchronize", self.synchronize)
        monkeypatch.setattr("torch.cuda.current_stream", lambda index: None)
        monkeypatch.setattr("torch.sum", lambda *args, **rest: self.run(self.flush_us))

    def run(self, us):
        self.free_us = max(self.free_us, self.now_us) + us

    def sleep(self, cycles):
        self.gates_us.append(cycles / Gate.CYCLES_PER_US)
        self.run(self.gates_us[-1])

    def synchronize(self, index):
        self.now_us = max(self.now_us, self.free_us)

    def launch(self):
        self.queued += 1
        began_us = self.free_us
        self.now_us += self.host_us(self.queued)
        self.run(self.launch_us)
        if self.free_us - began_us > self.launch_us:  # the device waited for the host
            self.late.append(self.queued)


class FakeEvent:
    def __init__(self, cuda):
        self.cuda, self.at_us = cuda, 0.0

    def record(self, stream):
        self.at_us = max(self.cuda.free_us, self.cuda.now_us)

    def query(self):
        return self.cuda.now_us >= self.at_us

    def elapsed_time(self, end):
        return (end.at_us - self.at_us) / 1000


def timer_on(cuda):
    timer = Timer.__new__(Timer)
    timer._flush = timer._sink = None
    timer._index, timer._gate, timer.late, timer._flush_us = 0, Gate(), 0, 0.0
    timer._opened = FakeEvent(cuda)
    timer._pairs = [(FakeEvent(cuda), FakeEvent(cuda)) for _ in range(120)]
    return timer


def test_a_host_that_keeps_ahead_by_itself_holds_the_device_no_longer_than_it_must(monkeypatch):
    cuda = FakeCuda(monkeypatch, lambda launch: 25.0)
    timer = timer_on(cuda)
    assert timer.rounds([cuda.launch], 600)[0] == pytest.approx([10.0] * 600)
    assert (cuda.queued, cuda.late, timer.late) == (600, [], 0)
    assert max(cuda.gates_us) < Gate.EXTRA_US + 120 * 10.0


def test_launches_that_the_device_waited_for_are_timed_again_and_no_others(monkeypatch):
    cuda = FakeCuda(monkeypatch, lambda launch: 20_000.0 if launch in (50, 300) else 25.0)
    timer = timer_on(cuda)
    assert timer.rounds([cuda.launch], 600)[0] == pytest.approx([10.0] * 600)
    assert set(cuda.late) >= {50, 300}
    assert timer.late == 0
    assert 600 < cuda.queued < 700


@pytest.mark.parametrize("host_us", [60.0, 150.0, 400.0])
def test_a_slow_host_gets_a_gate_for_as_long_as_it_is_slow(monkeypatch, host_us):
    cuda = FakeCuda(monkeypatch, lambda launch: host_us if launch < 1000 else 25.0)
    timer = timer_on(cuda)
    assert timer.rounds([cuda.launch], 2400)[0] == pytest.approx([10.0] * 2400)
    assert timer.late == 0
    assert cuda.queued < 2400 * 1.15
    assert cuda.gates_us[-1] < Gate.EXTRA_US + 120 * 10.0


def test_a_host_that_is_too_slow_for_any_gate_is_counted(monkeypatch):
    cuda = FakeCuda(monkeypatch, lambda launch: 2000.0)
    timer = timer_on(cuda)
    times = timer.rounds([cuda.launch], 120)[0]
    assert len(times) == 120
    assert timer.late > 0


def test_no_time_of_the_host_is_in_a_figure_whatever_host_and_device_do(monkeypatch):
    rng = random.Random(1)
    for _ in range(120):
        slow, chance = rng.choice([5, 20, 60, 100, 300]), rng.choice([0.0, 0.02, 0.2])

        def host_us(launch, slow=slow, chance=chance):
            return (
                rng.uniform(500, 30_000) if rng.random() < chance else slow * rng.uniform(0.7, 1.5)
            )

        cuda = FakeCuda(monkeypatch, host_us)
        cuda.launch_us, cuda.flush_us = rng.choice([3, 200, 5000]), rng.choice([15, 40, 150])
        timer = timer_on(cuda)
        for _ in range(3):
            before = timer.late
            times = timer.rounds([cuda.launch], rng.choice([1, 2, 21, 120, 121, 300]))[0]
            wrong = [us for us in times if us != pytest.approx(cuda.launch_us)]
            assert len(wrong) <= timer.late - before  # those that no gate was long enough for
