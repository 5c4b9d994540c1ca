"""What `tunekit tune` does once a device is being opened: check everything, run, show what came.

Nothing is written before the shapes, the device, every problem and the cache are known to be good.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from tunekit.cache import Store
from tunekit.cli_request import TuneRequest
from tunekit.errors import ConfigError, RecordingError
from tunekit.fleet.hiring import Hired
from tunekit.fleet.runner import FleetRunner
from tunekit.key import Problem, TuningKey
from tunekit.output import INTERRUPTED, answer, answer_json, answer_width, paint, say
from tunekit.progress import Narrator, make_display
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner
from tunekit.runner import Runner, known_provenance
from tunekit.search import Budget, Grow
from tunekit.shapes import Shape
from tunekit.space import Space
from tunekit.table import (
    SCHEMA,
    Installed,
    Row,
    explain_command,
    installed_here,
    served_rows,
    table,
)
from tunekit.trial import Best, Fingerprint, Origin, Status
from tunekit.tuner import Listener, Task, TuneReport, open_runner, verify_again
from tunekit.tuner import run as run_tasks
from tunekit.tuner.together import Crew, joined, on_each


def tune(
    request: TuneRequest, shapes: Sequence[Shape], started: Runner | Hired, grow: Grow | None
) -> int:
    """Tune with what was started, show what came of it, and return the exit code.

    Raises:
        TunekitError: something is wrong with the request, or a key has no working config.
    """
    with joined(
        open_runner, started, sampler=request.sampler, seed=request.seed, grow=grow
    ) as crew:
        if request.misses:
            shapes = _missed(request, crew.runners)
            if not shapes:
                slugs = _listed(crew.runners)
                say(f"nothing to tune: the cache has no misses of {slugs}")
                _show(request, TuneReport(), [])
                return 0
        problems = dict.fromkeys(shape.problem for shape in shapes)
        # A stale key that cannot be tried is told of with the others, and stops none.
        tried = [] if request.stale else list(problems)
        crew.prepare(tried, sampler=request.sampler, seed=request.seed)
        spaces = _spaces(request, crew.runners, tried)
        if request.record is not None:
            _check_record(request.record, crew.runners[0])
        with Store.open(request.cache, create=not request.stale) as store:
            crew.attach(store)
            for runner in crew.runners:
                _announce(runner, request)
            if request.verbose:
                for space in spaces:
                    _describe(space)
            return _tune(request, shapes, crew, store)


def _listed(runners: Sequence[Runner]) -> str:
    return " or ".join(runner.device.slug for runner in runners)


def _spaces(
    request: TuneRequest, runners: Sequence[Runner], problems: Sequence[Problem]
) -> list[Space]:
    try:
        return [runner.space(problem) for runner in runners for problem in problems]
    except RecordingError as error:
        if request.device != "auto":
            raise
        raise RecordingError(f"no GPU is usable here, and {error}") from error


def _missed(request: TuneRequest, runners: Sequence[Runner]) -> list[Shape]:
    """Return what programs missed on the runners' GPUs and can be tuned, the most work first."""
    by_gpu = {runner.device.slug: runner for runner in runners}
    with Store.open(request.cache, create=False) as store:
        counts = {key: n for key, n in store.misses().items() if key.gpu in by_gpu}
    shapes = []
    for key, count in counts.items():
        try:
            by_gpu[key.gpu].space(key.problem)
        except (ConfigError, RecordingError) as error:
            say(f"warning: a miss that cannot be tuned is left: {error}")
        else:
            shapes.append(Shape(key.problem, count))
    return sorted(shapes, key=lambda shape: -shape.problem.flops * shape.count)


def _announce(runner: Runner, request: TuneRequest) -> None:
    """Say plainly where nothing is going to be timed."""
    if runner.origin is Origin.REPLAYED:
        why = "no GPU is usable here: " if request.device == "auto" else ""
        made = f"the recording made on {runner.device.name}"
        stale = "; a row is stale if the recording differs from it" if request.stale else ""
        text = "nothing is timed here and the rows are labelled replayed"
        say(f"{why}replaying {made}; {text}{stale}")
    ground = runner.ground if isinstance(runner, FleetRunner) else runner
    if isinstance(ground, ReplayRunner) and ground.stale:
        changed = ", ".join(ground.stale)
        say(
            f"warning: the recording is older than the kernels ({changed} changed since): its rows "
            "will not be served"
        )


def _check_record(record: str, runner: Runner) -> None:
    """Make sure that a recording can be made in this file, or extended."""
    if runner.origin is not Origin.MEASURED:
        raise RecordingError("--record needs a GPU: what is replayed is not recorded again")
    Recording.extend(record, runner.device)


def _describe(space: Space) -> None:
    """List what each rule removed from a space; with the legal ones it adds up to all of it."""
    total = len(space) + sum(space.pruned.values())
    say(f"{space.problem}: {len(space)} of {total} configs are legal")
    for rule, number in sorted(space.pruned.items(), key=lambda item: -item[1]):
        say(f"  {number} left out by the rule {rule}")


