"""`tunekit record`: a program runs as always, and its shapes are written however it ends."""

from __future__ import annotations

import importlib.util
import io
import os
import py_compile
import signal
import sys
import textwrap
import threading
import time
import types
import zipfile
from pathlib import Path

import pytest

from tunekit import cli_record
from tunekit.cli import main
from tunekit.cli_record import Program, parse_program
from tunekit.errors import ProgramError, TunekitError
from tunekit.recorder import Record, program
from tunekit.shapes import load_shapes, parse_shape

HERE = sys.executable


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a function that writes a script and gives its path."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def recorded(path="shapes.yaml"):
    return {(s.problem.m, s.problem.n, s.problem.k): (s.count, s.name) for s in load_shapes(path)}


def test_a_program_runs_as_by_itself_and_is_written_though_it_fails(script, capfd, tmp_path):
    path = script("""
        import atexit, os, sys, threading, torch
        import beside
        layer = torch.nn.Linear(64, 32)
        for _ in range(3):
            layer(torch.randn(8, 64)).square().sum().backward()
        thread = threading.Thread(target=lambda: torch.randn(8, 16) @ torch.randn(16, 24))
        thread.start()
        thread.join()
        atexit.register(lambda: torch.randn(7, 8) @ torch.randn(8, 9))
        torch.randn(3, 4).double() @ torch.randn(4, 5).double()
        def annotated(x: int): pass
        absolute = os.path.isabs(__file__)
        print(__name__, sys.argv[1:], sys.flags.utf8_mode, beside.here, input())
        print(annotated.__annotations__, absolute)
        raise KeyError("stop")
    """)
    script("here = 'beside'", "beside.py")
    os.chdir(tmp_path.parent)
    path = os.path.relpath(path)
    command = ["record", "-o", str(tmp_path / "out.yaml"), "--", HERE, "-X", "utf8", path]
    reader, writer = os.pipe()
    os.write(writer, b"typed\n")
    os.close(writer)
    stdin = os.dup(0)
    os.dup2(reader, 0)
    try:
        assert main([*command, "7", "--x", "-o", "y"]) == 1
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
        os.close(reader)
    captured = capfd.readouterr()
    told = "__main__ ['7', '--x', '-o', 'y'] 1 beside typed", "{'x': <class 'int'>} True"
    assert captured.out.splitlines() == list(told)
    assert "KeyError: 'stop'" in captured.err
    assert "program.py" not in captured.err  # as Python shows it, without what watches
    assert "not recorded: 1 product of another kind, aten.mm in float64" in captured.err
    assert "4 problems, 8 products" in captured.err
    assert recorded(tmp_path / "out.yaml") == {
        (8, 32, 64): (3, ""),
        (32, 64, 8): (3, "backward"),
        (8, 24, 16): (1, ""),
        (7, 9, 8): (1, ""),
    }


def test_a_terminated_program_is_written(script):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only a main thread can be told of a signal")
    code = """
        import os, signal, torch
        torch.randn(3, 4) @ torch.randn(4, 5)
        os.kill(os.getppid(), signal.SIGTERM)  # who started it, as a scheduler would
        while True:
            signal.pause()
    """
    command = ["record", "--", HERE, "-c", textwrap.dedent(code)]
    assert main(command) == 128 + signal.SIGTERM
    assert recorded() == {(3, 5, 4): (1, "")}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# what needs no process


@pytest.fixture
def started(monkeypatch):
    """Stand for the program: record what it would have, and end as told."""
    ends = {"code": 0, "seen": [], "skipped": []}

    def run(command):
        ends["command"] = command
        record = Record()
        writer = program.Writer(Path(command[command.index("tunekit.recorder") + 1]), record)
        for text in ends["seen"]:
            record.add(parse_shape(text).problem)
        for what in ends["skipped"]:
            record.skip(what)
        writer.write()
        return ends["code"]

    monkeypatch.setattr(cli_record, "_run", run)
    return ends


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (3, 3), (-2, 130), (-9, 137), (-15, 143)])
def test_the_exit_code_is_the_programs(script, started, code, exit_code):
    started |= {"code": code, "seen": ["64,64,64"]}
    assert main(["record", script("")]) == exit_code
    assert recorded() == {(64, 64, 64): (1, "")}


def test_ranks_that_end_one_after_the_other_add_up(script, started):
    path = script("")
    for _ in range(4):
        started["seen"] = ["64,64,64", "1,2,3"]
        assert main(["record", "-o", "all.yaml", "--", HERE, path]) == 0
    assert recorded("all.yaml") == {(64, 64, 64): (4, ""), (1, 2, 3): (4, "")}


@pytest.mark.parametrize(("code", "why"), [(0, "torchrun -m tunekit record"), (3, "exit code 3")])
def test_a_program_that_multiplies_nothing_leaves_no_file(script, started, capsys, code, why):
    started["code"] = code
    assert main(["record", script("")]) == code
    assert why in capsys.readouterr().err
    assert not Path("shapes.yaml").exists()


