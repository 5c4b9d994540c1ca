"""Progress: what a run says on stderr, on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import TuningKey
from tunekit.progress import (
    Display,
    Narrator,
    NotebookDisplay,
    PlainDisplay,
    TerminalDisplay,
    ending,
    make_display,
    one_line,
)
from tunekit.trial import (
    Best,
    Choice,
    Fingerprint,
    Measurement,
    Origin,
    Provenance,
    Status,
    Trial,
)
from tunekit.tuner import (
    KeyDone,
    KeyFailed,
    KeyLeft,
    KeysAwaited,
    KeySkipped,
    RunStarted,
    StaleFound,
    TrialDone,
)

DEVICE = KNOWN_DEVICES["sm_90"]
KEY = TuningKey("matmul", 64, 64, 64, "bfloat16", DEVICE.slug)
OTHER = TuningKey("matmul", 128, 64, 64, "bfloat16", DEVICE.slug)
CONFIG = Config("pointer", 64, 64, 32)
TIMED = Measurement(12.5, 12.0, 13.0, 12.1, 12.9, 11.9, 50, "test-1")
RIGHT = Trial(CONFIG, Status.OK, TIMED)
BROKEN = Trial(CONFIG, Status.COMPILE_ERROR, error="\n  boom: [red]not markup[/red]\nmore\n")
PROVENANCE = Provenance(
    Fingerprint("s", "c"), "test-1", "0", "0", "0", "0", "Fake", "2020-01-01T00:00:00"
)
BEST = Best(KEY, Choice.TRITON, CONFIG, TIMED, TIMED, 8, 536, PROVENANCE)


class Lines(Display):
    def __init__(self):
        self.lines = []
        self.updates = []

    def line(self, text):
        self.lines.append(text)

    def update(self, text, done, total):
        self.updates.append((text, done, total))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def started(keys=2, origin=Origin.MEASURED, resumed=0):
    return RunStarted(keys=keys, device=DEVICE, origin=origin, resumed=resumed)


def trial_done(trial=RIGHT, key=KEY, done=1, total=8, best_us=12.5, vendor_us=None):
    return TrialDone(
        key=key, trial=trial, best_us=best_us, vendor_us=vendor_us, done=done, total=total
    )


def test_trials_are_counted_over_all_keys_also_those_not_begun():
    display = Lines()
    narrator = Narrator(display, verbose=False)
    narrator(started(keys=3))
    narrator(trial_done(done=1))
    narrator(trial_done(done=2))
    narrator(trial_done(key=OTHER, done=1, vendor_us=14.0))
    assert display.updates[1] == ("64x64x64 bfloat16 nt: best 12.50 us", 2, 24)
    text, done, total = display.updates[2]
    assert text == "128x64x64 bfloat16 nt: best 12.50 us, vendor 14.00 us"
    assert (done, total) == (3, 24)
    assert (narrator.trials, narrator.keys_tried) == (3, 2)


def test_trials_of_an_earlier_run_are_not_counted_as_done_by_this_one():
    display = Lines()
    narrator = Narrator(display, verbose=False)
    narrator(started(keys=1, resumed=6))
    narrator(trial_done(done=7, total=8))
    assert "6 trials kept from before" in display.lines[0]
    assert display.updates == [("64x64x64 bfloat16 nt: best 12.50 us", 1, 2)]


def test_every_key_ends_with_one_line():
    display = Lines()
    narrator = Narrator(display, verbose=False)
    narrator(started(keys=3))
    narrator(trial_done(BROKEN, best_us=None))
    narrator(KeyDone(best=BEST, stored=True))
    narrator(KeySkipped(best=BEST))
    narrator(KeyFailed(key=OTHER, reason="compile-error: boom\nmore", count=8))
    assert len(display.lines) == 4
    assert "tuning 3 problems for NVIDIA H200" in display.lines[0]
    assert "triton chosen: Triton 12.50 us, vendor 12.50 us, ratio 1.000" in display.lines[1]
    assert "8 of 536 configs, measured" in display.lines[1]
    assert "tuned before" in display.lines[2]
    assert "no row" in display.lines[3]
    assert "boom" in display.lines[3]
    assert "more" not in display.lines[3]


def test_waiting_for_another_run_is_one_line_that_says_for_whom():
    display = Lines()
    narrator = Narrator(display, verbose=False)
    narrator(started())
    narrator(KeysAwaited((KEY, OTHER), ("process 7 on here",)))
    narrator(KeyLeft(KEY))
    assert display.lines[1] == "waiting for 2 problems that process 7 on here is tuning"
    assert display.lines[2].endswith(": left to another run, which is tuning it")


def test_a_row_that_did_not_win_is_said_to_have_stayed_out():
    display = Lines()
    narrator = Narrator(display, verbose=False)
    narrator(KeyDone(best=BEST, stored=False))
    assert "stays" in display.lines[0]


def test_a_replay_is_never_called_tuning():
    display = Lines()
    Narrator(display, verbose=False)(started(origin=Origin.REPLAYED))
    assert display.lines == ["replaying 2 problems for NVIDIA H200"]


def test_verbose_shows_every_trial_and_why_it_failed():
    display = Lines()
    narrator = Narrator(display, verbose=True)
    narrator(trial_done(RIGHT))
    narrator(trial_done(BROKEN, done=2))
    assert display.lines[0].endswith(f"{CONFIG}: 12.50 us")
    assert display.lines[1].endswith(f"{CONFIG}: compile-error: boom: [red]not markup[/red]")


def test_messages_are_shortened_to_one_line():
    assert ending(Trial(CONFIG, Status.TIMEOUT)) == "timeout: no message"
    assert one_line(" \n\n a\nb") == "a"
    assert one_line("") == "no message"
    assert len(one_line("x" * 1000)) == 160


def test_plain_progress_is_at_most_one_line_an_interval():
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, interval_s=10, clock=clock)
    for second in range(1, 31):
        clock.now = float(second)
        display.update("here", second, 60)
    assert stream.getvalue().splitlines() == [
        "10/60 trials, about 0:50 left; here",
        "20/60 trials, about 0:40 left; here",
        "30/60 trials, about 0:30 left; here",
    ]


def test_a_run_goes_on_where_nobody_reads_its_progress():
    class Unread(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    display = PlainDisplay(Unread(), interval_s=0.0)
    display.line("one key is done")
    display.update("two", 1, 2)


def test_a_line_of_its_own_puts_the_reminder_off():
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, interval_s=10, clock=clock)
    clock.now = 9.0
    display.line("key done")
    clock.now = 18.0
    display.update("here", 0, 0)
    assert stream.getvalue() == "key done\n"


def test_plain_progress_speaks_up_while_nothing_ends():
    stream = io.StringIO()
    with PlainDisplay(stream, interval_s=0.02) as display:
        display.update("a long compile", 1, 8)
        deadline = time.monotonic() + 30
        while stream.getvalue().count("a long compile") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert stream.getvalue().count("a long compile") >= 2
    length = len(stream.getvalue())
    time.sleep(0.06)
    assert len(stream.getvalue()) == length


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_and_lines_as_they_are(capsys):
    stream = Terminal()
    with TerminalDisplay(stream) as display:
        display.line("[red] stays as written " + "x" * 200)
        display.update("64x64x64: best [b]1.00 us", 3, 8)
    text = stream.getvalue()
    assert "[red] stays as written " + "x" * 200 in text
    assert capsys.readouterr().out == ""


def test_the_bar_cuts_no_number_at_100_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    text = "65536x28672x14336 bfloat16 nt: best 12345.67 us, vendor 12345.67 us"
    with TerminalDisplay(stream) as display:
        display.update(text, 1234, 5678)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert text in plain
    assert "1234/5678, " in plain


@pytest.mark.parametrize(
    ("stream", "quiet", "kind"),
    [
        (io.StringIO(), False, PlainDisplay),
        (Terminal(), False, TerminalDisplay),
        (Terminal(), True, Display),
        (io.StringIO(), True, Display),
    ],
)
def test_the_display_fits_the_stream(stream, quiet, kind, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert type(make_display(stream, quiet=quiet)) is kind


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_display(Terminal())) is PlainDisplay


def test_quiet_writes_nothing():
    stream = io.StringIO()
    with make_display(stream, quiet=True) as display:
        narrator = Narrator(display, verbose=False)
        narrator(trial_done())
        narrator(KeyDone(best=BEST, stored=True))
    assert stream.getvalue() == ""
    assert narrator.trials == 1


def test_no_stream_is_no_display():
    assert type(make_display(None, quiet=False)) is Display


def test_an_imported_replay_is_said_to_be_one():
    display = Lines()
    imported = replace(BEST, imported_replay=True)
    imported = replace(imported, provenance=replace(PROVENANCE, origin=Origin.IMPORTED))
    Narrator(display, verbose=False)(KeySkipped(best=imported))
    assert "8 of 536 configs, imported (replayed)" in display.lines[0]


def test_a_message_cannot_drive_the_terminal():
    assert one_line("a\x1b[31mb") == "a?[31mb"


def test_what_is_stale_its_reasons_and_the_cost_are_told_most_common_first():
    display = Lines()
    reasons = {"driver 570 -> 580": 2, "triton 3.6.0 -> 3.9.0": 12}
    Narrator(display, verbose=False)(StaleFound(12, 8, 70, reasons))
    assert display.lines[0] == "stale: 12 of 20 problems"
    assert display.lines[1:3] == [
        "  triton 3.6.0 -> 3.9.0: 12 problems",
        "  driver 570 -> 580: 2 problems",
    ]
    assert "70 stored configs" in display.lines[3]
    assert "nothing is searched" in display.lines[3]


def test_where_nothing_is_stale_no_cost_is_told():
    display = Lines()
    Narrator(display, verbose=False)(StaleFound(0, 8, 0, {}))
    assert display.lines == ["stale: 0 of 8 problems"]


def test_the_command_that_cures_a_key_is_never_shortened():
    display = Lines()
    narrator = Narrator(display, verbose=False)
    narrator(started(keys=1))
    narrator(KeyFailed(KEY, "none runs " + "x" * 500, 0, "to tune it: tunekit tune " + "y" * 200))
    assert display.lines[-1].endswith("; to tune it: tunekit tune " + "y" * 200)
    assert "0 trials" not in display.lines[-1]


def test_keys_tuned_before_are_told_in_one_line():
    display = Lines()
    narrator = Narrator(display)
    narrator(started(keys=3))
    narrator(KeySkipped(best=BEST))
    narrator(KeySkipped(best=replace(BEST, key=OTHER)))
    narrator(trial_done(key=replace(KEY, m=256)))
    assert display.lines[1:] == ["[2/3] 2 problems; tuned before, not again"]

    verbose = Lines()
    narrator = Narrator(verbose, verbose=True)
    narrator(started(keys=2))
    narrator(KeySkipped(best=BEST))
    narrator(KeySkipped(best=replace(BEST, key=OTHER)))
    assert [line.partition(" ")[0] for line in verbose.lines[1:]] == ["[1/2]", "[2/2]"]


def test_the_bar_says_nothing_of_a_number_it_does_not_know():
    stream = Terminal()
    with TerminalDisplay(stream):
        pass
    assert "left" not in stream.getvalue()
    assert "?" not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


def test_in_a_narrow_window_the_text_is_cut_and_no_number(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with TerminalDisplay(stream) as display:
        display.update("65536x28672x14336 bfloat16 nt: best 12345.67 us", 1234, 5678)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "1234/5678, 0:00 left" in plain
    assert max(map(len, re.split(r"[\r\n]+", plain))) <= 40


def test_a_notebook_shows_one_output_and_updates_it(monkeypatch):
    shown = []

    class Output:
        def update(self, data, raw):
            shown.append(data)

    def display(data, raw, display_id):
        shown.append(data)
        return Output()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    clock = Clock()
    with NotebookDisplay(clock=clock) as notebook:
        notebook.line("tuning <2> keys")
        clock.now = 10.0
        notebook.update("64x64x64: best 1.00 us", 10, 40)
        notebook.update("64x64x64: best 1.00 us", 11, 40)  # too soon to be drawn
    assert len(shown) == 3
    assert shown[1]["text/plain"] == (
        "10/40 trials, about 0:30 left; 64x64x64: best 1.00 us\ntuning <2> keys"
    )
    assert 'value="10" max="40"' in shown[1]["text/html"]
    assert "tuning &lt;2&gt; keys" in shown[1]["text/html"]
    assert shown[2]["text/plain"].startswith("11/40 trials")


def test_a_kernels_own_stream_is_a_notebook():
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    assert type(make_display(stream)) is NotebookDisplay
