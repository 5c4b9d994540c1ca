"""Steps 1 and 2: a product in plain Python, one element at a time and then block by block."""

from __future__ import annotations

import torch


def three_loops(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply (m, k) by (k, n) with three nested loops, in Python's own floats."""
    rows, columns, result = _unpacked(a, b)
    for i in range(len(rows)):
        for j in range(len(columns[0])):
            total = 0.0
            for k in range(len(columns)):
                total += rows[i][k] * columns[k][j]
            result[i][j] = total
    return torch.tensor(result, dtype=torch.float64).to(a.dtype)


def blocked_loops(a: torch.Tensor, b: torch.Tensor, *, block: int = 16) -> torch.Tensor:
    """Multiply (m, k) by (k, n) in blocks of `block` rows, columns and steps along K.

    The same products and sums, in an order in which a block of each operand is used `block` times
    while it is near. Sizes need not be multiples of the block.
    """
    rows, columns, result = _unpacked(a, b)
    m, n, depth = len(rows), len(columns[0]), len(columns)
    for first_i in range(0, m, block):
        for first_j in range(0, n, block):
            for first_k in range(0, depth, block):
                for i in range(first_i, min(first_i + block, m)):
                    for j in range(first_j, min(first_j + block, n)):
                        total = result[i][j]
                        for k in range(first_k, min(first_k + block, depth)):
                            total += rows[i][k] * columns[k][j]
                        result[i][j] = total
    return torch.tensor(result, dtype=torch.float64).to(a.dtype)


def _unpacked(
    a: torch.Tensor, b: torch.Tensor
) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Return both operands and an empty result as lists of rows."""
    zeros = [[0.0] * b.shape[1] for _ in range(a.shape[0])]
    return a.double().tolist(), b.double().tolist(), zeros
