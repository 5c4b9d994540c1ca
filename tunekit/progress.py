"""What a person sees on stderr while a run goes on: a live bar on a terminal, else plain lines.

`Narrator` turns the tuner's events into text and counts what was done; a `Display` shows the text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from tunekit.key import TuningKey
from tunekit.trial import Best, Origin, Trial
from tunekit.tuner import (
    Event,
    KeyDone,
    KeyFailed,
    KeyLeft,
    KeysAwaited,
    KeySkipped,
    RunStarted,
    StaleFound,
    TrialDone,
)

if TYPE_CHECKING:
    from rich.progress import Progress

INTERVAL_S = 10.0
"""A run whose progress is written as plain lines is never silent for longer than this."""

MAX_ERROR = 160
"""Characters of a failed trial's message that are shown."""


class Display:
    """Shows nothing: the base of the other two, and what `--quiet` uses."""

    def line(self, text: str) -> None:
        """Show a line that stays."""

    def update(self, text: str, done: int, total: int) -> None:
        """Say where the run is: a text, and the trials it has done of those it has to do."""

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class PlainDisplay(Display):
    """Writes lines, and at least one every `INTERVAL_S` seconds even while nothing ends."""

    def __init__(
        self,
        stream: TextIO,
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._clock = clock
        self._started = self._last = clock()
        self._state = ("starting", 0, 0)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="tunekit-progress", daemon=True)

    def line(self, text: str) -> None:
        """Write a line."""
        with self._lock:
            self._write(text)

    def update(self, text: str, done: int, total: int) -> None:
        """Note where the run is, and write it if the last line is old."""
        with self._lock:
            self._state = (text, done, total)
        self.remind()

    def remind(self) -> None:
        """Write where the run is if nothing was written for `interval_s` seconds."""
        with self._lock:
            now = self._clock()
            if now - self._last < self._interval_s:
                return
            text, done, total = self._state
            left = ""
            if 0 < done < total:
                left = f", about {_duration((now - self._started) / done * (total - done))} left"
            self._write(f"{done}/{total} trials{left}; {text}")

    def _write(self, text: str) -> None:
        self._last = self._clock()
        self._stream.write(text + "\n")
        self._stream.flush()

    def _tick(self) -> None:
        while not self._stop.wait(self._interval_s / 4):
            self.remind()

    def __enter__(self) -> Display:
        self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._ticker.join()