def _tune(request: TuneRequest, shapes: Sequence[Shape], crew: Crew, store: Store) -> int:
    display = make_display(sys.stderr, quiet=request.quiet)
    narrator = Narrator(display, verbose=request.verbose)
    keys = [
        TuningKey.of(problem, runner.device.slug)
        for runner in crew.runners
        for problem in dict.fromkeys(shape.problem for shape in shapes)
    ]

    def tuned(runner: Runner, tell: Listener) -> TuneReport:
        return _run(request, shapes, runner, store, crew.grow, tell)

    try:
        with display:
            report = on_each(crew.runners, tuned, narrator, crew.close)
    except KeyboardInterrupt:
        say(_interrupted(narrator, store, keys))
        return INTERRUPTED
    if request.misses:
        store.clear_misses([best.key for best in report.bests])
    _warn_disturbed(report)
    _show(request, report, _stored(store, keys, crew.runners))
    report.raise_failures()
    if not request.quiet and not request.as_json and report.bests:
        say(_next(request, report.bests[0].key, store))
    return 0


def _next(request: TuneRequest, key: TuningKey, store: Store) -> str:
    """Say where the rows are, and what shows more of them."""
    named = "" if request.cache is None else f" --cache {shlex.quote(store.location)}"
    return (
        f"kept in {store.location}; to look closer: `{explain_command(key.problem)}{named}`"
        f" or `tunekit report{named}`"
    )


def _run(
    request: TuneRequest,
    shapes: Sequence[Shape],
    runner: Runner,
    store: Store,
    grow: Grow | None,
    tell: Listener,
) -> TuneReport:
    tasks = [Task(shape.problem, shape.count, shape.name) for shape in shapes]
    if request.stale:
        return verify_again(
            tasks, runner=runner, store=store, seconds=request.seconds, on_event=tell
        )
    return run_tasks(
        tasks,
        runner=runner,
        store=store,
        sampler=request.sampler,
        budget=Budget.for_sampler(
            request.sampler,
            request.trials,
            request.seconds,
            patience=request.patience,
            reach=None if request.reach is None else request.reach / 100,
            least=request.least,
        ),
        seed=request.seed,
        retune=request.retune,
        record=request.record,
        optuna_storage=request.optuna_storage,
        grow=grow,
        on_event=tell,
    )


def _stored(store: Store, keys: Sequence[TuningKey], runners: Sequence[Runner]) -> list[Row]:
    """Return what the cache now serves for the keys: the numbers that `show` gives too."""
    rows: list[Row] = []
    for runner in runners:
        gpu = runner.device.slug
        bests = store.bests(gpu=gpu)
        if keys:  # else it is `--stale` of the whole cache
            bests = [best for key in keys if key.gpu == gpu for best in store.best(key)]
        rows += served_rows(bests, store.failures(gpu=gpu), _installed(runner))
    return rows


def _installed(runner: Runner) -> Installed:
    """Return what grades rows of a runner's GPU: what measures there says what it runs."""
    if runner.origin is not Origin.MEASURED:
        return installed_here

    def installed(best: Best) -> Fingerprint | None:
        now = known_provenance(runner, best.key.problem, best.config)
        return None if now is None else now.fingerprint

    return installed


def _show(request: TuneRequest, report: TuneReport, rows: Sequence[Row]) -> None:
    if request.as_json:
        counts = {status.value: report.counts.get(status, 0) for status in Status}
        answer_json(
            {
                "schema": SCHEMA,
                "keys": [row.to_dict() for row in rows],
                "seconds": report.seconds,
                "trial_counts": counts,
                "trials_per_second": report.trials_per_second,
                "spent": report.spent.to_dict(),
            }
        )
    elif rows:
        answer(table(rows, width=answer_width(), paint=paint()))


def _warn_disturbed(report: TuneReport) -> None:
    """Say which choices rest on times that something disturbed."""
    if not report.disturbed:
        return
    causes = {
        "another process used the GPU": any(b.measurement.contended for b in report.disturbed),
        "heat or power held its clocks down": any(
            b.measurement.throttled for b in report.disturbed
        ),
    }
    seen = " and ".join(cause for cause, found in causes.items() if found)
    first = report.disturbed[0].key.problem
    more = f" and {len(report.disturbed) - 1} more" if len(report.disturbed) > 1 else ""
    say(
        f"warning: {seen} while the finals of {first}{more} ran, twice: their rows say so; --retune"
    )


def _interrupted(narrator: Narrator, store: Store, keys: Sequence[TuningKey]) -> str:
    if not narrator.trials:
        kept = sum(sum(store.trial_counts(key).values()) for key in keys)
        if not kept:
            return "interrupted before a trial ended; the same command starts again"
        return (
            f"interrupted before a new trial ended: the {kept} trials of earlier runs are kept in "
            f"{store.location}; the same command does only the rest"
        )
    return (
        f"interrupted: {narrator.trials} finished trials of {narrator.keys_tried} problems are kept"
        f" in {store.location}; the same command does only the rest"
    )
