"""Where a run's progress is shown: a live bar on a terminal or in a notebook, else plain lines."""

from __future__ import annotations

import contextlib
import html
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

INTERVAL_S = 10.0
"""A run whose progress is written as plain lines is never silent for longer than this."""

NOTEBOOK_INTERVAL_S = 0.25
"""How long a notebook's output stays as it is at least."""


_BAR = 8
"""Columns of the bar: the numbers beside it have to fit a window of 100."""


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
            left = _left(now - self._started, done, total)
            self._write(f"{done}/{total} trials{left and ', about '}{left}; {text}")

    def _write(self, text: str) -> None:
        self._last = self._clock()
        with contextlib.suppress(OSError):  # no reader, or a full disk: the run is worth more
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
    """Keeps a bar at the bottom of the terminal: trials, time left, where the run is."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        # stdout is the answer's: rich must not take what is written there to this console.
        self._progress: Progress = Progress(
            BarColumn(bar_width=_BAR),
            TextColumn("{task.description}", markup=False),
            console=Console(file=stream, highlight=False),
            redirect_stdout=False,
            transient=True,
        )
        self._started = time.monotonic()
        self._task = self._progress.add_task("starting", total=None)

    @property
    def can_move(self) -> bool:
        """Whether the terminal can keep a line up to date: one inside an editor may not."""
        return not self._progress.console.is_dumb_terminal

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, markup=False, soft_wrap=True)

    def update(self, text: str, done: int, total: int) -> None:
        """Move the bar."""
        left = _left(time.monotonic() - self._started, done, total)
        line = f"{done}/{total}{left and ', '}{left}  {text}"
        room = self._progress.console.width - _BAR - 1
        if len(line) > room:  # what is last is cut: never the numbers
            line = f"{line[: room - 3]}..."
        self._progress.update(self._task, description=line, completed=done, total=total)

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


class NotebookDisplay(Display):
    """Keeps one output of a notebook's cell up to date: a bar, and below it a line for each key.

    It needs no widgets, and what it showed last is saved with the notebook.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._lines: list[str] = []
        self._state = ("starting", 0, 0)
        self._shown_at: float | None = None
        self._output: Any = None
        self._lock = threading.Lock()

    def line(self, text: str) -> None:
        """Add a line below the bar."""
        with self._lock:
            self._lines.append(text)
            self._show()

    def update(self, text: str, done: int, total: int) -> None:
        """Move the bar, a few times a second at most."""
        with self._lock:
            self._state = (text, done, total)
            if self._shown_at is None or self._clock() - self._shown_at >= NOTEBOOK_INTERVAL_S:
                self._show()

    def _show(self) -> None:
        from IPython.display import display

        self._shown_at = self._clock()
        shown = {"text/plain": self.text(), "text/html": self.html()}
        if self._output is None:
            self._output = display(shown, raw=True, display_id=True)
        else:
            self._output.update(shown, raw=True)

    def _where(self) -> str:
        text, done, total = self._state
        if not total:
            return text
        left = _left(self._clock() - self._started, done, total)
        return f"{done}/{total} trials{left and ', about '}{left}; {text}"

    def text(self) -> str:
        """Return what is shown as text."""
        return "\n".join([self._where(), *self._lines])

    def html(self) -> str:
        """Return what is shown as HTML."""
        _, done, total = self._state
        lines = html.escape("\n".join(self._lines))
        return (
            f'<div><progress value="{done}" max="{total or 1}" aria-label="trials"></progress>'
            f" {html.escape(self._where())}"
            f'<pre style="white-space:pre-wrap;line-height:1.4">{lines}</pre></div>'
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._show()


def make_display(stream: TextIO | None, *, quiet: bool = False) -> Display:
    """Choose the display for a stream: a live one only on a terminal or in a notebook."""
    if quiet or stream is None:  # stderr was closed before Python started
        return Display()
    if stream.isatty():
        display = TerminalDisplay(stream)
        return display if display.can_move else PlainDisplay(stream)
    return NotebookDisplay() if _in_notebook(stream) else PlainDisplay(stream)


def _in_notebook(stream: TextIO) -> bool:
    """Say whether a stream is that of a notebook's cell: one of its kernel's own."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


def _left(seconds: float, done: int, total: int) -> str:
    """Say how long the rest takes at the rate so far, or nothing where that is not known."""
    return f"{_duration(seconds / done * (total - done))} left" if 0 < done < total else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
