"""Trying configs in this process: on a made-up device, and on a real GPU where there is one."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import DeviceError
from tunekit.finals import LOOK_ROUNDS
from tunekit.gpu_watch import CALM, Disturbance
from tunekit.kernels import Prepared
from tunekit.kernels.failures import classify
from tunekit.kernels.stand_ins import interpreting
from tunekit.key import Problem
from tunekit.measure import Measure
from tunekit.runner import DeviceLost
from tunekit.timing import MOST_MS
from tunekit.trial import Origin, Status

PROBLEMS = [
    Problem("matmul", 256, 256, 256, "float16"),
    Problem("matmul", 100, 300, 500, "bfloat16", layout="nn", aligned=False),
    Problem("matmul", 16, 2048, 1024, "bfloat16"),
    Problem("matmul", 333, 128, 64, "float32", precision="tf32", layout="tn"),
    Problem("matmul", 65, 64, 4096, "float32", precision="ieee", aligned=False),
]
CONFIGS = [Config("pointer", 64, 64, k, num_stages=s) for s in (2, 3, 4) for k in (32, 64, 128)]
RIGHT = 1.0


class Launch:
    """A launch on a made-up device: writes a result and takes a time."""

    def __init__(self, us, write, noise=None):
        self.us, self.write, self.noise = us, write, noise
        self.count = 0

    def __call__(self):
        self.count += 1
        self.write(self.count)

    def once_us(self):
        return self.us * (1 if self.noise is None else 1 + self.noise.gauss(0, 0.01))


class FakeTimer:
    def __init__(self):
        self.total_us = 0.0

    def rounds(self, launches, rounds, *, seed=0):
        for launch in launches:
            for _ in range(rounds):
                launch()
        times = [[launch.once_us() for _ in range(rounds)] for launch in launches]
        self.total_us += sum(map(sum, times))
        return times

    def warm_up(self, launch, milliseconds):
        self.rounds([launch], 1)


@dataclass
class FakeGpu:
    """A device with so much memory, whose context a fault may take."""

    device = KNOWN_DEVICES["sm_90"]
    index = -1
    total_bytes: int = 1 << 40
    lost: bool = False
    held: dict = field(default_factory=dict)
    fake_timer: FakeTimer = field(default_factory=FakeTimer)

    def use(self):
        return nullcontext()

    def timer(self):
        return self.fake_timer

    def synchronize(self):
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def allocated_bytes(self):
        return sum(self.held.values())

    def release(self):
        self.held.clear()

    def take(self, name, size):
        if self.allocated_bytes() + size > self.total_bytes:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        self.held[name] = size


class FakeWatch:
    """Says what it is told to, one answer a window."""

    def __init__(self, answers=()):
        self.answers = list(answers)

    def begin(self):
        pass

    def has_context(self):
        pass

    def seen(self, *, fresh=True):
        return self.answers.pop(0) if self.answers else CALM


class FakeFamily:
    """Kernels whose time and behaviour a table gives, and right otherwise."""

    def __init__(self, gpu, table=None):
        self.gpu, self.table = gpu, table or {}
        self.launches = {}
        self.operand_bytes = 1 << 20
        self.vendor_us = 12.0

    def __call__(self, name):
        return self

    def prepare(self, problem, device, *, index, seed):
        self.gpu.take(problem, self.operand_bytes)
        out = torch.zeros(4)
        return Prepared(problem, device, None, None, out, torch.full((4,), RIGHT), torch.ones(4))

    def launch(self, config, prepared):
        what = self.table.get(config, 10.0)
        us = what if isinstance(what, float) else 1.0  # what is wrong is fast, too

        def write(count):
            out = prepared.out
            if what == "illegal":
                self.gpu.lost = True
                self.gpu.synchronize()
            elif what == "launch":
                raise RuntimeError("Triton Error [CUDA]: invalid argument")
            elif what == "oom":
                self.gpu.take(config, 1 << 60)
            elif what == "bug":
                raise TypeError("a fault of tunekit's own")
            elif what == "half":
                out[:2] = RIGHT
                return
            elif what == "wrong" or (what == "at the fifth" and count >= 5):
                out.fill_(RIGHT + 2)
                return
            elif what == "drifts" and count > 1:
                out.fill_(RIGHT + 0.001 * count)  # within the tolerance each time
                return
            out.fill_(RIGHT)

        self.launches[config] = Launch(us, write)
        return self.launches[config]

    def vendor(self, prepared):
        if isinstance(self.vendor_us, Exception):
            raise self.vendor_us
        if self.vendor_us is None:
            return None
        return Launch(self.vendor_us, lambda count: None)

    def poison(self, prepared):
        prepared.out.fill_(float("nan"))

    def error_ratio(self, prepared):
        worst = ((prepared.out - prepared.reference).abs() / prepared.tolerance).max().item()
        return worst if worst == worst else float("inf")

    def failure(self, error):
        return classify(error)


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def measure(gpu):
    """Return a function that makes a `Measure` of configs that do what a table says."""

    def make(table=None, *, watch=None):
        made = Measure(gpu, watch or FakeWatch(), families=FakeFamily(gpu, table))
        made.family = made._families
        return made

    return make


def test_a_right_config_is_timed_and_its_error_is_kept(measure):
    trial = measure({CONFIGS[0]: 10.0}).screen(PROBLEMS[0], CONFIGS[0])
    assert trial.status is Status.OK
    assert trial.measurement.median_us == 10.0
    assert trial.measurement.error_ratio == 0.0
    assert not trial.measurement.final


@pytest.mark.parametrize("fault", ["wrong", "half"])
def test_a_wrong_config_is_never_timed_however_fast(measure, gpu, fault):
    made = measure({CONFIGS[0]: fault})
    trial = made.screen(PROBLEMS[0], CONFIGS[0])
    assert trial.status is Status.WRONG_RESULT
    assert trial.measurement is None
    assert made.family.launches[CONFIGS[0]].count == 1
    assert gpu.fake_timer.total_us == 0


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("wrong", Status.WRONG_RESULT),
        ("half", Status.WRONG_RESULT),
        ("drifts", Status.NOT_REPEATABLE),
        ("at the fifth", Status.WRONG_RESULT),
        ("launch", Status.LAUNCH_ERROR),
        ("oom", Status.OUT_OF_MEMORY),
    ],
)
def test_what_fails_in_the_finals_is_no_finalist_however_fast(measure, fault, status):
    finals = measure({CONFIGS[0]: fault}).finals(PROBLEMS[0], CONFIGS[:3])
    by_config = {trial.config: trial for trial in finals.trials}
    assert by_config[CONFIGS[0]].status is status
    assert by_config[CONFIGS[0]].measurement is None
    assert [by_config[c].status for c in CONFIGS[1:3]] == [Status.OK] * 2
    assert all(by_config[c].measurement.final for c in CONFIGS[1:3])
    assert finals.vendor.median_us == 12.0


def test_finals_time_all_that_may_be_the_fastest_in_as_many_rounds_and_check_twice(measure):
    made = measure()
    told = []
    finals = made.finals(PROBLEMS[0], CONFIGS[:2], trying=told.append)
    counts = {trial.measurement.repetitions for trial in finals.trials}
    assert counts == {finals.vendor.repetitions} == {2 * LOOK_ROUNDS}
    assert told == [CONFIGS[0], CONFIGS[1], None, CONFIGS[0], CONFIGS[1]]


def test_finals_of_which_none_is_right_time_nothing(measure, gpu):
    finals = measure({CONFIGS[0]: "wrong"}).finals(PROBLEMS[0], CONFIGS[:1])
    assert [trial.status for trial in finals.trials] == [Status.WRONG_RESULT]
    assert finals.vendor is None
    assert gpu.fake_timer.total_us == 0


def test_a_clear_loser_gets_a_few_launches_only(measure):
    made = measure({CONFIGS[0]: 10.0, CONFIGS[1]: 11.0, CONFIGS[2]: 13.0})
    counts = [made.screen(PROBLEMS[0], config).measurement.repetitions for config in CONFIGS[:3]]
    assert counts == [24, 24, 3]
    assert made.screen(PROBLEMS[1], CONFIGS[2]).measurement.repetitions == 24


@pytest.mark.parametrize("us", [20e3, 300e3, 2e6])
def test_slow_kernels_are_launched_by_time_and_not_by_count(measure, gpu, us):
    made = measure(dict.fromkeys(CONFIGS, us))
    made.screen(PROBLEMS[0], CONFIGS[0])
    assert gpu.fake_timer.total_us <= max(MOST_MS[0] * 1000 + 3 * us, 2 * us)
    gpu.fake_timer.total_us = 0.0
    finals = made.finals(PROBLEMS[0], CONFIGS[:5])
    # the warm-up, the round that is measured first, and what fits in the limit or one round
    assert gpu.fake_timer.total_us <= 7 * us + max(MOST_MS[1] * 1000, 6 * us)
    assert len(finals.trials) == 5


def test_a_failed_launch_is_a_trial_and_the_next_is_tried(measure):
    made = measure({CONFIGS[0]: "launch"})
    trial = made.screen(PROBLEMS[0], CONFIGS[0])
    assert trial.status is Status.LAUNCH_ERROR
    assert "invalid argument" in trial.error
    assert made.screen(PROBLEMS[0], CONFIGS[1]).status is Status.OK


def test_a_fault_that_takes_the_context_says_whose_it_is(measure, gpu):
    with pytest.raises(DeviceLost) as lost:
        measure({CONFIGS[0]: "illegal"}).screen(PROBLEMS[0], CONFIGS[0])
    assert lost.value.trial.config == CONFIGS[0]
    assert lost.value.trial.status is Status.LAUNCH_ERROR
    assert "illegal memory access" in lost.value.trial.error
    gpu.lost = False
    with pytest.raises(DeviceLost) as lost:
        measure({CONFIGS[1]: "illegal"}).finals(PROBLEMS[0], CONFIGS[:3])
    assert lost.value.trial.config == CONFIGS[1]


def test_a_fault_of_tunekit_is_not_blamed_on_the_config(measure):
    with pytest.raises(TypeError, match="a fault of tunekit's own"):
        measure({CONFIGS[0]: "bug"}).screen(PROBLEMS[0], CONFIGS[0])


def test_operands_of_other_problems_make_room_for_one_that_fits(measure, gpu):
    gpu.total_bytes = 100
    made = measure()
    made.family.operand_bytes = 60
    for problem in PROBLEMS[:3]:
        assert made.screen(problem, CONFIGS[0]).status is Status.OK
    assert gpu.allocated_bytes() <= gpu.total_bytes


def test_a_problem_that_does_not_fit_is_a_skipped_trial(measure, gpu):
    gpu.total_bytes = 100
    made = measure()
    made.family.operand_bytes = 200
    trial = made.screen(PROBLEMS[0], CONFIGS[0])
    assert trial.status is Status.OUT_OF_MEMORY
    assert made.vendor(PROBLEMS[0]) is None
    finals = made.finals(PROBLEMS[0], CONFIGS[:2])
    assert [t.status for t in finals.trials] == [Status.OUT_OF_MEMORY] * 2
    assert finals.vendor is None
    made.family.operand_bytes = 50
    assert made.screen(PROBLEMS[1], CONFIGS[0]).status is Status.OK


def test_a_config_that_takes_too_much_is_tried_with_all_else_freed_first(measure, gpu):
    gpu.total_bytes = 100
    made = measure({CONFIGS[0]: "oom"})
    made.family.operand_bytes = 40
    made.screen(PROBLEMS[0], CONFIGS[1])
    assert made.screen(PROBLEMS[1], CONFIGS[0]).status is Status.OUT_OF_MEMORY
    assert set(gpu.held) == {PROBLEMS[1]}


def test_operands_kept_are_bounded_by_a_share_of_the_memory(measure, gpu):
    made = measure()
    made.family.operand_bytes = gpu.device.memory_bytes // 6
    gpu.allocated_bytes = lambda: len(made._prepared) * made.family.operand_bytes
    kept = []
    for problem in PROBLEMS:
        made.screen(problem, CONFIGS[0])
        kept.append(len(made._prepared))
    assert kept == [1, 2, 2, 2, 2]


def test_closing_frees_what_was_held(measure, gpu):
    made = measure()
    made.screen(PROBLEMS[0], CONFIGS[0])
    assert gpu.allocated_bytes()
    made.close()
    assert not gpu.allocated_bytes()


def test_a_vendor_call_that_fails_is_no_yardstick_and_no_fault(measure):
    made = measure()
    made.family.vendor_us = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED")
    assert made.vendor(PROBLEMS[0]) is None


def test_a_problem_the_vendor_has_no_call_for_has_finals_without_it(measure):
    made = measure()
    made.family.vendor_us = None
    assert made.vendor(PROBLEMS[0]) is None
    finals = made.finals(PROBLEMS[0], CONFIGS[:2])
    assert [t.status for t in finals.trials] == [Status.OK] * 2
    assert finals.vendor is None


BUSY = Disturbance(contended=True)
HOT = Disturbance(throttled=True)


def test_screening_marks_what_disturbed_it(measure):
    made = measure(watch=FakeWatch([BUSY, HOT, CALM]))
    found = [made.screen(PROBLEMS[0], config).measurement for config in CONFIGS[:3]]
    assert [m.contended for m in found] == [True, False, False]
    assert [m.throttled for m in found] == [False, True, False]


@pytest.mark.parametrize(
    ("windows", "contended", "throttled", "repeats"),
    [
        ([CALM, CALM], False, False, 1),
        ([BUSY, CALM, CALM, CALM], False, False, 2),
        ([CALM, HOT, CALM, CALM], False, False, 2),
        ([BUSY, CALM, CALM, HOT], False, True, 2),
        ([BUSY, HOT, BUSY, HOT], True, True, 2),
    ],
)
def test_disturbed_finals_are_measured_again_once_and_then_marked(
    measure, gpu, windows, contended, throttled, repeats
):
    made = measure(watch=FakeWatch(windows))
    finals = made.finals(PROBLEMS[0], CONFIGS[:2])
    for found in (*(trial.measurement for trial in finals.trials), finals.vendor):
        assert (found.contended, found.throttled) == (contended, throttled)
    launches = made.family.launches[CONFIGS[0]].count
    assert launches == 3 + 1 + repeats * 2 * LOOK_ROUNDS + 1


def test_finals_whose_launches_lie_far_apart_are_marked(measure):
    made = measure()
    random_times = random.Random(0)
    real = made.family.launch

    def noisy(config, prepared):
        launch = real(config, prepared)
        launch.once_us = lambda: random_times.choice([10.0, 40.0])
        return launch

    made.family.launch = noisy
    finals = made.finals(PROBLEMS[0], CONFIGS[:1])
    assert finals.trials[0].measurement.contended


class WallTimer(FakeTimer):
    def rounds(self, launches, rounds, *, seed=0):
        return [[self.one(launch) for _ in range(rounds)] for launch in launches]

    def one(self, launch):
        began = time.perf_counter()
        launch()
        return (time.perf_counter() - began) * 1e6


@pytest.mark.skipif(not interpreting(), reason="kernels are compiled here: CPU tensors cannot run")
def test_the_real_kernels_are_verified_against_the_real_reference(gpu, monkeypatch):
    monkeypatch.setattr("tunekit.finals.FINAL_ROUNDS", (3, 3))
    monkeypatch.setattr("tunekit.measure.SCREEN_ROUNDS", (1, 1))
    gpu.fake_timer = WallTimer()
    measure = Measure(gpu, FakeWatch())
    problem = Problem("matmul", 33, 17, 40, "float16", aligned=False)
    configs = [Config("pointer", 32, 32, k, num_stages=2) for k in (16, 32)]
    trials = [measure.screen(problem, config) for config in configs]
    assert [trial.status for trial in trials] == [Status.OK] * 2
    assert all(0 < trial.measurement.error_ratio <= 1 for trial in trials)
    finals = measure.finals(problem, configs)
    ratios = {trial.config: trial.measurement.error_ratio for trial in finals.trials}
    assert ratios == {trial.config: trial.measurement.error_ratio for trial in trials}
    assert finals.vendor.repetitions == 3


def test_without_a_gpu_measuring_is_a_clear_error(no_gpu):
    from tunekit.gpu_runner import GpuRunner

    with pytest.raises(DeviceError, match="no CUDA device"):
        GpuRunner(0)


def sample(space, count: int):
    configs = space.configs
    return random.Random(str(space.problem)).sample(configs, min(count, len(configs)))


@pytest.fixture(scope="module")
def runner():
    from tunekit.gpu_runner import GpuRunner

    runner = GpuRunner(0)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def here():
    """Measure on the GPU in this process, so that a test can put its own launches in."""
    from tunekit.worker import open_gpu

    measure, _ = open_gpu(0, 0).start()
    yield measure
    measure.close()


@pytest.mark.gpu
def test_every_sampled_config_is_right_and_timed_without_compiling(runner):
    work = [(p, config) for p in PROBLEMS for config in sample(runner.space(p), 12)]
    runner.announce(work)
    trials = [trial for _, trial in runner.screen(work)]
    assert len(trials) == len(work)
    assert [trial for trial in trials if trial.status is not Status.OK] == []
    assert all(0 <= trial.measurement.error_ratio <= 1 for trial in trials)
    assert all(trial.measurement.median_us > 0.5 for trial in trials)
    spent = runner.spent()
    assert spent.compiled_late == 0, "the pool's keys are not the launch's"
    assert spent.restarts == 0
    assert 0 < spent.time_s < spent.wall_s


@pytest.mark.gpu
def test_the_tuners_process_makes_no_cuda_context(tmp_path):
    # in a process of its own: other tests make one in this
    code = """