def test_a_file_that_cannot_be_added_to_is_an_error_before_the_program_runs(
    script, started, capsys
):
    path = script("")
    Path("shapes.yaml").write_text("shapes: nonsense\n")
    assert main(["record", path]) == 1
    assert "shapes.yaml:1" in capsys.readouterr().err
    assert main(["record", "-o", "missing/shapes.yaml", path]) == 1
    assert "no folder" in capsys.readouterr().err
    assert "command" not in started


def test_no_command_is_wrong_usage(capsys):
    assert main(["record"]) == 2
    assert main(["record", "-o", "x"]) == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "options", "kind", "target", "rest"),
    [
        (["a.py"], [], "script", "a.py", []),
        (["-u", "a.py", "-m", "x"], ["-u"], "script", "a.py", ["-m", "x"]),
        (["-X", "dev", "-Wignore", "a.py"], ["-X", "dev", "-Wignore"], "script", "a.py", []),
        (["-uW", "ignore", "a.py"], ["-uW", "ignore"], "script", "a.py", []),
        (["-m", "pkg.mod", "--x"], [], "module", "pkg.mod", ["--x"]),
        (["-mpkg.mod", "--x"], [], "module", "pkg.mod", ["--x"]),
        (["-u", "-", "-x"], ["-u"], "stdin", "-", ["-x"]),
        (["-um", "pkg.mod"], ["-u"], "module", "pkg.mod", []),
        (["-Oc", "print(1)", "y"], ["-O"], "code", "print(1)", ["y"]),
        (
            ["--check-hash-based-pycs", "never", "a.py"],
            ["--check-hash-based-pycs", "never"],
            "script",
            "a.py",
            [],
        ),
    ],
)
def test_pythons_own_command_line_is_understood(script, words, options, kind, target, rest):
    script("", "a.py")
    found = parse_program([HERE, *words])
    assert found == Program((HERE, *options), kind, target, tuple(rest))
    command = found.command(Path("/folder"))
    assert command == [
        HERE, *options, "-m", "tunekit.recorder", "/folder", kind, target, *rest
    ]  # fmt: skip


def test_a_script_alone_and_a_command_that_is_one_run_under_their_python(script, monkeypatch):
    path = script("", "a.py")
    assert parse_program([path, "x"]) == Program((HERE,), "script", path, ("x",))
    monkeypatch.setenv("PATH", str(Path(path).parent), prepend=os.pathsep)
    for line, interpreter in (
        (f"#!{HERE} -E", (HERE, "-E")),
        ("#!/usr/bin/env python3", ("python3",)),
    ):
        tool = Path(script(line + "\n", "tool"))
        tool.chmod(0o755)
        assert parse_program(["tool", "x"]) == Program(interpreter, "script", str(tool), ("x",))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["bash", "-c", "true"], "no Python program"),
        (["no-such-command"], "no command 'no-such-command'"),
        (["python-no-such", "x.py"], "no command 'python-no-such'"),
        ([HERE], "no program"),
        ([HERE, "-u"], "no program"),
        ([HERE, "-m"], "needs a value"),
        ([HERE, "missing.py"], "no script missing.py"),
        (["missing.py"], "no script missing.py"),
    ],
)
def test_what_is_no_python_program_is_one_line(words, why, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProgramError, match=why):
        parse_program(words)
    assert main(["record", "--", *words]) == 1
    assert capsys.readouterr().err.count("\n") == 1


PROGRAM = """
    import pickle, sys
    class Value: pass
    assert type(pickle.loads(pickle.dumps(Value()))) is Value
    assert sys.modules["__mp_main__"].Value is Value
    seen = __name__, sys.argv[1:], __package__
    sys.modules["results"].seen = seen
"""


@pytest.mark.parametrize(
    ("kind", "target", "argv0", "package"),
    [
        ("script", "prog.py", "prog.py", None),
        ("module", "prog", "{folder}/prog.py", ""),
        ("module", "pack", "{folder}/pack/__main__.py", "pack"),
        ("script", "pack", "pack", ""),
        ("script", "{folder}/pack.zip", "{folder}/pack.zip", ""),
        ("script", "prog.pyc", "prog.pyc", None),
        ("code", textwrap.dedent(PROGRAM), "-c", None),
        ("stdin", "-", "-", None),
    ],
)
def test_the_program_is_main_and_what_it_pickles_is_found(
    script, monkeypatch, tmp_path, kind, target, argv0, package
):
    py_compile.compile(script(PROGRAM, "prog.py"), str(tmp_path / "prog.pyc"))
    with zipfile.ZipFile(tmp_path / "pack.zip", "w") as pack:
        pack.writestr("__main__.py", textwrap.dedent(PROGRAM))
    typed = io.TextIOWrapper(io.BytesIO(textwrap.dedent(PROGRAM).encode()))
    monkeypatch.setattr(sys, "stdin", typed)
    (tmp_path / "pack").mkdir()
    script("", "pack/__init__.py")
    script(PROGRAM, "pack/__main__.py")
    results = types.ModuleType("results")
    for name, module in (("results", results), ("__main__", results), ("__mp_main__", results)):
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("pack", "pack.__main__", "prog"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "argv", ["python", "a", "b"])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    within = "" if kind in ("code", "stdin") else str(tmp_path)
    if kind == "script" and not target.startswith("prog"):
        within = str(tmp_path / Path(target).name)
    program.run_as_main(kind, target.replace("{folder}", str(tmp_path)), ["x", "-y"])
    assert results.seen == ("__main__", ["x", "-y"], package)
    assert sys.argv[0] == argv0.format(folder=tmp_path)
    assert sys.path[0] == within


