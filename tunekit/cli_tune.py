"""`tunekit tune`: start what is needed, then run.

To load what tunes takes a second, and what measures takes several: so that is started before the
other is loaded.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType

from tunekit.cli_request import TuneRequest
from tunekit.fleet.hiring import Hired, Wanted, start
from tunekit.growing import growing
from tunekit.runner import Runner
from tunekit.runners import open_runner
from tunekit.shapes import Shape, load_shapes, parse_shape
from tunekit.trial import Origin


def run_tune(request: TuneRequest) -> int:
    """Tune what is asked for and return the exit code.

    Raises:
        TunekitError: something is wrong with the request, or a key has no working config.
    """
    with _terminable():
        shapes = _shapes(request)
        wanted = _wanted(request)
        # Of misses and stale rows it is not known yet what they are.
        unknown = request.misses or request.stale
        known = () if unknown else tuple(dict.fromkeys(shape.problem for shape in shapes))
        with (
            closing(
                start(
                    open_runner,
                    request.device,
                    request.cache,
                    wanted,
                    seed=request.seed,
                    problems=known,
                )
            ) as started,
            growing(request.sampler, measures=_measures(request, started)) as grow,
        ):
            from tunekit.cli_tuning import tune

            return tune(request, shapes, started, grow)


def _measures(request: TuneRequest, started: Runner | Hired) -> bool:
    return started.origin is Origin.MEASURED and not request.stale


def _wanted(request: TuneRequest) -> Wanted | None:
    if request.workers is None and request.ray is None:
        return None
    count = None if request.workers in (None, "all") else int(request.workers)
    return Wanted(count, request.ray)


def _shapes(request: TuneRequest) -> list[Shape]:
    if request.shapes_file is not None:
        return load_shapes(request.shapes_file)
    return [parse_shape(text) for text in request.shape_texts]


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C inside the block: what is finished is kept and said."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a signal's handler
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
