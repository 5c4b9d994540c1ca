"""Trying configs on a real GPU."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tunekit.errors import DeviceError
from tunekit.key import Problem
from tunekit.trial import Origin, Status

PROBLEMS = [
    Problem("matmul", 256, 256, 256, "float16"),
    Problem("matmul", 100, 300, 500, "bfloat16", layout="nn", aligned=False),
    Problem("matmul", 16, 2048, 1024, "bfloat16"),
    Problem("matmul", 333, 128, 64, "float32", precision="tf32", layout="tn"),
    Problem("matmul", 65, 64, 4096, "float32", precision="ieee", aligned=False),
]


@pytest.fixture(scope="module")
def runner():
    from tunekit.measure import GpuRunner

    runner = GpuRunner(0)
    yield runner
    runner.close()


def sample(runner, problem: Problem, count: int):
    configs = runner.space(problem).configs
    return random.Random(str(problem)).sample(configs, min(count, len(configs)))


def test_without_a_gpu_measuring_is_a_clear_error(monkeypatch):
    import torch

    from tunekit.measure import GpuRunner

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="no CUDA device"):
        GpuRunner(0)


@pytest.mark.gpu
def test_every_sampled_config_is_right_and_timed_without_compiling(runner):
    import triton

    work = [(problem, sample(runner, problem, 12)) for problem in PROBLEMS]
    runner.announce([(problem, config) for problem, configs in work for config in configs])
    compiled = []

    def listen(*, cache_hit, **rest):
        compiled.append(cache_hit)

    triton.knobs.compilation.listener = listen
    try:
        trials = [trial for problem, configs in work for trial in runner.screen(problem, configs)]
    finally:
        triton.knobs.compilation.listener = None
    assert len(trials) == sum(len(configs) for _, configs in work)
    assert [trial for trial in trials if trial.status is not Status.OK] == []
    assert all(0 <= trial.measurement.error_ratio <= 1 for trial in trials)
    assert all(trial.measurement.median_us > 0.5 for trial in trials)
    assert compiled
    assert all(compiled), "the measuring process compiled: the pool's keys are not the launch's"


@pytest.mark.gpu
def test_the_finals_measure_the_vendor_in_the_same_rounds(runner):
    problem = PROBLEMS[0]
    finals = runner.finals(problem, sample(runner, problem, 3))
    measured = [trial.measurement for trial in finals.trials]
    assert all(m.final and m.low_us <= m.median_us <= m.high_us for m in measured)
    assert {m.repetitions for m in measured} == {finals.vendor.repetitions}
    assert finals.vendor.error_ratio is None


@pytest.mark.gpu
def test_a_wrong_result_is_never_timed(runner, monkeypatch):
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
    (trial,) = runner.screen(problem, sample(runner, problem, 1))
    assert trial.status is Status.WRONG_RESULT
    assert trial.measurement is None


@pytest.mark.gpu
def test_results_that_change_between_runs_are_refused(runner, monkeypatch):
    import torch

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
    finals = runner.finals(problem, sample(runner, problem, 1))
    assert [trial.status for trial in finals.trials] == [Status.NOT_REPEATABLE]


@pytest.mark.gpu
def test_rows_say_where_they_come_from(runner):
    config = sample(runner, PROBLEMS[0], 1)[0]
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
