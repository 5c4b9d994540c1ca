"""`tunekit.tune`: the whole of a tuning run in one call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from tunekit.cache import Store
from tunekit.errors import ProblemError, ShapesError
from tunekit.fleet.hiring import Wanted, start
from tunekit.growing import growing
from tunekit.key import Problem
from tunekit.runner import Runner
from tunekit.runners import open_runner
from tunekit.search import SAMPLERS, Budget
from tunekit.shapes import load_shapes, parse_shape
from tunekit.trial import Origin
from tunekit.tuner.events import Listener, Task, TuneReport
from tunekit.tuner.rounds import run
from tunekit.tuner.stale import verify_again
from tunekit.tuner.together import joined, on_each

Shapes = str | Path | Iterable[Task | Problem | Sequence[int] | str]

_FORMS = '(m, n, k), "M,N,K[,DTYPE[,LAYOUT]]", a Problem or a Task'


def tune(
    shapes: Shapes | None = None,
    *,
    cache: str | Path | None = None,
    device: str = "auto",
    sampler: str = SAMPLERS[0],
    trials: int | None = None,
    seconds: float | None = None,
    patience: int | None = None,
    reach: float | None = None,
    least: int | None = None,
    seed: int = 0,
    retune: bool = False,
    stale: bool = False,
    record: str | Path | None = None,
    optuna_storage: str | None = None,
    workers: int | str | None = None,
    ray: str | None = None,
    on_event: Listener | None = None,
) -> TuneReport:
    """Find and store the fastest right config of each problem.

    `shapes` is a shapes file, or problems, each a `Task`, a `Problem`, (m, n, k) for bfloat16 in
    layout `nt`, or "M,N,K[,DTYPE[,LAYOUT]]". `cache` is a path or an SQLAlchemy URL; the default is
    where `tunekit.matmul` looks. `trials` is for each key on average, `seconds` for the run, and
    `patience`, `reach` (a part, not percent) and `least` are those of `tunekit.search.Budget`. With
    `stale`, which needs no shapes, nothing is searched. `workers` is a number of processes that
    share the work, or "all" for one on each GPU; `ray` is the address of a Ray cluster, or "local".
    See `tunekit tune --help` for these and for the rest.

    Raises:
        TunekitError: one line that says what is wrong: shapes, device, cache or recording.
        TuneError: no config of some key works; the other keys are done and stored.
    """
    _check_settings(sampler, seed, trials=trials, patience=patience, least=least)
    _check_numbers(seconds=seconds, reach=reach)
    if stale and (retune or optuna_storage or {record, trials, patience, reach, least} != {None}):
        raise ProblemError(
            "stale verifies what is stored: it excludes retune, record, optuna_storage and all of"
            " the budget but seconds"
        )
    if least is not None and least > (trials or 0):
        raise ProblemError("least is of the trials: give both, and no more of it")
    tasks = [] if stale and shapes is None else _tasks(shapes)
    budget = Budget.for_sampler(
        sampler, trials, seconds, patience=patience, reach=reach, least=least
    )
    wanted = None if workers is None and ray is None else Wanted(_number(workers), ray)
    if wanted is not None and stale:
        raise ProblemError("stale verifies key by key: it takes neither workers nor ray")
    if record is not None and wanted is not None:
        raise ProblemError("record makes a recording of one GPU: it takes neither workers nor ray")
    problems = list(dict.fromkeys(task.problem for task in tasks)) if not stale else []
    with (
        closing(start(open_runner, device, cache, wanted, seed=seed, problems=problems)) as started,
        growing(sampler, measures=started.origin is Origin.MEASURED and not stale) as grow,
        joined(open_runner, started, sampler=sampler, seed=seed, grow=grow) as crew,
    ):
        if not stale:
            crew.prepare(problems, sampler=sampler, seed=seed)
            for runner in crew.runners:
                for problem in problems:
                    runner.space(problem)  # before the cache file is made
        with Store.open(cache, create=not stale) as store:
            crew.attach(store)

            def tuned(runner: Runner, tell: Listener) -> TuneReport:
                if stale:
                    return verify_again(
                        tasks, runner=runner, store=store, seconds=seconds, on_event=tell
                    )
                return run(
                    tasks, runner=runner, store=store, sampler=sampler, budget=budget, seed=seed,
                    retune=retune, record=record, optuna_storage=optuna_storage, grow=crew.grow,
                    on_event=tell,
                )  # fmt: skip

            report = on_each(crew.runners, tuned, on_event or (lambda event: None), crew.close)
    report.raise_failures()
    return report


def _tasks(shapes: Shapes | None) -> list[Task]:
    if isinstance(shapes, (str, Path)):
        return [Task(s.problem, s.count, s.name) for s in load_shapes(shapes)]
    if not isinstance(shapes, Iterable):
        raise ShapesError(
            f"shapes must be a shapes file or a list of problems, each {_FORMS}, not {shapes!r:.80}"
        )
    return [_task(shape) for shape in shapes]


def _task(shape: Task | Problem | Sequence[int] | str) -> Task:
    if isinstance(shape, Task):
        return shape
    if isinstance(shape, Problem):
        return Task(shape)
    if isinstance(shape, str):
        return Task(parse_shape(shape).problem)
    if not isinstance(shape, Sequence) or isinstance(shape, bytes):
        raise ShapesError(
            f"shapes must be a list of problems, each {_FORMS}, but holds {shape!r:.80}"
        )
    return Task(parse_shape(",".join(map(str, shape))).problem)


def _check_settings(sampler: str, seed: int, **counts: int | None) -> None:
    """Refuse what the command line refuses too."""
    if sampler not in SAMPLERS:
        raise ProblemError(f"unknown sampler {sampler!r}: use one of {', '.join(SAMPLERS)}")
    for name, count in counts.items():
        if count is not None and not (_is_whole(count) and count > 0):
            raise ProblemError(f"{name} must be a whole number above 0, not {count!r}")
    if not (_is_whole(seed) and 0 <= seed < 1 << 32):
        raise ProblemError(f"seed must be a whole number from 0 to 2^32 - 1, not {seed!r}")


def _number(workers: int | str | None) -> int | None:
    if workers is None or workers == "all":
        return None
    if not (_is_whole(workers) and int(workers) > 0):
        raise ProblemError(f'workers must be a whole number above 0, or "all", not {workers!r}')
    return int(workers)


def _check_numbers(**numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and not (_is_number(number) and number > 0):
            raise ProblemError(f"{name} must be a number above 0, not {number!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    whole = _is_whole(value)
    return whole or (isinstance(value, float) and not math.isnan(value))
