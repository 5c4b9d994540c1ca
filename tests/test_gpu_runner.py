"""The runner on a GPU, with real processes that measure and compile nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tunekit import gpu_runner
from tunekit.child import ChildError
from tunekit.config import Config
from tunekit.errors import DeviceError, TuneError
from tunekit.gpu_runner import GpuRunner
from tunekit.key import Problem
from tunekit.measuring import MOST_DEATHS, Limits
from tunekit.trial import Origin, Status

PROBLEMS = [Problem("matmul", m, 512, 512, "bfloat16") for m in (64, 128, 256)]
CONFIGS = [Config("pointer", 64, 64, k, num_stages=s) for s in (2, 3, 4) for k in (32, 64, 128)]
FAST = Limits(start_s=30, vendor_s=5, screen_s=2, finals_s=2)


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))
    import fake_gpu

    return fake_gpu


@pytest.fixture
def make_runner(fakes, tmp_path):
    """Return a function that makes runners whose processes do what a table says."""
    made = []

    def make(table=None, *, compiling=None, seconds=0.0, **settings):
        opened = partial(fakes.open_fake, table or {}, str(tmp_path / "log"), seconds)
        built = partial(fakes.build, compiling or {})
        settings = {"workers": 1, "limits": FAST, "lock_folder": tmp_path / "locks", **settings}
        made.append(GpuRunner(open_device=opened, build=built, **settings))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


def log(tmp_path) -> list[list[str]]:
    return [line.split(maxsplit=2) for line in (tmp_path / "log").read_text().splitlines()]


def screened(runner, work):
    return {(problem, trial.config): trial for problem, trial in runner.screen(work)}


def each(problem, configs):
    return [(problem, config) for config in configs]


def statuses(runner, configs, problem=PROBLEMS[0]):
    found = screened(runner, each(problem, configs))
    return [found[problem, config].status for config in configs]


def test_every_config_comes_back_once_with_its_problem(make_runner):
    runner = make_runner()
    work = [(problem, config) for problem in PROBLEMS for config in CONFIGS]
    trials = list(runner.screen(work))
    assert sorted((p, t.config) for p, t in trials) == sorted(work)
    assert {trial.status for _, trial in trials} == {Status.OK}
    assert runner.vendor(PROBLEMS[0]).median_us == 12.0
    finals = runner.finals(PROBLEMS[0], CONFIGS[:3])
    assert [t.config for t in finals.trials] == CONFIGS[:3]
    assert all(t.measurement.final for t in finals.trials)
    assert finals.vendor.final
    assert runner.origin is Origin.MEASURED
    assert runner.provenance(PROBLEMS[0], CONFIGS[0]).device_name == runner.device.name


def test_what_ended_and_was_not_taken_is_handed_over_when_a_screening_is_given_up(
    make_runner, tmp_path
):
    runner = make_runner()
    screening = runner.screen(each(PROBLEMS[0], CONFIGS))
    taken = [next(screening)[1].config]
    while sum(words.startswith("end") for _, _, words in log(tmp_path)) < len(CONFIGS):
        time.sleep(0.01)
    screening.close()
    untaken = [trial.config for _, trial in runner.untaken()]
    # at most two are with the process at a time, so the others' results have arrived
    assert len(untaken) >= len(CONFIGS) - len(taken) - 2
    assert len({*taken, *untaken}) == len(taken) + len(untaken)
    assert runner.untaken() == []


def test_what_is_compiled_first_is_measured_first(make_runner):
    runner = make_runner(compiling={CONFIGS[0]: 3.0}, workers=2)
    order = [trial.config for _, trial in runner.screen(each(PROBLEMS[0], CONFIGS[:4]))]
    assert order[-1] == CONFIGS[0]
    assert set(order) == set(CONFIGS[:4])


def test_configs_of_one_problem_are_measured_together(make_runner, tmp_path):
    runner = make_runner(seconds=0.05)
    work = [(problem, config) for config in CONFIGS[:3] for problem in PROBLEMS]
    runner.announce(work)
    list(runner.screen(each(PROBLEMS[0], CONFIGS[3:4])))  # meanwhile all else is compiled
    assert len(list(runner.screen(work))) == 9
    begun = [words.split()[1] for _, _, words in log(tmp_path) if words.startswith("begin")]
    switches = sum(a != b for a, b in pairwise(begun))
    assert switches <= 4


def test_a_failed_compilation_is_a_trial_with_its_reason(make_runner, tmp_path):
    runner = make_runner(compiling={CONFIGS[1]: Status.OUT_OF_RESOURCES, CONFIGS[2]: "abort"})
    found = screened(runner, each(PROBLEMS[0], CONFIGS[:4]))
    trials = [found[PROBLEMS[0], config] for config in CONFIGS[:4]]
    assert [t.status for t in trials] == [
        Status.OK, Status.OUT_OF_RESOURCES, Status.COMPILE_ERROR, Status.OK,
    ]  # fmt: skip
    assert "SIGABRT" in trials[2].error
    assert len([words for _, _, words in log(tmp_path) if words.startswith("begin")]) == 2


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("illegal", Status.LAUNCH_ERROR, "illegal memory access"),
        ("segfault", Status.LAUNCH_ERROR, "ended by SIGSEGV"),
        ("abort", Status.LAUNCH_ERROR, "ended by SIGABRT: LLVM ERROR: cannot select this"),
        ("exit", Status.LAUNCH_ERROR, "ended with exit code 3"),
        ("killed", Status.LAUNCH_ERROR, "ended by SIGKILL"),
        ("hang", Status.TIMEOUT, "it ran over 2 s"),
    ],
)
def test_a_fault_costs_its_own_trial_and_no_other(make_runner, fault, status, words):
    runner = make_runner({CONFIGS[4]: fault})
    found = screened(runner, each(PROBLEMS[0], CONFIGS))
    bad = found.pop((PROBLEMS[0], CONFIGS[4]))
    assert bad.status is status
    assert words in bad.error
    assert {trial.status for trial in found.values()} == {Status.OK}
    assert len(found) == len(CONFIGS) - 1
    assert runner.spent().restarts == 1


def test_a_failed_launch_that_leaves_the_gpu_usable_restarts_nothing(make_runner):
    runner = make_runner({CONFIGS[0]: "launch", CONFIGS[1]: Status.OUT_OF_MEMORY})
    assert statuses(runner, CONFIGS[:3]) == [
        Status.LAUNCH_ERROR, Status.OUT_OF_MEMORY, Status.OK,
    ]  # fmt: skip
    assert runner.spent().restarts == 0


def test_a_config_that_ended_two_processes_is_not_tried_on_a_third_problem(make_runner):
    runner = make_runner({CONFIGS[0]: "illegal"})
    seen = [statuses(runner, CONFIGS[:2], problem) for problem in PROBLEMS]
    assert seen == [[Status.LAUNCH_ERROR, Status.OK]] * 3
    assert runner.spent().restarts == 2
    finals = runner.finals(PROBLEMS[2], CONFIGS[:2])
    assert [t.status for t in finals.trials] == [Status.LAUNCH_ERROR, Status.OK]
    assert "ended the measuring process on 2 problems" in finals.trials[0].error
    assert runner.spent().restarts == 2


def test_a_gpu_on_which_the_vendor_fails_too_ends_the_run_and_keeps_what_there_was(make_runner):
    runner = make_runner({**dict.fromkeys(CONFIGS[1:], "segfault"), "vendor": "segfault"})
    screening = runner.screen(each(PROBLEMS[0], CONFIGS))
    got = [next(screening)[1] for _ in range(6)]
    with pytest.raises(TuneError, match=r"died 6 times in a row.*SIGSEGV.*nvidia-smi") as raised:
        next(screening)
    assert [trial.status for trial in got] == [Status.OK] + [Status.LAUNCH_ERROR] * 5
    assert "\n" not in str(raised.value)
    with pytest.raises(TuneError, match="died 6 times"):  # and it stays so
        runner.vendor(PROBLEMS[1])


def test_many_bad_configs_in_a_row_on_a_gpu_that_is_well_end_nothing(make_runner, tmp_path):
    runner = make_runner(dict.fromkeys(CONFIGS[:-1], "segfault"))
    found = statuses(runner, CONFIGS)
    assert found == [Status.LAUNCH_ERROR] * (len(CONFIGS) - 1) + [Status.OK]
    assert len(CONFIGS) > MOST_DEATHS
    asked = [words for _, _, words in log(tmp_path) if words.startswith("vendor")]
    assert len(asked) == (len(CONFIGS) - 1) // MOST_DEATHS


def test_a_gpu_that_is_well_and_runs_no_config_at_all_ends_the_run(make_runner, monkeypatch):
    monkeypatch.setattr("tunekit.measuring.MOST_FAULTS", 7)
    runner = make_runner(dict.fromkeys(CONFIGS, "segfault"))
    with pytest.raises(TuneError, match="died 7 times in a row"):
        statuses(runner, CONFIGS)


def test_one_that_dies_in_the_finals_is_left_out_of_them(make_runner):
    runner = make_runner({CONFIGS[1]: "in finals"})
    assert statuses(runner, CONFIGS[:3]) == [Status.OK] * 3
    finals = runner.finals(PROBLEMS[0], CONFIGS[:3])
    by_config = {trial.config: trial for trial in finals.trials}
    assert by_config[CONFIGS[1]].status is Status.LAUNCH_ERROR
    assert [by_config[c].status for c in (CONFIGS[0], CONFIGS[2])] == [Status.OK] * 2
    assert finals.vendor is not None


def test_finals_that_die_while_all_run_in_turn_fail_together(make_runner):
    runner = make_runner({"together": "segfault"})
    finals = runner.finals(PROBLEMS[0], CONFIGS[:2])
    assert [trial.status for trial in finals.trials] == [Status.LAUNCH_ERROR] * 2
    assert finals.vendor is None
    assert runner.spent().restarts == 2


def test_a_process_killed_while_it_waits_is_replaced_and_blames_nobody(make_runner):
    runner = make_runner()
    assert statuses(runner, CONFIGS[:1]) == [Status.OK]
    for _ in range(2):
        os.kill(runner.pids[0], signal.SIGKILL)
        assert statuses(runner, CONFIGS[1:4]) == [Status.OK] * 3


def test_a_gpu_that_cannot_be_used_says_why(make_runner):
    runner = make_runner({"open": "refused"})
    with pytest.raises(DeviceError, match="no CUDA device is usable"):
        _ = runner.device


def test_a_process_that_never_starts_is_one_clear_line(make_runner):
    runner = make_runner({"open": "abort"})
    with pytest.raises(TuneError, match=r"does not start: .* SIGABRT: LLVM ERROR"):
        _ = runner.device


def test_a_fault_of_tunekit_in_the_process_keeps_its_traceback(make_runner):
    runner = make_runner({CONFIGS[0]: "bug"})
    with pytest.raises(ChildError, match=r"(?s)Traceback.*TypeError: a fault of tunekit's own"):
        statuses(runner, CONFIGS[:1])


def test_a_screening_given_up_leaves_nothing_for_the_next(make_runner):
    runner = make_runner(seconds=0.02)
    screening = runner.screen(each(PROBLEMS[0], CONFIGS))
    next(screening)
    screening.close()
    found = list(runner.screen(each(PROBLEMS[1], CONFIGS[:2])))
    assert [(p, t.status) for p, t in found] == [(PROBLEMS[1], Status.OK)] * 2


def test_the_gpu_goes_on_while_the_caller_is_busy(make_runner, tmp_path):
    runner = make_runner(seconds=0.01)
    screening = runner.screen(each(PROBLEMS[0], CONFIGS))
    next(screening)
    time.sleep(1.0)  # as the search or the store does
    ends = [words for _, _, words in log(tmp_path) if words.startswith("end")]
    assert len(ends) == len(CONFIGS)
    assert len(list(screening)) == len(CONFIGS) - 1


def test_the_split_of_the_time_adds_up_and_tells_waiting_for_compilers(make_runner):
    began = time.monotonic()
    runner = make_runner(compiling=dict.fromkeys(CONFIGS[:2], 0.5), seconds=0.1)
    _ = runner.device
    list(runner.screen(each(PROBLEMS[0], CONFIGS[:2])))
    time.sleep(0.3)
    spent, wall = runner.spent(), time.monotonic() - began
    assert spent.wall_s == pytest.approx(wall, abs=0.2)
    assert spent.time_s == pytest.approx(0.2, abs=0.1)
    assert spent.compile_s > 0.5
    assert spent.idle_s > 0.25
    assert spent.start_s > 0
    assert spent.compilations == 2
    assert spent.compiling_s >= 1.0
    assert 0 < spent.busy_share < 0.5
    assert set(spent.to_dict()) >= {"wall_s", "gpu_busy_share", "compile_s", "verify_s"}


def test_two_runners_never_measure_at_the_same_time(make_runner, tmp_path, caplog):
    first, second = make_runner(seconds=0.02), make_runner(seconds=0.02)
    assert statuses(first, CONFIGS[:2]) == [Status.OK] * 2
    found = []
    thread = threading.Thread(target=lambda: found.extend(statuses(second, CONFIGS[:4])))
    thread.start()
    deadline = time.monotonic() + 20
    while "waiting until it ends" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.02)
    assert f"process {os.getpid()}" in caplog.text
    assert statuses(first, CONFIGS[2:]) == [Status.OK] * (len(CONFIGS) - 2)
    assert not found
    first.close()
    thread.join(20)
    assert found == [Status.OK] * 4
    pids = [pid for pid, _, words in log(tmp_path) if words.startswith("begin")]
    assert sum(a != b for a, b in pairwise(pids)) == 1


def test_closing_ends_every_process_at_once(make_runner):
    runner = make_runner({CONFIGS[0]: "hang"}, limits=Limits(), workers=2)
    screening = runner.screen(each(PROBLEMS[0], CONFIGS))
    pids = runner.pids
    errors = []

    def wait_for_all():
        with pytest.raises(TuneError) as raised:
            list(screening)
        errors.append(str(raised.value))

    thread = threading.Thread(target=wait_for_all, daemon=True)
    thread.start()
    time.sleep(1.0)
    began = time.monotonic()
    runner.close()
    assert time.monotonic() - began < 5
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    runner.close()  # twice does no harm
    thread.join(10)
    assert errors == ["the runner was closed"]


def test_a_host_that_lets_nothing_measure_is_one_error_and_leaves_nothing(make_runner, monkeypatch):
    made, create = [], os.memfd_create
    pools = []
    pool = gpu_runner.CompilePool
    monkeypatch.setattr(
        gpu_runner, "CompilePool", lambda **given: pools.append(pool(**given)) or pools[0]
    )

    def refuse(name):
        made.append(name)
        if len(made) > 1:  # the first is the nursery's
            raise OSError(24, "Too many open files")
        return create(name)

    monkeypatch.setattr("tunekit.child.os.memfd_create", refuse)
    with pytest.raises(TuneError, match="can be started here: Too many open files"):
        make_runner({})
    assert not any(Path(f"/proc/{pid}").exists() for pid in pools[0].pids)
