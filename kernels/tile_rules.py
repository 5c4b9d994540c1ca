"""What makes a tiled config legal, and how much shared memory it takes.

Rules that variants share. Each answers None, or why not, with the numbers. The first kind keeps out
what cannot compile or run, the second what cannot be worth a trial for this problem on this device.
"""

from __future__ import annotations

from collections.abc import Callable

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule

MAX_ACCUMULATORS = 128
"""Float32 accumulators a thread may hold: more spill out of 255 registers."""


FEWEST_WARPS = 2
"""Never too many for a tile: on wavefronts of 64 the smallest tile would else have no config."""


SharedBytes = Callable[[Config, Problem, DeviceInfo], int]
"""Predicts the shared memory of one program of a variant."""


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def next_power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def tile_count(config: Config, problem: Problem) -> int:
    """Return how many tiles cover C, or all of them where there are several."""
    tiles = ceil_div(problem.m, config.block_m) * ceil_div(problem.n, config.block_n)
    return tiles * problem.batch


def k_tiles_per_part(config: Config, problem: Problem) -> int:
    """Return how many BLOCK_K steps one program takes at most."""
    return ceil_div(ceil_div(problem.k, config.block_k), config.split_k)


def _power_of_two(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    for name in ("block_m", "block_n", "block_k", "num_warps"):
        value = getattr(config, name)
        if value & (value - 1):
            return f"{name}={value} is not a power of two"
    return None


def _smallest_dot(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    least_k = 32 if ITEMSIZE[problem.dtype] == 1 else 16
    for name, least in (("block_m", 16), ("block_n", 16), ("block_k", least_k)):
        if getattr(config, name) < least:
            return f"{name}={getattr(config, name)}, a {problem.dtype} dot needs {least}"
    return None


def _oversized(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    for name, size in (("block_m", problem.m), ("block_n", problem.n), ("block_k", problem.k)):
        most = max(16, next_power_of_two(size))
        if ITEMSIZE[problem.dtype] == 1 and name == "block_k":
            most = max(32, most)
        if getattr(config, name) > most:
            return f"{name}={getattr(config, name)} for a size of {size}"
    return None


def _registers(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    threads = config.num_warps * device.warp_size
    per_thread = config.block_m * config.block_n / threads
    if per_thread > MAX_ACCUMULATORS:
        return f"{per_thread:.0f} accumulators a thread, at most {MAX_ACCUMULATORS}"
    return None


def _idle_threads(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    threads = config.num_warps * device.warp_size
    if config.num_warps > FEWEST_WARPS and config.block_m * config.block_n < 4 * threads:
        return f"{config.block_m}x{config.block_n} tile for {threads} threads"
    return None


def _stages(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    steps = k_tiles_per_part(config, problem)
    if config.num_stages > max(2, steps):
        return f"num_stages={config.num_stages} for {steps} steps along K"
    return None


def _group(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Allow each order of the tiles once, and only where the order can matter."""
    if config.group_size == 1:
        return None
    tiles_m, tiles_n = ceil_div(problem.m, config.block_m), ceil_div(problem.n, config.block_n)
    if min(tiles_m, tiles_n) == 1 or tiles_m * tiles_n <= device.multiprocessors:
        return f"group_size={config.group_size}, {tiles_m}x{tiles_n} tiles have one order"
    return None


def _index_range(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Keep the kernels' 32-bit arithmetic on sizes, tiles and steps within 32 bits."""
    blocks = (config.block_m, config.block_n, config.block_k)
    rounded = max(
        size + block for size, block in zip((problem.m, problem.n, problem.k), blocks, strict=True)
    )
    tiles = ceil_div(problem.m, config.block_m) + config.group_size
    tiles *= ceil_div(problem.n, config.block_n) * problem.batch
    steps = ceil_div(problem.k, config.block_k) * (config.split_k + 1)
    if max(rounded, tiles, steps) >= 1 << 31:
        return f"{problem.m}x{problem.n}x{problem.k} in such tiles passes 32 bits"
    return None


def _parts(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    k_tiles = ceil_div(problem.k, config.block_k)
    if config.split_k > 1 and k_tiles < config.split_k:
        return f"split_k={config.split_k} of {k_tiles} steps along K"
    return None


def _shared_sum(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Let parts wait for each other only where all of them are sure to be resident."""
    if not config.switch("shared"):
        return None
    programs = tile_count(config, problem) * config.split_k
    if config.split_k == 1:
        return "shared=1 where there is one part"
    if device.backend != "cuda" or programs > device.multiprocessors:
        return f"shared=1 with {programs} programs on {device.multiprocessors} multiprocessors"
    if config.block_m * config.block_n < 2 * config.split_k:
        return f"shared=1 with {config.split_k} parts of a tile"
    return None


def _sum_worth(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Share the sum between parts where there is much to sum, for each waits for all of them."""
    partials = 4 * config.block_m * config.block_n * config.split_k
    if config.switch("shared") and config.split_k < FEWEST_TO_SHARE and partials < LEAST_TO_SHARE:
        return f"shared=1 with {config.split_k} parts, {partials} bytes in all"
    if not config.switch("shared") and config.split_k > MOST_FOR_ONE:
        return f"{config.split_k} parts for one program to sum"
    return None


FEWEST_TO_SHARE = 8
MOST_FOR_ONE = 32
"""Parts of K between which one program sums all of a tile, or each part a slice of it."""

LEAST_TO_SHARE = 128 * 1024
"""Bytes of a tile's partials that fewer parts share, too."""


def _idle_split(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if config.split_k == 1:
        return None
    k_tiles = ceil_div(problem.k, config.block_k)
    if k_tiles < 2 * config.split_k:
        return f"split_k={config.split_k} of {k_tiles} steps along K"
    programs = tile_count(config, problem) * config.split_k
    if programs > 4 * device.multiprocessors:
        return f"{programs} programs on {device.multiprocessors} multiprocessors: no need to split"
    return None


def _dtype(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if not problem.dtype.startswith("float8"):
        return None
    if device.backend != "cuda":
        return f"{problem.dtype} is multiplied on CUDA devices, not on {device.arch}"
    if 0 < device.capability < 89:
        return f"{problem.dtype} needs compute capability 8.9, {device.arch} is older"
    return None


def _plain(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    wide = ITEMSIZE[problem.dtype] > 1 and problem.out_dtype == problem.dtype
    if not wide or problem.scaling != "none" or problem.batch != 1:
        return f"{problem} is not a plain product: of 16 or 32 bits, unscaled, one by one"
    return None


def _single(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    return None if problem.batch == 1 else f"{problem.batch} products, this variant computes one"


def tma_multiplies(problem: Problem) -> bool:
    """Say whether tensor cores multiply the operands as TMA brings them to shared memory.

    A warpgroup's product reads 16-bit operands along either dimension, others along K alone.
    """
    if ITEMSIZE[problem.dtype] == 2:
        return True
    along_k = problem.layout == "nt"
    return along_k and (problem.dtype != "float32" or problem.precision == "tf32")


def warpgroup_dot(config: Config, problem: Problem, device: DeviceInfo) -> bool:
    """Say whether Triton uses a warpgroup's MMA, which reads both operands in shared memory."""
    if not 90 <= device.capability < 110 or config.block_m < 64 or config.num_warps % 4:
        return False
    # Full float32 has no tensor-core instruction.
    return problem.dtype != "float32" or problem.precision == "tf32"


def _buffers(
    config: Config, problem: Problem, device: DeviceInfo, warpgroup: bool
) -> tuple[int, int]:
    """Return how many tiles of A and of B a pipelined tile program keeps in shared memory."""
    if not warpgroup:
        return config.num_stages - 1, config.num_stages - 1
    if ITEMSIZE[problem.dtype] > 1 or device.capability >= 100:
        return config.num_stages, config.num_stages
    # Hopper reads 8-bit operands along K alone; others are turned in registers on their way.
    a = config.num_stages if problem.layout[0] == "n" else 1
    return a, config.num_stages if problem.layout[1] == "t" else 1


LEAST_REARRANGED = 16 * 1024
"""Bytes of a tile that are rearranged at a time, where it is not done as a whole."""


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of a pipelined tile program, never under what the compiler takes.

    A warpgroup's MMA keeps one buffer a stage; elsewhere the last stage is already in registers.
    The epilogue reuses the space to rearrange the tile, in float32 where that is what it stores.
    """
    warpgroup = warpgroup_dot(config, problem, device)
    of_a, of_b = _buffers(config, problem, device, warpgroup)
    elements = (config.block_m * of_a + config.block_n * of_b) * config.block_k
    barriers = 64 if warpgroup and device.capability >= 100 else 0
    epilogue = _epilogue(config, problem, device, warpgroup)
    return max(elements * ITEMSIZE[problem.dtype], epilogue) + barriers


def _epilogue(config: Config, problem: Problem, device: DeviceInfo, warpgroup: bool) -> int:
    """Return the bytes through which a tile is rearranged to be stored."""
    tile = config.block_m * config.block_n
    wide, whole = ITEMSIZE[problem.out_dtype] == 4, config.split_k == 1
    if not wide and whole:
        return 2 * tile
    even = problem.n * ITEMSIZE[problem.dtype] % 16 == 0  # else rows of the result start anywhere
    if warpgroup:
        # Blackwell's sums leave their own memory as they are stored, where nothing narrows them.
        as_stored = wide and even and (whole or problem.dtype == "float32")
        return tile if as_stored and device.capability >= 100 else 4 * tile
    # A warp's product is stored in another order: large tiles are rearranged a part at a time.
    a_thread = 256 if wide and not even and ITEMSIZE[problem.dtype] == 1 else 128
    part = min(4 * tile, max(LEAST_REARRANGED, a_thread * config.num_warps * device.warp_size))
    if device.backend == "cuda":
        return part
    return 2 * tile if whole else max(2 * tile, part)


def shared_rule(predict: SharedBytes, *, whole: bool = False) -> Rule:
    """Return the rule that a program's shared memory must be there.

    `whole` says that what is predicted does not depend on whether K is split.
    """

    def check(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
        needed = predict(config, problem, device)
        if needed > device.shared_bytes:
            return f"{needed} bytes of shared memory, {device.shared_bytes} there"
        return None

    fields = (*TILE, "num_warps", "num_stages", "switches")
    return Rule("shared-memory", check, fields if whole else (*fields, "split_k"))


TILE = ("block_m", "block_n", "block_k")
THREADS = ("block_m", "block_n", "num_warps")

POWER_OF_TWO = Rule("power-of-two", _power_of_two, (*TILE, "num_warps"))
REGISTERS = Rule("registers", _registers, THREADS)

PARTS = Rule("split-k", _parts, ("block_k", "split_k"))
INDEX_RANGE = Rule("index-range", _index_range, (*TILE, "group_size", "split_k"))

SUM_WORTH = Rule("sum", _sum_worth, ("block_m", "block_n", "split_k", "switches"))
SHARED_SUM = Rule("shared-sum", _shared_sum, (*TILE, "split_k", "switches"))

PLAIN = Rule("plain-product", _plain, ("variant",))
"""The rule of variants that multiply one pair of matrices into one of the same dtype, unscaled.

Without it a variant says that it takes whatever the family takes, and has to.
"""

SINGLE = Rule("one-product", _single, ("variant",))
"""The rule of variants that multiply one pair of matrices."""

DOT_RULES = (
    INDEX_RANGE,
    Rule("smallest-dot", _smallest_dot, TILE),
    Rule("dtype-support", _dtype, ("variant",)),
    PARTS,
)
"""What every tile that is multiplied with `tl.dot` must meet."""

TILE_RULES = (
    POWER_OF_TWO,
    *DOT_RULES,
    REGISTERS,
    shared_rule(shared_bytes),
)
"""What a plain tile must meet to run."""

OVERSIZED = Rule("oversized-tile", _oversized, TILE)
IDLE_THREADS = Rule("idle-threads", _idle_threads, THREADS)
STAGES = Rule("stages", _stages, ("block_k", "split_k", "num_stages"))

TILE_WORTH = (
    OVERSIZED,
    IDLE_THREADS,
    Rule("one-order", _group, ("block_m", "block_n", "group_size")),
    Rule("idle-split", _idle_split, (*TILE, "split_k")),
    STAGES,
)
"""What makes a plain tile worth a trial."""
