"""Warp-specialised tiles in Gluon, for Hopper: one warp loads, two warpgroups multiply.

A persistent program goes along its tiles. A producer warp fills a ring of NUM_STAGES buffers by TMA
and runs ahead into the next tile while the consumers still store the last one; a pair of barriers a
buffer says when it is full and when it is free. Registers move from the producer to the consumers.
"""

# The bodies of jitted functions are Gluon's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules
from tunekit.kernels.descriptors import describes, descriptor
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.tma_rules import TMA_WORTH
from tunekit.key import ITEMSIZE, Problem
from tunekit.space import Rule, VariantSpace

# Newer releases of Triton renamed three functions.
load_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier


@gluon.jit
def gluon_tile(tile, M, N, GROUP_SIZE, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Map a tile's number to its place in group-major order."""
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    in_group = GROUP_SIZE * tiles_n
    first_m = tile // in_group * GROUP_SIZE
    rows = gl.minimum(tiles_m - first_m, GROUP_SIZE)
    return (first_m + tile % in_group % rows) * BLOCK_M, tile % in_group // rows * BLOCK_N


@gluon.jit
def gluon_produce(
    a_desc, b_desc, a_ring, b_ring, full, free, M, N, K, GROUP_SIZE,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    A_STORED: gl.constexpr, B_STORED: gl.constexpr,
):  # fmt: skip
    """Fill the ring, tile after tile."""
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first_m, first_n = gluon_tile(tile, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
        for first_k in range(0, K, BLOCK_K):
            slot = step % STAGES
            # A fresh barrier is taken to have ended the phase before its first: no wait then.
            mbarrier.wait(free.index(slot), (step // STAGES & 1) ^ 1)
            ready = full.index(slot)
            mbarrier.expect(ready, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            if A_STORED:
                load_box(a_desc, [first_m, first_k], ready, a_ring.index(slot))
            else:
                load_box(a_desc, [first_k, first_m], ready, a_ring.index(slot))
            if B_STORED:
                load_box(b_desc, [first_k, first_n], ready, b_ring.index(slot))
            else:
                load_box(b_desc, [first_n, first_k], ready, b_ring.index(slot))
            step += 1


@gluon.jit
def gluon_consume(
    c, stride_cm, stride_cn, c_tile, a_ring, b_ring, full, free, M, N, K, GROUP_SIZE,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    A_STORED: gl.constexpr, B_STORED: gl.constexpr, STORE_TMA: gl.constexpr,
):  # fmt: skip
    """Multiply what is in the ring and store each finished tile."""
    WARPS_M: gl.constexpr = 8 if BLOCK_M >= 128 else 4
    accumulators: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[WARPS_M, 8 // WARPS_M],
        instr_shape=[16, BLOCK_N * WARPS_M // 8, 16],
    )
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    steps_k = gl.cdiv(K, BLOCK_K)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first_m, first_n = gluon_tile(tile, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
        acc = gl.zeros((BLOCK_M, BLOCK_N), dtype=gl.float32, layout=accumulators)
        for k in range(steps_k):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), step // STAGES & 1)
            a = a_ring.index(slot)
            b = b_ring.index(slot)
            if not A_STORED:
                a = a.permute((1, 0))
            if not B_STORED:
                b = b.permute((1, 0))
            acc = warpgroup_mma(a, b, acc, is_async=True)
            # The product before this one is done, so its buffer is free.
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)
            step += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1)
        if STORE_TMA:
            tma.store_wait(pendings=0)  # the tile before this one has left shared memory
            thread_barrier()
            c_tile.store(acc.to(c_tile.dtype))
            fence_async_shared()
            thread_barrier()
            store_box(c, [first_m, first_n], c_tile)
        else:
            offs_m = first_m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, accumulators))
            offs_n = first_n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, accumulators))
            wide_m = offs_m.to(gl.int64)[:, None] * stride_cm
            wide_n = offs_n.to(gl.int64)[None, :] * stride_cn
            inside = (offs_m < M)[:, None] & (offs_n < N)[None, :]
            gl.store(c + wide_m + wide_n, acc.to(c.dtype.element_ty), mask=inside)
    if STORE_TMA:
        tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["GROUP_SIZE"])
