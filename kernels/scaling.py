"""What a product is multiplied by at its end: nothing, a number for each operand, or a row's own.

Scales are float32, as `torch._scaled_mm` takes them: two single numbers, or one for each row of A
and one for each column of B. The sum is scaled before it is rounded to the output's dtype, and a
part of a sum as well, for scaling parts and scaling their sum is the same.
"""

# The bodies of jitted functions are Triton's language, which has no types to check.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled(
    acc, scale_a_ptr, scale_b_ptr, first_m, first_n, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SCALING: tl.constexpr,
):  # fmt: skip
    """Scale a tile whose first element is (first_m, first_n) of C; SCALING as in the settings."""
    if SCALING == 1:
        acc = acc * (tl.load(scale_a_ptr) * tl.load(scale_b_ptr))
    if SCALING == 2:
        rows = first_m + tl.arange(0, BLOCK_M)
        columns = first_n + tl.arange(0, BLOCK_N)
        of_rows = tl.load(scale_a_ptr + rows, mask=rows < M, other=0.0)
        of_columns = tl.load(scale_b_ptr + columns, mask=columns < N, other=0.0)
        acc = acc * of_rows[:, None] * of_columns[None, :]
    return acc
