"""The simulated GPU: its noise is what was asked for, and its clock counts what launches take."""

from __future__ import annotations

import math
import statistics

import pytest

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import RecordingError
from tunekit.finals import LOOK_ROUNDS
from tunekit.key import Problem
from tunekit.recording import Recording
from tunekit.search import Budget
from tunekit.simulation import Noise, SimulatedGpu, SimulatedRunner
from tunekit.trial import Fingerprint, Measurement, Origin, Provenance, Status, Trial
from tunekit.tuner import Task, run

PROBLEM = Problem("matmul", 512, 512, 512, "bfloat16")
CONFIGS = tuple(
    Config("pointer", m, n, 32, num_warps=w) for m in (32, 64) for n in (32, 64) for w in (4, 8)
)
H200 = KNOWN_DEVICES["sm_90"]


def timed(config, us, *, final=False):
    return Trial(
        config, Status.OK, Measurement(us, us, us, us, us, us, 5, "made-up", 0.25, final=final)
    )


def recording(times, *, vendor_us=30.0, finals=()):
    made = Recording(H200)
    mark = Fingerprint("made-up", "made-up")
    made.admit(CONFIGS[0], Provenance(mark, "made-up", "0", "0", "0", "0", "made-up", "2020"))
    trials = [
        timed(config, us) if us else Trial(config, Status.TIMEOUT, error="slow")
        for config, us in zip(CONFIGS, times, strict=False)
    ]
    vendor = None if vendor_us is None else timed(CONFIGS[0], vendor_us).measurement
    made.put(PROBLEM, trials, finals=finals, vendor=vendor, space_size=len(trials))
    return made


def screened(runner, configs=CONFIGS):
    return [trial for _, trial in runner.screen([(PROBLEM, config) for config in configs])]


def test_without_noise_every_time_is_the_recorded_one():
    runner = SimulatedRunner(recording([20.0, 10.0]))
    first, second = screened(runner, CONFIGS[:2])
    assert first.measurement.median_us == first.measurement.high_us == 20.0
    assert second.measurement.median_us == 10.0
    assert second.measurement.error_ratio == 0.25
    assert runner.vendor(PROBLEM).median_us == 30.0
    finals = runner.finals(PROBLEM, CONFIGS[:2])
    assert [t.measurement.median_us for t in finals.trials] == [20.0, 10.0]
    assert finals.vendor.median_us == 30.0
    assert finals.vendor.final


def test_the_protocol_is_that_of_a_gpu():
    runner = SimulatedRunner(recording([10.0, 10.0, 20.0]))
    counts = [t.measurement.repetitions for t in screened(runner, CONFIGS[:3])]
    assert counts == [24, 24, 3]  # the loser is cut
    finals = runner.finals(PROBLEM, CONFIGS[:2])
    assert {t.measurement.repetitions for t in finals.trials} == {2 * LOOK_ROUNDS}


def test_a_result_says_that_it_was_simulated():
    runner = SimulatedRunner(recording([10.0]))
    made = runner.provenance(PROBLEM, CONFIGS[0])
    assert made.origin is Origin.REPLAYED
    assert made.protocol.startswith("simulated")


def test_a_recorded_failure_fails_again_and_takes_no_part_in_finals():
    runner = SimulatedRunner(recording([10.0, None]))
    assert screened(runner, CONFIGS[:2])[1].status is Status.TIMEOUT
    finals = runner.finals(PROBLEM, CONFIGS[:2])
    assert {t.config: t.status for t in finals.trials} == {
        CONFIGS[0]: Status.OK,
        CONFIGS[1]: Status.TIMEOUT,
    }
    with pytest.raises(ValueError, match="no recorded time"):
        runner.true_us(PROBLEM, CONFIGS[1])
    with pytest.raises(RecordingError, match="was not recorded"):
        runner.true_us(PROBLEM, CONFIGS[5])


def test_a_vendor_that_was_not_recorded_is_none():
    runner = SimulatedRunner(recording([10.0], vendor_us=None))
    assert runner.vendor(PROBLEM) is None
    assert runner.finals(PROBLEM, CONFIGS[:1]).vendor is None


