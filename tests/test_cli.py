"""The command line itself: help, usage, exit codes, and which stream gets what."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys

import click
import pytest

import tunekit
from tunekit import cli as command_line
from tunekit import output
from tunekit.cli import cli, main
from tunekit.cli_files import POLICIES
from tunekit.errors import TunekitError

COMMANDS = (
    *("tune", "show", "explain", "bench", "report", "doctor", "completion"),
    *("export-cache", "import-cache", "record"),
)


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert tunekit.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_with_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.count(f"tunekit {command}") >= 2
    assert max(map(len, text.splitlines())) <= 100


def test_only_commands_that_work_are_offered():
    assert set(cli.commands) == set(COMMANDS)


@pytest.mark.parametrize(
    "argv",
    [
        ["nonsense"],
        ["tune"],
        ["tune", "--shapes", "a.yaml", "--shape", "1,1,1"],
        ["tune", "--shape", "1,1,1", "--trials", "0"],
        ["tune", "--shape", "1,1,1", "--seconds", "0"],
        ["tune", "--shape", "1,1,1", "--seconds", "nan"],
        ["tune", "--shape", "1,1,1", "--seed", "-1"],
        ["tune", "--shape", "1,1,1", "--sampler", "simplex"],
        ["tune", "--shape", "1,1,1", "--quiet", "--verbose"],
        ["show", "--nonsense"],
        ["show", "extra"],
        ["export-cache", "--format", "xml"],
        ["import-cache"],
        ["import-cache", "x.json", "--on-conflict", "guess"],
    ],
)
def test_wrong_usage_exits_2_and_leaves_stdout_clean(argv, capsys, own_cache):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
    assert not own_cache.exists()


def test_what_help_repeats_is_what_the_parts_offer():
    from tunekit.cache import Policy
    from tunekit.search import DEFAULT_TRIALS, SAMPLERS

    assert command_line.SAMPLERS == SAMPLERS
    assert set(POLICIES) == {policy.value for policy in Policy}
    (trials,) = [option for option in cli.commands["tune"].params if option.name == "trials"]
    assert f"[default: {DEFAULT_TRIALS}]" in trials.help


@pytest.fixture
def failing(monkeypatch):
    """Add a command that raises what it is told to."""

    def add(error):
        @click.command("fail")
        def fail():
            raise error

        monkeypatch.setitem(cli.commands, "fail", fail)

    return add


def test_an_error_of_the_user_is_one_line_and_exit_1(failing, capsys):
    failing(TunekitError("what is wrong\n  and where"))
    assert main(["fail"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "tunekit: what is wrong and where\n")


def test_a_fault_of_ours_keeps_its_traceback(failing):
    failing(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        main(["fail"])


def test_an_interrupt_exits_130(failing, capsys):
    failing(KeyboardInterrupt())
    assert main(["fail"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == "tunekit: interrupted"


def test_warnings_of_the_library_go_to_stderr(monkeypatch, capsys):
    @click.command("warn")
    def warn():
        logging.getLogger("tunekit.cache").warning("a row is %s", "damaged")

    monkeypatch.setitem(cli.commands, "warn", warn)
    assert main(["warn"]) == 0
    assert main(["warn"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "tunekit: warning: a row is damaged\n" * 2)


def test_a_reader_that_is_gone_is_no_error_message(tmp_path):
    script = (
        "import sys, click\n"
        "from tunekit.cli import cli, main\n"
        "from tunekit.output import answer\n"
        "cli.add_command(click.Command('flood', callback=lambda: answer('x' * 1000000)))\n"
        "sys.exit(main(['flood']))\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path
    )
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == b""


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["tune", "--help"]])
def test_help_loads_nothing_heavy(argv, tmp_path):
    script = (
        "import sys\n"
        "from tunekit.cli import main\n"
        f"main({argv!r})\n"
        "heavy = {'torch', 'triton', 'optuna', 'sqlalchemy', 'rich', 'yaml', 'numpy'}\n"
        "sys.exit(','.join(sorted(heavy & sys.modules.keys())) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_under_stdout_is_one_line(monkeypatch, capsys):
    class Full:
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(TunekitError, match="cannot write to stdout: No space left"):
        output.answer("x")


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    output.write_file(path, "first")
    link = tmp_path / "link.json"
    link.symlink_to(path)
    output.write_file(link, "second")
    assert link.is_symlink()
    assert path.read_text() == "second"

    def cut(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", cut)
    with pytest.raises(TunekitError, match=r"cannot write .*out\.json: No space left"):
        output.write_file(path, "third")
    assert path.read_text() == "second"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "out.json"]


@pytest.mark.parametrize("name", [".", "absent/out.json"])
def test_a_file_that_cannot_be_written_is_named(tmp_path, name):
    with pytest.raises(TunekitError, match="cannot write"):
        output.write_file(tmp_path / name, "x")


def test_json_is_one_document(capsys):
    output.answer_json({"schema": 1, "keys": []})
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "keys": []}


def test_a_line_cannot_drive_the_terminal(capsys):
    output.say("a\x1b[31m b\nc")
    assert capsys.readouterr().err == "tunekit: a?[31m b c\n"


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["shw"], "'show'"),
        (["explan", "1", "1", "1"], "'explain'"),
        (["export"], "'export-cache'"),
        (["tune", "--shaps", "a.yaml"], "--shapes"),
        (["bench", "--fail-bellow", "1"], "--fail-below"),
        (["report", "--gpus", "x"], "--gpu"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_was_meant(argv, meant, capsys):
    assert main(argv) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell, capsys):
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert f"_TUNEKIT_COMPLETE={shell}_complete" in text


def test_a_shell_that_completes_is_given_commands_and_options():
    from click.shell_completion import BashComplete

    complete = BashComplete(cli, {}, "tunekit", "_TUNEKIT_COMPLETE")
    assert [item.value for item in complete.get_completions([], "expl")] == ["explain"]
    assert [item.value for item in complete.get_completions(["bench"], "--fail")] == [
        "--fail-below"
    ]


@pytest.mark.parametrize(
    "before", [["tune", "--shapes"], ["tune", "--cache"], ["import-cache"], ["report", "-o"]]
)
def test_a_shell_completes_files_where_files_are_meant(before):
    from click.shell_completion import BashComplete

    complete = BashComplete(cli, {}, "tunekit", "_TUNEKIT_COMPLETE")
    (item,) = complete.get_completions(before, "sha")
    assert (item.value, item.type) == ("sha", "file")


@pytest.mark.parametrize("on_terminal", [True, False])
def test_there_are_colours_on_a_terminal_and_nowhere_else(on_terminal, monkeypatch):
    from tunekit.checkup import Check, Level
    from tunekit.cli_doctor import lines

    stream = Terminal() if on_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    checks = [Check("a", Level.PROBLEM, "b", "c")]
    text = "\n".join(lines(checks, paint=output.paint(), width=None))
    assert ("\x1b[31m" in text) is on_terminal
    assert "problem" in text

    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "\n".join(lines(checks, paint=output.paint(), width=None))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_are_broken_at_spaces_and_commands_are_not():
    text = "  to do  first this and then that: `tunekit tune --stale` for each of them"
    lines = output.wrap(text, 30, 9).splitlines()
    assert lines[0].startswith("  to do  first this")
    assert all(line.startswith(" " * 9) for line in lines[1:])
    assert any("`tunekit tune --stale`" in line for line in lines)
    assert output.wrap(text, None, 9) == text


def test_a_letter_that_stdout_lacks_is_written_otherwise(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    output.answer("caf\u00e9")
    assert stream.buffer.getvalue() == b"caf\\xe9\n"


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["tune", "shapes.yaml"], ("--shapes FILE or --shape M,N,K", "`tunekit tune --help`")),
        (["bench", "shapes.yaml", "--shapes", "x"], ("--shapes FILE;",)),
        (["completion"], ("bash, zsh, fish",)),
        (["explain"], ("missing argument 'M N K'; see `tunekit explain --help`",)),
        (["tune", "--trials"], ("'--trials' requires an argument",)),
        (["tune", "--trials", "many"], ("'many' is not a whole number;",)),
        (["tune", "--seconds", "long"], ("'long' is not a number;",)),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_do(argv, parts, capsys):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("tunekit: ")
    assert all(part in said for part in parts)


def test_help_is_cut_nowhere_and_needs_ascii_alone(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "..." not in text.split("Commands:")[1]
    for command in COMMANDS:
        assert main([command, "--help"]) == 0
        assert capsys.readouterr().out.isascii()


def test_help_on_a_full_disk_is_one_line(monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["--help"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
