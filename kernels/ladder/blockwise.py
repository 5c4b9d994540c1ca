"""Step 3: one Triton program for each block of C, on a two-dimensional grid."""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tunekit.kernels.ladder.checking import check_blocks, constants

BLOCK = 64
"""The one size that steps 3 and 4 have for rows, columns and steps along K."""


@triton.jit
def product_of_block(
    a_ptr, b_ptr, c_ptr, tile_m, tile_n, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Compute one block of C = A @ B: what steps 3 to 5 share."""
    # 64-bit, for a row times its stride passes 2^31 long before memory runs out.
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    steps = tl.arange(0, BLOCK_K)
    in_m = (rows < M)[:, None]
    in_n = (columns < N)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first_k in range(0, K, BLOCK_K):
        at = first_k + steps
        in_k = at < K
        wide = at.to(tl.int64)
        a = tl.load(
            a_ptr + rows[:, None] * stride_am + wide[None, :] * stride_ak,
            mask=in_m & in_k[None, :], other=0.0,
        )  # fmt: skip
        b = tl.load(
            b_ptr + wide[:, None] * stride_bk + columns[None, :] * stride_bn,
            mask=in_k[:, None] & in_n, other=0.0,
        )  # fmt: skip
        if UPCAST:  # Triton's interpreter multiplies the bit patterns of bfloat16
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    place = rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c_ptr + place, acc.to(c_ptr.dtype.element_ty), mask=in_m & in_n)


@triton.jit
def blockwise_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Compute the block of C whose place in the grid is this program's."""
    product_of_block(
        a_ptr, b_ptr, c_ptr, tl.program_id(0), tl.program_id(1), M, N, K,
        stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
        BLOCK, BLOCK, BLOCK, PRECISION, UPCAST,
    )  # fmt: skip


def blockwise(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    precision: str = "ieee",
    block: int = BLOCK,
) -> None:
    """Multiply (m, k) by (k, n) into `out`, a program for each `block` x `block` of it.

    Raises:
        ConfigError: `block` is no power of two from 16.
    """
    check_blocks(block=block)
    grid = (triton.cdiv(a.shape[0], block), triton.cdiv(b.shape[1], block))
    blockwise_kernel[grid](
        a, b, out, a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride(), *out.stride(),
        BLOCK=block, **constants(a, precision),
    )  # fmt: skip