class TerminalDisplay(Display):
    """Keeps a bar at the bottom of the terminal: where the run is, trials, time left."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft

        # stdout is the answer's: rich must not take what is written there to this console.
        self._progress: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=8),  # short: the numbers beside it have to fit 100 columns
            MofNCompleteColumn(),
            TimeLeft(compact=True),
            TextColumn("left"),
            console=Console(file=stream, highlight=False),
            redirect_stdout=False,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, markup=False, soft_wrap=True)

    def update(self, text: str, done: int, total: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, description=text, completed=done, total=total)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()


def make_display(stream: TextIO | None, *, quiet: bool) -> Display:
    """Choose the display for a stream: a live one only where it is a terminal."""
    if quiet or stream is None:  # stderr was closed before Python started
        return Display()
    return TerminalDisplay(stream) if stream.isatty() else PlainDisplay(stream)


class Narrator:
    """Listens to a run: shows its events and counts them."""

    def __init__(self, display: Display, *, verbose: bool) -> None:
        self.trials = 0
        """Trials that ended in this run."""
        self._display = display
        self._verbose = verbose
        self._keys = 0
        self._closed: set[TuningKey] = set()
        self._progress: dict[TuningKey, tuple[int, int]] = {}

    @property
    def keys_tried(self) -> int:
        """Keys of which at least one trial ended in this run."""
        return len(self._progress)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, TrialDone):
            self._trial_done(event)
        elif isinstance(event, RunStarted):
            self._keys += event.keys  # of each kind of GPU, if there are several
            resumed = f", {event.resumed} trials kept from before" if event.resumed else ""
            doing = "replaying" if event.origin is Origin.REPLAYED else "tuning"
            self._display.line(f"{doing} {event.keys} keys for {event.device.name}{resumed}")
        elif isinstance(event, StaleFound):
            self._stale_found(event)
        elif isinstance(event, KeyDone):
            self._close(event.best.key, self._outcome(event.best) + _kept(event.stored))
        elif isinstance(event, KeySkipped):
            self._close(event.best.key, self._outcome(event.best) + "; tuned before, not again")
        elif isinstance(event, KeyFailed):
            reason = one_line(event.reason)
            if event.count:
                reason = f"{event.count} trials failed, most often: {reason}"
            cure = f"; {event.cure}" if event.cure else ""
            self._close(event.key, f"no row: {reason}{cure}")
        elif isinstance(event, KeysAwaited):
            self._display.line(_awaited(event))
        elif isinstance(event, KeyLeft):
            self._close(event.key, "left to another run, which is tuning it")

    def _stale_found(self, event: StaleFound) -> None:
        keys = event.stale + event.current
        self._display.line(f"{event.stale} of {keys} keys are stale")
        for reason, count in sorted(event.reasons.items(), key=lambda item: (-item[1], item[0])):
            self._display.line(f"  {one_line(reason)}: {count} keys")
        if event.stale:
            self._display.line(
                f"to verify and time again: {event.configs} stored configs, and the vendor's call"
                f" of {event.stale} keys; nothing is searched"
            )

    def _trial_done(self, event: TrialDone) -> None:
        self.trials += 1
        self._progress[event.key] = (event.done, event.total)
        name = str(event.key.problem)
        if self._verbose:
            self._display.line(
                f"  {event.done}/{event.total} {name}: {event.trial.config}: {ending(event.trial)}"
            )
        best = "none right yet" if event.best_us is None else f"best {event.best_us:.2f} us"
        if event.vendor_us is not None:
            best += f", vendor {event.vendor_us:.2f} us"
        self._show(f"{name}: {best}")

    def _show(self, text: str) -> None:
        left = sum(total - done for done, total in self._progress.values())
        # Keys not begun yet are taken to be as long as the ones that are.
        ahead = max(0, self._keys - len(self._closed | self._progress.keys()))
        each = sum(total for _, total in self._progress.values()) / len(self._progress)
        self._display.update(text, self.trials, self.trials + left + round(ahead * each))

    def _close(self, key: TuningKey, outcome: str) -> None:
        self._closed.add(key)
        if key in self._progress:  # what it had left went to other keys
            done, _ = self._progress[key]
            self._progress[key] = (done, done)
        self._display.line(f"[{len(self._closed)}/{self._keys}] {key.problem}: {outcome}")

    def _outcome(self, best: Best) -> str:
        vendor = ""
        if best.vendor is not None:
            vendor = f", vendor {best.vendor.median_us:.2f} us, ratio {best.ratio:.3f}"
        return (
            f"{best.choice.value} chosen: Triton {best.measurement.median_us:.2f} us{vendor}"
            f" ({best.trials} of {best.space_size} configs, {_origin(best)})"
        )


def ending(trial: Trial) -> str:
    """Say in one line how a trial ended."""
    if trial.measurement is not None:
        return f"{trial.measurement.median_us:.2f} us"
    return f"{trial.status.value}: {one_line(trial.error or 'no message')}"


def one_line(text: str) -> str:
    """Return the first line of a message that says something, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    first = "".join(letter if letter.isprintable() else "?" for letter in first)  # no escapes
    return first if len(first) <= MAX_ERROR else first[: MAX_ERROR - 3] + "..."


def _origin(best: Best) -> str:
    origin = best.provenance.origin
    return f"{origin.value} (replayed)" if best.imported_replay else origin.value


def _awaited(event: KeysAwaited) -> str:
    many = len(event.keys) > 1
    return (
        f"waiting for {len(event.keys)} {'keys' if many else 'key'} that"
        f" {', '.join(event.holders)} {'is' if len(event.holders) == 1 else 'are'} tuning"
    )


def _kept(stored: bool) -> str:
    return "" if stored else "; the stored row is better and stays"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
