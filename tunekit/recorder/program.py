"""A whole program run under a recorder, in a process of its own: what `tunekit record` starts.

The program is this process's `__main__` and keeps its arguments, its exit code and its standard
streams. What was counted goes to a file in a folder that the starting process reads: every few
seconds, so that little is lost if this process is killed, and at its very end.
"""

from __future__ import annotations

import atexit
import importlib.util
import io
import json
import os
import signal
import sys
import threading
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from pkgutil import get_importer
from typing import Any

import torch

from tunekit.recorder.counting import Record
from tunekit.recorder.mode import watch
from tunekit.recorder.module_names import module_names

WRITE_SECONDS = 5.0


def main(arguments: Sequence[str]) -> None:
    """Record the program that the arguments name: FOLDER KIND TARGET ARGUMENT...

    The kind is script, module, code or stdin.
    """
    folder, kind, target, *rest = arguments
    record = Record()
    writer = Writer(Path(folder), record)
    # Before anything of the program's, so that it runs after everything of the program's.
    atexit.register(writer.finish)
    writer.begin()
    os.register_at_fork(after_in_child=record.restart)  # what the parent counted, it writes
    os.register_at_fork(after_in_child=writer.restart)
    torch.compiler.set_stance("force_eager")  # what is compiled in one piece cannot be watched
    module_names().__enter__()  # never left: the program's end is the process's
    record_threads(record)
    watch(record)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)
    run_as_main(kind, target, rest)


def record_threads(record: Record) -> None:
    """Have each thread that is started from now on recorded: a mode is a thread's own."""

    def begin(*event: Any) -> None:
        sys.setprofile(None)
        watch(record)

    threading.setprofile(begin)


class Writer:
    """Writes what a process counted to a file that bears its number."""

    def __init__(self, folder: Path, record: Record) -> None:
        self._folder = folder
        self._record = record
        self._written = json.dumps(record.to_dict())
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Write every few seconds from now on."""
        self._thread = threading.Thread(target=self._run, name="tunekit-record", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Write for the last time. A thread left running as Python ends can abort the process."""
        if self._thread is not None:
            self._over.set()
            self._thread.join(WRITE_SECONDS)
        self.write()

    def restart(self) -> None:
        """Go on in a forked child, which has none of its parent's threads."""
        self._lock = threading.Lock()
        self._thread = None

    def write(self) -> None:
        """Write the record whole, if it has changed."""
        with self._lock:
            text = json.dumps(self._record.to_dict())
            if text == self._written:
                return
            part = self._folder / f"{os.getpid()}.part"
            try:
                part.write_text(text, encoding="utf-8")
                part.replace(self._folder / f"{os.getpid()}.json")
            except OSError:
                return  # the folder is gone with whoever asked
            self._written = text

    def _run(self) -> None:
        while not self._over.wait(WRITE_SECONDS):
            self.write()


def read_records(folder: Path) -> Record:
    """Add up what the processes of a program wrote."""
    record = Record()
    for file in sorted(folder.glob("*.json")):
        record.update(json.loads(file.read_text(encoding="utf-8")))
    return record


def _end(number: int, frame: types.FrameType | None) -> None:
    raise SystemExit(128 + number)


def run_as_main(kind: str, target: str, arguments: list[str]) -> None:
    """Run a program as Python runs it when it is told to: without this file's `__future__`."""
    main_module = types.ModuleType("__main__")
    sys.excepthook = _show_error
    if kind == "module":
        spec = _module_spec(target)
        code = _specified(main_module, spec)
        sys.argv[0] = str(spec.origin)
    elif kind == "script" and get_importer(target) is not None:  # a folder, or a zip
        sys.argv[0] = target
        if _is_path_safe():
            sys.path.insert(0, "")  # it is put first whatever Python was told
        sys.path[0] = str(Path(target).absolute())
        code = _specified(main_module, _spec_within(sys.path[0]))
    elif kind == "script":
        sys.argv[0] = target
        code = _script(main_module, target)
    else:
        sys.argv[0] = "-c" if kind == "code" else "-"
        source: str | bytes = target if kind == "code" else sys.stdin.buffer.read()
        if kind == "stdin":
            main_module.__file__ = "<stdin>"
        if not _is_path_safe():
            sys.path[0] = ""
        name = "<string>" if kind == "code" else "<stdin>"
        code = compile(source, name, "exec", dont_inherit=True)
    if code is None:
        raise SystemExit(f"{sys.executable}: {target} has no code to run")
    sys.argv[1:] = arguments
    # multiprocessing finds what is pickled by the second name, in a child that it spawned.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main_module
    exec(code, main_module.__dict__)


def _specified(main_module: types.ModuleType, spec: ModuleSpec) -> types.CodeType | None:
    """Let a module be what a spec says; returns its code."""
    main_module.__spec__, main_module.__package__ = spec, spec.parent
    main_module.__file__, main_module.__loader__ = str(spec.origin), spec.loader
    get_code = getattr(spec.loader, "get_code", None)  # not of every loader
    code = None if get_code is None else get_code(spec.name)
    assert code is None or isinstance(code, types.CodeType)
    return code


def _script(main_module: types.ModuleType, target: str) -> types.CodeType | None:
    """Let a module be a file's, of source or compiled; returns its code."""
    main_module.__file__ = str(Path(target).absolute())
    if not _is_path_safe():
        sys.path[0] = str(Path(target).resolve().parent)
    compiled = SourcelessFileLoader("__main__", main_module.__file__)
    if target.endswith(".pyc"):
        main_module.__loader__ = compiled
        return compiled.get_code("__main__")
    main_module.__loader__ = SourceFileLoader("__main__", main_module.__file__)
    with io.open_code(str(Path(target).resolve())) as file:
        return compile(file.read(), main_module.__file__, "exec", dont_inherit=True)


def _is_path_safe() -> bool:
    """Say whether Python was told to look for modules where they are installed alone."""
    return bool(getattr(sys.flags, "safe_path", sys.flags.isolated))


def _show_error(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Show what ended the program as Python does: from its own first frame on, without ours."""
    first = trace
    while first is not None and first.tb_frame.f_code is not run_as_main.__code__:
        first = first.tb_next
    shown = trace if first is None else first.tb_next
    ours = run_as_main.__code__.co_filename
    while shown is not None and shown.tb_frame.f_code.co_filename == ours:
        shown = shown.tb_next
    sys.__excepthook__(kind, error.with_traceback(shown), shown)


def _module_spec(name: str) -> ModuleSpec:
    """Return where a module is, or of a package what runs in its place.

    Raises:
        SystemExit: there is none; the text is what Python says.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        raise SystemExit(f"{sys.executable}: {error}") from error
    if spec is None:
        raise SystemExit(f"{sys.executable}: No module named {name}")
    return spec


def _spec_within(place: str) -> ModuleSpec:
    """Return where the `__main__` of a folder or a zip is, which is first on the path.

    Raises:
        SystemExit: there is none; the text is what Python says.
    """
    ours = sys.modules.pop("__main__")  # else it would be found
    try:
        spec = importlib.util.find_spec("__main__")
    finally:
        sys.modules["__main__"] = ours
    if spec is None:
        raise SystemExit(f"{sys.executable}: can't find '__main__' module in {place!r}")
    return spec
