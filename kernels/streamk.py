"""Persistent TMA tiles whose last, partly filled wave is cut along K, so that no program idles.

With P programs, the first F = T // P * P of T tiles are computed as in the persistent variant. Each
of the R = T - F others is cut into SPLIT_K parts, at most one for each program, which are summed in
fixed order as split-K does it everywhere. 192 tiles on 132 multiprocessors are then one wave and
two parts of a half, 1.5 tiles' time in place of 2. `epilogue` is that of the persistent variant.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.kernels.descriptors import describes, descriptor, multiply_add, store_parts
from tunekit.kernels.partials import finish_tile, partials_at_once
from tunekit.kernels.persistent import shared_bytes as whole_bytes
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.stand_ins import dot_settings, in_unit
from tunekit.kernels.tiles import tile_of
from tunekit.kernels.tma_rules import (
    OUTPUT_RULE,
    TMA_RULES,
    TMA_WORTH,
    deep_rule,
    whole_rows,
)
from tunekit.kernels.workspaces import split_workspace
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace

PARTS = (2, 3, 4, 5, 6, 8, 12, 16)

SUM_COST = 64
"""Elements along K, in each part, for each partial of its tile: fewer do not pay for the sum.

One program reads all of a tile's partials back, while the others are done. Multiplying takes it
about a clock for 2048 elements along K, and a partial up to an eighth of one, so that the fastest
number of parts is about sqrt(K / 256), or sqrt(K / 128) where L2 answers at once.
"""

LEAST_GAIN = 0.03
"""The share of the whole time that cutting the last wave must save, by the count of waves."""


@triton.jit(do_not_specialize=["M", "N", "K", "stride_cm", "GROUP_SIZE", "REST", "SPLIT_K"])
def streamk_kernel(
    a,
    b,
    c,
    c_ptr,
    workspace_ptr,
    arrivals_ptr,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    GROUP_SIZE,
    REST,
    SPLIT_K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EPILOGUE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_CM: tl.constexpr,
    A_STORED: tl.constexpr,
    B_STORED: tl.constexpr,
    C_DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Compute the whole tiles of C = A @ B that fall to this program, and its part of another.

    `c` is what whole tiles are stored through, C's descriptor or C itself.
    """
    N, stride_cm = N * UNIT_N, stride_cm * UNIT_CM
    pid = tl.program_id(0)
    k_tiles = tl.cdiv(K, BLOCK_K)
    tl.assume(k_tiles > 0)
    whole = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N) - REST
    for tile in tl.range(pid, whole, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_of(tile, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
        first_m = tile_m * BLOCK_M
        first_n = tile_n * BLOCK_N

        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for tile_k in range(k_tiles):
            acc = multiply_add(
                a, b, acc, first_m, first_n, tile_k * BLOCK_K,
                A_STORED, B_STORED, PRECISION, UPCAST,
            )  # fmt: skip

        store_parts(
            c, acc, first_m, first_n, M, N, stride_cm, stride_cn,
            BLOCK_M, BLOCK_N, EPILOGUE, C_DESCRIBED,
        )  # fmt: skip

    if pid < REST * SPLIT_K:
        cut = pid % REST
        part = pid // REST
        rest_m, rest_n = tile_of(whole + cut, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
        from_m = rest_m * BLOCK_M
        from_n = rest_n * BLOCK_N

        some = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(part * k_tiles // SPLIT_K, (part + 1) * k_tiles // SPLIT_K):
            some = multiply_add(
                a, b, some, from_m, from_n, step * BLOCK_K,
                A_STORED, B_STORED, PRECISION, UPCAST,
            )  # fmt: skip

        finish_tile(
            c_ptr, some, from_m, from_n, M, N, stride_cm, stride_cn, cut, part,
            workspace_ptr, arrivals_ptr, SPLIT_K, BLOCK_M, BLOCK_N,
            True, AT_ONCE, 0, False, False,
        )  # fmt: skip


def last_wave(config: Config, problem: Problem, device: DeviceInfo) -> tuple[int, int]:
    """Return how many full waves of tiles there are, and how many tiles are left after them."""
    return divmod(rules.tile_count(config, problem), device.multiprocessors)


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of one program: that of its whole tiles, or that of a part.

    They follow one another and share it. A part is rearranged in float32 where its pipeline was.
    """
    return max(whole_bytes(config, problem, device), config.block_m * config.block_n * 4)


def _last_wave(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    _, rest = last_wave(config, problem, device)
    if rest == 0:
        return "the last wave is full: there is no tile to cut"
    if rest * config.split_k > device.multiprocessors:
        return f"{rest} tiles in {config.split_k} parts, {device.multiprocessors} programs"
    return None


def _whole_rows(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    return None if config.switch("epilogue") == 1 else whole_rows(config, problem, device)


def _parts(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Try as many parts as there are programs for and as pay, and the power of two below that."""
    waves, rest = last_wave(config, problem, device)
    parts = config.split_k
    pay = [s for s in PARTS if s * rest <= device.multiprocessors and s * s * SUM_COST <= problem.k]
    most = max(pay, default=0)
    below = 1 << (most - 1).bit_length() - 1 if most else 0
    if parts not in (most, below):
        return f"{rest} tiles in {parts} parts where {most} fit and pay"
    if waves == 0 and parts & (parts - 1) == 0:
        return f"{rest} tiles in {parts} parts are what plain split-K does"
    gain = (1 - 1 / parts) / (waves + 1)
    if gain < LEAST_GAIN:
        return f"{gain:.1%} to gain after {waves} waves"
    return None


def _epilogue(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Store in halves only where a whole tile leaves no room for as many stages."""
    if config.switch("epilogue") == 1:
        return None
    at_once = replace(config, switches=(("epilogue", 1),))
    if shared_bytes(at_once, problem, device) <= device.shared_bytes:
        return f"{config.num_stages} stages leave room to store the whole tile"
    return None


def _for_whole_tiles(rule: Rule) -> Rule:
    """Ask a rule about the whole tiles, which are most of the work, one program at a time."""

    def check(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
        switches = (*config.switches, ("residents", 1))
        return rule.check(replace(config, split_k=1, switches=switches), problem, device)

    return Rule(rule.name, check, tuple(name for name in rule.fields if name != "split_k"))


class StreamK:
    """The variant with a cut last wave as the family knows it."""

    name = "streamk"
    kernels = (streamk_kernel,)
    space = VariantSpace(
        variant="streamk",
        choices={
            "block_m": (64, 128, 256),
            "block_n": (64, 128, 256),
            "block_k": (64, 128),
            "group_size": (1, 8, 16),
            "split_k": PARTS,
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4, 5, 6, 7, 8),
            "epilogue": (1, 2),
        },
        rules=(
            OUTPUT_RULE,
            rules.PLAIN,
            *TMA_RULES,
            rules.POWER_OF_TWO,
            rules.REGISTERS,
            Rule("last-wave", _last_wave, ("block_m", "block_n", "split_k")),
            Rule("whole-rows", _whole_rows, ("block_m", "num_warps", "switches")),
            rules.shared_rule(shared_bytes),
        ),
        worth=(
            Rule("parts", _parts, ("block_m", "block_n", "split_k")),
            *(_for_whole_tiles(rule) for rule in TMA_WORTH),
            Rule("epilogue", _epilogue, (*rules.TILE, "num_warps", "num_stages", "switches")),
            _for_whole_tiles(deep_rule(shared_bytes)),
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch a program for each multiprocessor, or for each part if there are only parts."""
        waves, rest = last_wave(config, problem, device)
        workspace, arrivals = split_workspace(config, out, rest)
        a_stored, b_stored = (major == "n" for major in problem.layout)
        block_m, block_n, block_k = config.block_m, config.block_n, config.block_k
        itemsize = ITEMSIZE[problem.out_dtype]
        n, unit_n = in_unit(problem.n, itemsize)
        stride_cm, unit_cm = in_unit(out.stride(0), itemsize)
        c, epilogue, described = out, 1, describes(out)
        if described:
            epilogue = config.switch("epilogue")
            c = descriptor(out, stored=True, block_rows=block_m, block_columns=block_n // epilogue)
        args = (
            descriptor(a, stored=a_stored, block_rows=block_m, block_columns=block_k),
            descriptor(b, stored=b_stored, block_rows=block_k, block_columns=block_n),
            c, out, workspace, arrivals,
            problem.m, n, problem.k, stride_cm, out.stride(1),
            config.group_size, rest, config.split_k,
        )  # fmt: skip
        options = {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "EPILOGUE": epilogue,
            "AT_ONCE": partials_at_once(config, device),
            "UNIT_N": unit_n,
            "UNIT_CM": unit_cm,
            "A_STORED": a_stored,
            "B_STORED": b_stored,
            "C_DESCRIBED": described,
            **dot_settings(problem),
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }
        programs = device.multiprocessors if waves else rest * config.split_k
        return KernelCall(streamk_kernel, (programs,), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)
