"""Step 5: blocks of three sizes in group-major order, under Triton's autotuner and a fixed list."""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tunekit.kernels.ladder.blockwise import product_of_block
from tunekit.kernels.ladder.checking import check_blocks, constants
from tunekit.kernels.ladder.grouped import GROUP_SIZE, place_in_groups

LIST_OF_15 = (
    (128, 256, 64, 3, 8), (256, 128, 64, 3, 8), (128, 128, 64, 3, 8), (128, 128, 32, 4, 4),
    (128, 64, 32, 4, 4), (64, 256, 32, 4, 4), (256, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (64, 64, 64, 3, 4), (64, 64, 32, 4, 4), (128, 32, 32, 4, 4), (32, 128, 32, 4, 4),
    (64, 32, 32, 5, 2), (32, 64, 32, 5, 2), (32, 32, 32, 5, 2),
)  # fmt: skip
"""BLOCK_M, BLOCK_N, BLOCK_K, stages, warps; GROUP_SIZE 8."""


def listed_config(m: int, n: int, k: int, stages: int, warps: int) -> triton.Config:
    """Return one config of a fixed list as Triton's autotuner takes it.

    Raises:
        ConfigError: a block is no power of two from 16.
    """
    check_blocks(block_m=m, block_n=n, block_k=k)
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_SIZE": GROUP_SIZE}
    return triton.Config(blocks, num_warps=warps, num_stages=stages)


@triton.autotune(
    configs=[listed_config(*entry) for entry in LIST_OF_15], key=["M", "N", "K", "PRECISION"]
)
@triton.jit
def listed_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_SIZE: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Compute the block of C that is this program's in group-major order."""
    tile_m, tile_n = place_in_groups(tl.program_id(0), M, N, GROUP_SIZE, BLOCK_M, BLOCK_N)
    product_of_block(
        a_ptr, b_ptr, c_ptr, tile_m, tile_n, M, N, K,
        stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
        BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, UPCAST,
    )  # fmt: skip


def listed(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    precision: str = "ieee",
    config: triton.Config | None = None,
) -> None:
    """Multiply (m, k) by (k, n) into `out` with the config of the list that is fastest here.

    The first call of a size times all of them, as Triton's autotuner does; `config` names one in
    place of that.
    """

    def grid(meta: dict[str, Any]) -> tuple[int]:
        blocks = triton.cdiv(out.shape[0], meta["BLOCK_M"])
        return (blocks * triton.cdiv(out.shape[1], meta["BLOCK_N"]),)

    kernel: Any = listed_kernel if config is None else listed_kernel.fn
    chosen = {} if config is None else config.all_kwargs()
    kernel[grid](
        a, b, out, a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride(), *out.stride(),
        **chosen, **constants(a, precision),
    )  # fmt: skip
