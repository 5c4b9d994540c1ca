"""`tunekit explain`: what would run for one problem, and why."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tunekit.cache import Store
from tunekit.errors import NoStoreError, ProblemError
from tunekit.explanation import Explanation, explain
from tunekit.kernels import unsupported
from tunekit.key import Problem, TuningKey
from tunekit.lookup import how_to_tune
from tunekit.output import answer, answer_json, answer_width, counted, wrap
from tunekit.report import Findings, shortened
from tunekit.shapes import parse_shape, shape_parts
from tunekit.trial import Best, Measurement
from tunekit.which_gpu import which_gpu

_WIDE = 13
_REASONS = 5


def parse_words(words: tuple[str, ...], dtype: str | None, layout: str | None) -> Problem:
    """Read a problem as it may be written: 512 4096 4096, or as `show` prints it.

    Raises:
        UsageError: it is neither.
        TunekitError: a size, the dtype or the layout is none.
    """
    if dtype is None and layout is None:
        text = " ".join(words)
        written = Problem.parse(text)
        if written is not None and (written.batch != 1 or len(text.split()) > 3):
            return written
    parts = [part for part in shape_parts(" ".join(words)) if part]
    sizes, rest = parts[:3], parts[3:]
    if len(sizes) < 3 or not all(size.isdecimal() for size in sizes) or len(rest) > 2:
        raise click.UsageError(
            "give the sizes as M N K: tunekit explain 512 4096 4096, or the problem as `tunekit"
            " show` prints it: tunekit explain 512x4096x4096 bfloat16 nt"
        )
    named = [dtype or (rest[0] if rest else "bfloat16"), layout or (rest[1:] or ["nt"])[0]]
    return parse_shape(",".join([*sizes, *named])).problem


def run_explain(
    words: tuple[str, ...],
    dtype: str | None,
    layout: str | None,
    *,
    cache: str | None,
    gpu: str | None,
    as_json: bool,
) -> int:
    """Explain one problem and return the exit code.

    Raises:
        TunekitError: the problem is none, or no kernel computes it, or the cache cannot be read,
            or no GPU is known.
    """
    problem = parse_words(words, dtype, layout)
    reason = unsupported(problem)
    if reason is not None:
        raise ProblemError(f"{problem}: {reason}")
    try:
        with Store.open(cache, create=False) as store:
            found = explain(store, problem, which_gpu(gpu, store))
    except NoStoreError as error:
        how = how_to_tune(TuningKey.of(problem, "any"), error.location)
        raise NoStoreError(
            f"there is no cache at {error.location}, so the vendor's library runs {problem}; {how}",
            location=error.location,
        ) from error
    if as_json:
        answer_json(found.to_dict())
    else:
        width = answer_width()
        text = [wrap(line, width, _WIDE + 3) for line in lines(found)]
        answer("\n".join([*text, *_improve(found)]))
    return 0


def lines(found: Explanation) -> Iterator[str]:
    """Yield an explanation as text, a line for each thing to know but how to improve it."""
    yield f"{found.key.problem} on {found.device.name} ({found.key.gpu})"
    grade = "" if found.answer is None else f", grade {found.answer.grade.value}"
    yield _line("runs", f"{found.runs.value}{grade}: {found.why}")
    if found.answer is not None:
        yield from _row(found, found.answer.best)
        for difference in found.answer.differences:
            yield _line("differs", str(difference))
    yield from _tried(found)
    for one in found.passed_over[:_REASONS]:
        whose = "" if one.best.key == found.key else f" [of {one.best.key}]"
        yield _line("not served", f"{one.best.config}{whose}: {one.reason}")


def _improve(found: Explanation) -> Iterator[str]:
    """Yield how it would become better: never broken, for it is a command to copy."""
    improve = found.improve or "every legal config was tried with what is installed: nothing to do"
    replayed = found.answer is not None and found.answer.best.replayed
    where = "on a GPU: " if replayed and found.improve is not None else ""
    yield _line("to improve", where + improve.removeprefix("to tune it: "))


def _line(name: str, text: str) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"  {name.ljust(_WIDE)} {shown}"


def _times(measured: Measurement) -> str:
    return f"{measured.median_us:.2f} us (95 %: {measured.low_us:.2f}-{measured.high_us:.2f})"


def _rates(problem: Problem, us: float) -> str:
    tera, giga = problem.flops / us / 1e6, problem.min_bytes / us / 1e3
    return f"{tera:.1f} TFLOP/s, {giga:.0f} GB/s"


def _row(found: Explanation, best: Best) -> Iterator[str]:
    problem = best.key.problem
    whose = "" if best.key == found.key else f"  [of {best.key}]"
    rates = _rates(problem, best.measurement.median_us)
    yield _line("Triton", f"{_times(best.measurement)}, {rates}")
    yield _line("config", f"{best.config}{whose}")
    if best.vendor is not None:
        yield _line(
            "vendor",
            f"{_times(best.vendor)}: ratio {best.ratio:.3f} (above 1 Triton is faster)",
        )
    if found.rival is not None and found.rival.measurement is not None:
        lost = found.rival_lost_by or 0.0
        near = found.rival.measurement.low_us <= best.measurement.high_us
        tie = ", within the intervals" if near else ""
        timed = "final" if found.rival.measurement.final else "screening only"
        yield _line(
            "next best",
            f"{found.rival.measurement.median_us:.2f} us ({timed}), {100 * lost:+.1f} %{tie}:"
            f" {found.rival.config}",
        )
    made = best.provenance
    origin = "replayed from a recording" if best.replayed else made.origin.value
    yield _line(
        "row",
        f"{origin}, made {made.created_at} with triton {made.triton}, torch {made.torch},"
        f" driver {made.driver}",
    )


def _tried(found: Explanation) -> Iterator[str]:
    seen = found.findings
    best = None if found.answer is None else found.answer.best
    own = best is not None and best.key == found.key
    space = f" of {best.space_size} legal configs" if best is not None and own else " configs"
    if seen is not None:
        yield _line("tried", f"{seen.history.attempts}{space}, {seen.history.failed} failed")
        yield from _failures(seen)
    elif best is not None and own:
        yield _line(
            "tried", f"{best.trials}{space}, says its row: the trials are not in this cache"
        )
    else:
        yield _line("tried", "nothing for this problem")
    if best is not None and own and best.distance is not None:
        off = best.distance
        yield _line(
            "off best",
            f"{100 * off.expected:.1f} % expected; in nine of ten cases at most"
            f" {100 * off.bound:.1f} %",
        )
    if seen is not None:
        yield from _course(seen)


def _failures(seen: Findings) -> Iterator[str]:
    failures = seen.history.failures
    for failure in failures[:_REASONS]:
        why = f": {shortened(failure.reason)}" if failure.reason else ""
        yield _line("failed", f"{failure.count} {failure.status.value}{why}")
    if len(failures) > _REASONS:
        rest = sum(failure.count for failure in failures[_REASONS:])
        yield _line("failed", f"{rest} for other reasons")


def _course(seen: Findings) -> Iterator[str]:
    if seen.history.curve:
        steps = ", ".join(f"{s.median_us:.2f} us at {s.attempt}" for s in seen.history.curve)
        yield _line("best so far", f"{steps} (the number of the trial)")
    if seen.variants:
        rows = ", ".join(
            f"{name} {us:.2f} us ({counted(count, 'trial')})" for name, us, count in seen.variants
        )
        yield _line("variants", f"fastest of each: {rows}")
