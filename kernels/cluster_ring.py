"""The cluster kernel in Gluon: two blocks, each with a ring, load what they share once.

Needs what Triton's Gluon has from 3.8 on: loads that arrive in all blocks of a cluster.
"""

# The bodies of jitted functions are Gluon's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    cluster,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.language.nvidia.hopper.tma import async_load, async_store

from tunekit.kernels.gluon_ring import gluon_tile


@gluon.jit
def cluster_load(desc, row, column, ready, box, STORED: gl.constexpr):
    """Ask for a box of an operand: each block for its part, or one block for both."""
    if STORED:
        async_load(desc, [row, column], ready, box, multicast=True)
    else:
        async_load(desc, [column, row], ready, box, multicast=True)


@gluon.jit
def cluster_produce(
    a_desc, b_desc, a_ring, b_ring, full, own, both, M, N, K, GROUP_SIZE,
    PAIR_M: gl.constexpr, PAIR_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, A_STORED: gl.constexpr, B_STORED: gl.constexpr,
):  # fmt: skip
    """Fill the ring, tile after tile.

    A block fills a buffer with its own part once its own consumers are done with it. What both
    share is sent by the first block, which alone waits until the consumers of both are.
    """
    nbytes: gl.constexpr = a_desc.nbytes_per_cta + b_desc.nbytes_per_cta
    tiles = gl.cdiv(M, PAIR_M) * gl.cdiv(N, PAIR_N)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first_m, first_n = gluon_tile(tile, M, N, GROUP_SIZE, PAIR_M, PAIR_N)
        for first_k in range(0, K, BLOCK_K):
            slot = step % STAGES
            # A fresh barrier is taken to have ended the phase before its first: no wait then.
            phase = (step // STAGES & 1) ^ 1
            mbarrier.wait(own.index(slot), phase)
            mbarrier.wait(both.index(slot), phase)
            ready = full.index(slot)
            mbarrier.expect(ready, nbytes)
            cluster_load(a_desc, first_m, first_k, ready, a_ring.index(slot), A_STORED)
            cluster_load(b_desc, first_k, first_n, ready, b_ring.index(slot), B_STORED)
            step += 1


@gluon.jit
def cluster_consume(
    c, stride_cm, stride_cn, c_tile, a_ring, b_ring, full, own, both, M, N, K, GROUP_SIZE,
    PAIR_M: gl.constexpr, PAIR_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    A_STORED: gl.constexpr, B_STORED: gl.constexpr, STORE_TMA: gl.constexpr, TALL: gl.constexpr,
):  # fmt: skip
    """Multiply what is in the ring and store each finished tile."""
    OWN_M: gl.constexpr = PAIR_M // 2 if TALL else PAIR_M
    OWN_N: gl.constexpr = PAIR_N if TALL else PAIR_N // 2
    WARPS_M: gl.constexpr = 8 if OWN_M >= 128 else 4
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[WARPS_M, 8 // WARPS_M],
        instr_shape=[16, OWN_N * WARPS_M // 8, 16],
        cga_layout=[[1, 0]] if TALL else [[0, 1]],
    )
    tiles = gl.cdiv(M, PAIR_M) * gl.cdiv(N, PAIR_N)
    steps_k = gl.cdiv(K, BLOCK_K)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first_m, first_n = gluon_tile(tile, M, N, GROUP_SIZE, PAIR_M, PAIR_N)
        acc = gl.zeros((PAIR_M, PAIR_N), dtype=gl.float32, layout=layout)
        for k in range(steps_k):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), step // STAGES & 1)
            a = a_ring.index(slot) if A_STORED else a_ring.index(slot).permute((1, 0))
            b = b_ring.index(slot) if B_STORED else b_ring.index(slot).permute((1, 0))
            acc = warpgroup_mma(a, b, acc, is_async=True)
            # The products before these are done, so their buffer is free.
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            done = (step + STAGES - 1) % STAGES
            mbarrier.arrive(own.index(done), count=1, pred=k > 0)
            mbarrier.arrive(both.index(done), count=1, pred=k > 0)
            step += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        done = (step + STAGES - 1) % STAGES
        mbarrier.arrive(own.index(done), count=1)
        mbarrier.arrive(both.index(done), count=1)
        if STORE_TMA:
            tma.store_wait(pendings=0)  # the tile before this has left shared memory
            gl.barrier()
            c_tile.store(acc.to(c_tile.dtype))
            fence_async_shared()
            gl.barrier()
            async_store(c, [first_m, first_n], c_tile)
        else:
            offs_m = first_m + gl.arange(0, PAIR_M, layout=gl.SliceLayout(1, layout))
            offs_n = first_n + gl.arange(0, PAIR_N, layout=gl.SliceLayout(0, layout))
            wide_m = offs_m.to(gl.int64)[:, None] * stride_cm
            wide_n = offs_n.to(gl.int64)[None, :] * stride_cn
            inside = (offs_m < M)[:, None] & (offs_n < N)[None, :]
            gl.store(c + wide_m + wide_n, acc.to(c.dtype.element_ty), mask=inside)
    if STORE_TMA:
        tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["GROUP_SIZE"])
def cluster_kernel(
    a_desc,
    b_desc,
    c,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    GROUP_SIZE,
    PAIR_M: gl.constexpr,
    PAIR_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    A_STORED: gl.constexpr,
    B_STORED: gl.constexpr,
    STORE_TMA: gl.constexpr,
    TALL: gl.constexpr,
):
    """Compute every pair of tiles of C = A @ B that falls to this cluster.

    TALL: one tile of a pair lies above the other and they share columns of B, else rows of A.
    """
    a_shape: gl.constexpr = [STAGES] + a_desc.block_type.shape  # noqa: RUF005
    b_shape: gl.constexpr = [STAGES] + b_desc.block_type.shape  # noqa: RUF005
    a_ring = gl.allocate_shared_memory(a_desc.dtype, a_shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, b_shape, b_desc.layout)
    c_tile = a_ring  # stands in where nothing is stored through shared memory
    if STORE_TMA:
        c_tile = gl.allocate_shared_memory(c.dtype, c.block_type.shape, c.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    own = mbarrier.allocate_mbarrier(batch=STAGES)
    both = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(own.index(slot), count=1)
        mbarrier.init(both.index(slot), count=1)
    gl.warp_specialize(
        [
            (
                cluster_consume,
                (c, stride_cm, stride_cn, c_tile, a_ring, b_ring, full, own, both,
                 M, N, K, GROUP_SIZE,
                 PAIR_M, PAIR_N, BLOCK_K, STAGES, A_STORED, B_STORED, STORE_TMA, TALL),
            ),
            (
                cluster_produce,
                (a_desc, b_desc, a_ring, b_ring, full, own, both, M, N, K, GROUP_SIZE,
                 PAIR_M, PAIR_N, BLOCK_K, STAGES, A_STORED, B_STORED),
            ),
        ],
        [1],
        [24],
    )  # fmt: skip
    cluster.barrier()  # neither block ends while the other may still write to its memory
