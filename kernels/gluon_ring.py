"""The warp-specialised kernel in Gluon: buffers between one producer and two consumers."""

# The bodies of jitted functions are Gluon's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

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
def gluon_load(desc, row, column, ready, box, STORED: gl.constexpr):
    """Ask for a box of an operand; STORED says that its second dimension is the contiguous one."""
    if STORED:
        load_box(desc, [row, column], ready, box)
    else:
        load_box(desc, [column, row], ready, box)


@gluon.jit
def gluon_produce(
    a_desc, b_desc, b_narrow, a_ring, b_ring, narrow_ring, full, free, M, N, K, GROUP_SIZE,
    BLOCK_M: gl.constexpr, WIDE: gl.constexpr, NARROW: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, A_STORED: gl.constexpr, B_STORED: gl.constexpr,
):  # fmt: skip
    """Fill the ring, tile after tile."""
    BLOCK_N: gl.constexpr = WIDE + NARROW
    nbytes: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first_m, first_n = gluon_tile(tile, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
        for first_k in range(0, K, BLOCK_K):
            slot = step % STAGES
            # A fresh barrier is taken to have ended the phase before its first: no wait then.
            mbarrier.wait(free.index(slot), (step // STAGES & 1) ^ 1)
            ready = full.index(slot)
            if NARROW:
                mbarrier.expect(ready, nbytes + b_narrow.block_type.nbytes)
            else:
                mbarrier.expect(ready, nbytes)
            gluon_load(a_desc, first_m, first_k, ready, a_ring.index(slot), A_STORED)
            gluon_load(b_desc, first_k, first_n, ready, b_ring.index(slot), B_STORED)
            if NARROW:
                gluon_load(
                    b_narrow, first_k, first_n + WIDE, ready, narrow_ring.index(slot), B_STORED
                )
            step += 1


@gluon.jit
def gluon_store(
    c, tile, c_tile, first_m, first_n, M, N, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr, STORE_TMA: gl.constexpr,
):  # fmt: skip
    """Store some columns of a tile: by TMA, which goes on by itself, or through pointers."""
    if STORE_TMA:
        tma.store_wait(pendings=0)  # what was stored before this has left shared memory
        thread_barrier()
        c_tile.store(tile.to(c_tile.dtype))
        fence_async_shared()
        thread_barrier()
        store_box(c, [first_m, first_n], c_tile)
    else:
        offs_m = first_m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
        offs_n = first_n + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))
        wide_m = offs_m.to(gl.int64)[:, None] * stride_cm
        wide_n = offs_n.to(gl.int64)[None, :] * stride_cn
        inside = (offs_m < M)[:, None] & (offs_n < N)[None, :]
        gl.store(c + wide_m + wide_n, tile.to(c.dtype.element_ty), mask=inside)


@gluon.jit
def gluon_consume(
    c, c_narrow, stride_cm, stride_cn, c_tile, narrow_tile, a_ring, b_ring, narrow_ring,
    full, free, M, N, K, GROUP_SIZE,
    BLOCK_M: gl.constexpr, WIDE: gl.constexpr, NARROW: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, A_STORED: gl.constexpr, B_STORED: gl.constexpr, STORE_TMA: gl.constexpr,
):  # fmt: skip
    """Multiply what is in the ring and store each finished tile."""
    BLOCK_N: gl.constexpr = WIDE + NARROW
    WARPS_M: gl.constexpr = 8 if BLOCK_M >= 128 else 4
    wide_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[WARPS_M, 8 // WARPS_M],
        instr_shape=[16, WIDE * WARPS_M // 8, 16],
    )
    narrow_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[WARPS_M, 8 // WARPS_M],
        instr_shape=[16, (NARROW if NARROW else WIDE) * WARPS_M // 8, 16],
    )
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    steps_k = gl.cdiv(K, BLOCK_K)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first_m, first_n = gluon_tile(tile, M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
        acc = gl.zeros((BLOCK_M, WIDE), dtype=gl.float32, layout=wide_layout)
        if NARROW:
            beside = gl.zeros((BLOCK_M, NARROW), dtype=gl.float32, layout=narrow_layout)
        for k in range(steps_k):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), step // STAGES & 1)
            a = a_ring.index(slot) if A_STORED else a_ring.index(slot).permute((1, 0))
            b = b_ring.index(slot) if B_STORED else b_ring.index(slot).permute((1, 0))
            acc = warpgroup_mma(a, b, acc, is_async=True)
            # The products before these are done, so their buffer is free.
            if NARROW:
                right = narrow_ring.index(slot)
                right = right if B_STORED else right.permute((1, 0))
                beside = warpgroup_mma(a, right, beside, is_async=True)
                acc, beside = warpgroup_mma_wait(num_outstanding=2, deps=(acc, beside))
            else:
                acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)
            step += 1
        if NARROW:
            acc, beside = warpgroup_mma_wait(num_outstanding=0, deps=(acc, beside))
        else:
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1)
        gluon_store(
            c, acc, c_tile, first_m, first_n, M, N, stride_cm, stride_cn,
            BLOCK_M, WIDE, wide_layout, STORE_TMA,
        )  # fmt: skip
        if NARROW:
            gluon_store(
                c_narrow, beside, narrow_tile, first_m, first_n + WIDE, M, N, stride_cm, stride_cn,
                BLOCK_M, NARROW, narrow_layout, STORE_TMA,
            )  # fmt: skip
    if STORE_TMA:
        tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["GROUP_SIZE"])
def gluon_kernel(
    a_desc,
    b_desc,
    b_narrow,
    c,
    c_narrow,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    GROUP_SIZE,
    BLOCK_M: gl.constexpr,
    WIDE: gl.constexpr,
    NARROW: gl.constexpr,
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
    narrow_ring = b_ring  # stands in where there is one accumulator
    if NARROW:
        narrow_shape: gl.constexpr = [STAGES] + b_narrow.block_type.shape  # noqa: RUF005
        narrow_ring = gl.allocate_shared_memory(b_narrow.dtype, narrow_shape, b_narrow.layout)
    c_tile = a_ring  # stands in where nothing is stored through shared memory
    if STORE_TMA:
        c_tile = gl.allocate_shared_memory(c.dtype, c.block_type.shape, c.layout)
    narrow_tile = c_tile
    if STORE_TMA and NARROW:
        narrow_tile = gl.allocate_shared_memory(
            c_narrow.dtype, c_narrow.block_type.shape, c_narrow.layout
        )
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
                (c, c_narrow, stride_cm, stride_cn, c_tile, narrow_tile,
                 a_ring, b_ring, narrow_ring, full, free, M, N, K, GROUP_SIZE,
                 BLOCK_M, WIDE, NARROW, BLOCK_K, STAGES, A_STORED, B_STORED, STORE_TMA),
            ),
            (
                gluon_produce,
                (a_desc, b_desc, b_narrow, a_ring, b_ring, narrow_ring, full, free,
                 M, N, K, GROUP_SIZE,
                 BLOCK_M, WIDE, NARROW, BLOCK_K, STAGES, A_STORED, B_STORED),
            ),
        ],
        [1],
        [24],
    )  # fmt: skip
