"""What counts as a disturbance, with a made-up NVML."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tunekit.gpu_watch import CALM, Disturbance, GpuWatch

OTHER = 4242


class NvmlError(Exception):
    pass


class FakeNvml:
    """NVML as nvidia-ml-py shows it: processes, their samples, the reasons for the clocks."""

    NVMLError = NvmlError
    nvmlClocksEventReasonGpuIdle = 0x1
    nvmlClocksEventReasonSwPowerCap = 0x4
    nvmlClocksEventReasonHwSlowdown = 0x8
    nvmlClocksEventReasonSyncBoost = 0x10
    nvmlClocksEventReasonSwThermalSlowdown = 0x20
    nvmlClocksEventReasonHwThermalSlowdown = 0x40
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80

    def __init__(self):
        self.pids = {OTHER}
        self.samples = []
        self.reasons = 0
        self.refused = set()
        self.closed = False

    def _may(self, what):
        if what in self.refused:
            raise NvmlError(what)

    def nvmlInit(self):
        self._may("init")

    def nvmlShutdown(self):
        self.closed = True

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self._may("handle")
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        self._may("processes")
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetProcessUtilization(self, handle, newest):
        self._may("utilization")
        found = [s for s in self.samples if s.timeStamp > newest]
        if not found:
            raise NvmlError("not found")
        return found

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        self._may("clocks")
        return self.reasons

    def compute(self, pid, percent):
        self.samples.append(
            SimpleNamespace(pid=pid, smUtil=percent, timeStamp=len(self.samples) + 1)
        )


@pytest.fixture
def nvml():
    return FakeNvml()


@pytest.fixture
def watch(nvml):
    watch = GpuWatch("GPU-1", nvml)
    nvml.pids.add(os.getpid())
    watch.has_context()
    return watch


def test_our_own_work_is_no_disturbance(nvml, watch):
    watch.begin()
    nvml.compute(os.getpid(), 95)
    assert watch.seen() == CALM
    assert not watch.seen()


def test_another_process_that_computes_is_contention_while_it_does(nvml, watch):
    nvml.compute(OTHER, 50)
    watch.begin()  # that was before
    assert watch.seen() == CALM
    nvml.compute(OTHER, 50)
    assert watch.seen() == Disturbance(contended=True)
    assert watch.seen() == CALM
    nvml.compute(OTHER, 1)  # a desktop, or a sample's rounding
    assert watch.seen() == CALM


def test_another_process_that_is_only_there_is_none(nvml, watch):
    watch.begin()
    nvml.pids.add(OTHER + 1)
    nvml.compute(OTHER, 0)
    assert watch.seen() == CALM


def test_in_a_container_our_number_is_the_one_that_came_with_our_context(nvml):
    watch = GpuWatch("GPU-1", nvml)
    nvml.pids.add(777777)  # ours, as the host counts
    watch.has_context()
    watch.begin()
    nvml.compute(777777, 95)
    assert watch.seen() == CALM
    nvml.compute(OTHER, 95)
    assert watch.seen().contended


def test_where_nvml_does_not_show_us_nobody_is_taken_for_another(nvml):
    watch = GpuWatch("GPU-1", nvml)
    watch.has_context()
    watch.begin()
    nvml.compute(777777, 95)  # it may be us
    assert watch.seen() == CALM


def test_a_number_that_is_in_one_list_only_is_nobody(nvml, watch):
    watch.begin()
    nvml.compute(777777, 95)
    assert watch.seen() == CALM


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [
        (0x0, False),
        (0x1, False),
        (0x4, False),  # the power cap, under which every large product runs
        (0x10, False),
        (0x8, True),
        (0x20, True),
        (0x40, True),
        (0x80, True),
        (0x4 | 0x20, True),
    ],
)
def test_what_counts_as_throttled(nvml, watch, reasons, throttled):
    watch.begin()
    nvml.reasons = reasons
    assert watch.seen() == Disturbance(throttled=throttled)


@pytest.mark.parametrize("refused", ["init", "handle", "processes", "utilization", "clocks"])
def test_what_the_driver_refuses_loses_that_check_only(nvml, refused):
    nvml.refused.add(refused)
    watch = GpuWatch("GPU-1", nvml)
    nvml.pids.add(os.getpid())
    watch.has_context()
    watch.begin()
    nvml.compute(OTHER, 95)
    nvml.reasons = 0x40
    seen = watch.seen()
    assert seen.throttled == (refused not in ("init", "handle", "clocks"))
    assert seen.contended == (refused == "clocks")
    watch.close()


def test_without_nvml_nothing_is_disturbed():
    watch = GpuWatch("GPU-1", None)
    watch.has_context()
    watch.begin()
    assert watch.seen() == CALM
    watch.close()


def test_an_answer_that_need_not_be_fresh_serves_for_a_tenth_of_a_second(nvml):
    now = [0.0]
    watch = GpuWatch("GPU-1", nvml, clock=lambda: now[0])
    nvml.pids.add(os.getpid())
    watch.has_context()
    assert watch.seen(fresh=False) == CALM
    nvml.reasons = 0x40
    now[0] = 0.05
    assert watch.seen(fresh=False) == CALM
    assert watch.seen().throttled
    nvml.reasons = 0
    now[0] = 0.2
    assert watch.seen(fresh=False) == CALM


def test_nvml_is_let_go(nvml, watch):
    watch.close()
    assert nvml.closed
