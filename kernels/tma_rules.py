"""When a config of a variant that loads by TMA is legal, and worth a trial.

A TMA pipeline lives in shared memory, so the depth worth trying follows from its size; the order
of tiles and the parts of K matter only where there are waves to fill.
"""

from __future__ import annotations

from dataclasses import replace

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules as rules
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule

MOST_STAGES = 8
"""The deepest pipeline offered."""

RESERVED_BYTES = 1024
"""Shared memory the hardware keeps for each resident block."""

MOST_LINE_BYTES = 512
"""Bytes of BLOCK_K: a TMA line is 128, so that many are fetched in at most four boxes."""

LARGE_TILE = 128 * 128
MOST_WAVES = 8
"""Tiles for each multiprocessor beyond which only large tiles, which read less, are tried."""

MOST_RESIDENTS = 2
"""Programs on a multiprocessor: more would only make each one's pipeline shorter."""


def programs(config: Config, problem: Problem) -> int:
    """Return how many tiles and parts of tiles there are to compute."""
    return rules.tile_count(config, problem) * config.split_k


def residents(config: Config, device: DeviceInfo, shared_bytes: int) -> int:
    """Return how many programs with this much shared memory a multiprocessor holds at once."""
    by_memory = (device.shared_bytes + RESERVED_BYTES) // (shared_bytes + RESERVED_BYTES)
    # A thread holds its accumulators and about 40 registers more, of 64 K.
    threads = config.num_warps * device.warp_size
    registers = config.block_m * config.block_n + 40 * threads
    return max(1, min(by_memory, 65536 // registers))


def _hardware(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if not 90 <= device.capability < 110:
        return f"tensor descriptors are used on Hopper and Blackwell, not on {device.arch}"
    if not problem.aligned:
        return "an operand's base or leading dimension is no multiple of 16 bytes"
    if rules.tma_multiplies(problem):
        return None
    return f"{problem} has no warpgroup product of operands as TMA brings them"


def row_fits(problem: Problem) -> bool:
    """Say whether a dense result has rows that a descriptor of C can have: of whole 16 bytes."""
    return problem.n * ITEMSIZE[problem.out_dtype] % 16 == 0


def _output(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if not row_fits(problem):
        line = problem.n * ITEMSIZE[problem.out_dtype]
        return f"rows of {line} bytes are no multiple of 16, as a descriptor of C needs"
    return None


def _lines(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    line = config.block_k * ITEMSIZE[problem.dtype]
    if line < 128 < problem.k * ITEMSIZE[problem.dtype] or line > MOST_LINE_BYTES:
        return f"block_k={config.block_k} is {line} bytes, of 128 to {MOST_LINE_BYTES}"
    return None


def _threads(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    per_thread = config.block_m * config.block_n // (config.num_warps * device.warp_size)
    if config.num_warps > 4 and per_thread < 32:
        return f"{config.num_warps} warps with {per_thread} accumulators a thread"
    return None


def _group(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Allow each order of the tiles once, and only where the order can matter."""
    tiles_m = rules.ceil_div(problem.m, config.block_m)
    tiles_n = rules.ceil_div(problem.n, config.block_n)
    if min(tiles_m, tiles_n) == 1 or tiles_m * tiles_n <= device.multiprocessors:
        if config.group_size > 1:
            return f"group_size={config.group_size}, {tiles_m}x{tiles_n} tiles have one order"
    elif config.group_size == 1:
        return f"group_size=1 walks {tiles_n} tile columns at a time"
    elif config.group_size >= 2 * tiles_m and config.group_size > 8:
        return f"group_size={config.group_size} with {tiles_m} tile rows"
    return None


def _split(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if config.split_k == 1:
        return None
    whole = rules.tile_count(config, problem)
    if whole >= device.multiprocessors or whole * config.split_k > 2 * device.multiprocessors:
        return f"{whole} tiles in {config.split_k} parts on {device.multiprocessors} processors"
    return None


def whole_rows(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Refuse warps side by side: cutting a tile that they share moves it through shared memory."""
    if config.block_m // 16 < config.num_warps:
        return f"{config.num_warps} warps side by side on {config.block_m} rows"
    return None


def _waves(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if config.block_m * config.block_n >= LARGE_TILE:
        return None
    tiles = rules.tile_count(config, problem)
    if tiles > MOST_WAVES * device.multiprocessors:
        return f"{tiles} small tiles on {device.multiprocessors} multiprocessors"
    return None


def deep_rule(predict: rules.SharedBytes) -> Rule:
    """Return the rule that shared memory must not lie idle: it could hold more stages.

    The deepest pipeline that keeps as many programs on a multiprocessor is kept, and the one a
    stage less deep.
    """

    def check(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
        waves = rules.ceil_div(programs(config, problem), device.multiprocessors)
        steps = rules.k_tiles_per_part(config, problem)
        most = config.switch("residents", min(waves, MOST_RESIDENTS))
        here = min(most, residents(config, device, predict(config, problem, device)))
        if config.num_stages == 2 < steps:
            return f"num_stages=2 for {steps} steps along K: one is read, none is on its way"
        deeper = config.num_stages + 2
        if deeper > min(MOST_STAGES, max(2, steps)):
            return None
        needed = predict(replace(config, num_stages=deeper), problem, device)
        if needed > device.shared_bytes or min(most, residents(config, device, needed)) < here:
            return None
        return f"num_stages={config.num_stages} where {deeper} leave {here} resident as well"

    return Rule(
        "deep-pipeline", check, (*rules.TILE, "split_k", "num_warps", "num_stages", "switches")
    )


def residents_rule(predict: rules.SharedBytes) -> Rule:
    """Return the rule for the switch `residents`: that many programs fit, and there is work."""

    def check(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
        wanted = config.switch("residents")
        if wanted == 1:
            return None
        fit = residents(config, device, predict(config, problem, device))
        if fit < wanted:
            return f"{wanted} programs on a multiprocessor, {fit} fit"
        tiles = rules.tile_count(config, problem)
        if tiles <= device.multiprocessors:
            return f"{tiles} tiles on {device.multiprocessors} multiprocessors"
        return None

    return Rule("residents", check, (*rules.TILE, "num_warps", "num_stages", "switches"))


TMA_RULES = (
    Rule("tma", _hardware, ("variant",)),
    Rule("tma-lines", _lines, ("block_k",)),
    *rules.DOT_RULES,
)
"""What a config of every variant that loads by TMA must meet to run, beside its shared memory."""

OUTPUT_RULE = Rule("tma-output", _output, ("variant",))
"""The rule of variants that store through a descriptor of C."""

TMA_WORTH = (
    Rule("busy-threads", _threads, ("block_m", "block_n", "num_warps")),
    Rule("one-order", _group, ("block_m", "block_n", "group_size")),
    Rule("small-tiles", _waves, ("block_m", "block_n")),
    Rule("split-waves", _split, ("block_m", "block_n", "split_k")),
    rules.OVERSIZED,
    rules.IDLE_THREADS,
    rules.STAGES,
)
"""What makes a config of such a variant worth a trial."""
