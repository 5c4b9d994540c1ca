"""What a nursery in a test prepares, and what its forks do. Both import this module by name."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tunekit.child import forget_output

PREPARED = []


def prepare(what=None):
    """Be ready, or do what goes wrong there."""
    PREPARED.append(os.getpid())
    if what == "abort":
        print("LLVM ERROR: an import", file=sys.stderr, flush=True)
        os.abort()
    elif what == "raise":
        raise TypeError("a bug")
    elif what == "few files":
        used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
        free = [number for number in range(256) if number not in used]
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[4], most))  # it takes three for itself
    elif what == "no forks":
        os.fork = refuse
    elif what == "no signals":  # as on what is not Linux itself
        fcntl.fcntl = refuse


def refuse(*arguments):
    raise BlockingIOError(11, os.strerror(11))


def serve(connection, *args):
    """Do what is asked for."""
    while True:
        asked = connection.recv()
        forget_output()
        if asked == "abort":
            print("LLVM ERROR: no luck", file=sys.stderr, flush=True)
            os.abort()
        elif asked == "exit":
            os._exit(3)
        elif asked == "leave":
            sys.exit("out of here")
        elif asked == "raise":
            raise TypeError("a bug")
        elif asked == "start":
            started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            connection.send(started.pid)
        elif asked == "state":
            sigint = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            where = (os.getppid(), os.getpgrp(), os.getsid(0))
            connection.send((args, PREPARED, os.environ.get("ONLY_HERE"), sigint, where))
        elif asked == "files":
            connection.send(open_files("self"))


def open_files(pid):
    """Return what a process has open that is nobody else's: pipes, sockets, files in memory."""
    found = []
    for name in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            target = str(name.readlink())
            if target.startswith(("pipe:", "socket:", "/memfd:")):
                found.append(f"{target} {name.stat().st_ino}")
    return found