def test_the_vendor_was_recorded_on_a_hotter_card():
    hot = [timed(CONFIGS[0], 11.0, final=True)]
    runner = SimulatedRunner(recording([10.0], vendor_us=22.0, finals=hot))
    assert math.isclose(runner.vendor_us(PROBLEM), 20.0)


def test_the_same_seed_gives_the_same_times_and_another_one_others():
    noise = Noise(launch=0.05, drift=0.05, outlier_every=10)
    runs = [
        screened(SimulatedRunner(recording([10.0] * 8), noise=noise, seed=seed))
        for seed in (3, 3, 4)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_launches_vary_by_the_share_that_was_asked_for():
    gpu = SimulatedGpu(H200, Noise(launch=0.05), seed=1)
    logs = [math.log(gpu.launch_us(10.0) / 10.0) for _ in range(4000)]
    assert math.isclose(statistics.stdev(logs), 0.05, rel_tol=0.05)
    assert abs(statistics.mean(logs)) < 0.005


def test_more_repetitions_narrow_the_median():
    def spread(count):
        gpu = SimulatedGpu(H200, Noise(launch=0.05), seed=count)
        medians = [statistics.median(gpu.launch_us(10.0) for _ in range(count)) for _ in range(300)]
        return statistics.stdev(medians) / 10.0

    assert spread(81) < 0.5 * spread(9)


def test_drift_parts_what_is_measured_apart_and_not_what_is_interleaved():
    noise = Noise(launch=0.0, drift=0.05, drift_s=0.01)
    apart, together = [], []
    for seed in range(60):
        runner = SimulatedRunner(recording([20.0, 20.0]), noise=noise, seed=seed, trial_s=0.1)
        one, other = (t.measurement.median_us for t in screened(runner, CONFIGS[:2]))
        apart.append(math.log(one / other))
        finals = runner.finals(PROBLEM, CONFIGS[:2])
        one, other = (t.measurement.median_us for t in finals.trials)
        together.append(math.log(one / other))
    assert statistics.pstdev(apart) > 0.04
    assert statistics.pstdev(together) < 0.015


def test_outliers_are_as_frequent_as_asked_for():
    gpu = SimulatedGpu(H200, Noise(launch=0.0, outlier_every=10), seed=1)
    times = [gpu.launch_us(10.0) for _ in range(3000)]
    assert 200 < sum(time > 10.0 for time in times) < 400
    assert max(times) <= 20.0


def test_the_clock_counts_launches_flushes_and_trials():
    runner = SimulatedRunner(recording([1000.0]), trial_s=0.5)
    screened(runner, CONFIGS[:1])
    (trial,) = screened(SimulatedRunner(recording([1000.0])), CONFIGS[:1])
    launches = trial.measurement.repetitions * (1000.0 + 60.0) / 1e6
    assert math.isclose(runner.clock(), 0.5 + launches)


def test_a_budget_of_seconds_is_one_of_simulated_seconds(tmp_path):
    runner = SimulatedRunner(recording([10.0] * 8), trial_s=10.0)
    with Store.open(tmp_path / "cache.db") as store:
        report = run(
            [Task(PROBLEM)], runner=runner, store=store, budget=Budget(seconds=35.0),
            clock=runner.clock,
        )  # fmt: skip
    assert report.trials_run >= 4
    assert math.isclose(report.seconds, runner.clock())


def test_a_kernel_of_300_ms_does_not_outlast_a_budget_of_5_s(tmp_path):
    times = [300_000.0 + 1000 * i for i in range(len(CONFIGS))]
    runner = SimulatedRunner(recording(times, vendor_us=250_000.0))
    ended = []

    def note(event):
        ended.append(runner.clock())

    with Store.open(tmp_path / "cache.db") as store:
        budget = Budget(trials=8, seconds=1.0)
        report = run(
            [Task(PROBLEM)], runner=runner, store=store, budget=budget, clock=runner.clock,
            on_event=note,
        )  # fmt: skip
        (best,) = report.bests
        one_trial = 2 * 0.31
        assert ended[-2] <= 1.0 + one_trial  # the last trial; after it come the finals
        assert ended[-1] - ended[-2] <= 10 * 0.31 * 3
        assert 1 <= best.trials < 8  # and so it can be seen that it is not done
        again = run([Task(PROBLEM)], runner=runner, store=store, budget=Budget(trials=8))
    assert again.trials_run == 8 - best.trials