import sys
import torch
from pathlib import Path
from tunekit.gpu_runner import GpuRunner
from tunekit.key import Problem
if __name__ == "__main__":
    runner = GpuRunner(0, workers=2, lock_folder=Path(sys.argv[1]))
    problem = Problem("matmul", 256, 256, 256, "float16")
    configs = runner.space(problem).configs[:4]
    trials = [trial for _, trial in runner.screen([(problem, c) for c in configs])]
    finals = runner.finals(problem, configs)
    runner.provenance(problem, configs[0])
    assert len(trials) == 4 and finals.vendor is not None, (trials, finals)
    assert not torch.cuda.is_initialized()
    runner.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_the_finals_measure_the_vendor_in_the_same_rounds(runner):
    problem = PROBLEMS[0]
    finals = runner.finals(problem, sample(runner.space(problem), 3))
    measured = [trial.measurement for trial in finals.trials]
    assert all(m.final and m.low_us <= m.median_us <= m.high_us for m in measured)
    # who is beaten leaves early; the fastest and the vendor stay to the end
    assert max(m.repetitions for m in measured) == finals.vendor.repetitions
    assert finals.vendor.error_ratio is None


@pytest.mark.gpu
def test_an_illegal_access_costs_one_trial(fault_runner):
    problem, configs = PROBLEMS[0], sample(fault_runner.space(PROBLEMS[0]), 6)
    found = {t.config: t for _, t in fault_runner.screen([(problem, c) for c in configs])}
    faulty = [c for c in configs if found[c].status is Status.LAUNCH_ERROR]
    assert len(faulty) == 1
    assert "illegal" in found[faulty[0]].error
    assert {found[c].status for c in configs if c not in faulty} == {Status.OK}
    assert fault_runner.spent().restarts == 1


