"""A compiler: a process that builds what it is asked for, and never touches a GPU."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tunekit.build_claims import BuildClaims
from tunekit.child import forget_output
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import TunekitError
from tunekit.kernels import FAMILIES, family, keep_compiler_key, store_binaries_alone
from tunekit.key import Problem
from tunekit.space import Space
from tunekit.trial import Status

NICENESS = 10
"""Compilers yield to the tuner and to the process that queues launches: those have deadlines."""

_PASSING = (errno.ESTALE, errno.EBUSY, errno.ENOENT)
"""What a shared cache folder may answer once while another process replaces a file."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """How a compilation ended."""

    status: Status
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Unwritable:
    """A compilation found no place for what it builds: no fault of the config's."""

    reason: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another process is building it."""


Build = Callable[[Problem, Config, DeviceInfo], Compiled]


class _WithoutTorch:
    """Finds no torch. Triton below 3.9 asks whether there is one, which takes longer than all else.

    Compilers have no tensors, and what stands for them is not torch's.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("compilers do not load torch", name=name)


def prepare(build: Build) -> None:
    """Load what compilers need, in the process that they are forks of."""
    os.nice(NICENESS)
    if build is compile_config:
        sys.meta_path.insert(0, _WithoutTorch)
        key = keep_compiler_key()
        for name in FAMILIES:
            family(name)  # takes time to import, which no compilation is to be charged for
        store_binaries_alone()
        key.join()


def serve(connection: Connection, build: Build) -> None:
    """Be a worker: compile what comes over the connection, until it closes."""
    claims = BuildClaims()
    connection.send("ready")
    while True:
        problem, config, device, number = connection.recv()
        forget_output()
        if config is None:
            connection.send(_space(problem, device))
            continue
        with claims.claim(number) as claimed:
            if claimed:
                connection.send("begun")
                outcome: Compiled | Unwritable = _built(build, problem, config, device)
        connection.send(outcome if claimed else Elsewhere())


def _space(problem: Problem, device: DeviceInfo) -> Space | TunekitError:
    try:
        return family(problem.family).space(problem, device)
    except TunekitError as error:
        return error


def _built(
    build: Build, problem: Problem, config: Config, device: DeviceInfo
) -> Compiled | Unwritable:
    for last in (False, True):
        try:
            return build(problem, config, device)
        except OSError as error:
            if last or error.errno not in _PASSING:
                return Unwritable(
                    f"cannot compile: {error}. Make room for what Triton writes (its cache is"
                    " ~/.triton unless TRITON_CACHE_DIR says otherwise) and run again"
                )
    raise AssertionError("unreachable")


def compile_config(problem: Problem, config: Config, device: DeviceInfo) -> Compiled:
    """Compile a config into Triton's cache and check what it takes of the device."""
    kernels = family(problem.family)
    try:
        shared = kernels.compile(config, problem, device)
    except Exception as error:
        failure = kernels.failure(error)
        if failure is None:
            raise
        return Compiled(*failure)
    if shared > device.shared_bytes:
        text = f"{shared} bytes of shared memory, {device.shared_bytes} there"
        return Compiled(Status.OUT_OF_RESOURCES, text)
    return Compiled(Status.OK)