def test_a_folder_without_a_program_ends_as_python_does(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["python"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = sys.modules["__main__"]
    with pytest.raises(SystemExit, match="can't find '__main__' module in"):
        program.run_as_main("script", str(tmp_path), [])
    assert sys.modules["__main__"] is before


@pytest.fixture
def python_started(monkeypatch):
    """Leave what a program changes of the interpreter as it was."""
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, ["first", "second"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType("before"))


@pytest.mark.usefixtures("python_started")
def test_the_path_of_a_safe_python_gets_a_folder_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "_is_path_safe", lambda: True)
    for name in ("__main__.py", "script.py"):
        (tmp_path / name).write_text("")
    program.run_as_main("script", str(tmp_path / "script.py"), [])
    program.run_as_main("code", "", [])
    assert sys.path == ["first", "second"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    spec = importlib.util.spec_from_file_location("__main__", tmp_path / "__main__.py")
    program.run_as_main("script", str(tmp_path), [])
    assert sys.path == [str(tmp_path), "first", "second"]


@pytest.mark.usefixtures("python_started")
def test_a_program_that_does_not_compile_is_shown_without_what_watches(tmp_path, capsys):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f(:\n")
    with pytest.raises(SyntaxError) as found:
        program.run_as_main("script", str(wrong), [])
    sys.excepthook(found.type, found.value, found.tb)
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].strip() == f'File "{wrong}", line 1'
    assert shown[-1] == "SyntaxError: invalid syntax"


@pytest.mark.parametrize("name", ["no_such_module", "no_such.module", "json.no_such"])
def test_a_module_that_is_not_there_ends_the_program_as_python_does(name):
    with pytest.raises(SystemExit, match="No module named"):
        program.run_as_main("module", name, [])


def test_what_was_counted_so_far_is_written_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "WRITE_SECONDS", 0.01)
    record = Record()
    writer = program.Writer(tmp_path, record)
    writer.begin()
    record.add(parse_shape("64,64,64").problem)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert program.read_records(tmp_path).products == record.products
    record.add(parse_shape("64,64,96").problem)
    writer.finish()
    assert "tunekit-record" not in {thread.name for thread in threading.enumerate()}
    assert program.read_records(tmp_path).products == record.products
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]


def test_a_fork_ends_though_its_parent_was_writing(tmp_path):
    record = Record()
    writer = program.Writer(tmp_path, record)
    writer.begin()
    record.add(parse_shape("64,64,64").problem)
    with writer._lock:
        child = os.fork()
        if child == 0:
            writer.restart()
            writer.finish()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / f"{child}.json").exists()
    writer.finish()


def test_a_folder_that_is_gone_is_no_error(tmp_path):
    record = Record()
    writer = program.Writer(tmp_path / "gone", record)
    record.add(parse_shape("64,64,64").problem)
    writer.write()


def test_where_nothing_was_counted_nothing_is_written(tmp_path):
    program.Writer(tmp_path, Record()).write()
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_the_program_is_not_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli_record, "parse_program", lambda command: parsed)
    monkeypatch.setattr("tunekit.recorder.shapes_file.os.access", lambda *how: False)
    out = tmp_path / "shapes.yaml"
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')"
    parsed = Program((HERE,), "code", code, ())
    assert main(["record", "-o", str(out), "--", HERE, "-c", code]) == 1
    assert "is not writable: name another with -o" in capsys.readouterr().err
    assert not ran.exists()


def test_what_was_recorded_is_kept_where_the_file_cannot_be_written(tmp_path, monkeypatch, capsys):
    from tunekit import cli_record
    from tunekit.recorder import Record
    from tunekit.recorder.shapes_file import add_to_shapes

    def full(path, products, *, source=""):
        if path == out:
            raise TunekitError(f"cannot write {path}: No space left on device")
        add_to_shapes(path, products, source=source)

    out = tmp_path / "shapes.yaml"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Record, "save", lambda self, path, source: full(path, self.products))
    record = Record()
    record.add(parse_shape("64,64,64").problem)
    with pytest.raises(
        TunekitError, match=r"No space left on device; what was recorded is in (.*)"
    ):
        cli_record.save(record, out, "python x.py", 0)
    (kept,) = tmp_path.glob("tunekit-record-*/shapes.yaml")
    assert load_shapes(kept)[0].problem == parse_shape("64,64,64").problem
