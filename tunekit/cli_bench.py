"""`tunekit bench`: what tunekit runs, against torch, Inductor and a fixed list, as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunekit.bench import BenchReport, Compared, Entry, ReplayTimes, Times, compare
from tunekit.cache import Store
from tunekit.device import cuda_available, detect, gpu_uuid
from tunekit.errors import DeviceError
from tunekit.gpu_lock import GpuLock
from tunekit.key import Problem
from tunekit.output import Paint, answer, answer_json, answer_width, paint, say, wrap
from tunekit.replay import ReplayRunner
from tunekit.shapes import load_shapes
from tunekit.table import explain_command, lay_out
from tunekit.trial import Origin
from tunekit.tuner import open_runner


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What was asked for on the command line."""

    shapes_file: str
    against: tuple[str, ...]
    cache: str | None
    device: str
    fail_below: float | None
    as_json: bool
    quiet: bool


def run_bench(request: BenchRequest) -> int:
    """Compare, print, and return the exit code: 1 if a mean is below what was asked for.

    Raises:
        TunekitError: the shapes, the device, the cache or the recording.
    """
    entries = [Entry(s.problem, s.count, s.name) for s in load_shapes(request.shapes_file)]
    with Store.open(request.cache, create=False) as store:
        times, lock = _times(request.device, [entry.problem for entry in entries])
        try:
            quiet = request.quiet or times.origin is Origin.REPLAYED
            report = compare(
                entries, store, times, against=request.against,
                on_done=(lambda one: None) if quiet else _tell,
            )  # fmt: skip
        finally:
            if lock is not None:
                lock.release()
    faults = list(_faults(report, request.fail_below))
    if request.as_json:
        answer_json(report.to_dict(fail_below=request.fail_below, passed=not faults))
    else:
        answer("\n".join(_table(report, width=answer_width(), paint=paint())))
    for fault in faults:
        say(fault)
    return 1 if faults else 0


def _times(device: str, problems: Sequence[Problem]) -> tuple[Times, GpuLock | None]:
    """Open what gives the times, and hold the GPU if it is one."""
    if device == "auto":
        device = "cuda" if cuda_available() else "replay"
        if device == "replay":
            say("no GPU is usable here: the times are those of the shipped recording")
    if device.partition(":")[0] == "replay":
        runner = open_runner(device)
        assert isinstance(runner, ReplayRunner)
        return ReplayTimes(runner, problems), None
    named = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", device)
    if named is None:
        raise DeviceError(
            f"unknown device {device!r}: use auto, cuda, cuda:N, replay or replay:FILE"
        )
    from tunekit.bench.on_gpu import GpuTimes
    from tunekit.timing import Gpu

    index = int(named.group(1) or 0)
    info = detect(index)
    lock = GpuLock(gpu_uuid(index))
    lock.acquire()
    return GpuTimes(Gpu(info, index)), lock


def _tell(one: Compared) -> None:
    shown = ", ".join(f"{name} {m.median_us:.2f} us" for name, m in one.timed.times.items())
    say(f"{one.problem}: {shown}")


def _faults(report: BenchReport, fail_below: float | None) -> Iterator[str]:
    """Yield what makes the comparison fail, each with the problem to look at."""
    if fail_below is None:
        return
    for problem, name, reason in report.untimed():
        yield f"{name} could not be timed on {problem}: {reason}"
    for name in report.against:
        mean = report.geometric_mean(name)
        if mean is None or mean >= fail_below:
            continue
        worst = min(
            (one for one in report.problems if one.ratio(name) is not None),
            key=lambda one: one.ratio(name) or 0.0,
        )
        yield (
            f"against {name} the geometric mean is {mean:.3f}, below {fail_below:g}; the worst is"
            f" {worst.problem} with {worst.ratio(name):.3f}:"
            f" `{explain_command(worst.problem)}` says why"
        )


def _table(report: BenchReport, *, width: int | None, paint: Paint) -> Iterator[str]:
    """Yield the comparison as lines: a row a problem, then the means."""
    how = "replayed from a recording" if report.origin is Origin.REPLAYED else "measured"
    yield f"{report.device} ({report.gpu}), {how}, {report.protocol}"
    heads = ["problem (M x N x K)", "runs", "tunekit us (95 %)", "TFLOP/s", "GB/s", "roofline"]
    for name in report.against:
        heads += [f"{name} us", f"ratio to {name}"]
    grid = [heads, *(_cells(report, one) for one in report.problems)]
    yield from lay_out(grid, range(2, len(heads)), width=width, paint=paint)
    ceilings = ", ".join(
        f"{most:.0f} TFLOP/s in {dtype}" for dtype, most in report.ceilings.tflops.items()
    )
    found = "highest recorded" if report.origin is Origin.REPLAYED else "measured"
    yield f"roofline ({found}): {report.ceilings.gb_per_s:.0f} GB/s, {ceilings}"
    for name in report.against:
        mean = report.geometric_mean(name)
        if mean is not None:
            yield f"geometric mean of {name} us / tunekit us (above 1 tunekit wins): {mean:.3f}"
    for problem, name, reason in report.untimed():
        yield wrap(f"not timed: {name} on {problem}: {reason}", width, 2)


def _cells(report: BenchReport, one: Compared) -> list[str]:
    ours, share, problem = one.ours, one.share(report.ceilings), one.problem
    cells = [str(problem), one.runs.value]
    if ours is None:
        cells += ["-"] * 4
    else:
        half = max(ours.high_us - ours.median_us, ours.median_us - ours.low_us)
        cells += [
            f"{ours.median_us:.2f} +-{half:.2f}",
            f"{problem.flops / ours.median_us / 1e6:.1f}",
            f"{problem.min_bytes / ours.median_us / 1e3:.0f}",
            "-" if share is None else f"{100 * share:.0f} %",
        ]
    for name in report.against:
        other, ratio, bounds = one.timed.times.get(name), one.ratio(name), one.bounds(name)
        cells.append("-" if other is None else f"{other.median_us:.2f}")
        shown = ratio is not None and bounds is not None
        cells.append(f"{ratio:.3f} ({bounds[0]:.3f}-{bounds[1]:.3f})" if shown and bounds else "-")
    return cells
