"""What a run says while it goes on: the tuner's events as text, and counts of what was done."""

from __future__ import annotations

from tunekit.displays import Display, NotebookDisplay, PlainDisplay, TerminalDisplay, make_display
from tunekit.key import TuningKey
from tunekit.output import counted
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

__all__ = [
    "Display",
    "Narrator",
    "NotebookDisplay",
    "PlainDisplay",
    "TerminalDisplay",
    "make_display",
]

_BEFORE = "; tuned before, not again"

MAX_ERROR = 160
"""Characters of a failed trial's message that are shown."""


class Narrator:
    """Listens to a run: shows its events and counts them."""

    def __init__(self, display: Display, *, verbose: bool = False) -> None:
        self.trials = 0
        """Trials that ended in this run."""
        self._display = display
        self._verbose = verbose
        self._keys = 0
        self._closed: set[TuningKey] = set()
        self._progress: dict[TuningKey, tuple[int, int]] = {}
        self._skipped: list[Best] = []

    @property
    def keys_tried(self) -> int:
        """Keys of which at least one trial ended in this run."""
        return len(self._progress)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if self._skipped and not isinstance(event, KeySkipped):
            self._tell_skipped()
        if isinstance(event, TrialDone):
            self._trial_done(event)
        elif isinstance(event, RunStarted):
            self._keys += event.keys  # of each kind of GPU, if there are several
            resumed = f", {event.resumed} trials kept from before" if event.resumed else ""
            doing = "replaying" if event.origin is Origin.REPLAYED else "tuning"
            problems = counted(event.keys, "problem")
            self._display.line(f"{doing} {problems} for {event.device.name}{resumed}")
        elif isinstance(event, StaleFound):
            self._stale_found(event)
        elif isinstance(event, KeyDone):
            self._close(event.best.key, self._outcome(event.best) + _kept(event.stored))
        elif isinstance(event, KeySkipped):
            self._skip(event.best)
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

    def _skip(self, best: Best) -> None:
        """Note a key that was tuned before: many at a time are told in one line."""
        if self._verbose:
            self._close(best.key, self._outcome(best) + _BEFORE)
            return
        self._closed.add(best.key)
        self._skipped.append(best)
        if len(self._closed) >= self._keys:
            self._tell_skipped()

    def _tell_skipped(self) -> None:
        skipped, self._skipped = self._skipped, []
        if len(skipped) == 1:
            self._close(skipped[0].key, self._outcome(skipped[0]) + _BEFORE)
        else:
            place = f"[{len(self._closed)}/{self._keys}]"
            self._display.line(f"{place} {counted(len(skipped), 'problem')}{_BEFORE}")

    def _stale_found(self, event: StaleFound) -> None:
        keys = event.stale + event.current
        self._display.line(f"stale: {event.stale} of {counted(keys, 'problem')}")
        for reason, count in sorted(event.reasons.items(), key=lambda item: (-item[1], item[0])):
            self._display.line(f"  {one_line(reason)}: {counted(count, 'problem')}")
        if event.stale:
            self._display.line(
                f"to verify and time again: {counted(event.configs, 'stored config')}, and the"
                f" vendor's call of {counted(event.stale, 'problem')}; nothing is searched"
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
    return (
        f"waiting for {counted(len(event.keys), 'problem')} that"
        f" {', '.join(event.holders)} {'is' if len(event.holders) == 1 else 'are'} tuning"
    )


def _kept(stored: bool) -> str:
    return "" if stored else "; the stored row is better and stays"