@pytest.fixture
def fault_runner(monkeypatch, tmp_path):
    """A runner whose process writes far outside its memory at the third config it tries."""
    from tunekit.gpu_runner import GpuRunner

    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))
    import faulty_gpu

    opened = partial(faulty_gpu.open_faulty, str(tmp_path / "has faulted"))
    # the lock of this GPU is held by the runner of the other tests
    runner = GpuRunner(0, open_device=opened, lock_folder=tmp_path)
    yield runner
    runner.close()


@pytest.mark.gpu
def test_a_wrong_result_is_never_timed(runner, here, monkeypatch):
    from tunekit.kernels.matmul_family import MATMUL

    problem = PROBLEMS[0]
    launch = MATMUL.launch

    def half(config, prepared):
        real = launch(config, prepared)

        def wrong():
            real()
            prepared.out[::2] = 0

        return wrong

    monkeypatch.setattr(MATMUL, "launch", half)
    (config,) = sample(runner.space(problem), 1)
    trial = here.screen(problem, config)
    assert trial.status is Status.WRONG_RESULT
    assert trial.measurement is None


@pytest.mark.gpu
def test_results_that_change_between_runs_are_refused(runner, here, monkeypatch):
    from tunekit.kernels.matmul_family import MATMUL

    problem = PROBLEMS[0]
    launch, calls = MATMUL.launch, []

    def drifting(config, prepared):
        real = launch(config, prepared)

        def drift():
            real()
            calls.append(1)
            if len(calls) == 2:
                prepared.out.view(torch.int16)[0, 0] += 1

        return drift

    monkeypatch.setattr(MATMUL, "launch", drifting)
    finals = here.finals(problem, sample(runner.space(problem), 1))
    assert [trial.status for trial in finals.trials] == [Status.NOT_REPEATABLE]


@pytest.mark.gpu
def test_rows_say_where_they_come_from(runner):
    config = sample(runner.space(PROBLEMS[0]), 1)[0]
    provenance = runner.provenance(PROBLEMS[0], config)
    assert runner.origin is provenance.origin is Origin.MEASURED
    assert provenance.device_name == runner.device.name
    assert provenance.fingerprint.compiler.startswith("triton-")


@pytest.mark.gpu
def test_an_operand_beyond_two_to_the_31_elements_is_right():
    # 2^31 + elements in A; in a process of its own, so that the memory is given back
    code = """
import torch, tunekit
k = 4096
a = torch.empty(2**19 + 8, k, dtype=torch.float16, device="cuda").normal_()
b = torch.randn(k, 32, dtype=torch.float16, device="cuda") / 64
c = tunekit.matmul(a, b, backend="triton")
for rows in (slice(0, 256), slice(-256, None)):
    expected = a[rows].double() @ b.double()
    assert torch.isfinite(c[rows]).all()
    assert ((c[rows].double() - expected).abs() < 1e-2).all()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
