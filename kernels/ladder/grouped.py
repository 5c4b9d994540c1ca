"""Step 4: the same blocks in group-major order, on a one-dimensional grid."""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tunekit.kernels.ladder.blockwise import BLOCK, product_of_block
from tunekit.kernels.ladder.checking import check_blocks, constants

GROUP_SIZE = 8
"""Rows of blocks that are walked together, in steps 4 and 5."""


@triton.jit
def place_in_groups(
    pid, M, N, GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Map a program to its block: down GROUP_SIZE rows of blocks, then one column on."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    in_group = GROUP_SIZE * tiles_n
    first_m = pid // in_group * GROUP_SIZE
    rows = tl.minimum(tiles_m - first_m, GROUP_SIZE)
    return first_m + pid % in_group % rows, pid % in_group // rows


@triton.jit
def grouped_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK: tl.constexpr, GROUP_SIZE: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Compute the block of C that is this program's in group-major order."""
    tile_m, tile_n = place_in_groups(tl.program_id(0), M, N, GROUP_SIZE, BLOCK, BLOCK)
    product_of_block(
        a_ptr, b_ptr, c_ptr, tile_m, tile_n, M, N, K,
        stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
        BLOCK, BLOCK, BLOCK, PRECISION, UPCAST,
    )  # fmt: skip


def grouped(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    precision: str = "ieee",
    block: int = BLOCK,
) -> None:
    """Multiply (m, k) by (k, n) into `out` as step 3 does, its blocks in group-major order.

    Raises:
        ConfigError: `block` is no power of two from 16.
    """
    check_blocks(block=block)
    grid = (triton.cdiv(a.shape[0], block) * triton.cdiv(b.shape[1], block),)
    grouped_kernel[grid](
        a, b, out, a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride(), *out.stride(),
        BLOCK=block, GROUP_SIZE=GROUP_SIZE, **constants(a, precision),
    )  # fmt: skip
