"""Problems, configs and devices as numbers a forest can split on.

Trees split one number at a time, so each quantity that decides a time is a column of its own, and
sizes are logarithms. Nothing here knows a kernel: all is computed from the fields every config
has, with one column for each variant and switch that occurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import FIELDS

Matrix = np.ndarray[Any, np.dtype[np.float64]]

_REGISTERS = 65536
_REGISTERS_BESIDE = 40
_RESERVED_BYTES = 1024
_OPS_PER_MULTIPROCESSOR = 7.5e12
"""16-bit tensor-core operations a second of one multiprocessor of an H200."""
_BYTES_PER_SECOND = 4.8e12
"""Only the ratio to the operations matters, and a forest trained on one kind of GPU learns it."""


class ConfigTable:
    """Configs in columns that do not depend on the problem."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self.configs = tuple(configs)
        rows = [[getattr(c, name) for name in FIELDS] for c in self.configs]
        self.fields = np.array(rows, dtype=np.float64).reshape(len(rows), len(FIELDS))

    def own(self, variants: Sequence[str], switches: Sequence[str]) -> Matrix:
        """Return one column a variant, 1 where it is the config's, and one a switch, -1 if absent.

        Variants differ in everything a tile's size does not say, switches in what a variant's name
        does not.
        """
        rows = [
            [float(c.variant == name) for name in variants]
            + [float(c.switch(name, -1)) for name in switches]
            for c in self.configs
        ]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(variants) + len(switches))


def roofline_us(problem: Problem, device: DeviceInfo) -> float:
    """Return a bound on the time from below, in microseconds: of a GPU like this one, roughly."""
    size = ITEMSIZE[problem.dtype]
    operations = _OPS_PER_MULTIPROCESSOR * device.multiprocessors * 2 / size
    return 1e6 * max(problem.flops / operations, problem.min_bytes / _BYTES_PER_SECOND)


def features(problem: Problem, device: DeviceInfo, table: ConfigTable) -> Matrix:
    """Return a row of numbers for each config of the table, on this problem and device."""
    columns = [
        *np.log2(table.fields.T),  # the tile and the launch, as they stand in the config
        *_of_tiles(problem, device, table),
        *_of_program(problem, device, table),
        *(np.full(len(table.configs), value) for value in _of_problem(problem, device)),
    ]
    return np.column_stack(columns).astype(np.float64)


def _of_tiles(problem: Problem, device: DeviceInfo, table: ConfigTable) -> list[Matrix]:
    """Return what follows from how the tiles cover the product and the multiprocessors."""
    m, n, k = float(problem.m), float(problem.n), float(problem.k)
    size = float(ITEMSIZE[problem.dtype])
    block_m, block_n, block_k, group, split, _, _ = table.fields.T
    tiles_m, tiles_n = np.ceil(m / block_m), np.ceil(n / block_n)
    programs = tiles_m * tiles_n * split * problem.batch
    waves = programs / device.multiprocessors
    full = waves / _resident(problem, device, table)
    steps = np.ceil(np.ceil(k / block_k) / split)
    moved = (m * k * tiles_n + n * k * tiles_m) * size + m * n * size
    return [
        # How many multiprocessors have work, and what of the last wave is idle: the largest single
        # loss of mid sizes. Once by one program each, once by as many as fit.
        np.log2(programs),
        np.log2(waves),
        np.ceil(waves) / waves,
        np.ceil(full) / full,
        np.ceil(waves),
        np.minimum(waves, 1.0),
        # What is multiplied of nothing: tiles past the edge.
        tiles_m * block_m * tiles_n * block_n / (m * n),
        steps * split * block_k / k,
        # What all tiles read together, over what must be read; partial sums besides.
        np.log2(moved / problem.min_bytes),
        np.log2(1.0 + split * m * n * 4.0 / problem.min_bytes) * (split > 1),
        # The order of the tiles: rows of tiles walked together, of those there are.
        np.minimum(group, tiles_m) / tiles_m,
        np.log2(tiles_m),
        np.log2(tiles_n),
    ]


def _of_program(problem: Problem, device: DeviceInfo, table: ConfigTable) -> list[Matrix]:
    """Return what follows from what one program holds and does."""
    block_m, block_n, block_k, _, split, warps, stages = table.fields.T
    tiles = np.ceil(problem.m / block_m) * np.ceil(problem.n / block_n)
    programs = tiles * split * problem.batch
    steps = np.ceil(np.ceil(problem.k / block_k) / split)
    stage = (block_m + block_n) * block_k * ITEMSIZE[problem.dtype]
    resident = _resident(problem, device, table)
    at_once = np.minimum(resident, np.ceil(programs / device.multiprocessors))
    everywhere = np.minimum(programs, device.multiprocessors * resident)
    return [
        # The loop: its length, and the share that fills and empties the pipeline.
        np.log2(steps),
        stages / steps,
        # Shared memory decides how many programs a multiprocessor holds; registers a thread do too,
        # and too many spill.
        np.log2(stage * stages),
        stage * stages / device.shared_bytes,
        resident,
        block_m * block_n / (warps * device.warp_size),
        # Bytes on their way at once hide the memory's latency: what small products live on.
        np.log2(stage * np.minimum(stages, steps) * at_once),
        np.log2(stage * np.minimum(stages, steps) * everywhere),
        # Arithmetic intensity of the tile, and its shape.
        np.log2(block_m * block_n / (block_m + block_n)),
        np.log2(block_m / block_n),
    ]


def _of_problem(problem: Problem, device: DeviceInfo) -> list[float]:
    """Return what is multiplied, and where: so a tree may hold a rule to small products only."""
    return [
        *(float(np.log2(size)) for size in (problem.m, problem.n, problem.k, problem.batch)),
        float(np.log2(problem.flops / problem.min_bytes)),
        float(np.log2(roofline_us(problem, device))),
        float(ITEMSIZE[problem.dtype]),
        float(ITEMSIZE[problem.out_dtype]),
        float(problem.dtype == "bfloat16"),
        float(problem.precision == "tf32"),
        float(problem.layout[0] == "t"),
        float(problem.layout[1] == "t"),
        float(problem.aligned),
        float(problem.scaling != "none"),
        float(device.multiprocessors),
        float(device.shared_bytes),
        float(device.l2_bytes),
        float(device.capability),
    ]


def _resident(problem: Problem, device: DeviceInfo, table: ConfigTable) -> Matrix:
    """Return how many programs a multiprocessor holds at once, by shared memory and registers."""
    block_m, block_n, block_k, _, _, warps, stages = table.fields.T
    shared = (block_m + block_n) * block_k * ITEMSIZE[problem.dtype] * stages
    by_memory = (device.shared_bytes + _RESERVED_BYTES) / (shared + _RESERVED_BYTES)
    threads = warps * device.warp_size
    by_registers = _REGISTERS / (block_m * block_n + _REGISTERS_BESIDE * threads)
    return np.asarray(np.clip(np.floor(np.minimum(by_memory, by_registers)), 1, 32))