def gluon_kernel(
    a_desc,
    b_desc,
    c,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    GROUP_SIZE,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    A_STORED: gl.constexpr,
    B_STORED: gl.constexpr,
    STORE_TMA: gl.constexpr,
):
    """Compute every tile of C = A @ B that falls to this program."""
    a_shape: gl.constexpr = [STAGES] + a_desc.block_type.shape  # noqa: RUF005
    b_shape: gl.constexpr = [STAGES] + b_desc.block_type.shape  # noqa: RUF005
    a_ring = gl.allocate_shared_memory(a_desc.dtype, a_shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, b_shape, b_desc.layout)
    c_tile = a_ring  # stands in where nothing is stored through shared memory
    if STORE_TMA:
        c_tile = gl.allocate_shared_memory(c.dtype, c.block_type.shape, c.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                gluon_consume,
                (c, stride_cm, stride_cn, c_tile, a_ring, b_ring, full, free, M, N, K, GROUP_SIZE,
                 BLOCK_M, BLOCK_N, BLOCK_K, STAGES, A_STORED, B_STORED, STORE_TMA),
            ),
            (
                gluon_produce,
                (a_desc, b_desc, a_ring, b_ring, full, free, M, N, K, GROUP_SIZE,
                 BLOCK_M, BLOCK_N, BLOCK_K, STAGES, A_STORED, B_STORED),
            ),
        ],
        [1],
        [24],
    )  # fmt: skip


def _hardware(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    if not 90 <= device.capability < 100:
        return f"warpgroup products are Hopper's, not {device.arch}'s"
    if ITEMSIZE[problem.dtype] != 2:
        return f"{problem.dtype}, this variant multiplies 16-bit operands"
    if not problem.aligned:
        return "an operand's base or leading dimension is no multiple of 16 bytes"
    return None


def _deep(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Keep the deepest ring that fits and the one before it: a lone program has all the memory."""
    steps = tile_rules.k_tiles_per_part(config, problem)
    deeper = config.num_stages + 2
    if deeper > min(STAGES[-1], max(2, steps)):
        return None
    if _bytes(config, problem, deeper) > device.shared_bytes:
        return None
    return f"num_stages={config.num_stages} where {deeper} fit"


def _lines_fit(problem: Problem) -> bool:
    """Say whether a dense result has lines that TMA can store."""
    return problem.n * ITEMSIZE[problem.out_dtype] % 16 == 0


def _bytes(config: Config, problem: Problem, num_stages: int) -> int:
    ring = (config.block_m + config.block_n) * config.block_k * num_stages
    stored = config.block_m * config.block_n if _lines_fit(problem) else 0
    return (ring + stored) * ITEMSIZE[problem.dtype] + 512


def shared_bytes(config: Config, problem: Problem, device: DeviceInfo) -> int:
    """Predict the shared memory of one program: the ring, the tile to store, and barriers."""
    return _bytes(config, problem, config.num_stages)


STAGES = (2, 3, 4, 5, 6, 7, 8)


class WarpSpecialised:
    """The warp-specialised variant as the family knows it."""

    name = "gluon"
    kernels = (gluon_kernel,)
    space = VariantSpace(
        variant="gluon",
        choices={
            "block_m": (64, 128, 256),
            "block_n": (64, 128, 256),
            "block_k": (64, 128),
            "group_size": (1, 8, 16),
            "split_k": (1,),
            "num_warps": (8,),
            "num_stages": STAGES,
        },
        rules=(
            Rule("hopper", _hardware, ("variant",)),
            tile_rules.POWER_OF_TWO,
            *tile_rules.DOT_RULES,
            tile_rules.REGISTERS,
            tile_rules.shared_rule(shared_bytes),
        ),
        worth=(
            tile_rules.OVERSIZED,
            *(rule for rule in TMA_WORTH if rule.name in ("one-order", "small-tiles")),
            Rule("deep-pipeline", _deep, (*tile_rules.TILE, "split_k", "num_stages")),
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any
    ) -> KernelCall:
        """Launch one program per multiprocessor, at most one per tile."""
        m, n, k = config.block_m, config.block_n, config.block_k
        a_stored, b_stored = (major == "n" for major in problem.layout)
        store_tma = _lines_fit(problem) and describes(out)
        args = (
            _described(a, a_stored, m, k),
            _described(b, b_stored, k, n),
            _described(out, True, m, n) if store_tma else out,
            problem.m, problem.n, problem.k,
            *((0, 0) if store_tma else out.stride()),
            config.group_size,
        )  # fmt: skip
        options = {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": k,
            "STAGES": config.num_stages,
            "A_STORED": a_stored,
            "B_STORED": b_stored,
            "STORE_TMA": store_tma,
            "num_warps": config.num_warps,
        }
        programs = min(device.multiprocessors, tile_rules.tile_count(config, problem))
        return KernelCall(gluon_kernel, (programs,), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one program."""
        return shared_bytes(config, problem, device)


def _described(matrix: Any, stored: bool, rows: int, columns: int) -> TensorDescriptor:
    """Describe a matrix as it lies in memory, in boxes of one tile with Gluon's own swizzle."""
    plain = descriptor(matrix, stored=stored, block_rows=rows, block_columns=columns)
    layout = gl.NVMMASharedLayout.get_default_for(plain.block_shape, _DTYPES[str(matrix.dtype)])
    return TensorDescriptor(matrix, plain.shape, plain.strides, plain.block_shape, layout)


_DTYPES = {"torch.float16": gl.float16, "torch.bfloat16": gl.bfloat16}
