"""A stack of decoder layers with random weights, and what it is run on. For `layer_stack.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer."""

    hidden: int = 4096
    inner: int = 14336
    heads: int = 32
    kv_heads: int = 8

    @property
    def head(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class Case:
    """What one step computes: `batch` sequences of `tokens` new tokens each."""

    name: str
    batch: int
    tokens: int


CASES = (
    Case("decode 1", 1, 1),
    Case("decode 16", 16, 1),
    Case("decode 64", 64, 1),
    Case("prefill 2048", 1, 2048),
)
TOY_CASES = (Case("decode 1", 1, 1), Case("decode 3", 3, 1), Case("prefill 8", 1, 8))
TOY_SIZES = Sizes(hidden=64, inner=96, heads=4, kv_heads=2)


class Layer(nn.Module):
    """A decoder layer. A single new token attends to the cache, several to each other."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        key_value = sizes.kv_heads * sizes.head
        self.norm, self.inner_norm = nn.RMSNorm(sizes.hidden), nn.RMSNorm(sizes.hidden)
        self.q = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.k = nn.Linear(sizes.hidden, key_value, bias=False)
        self.v = nn.Linear(sizes.hidden, key_value, bias=False)
        self.o = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.gate = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the layer's output for x (batch, tokens, hidden)."""
        batch, tokens, _ = x.shape
        normed = self.norm(x)
        shape = (batch, tokens, -1, self.sizes.head)
        q = self.q(normed).view(shape).transpose(1, 2)
        k = self.k(normed).view(shape).transpose(1, 2)
        v = self.v(normed).view(shape).transpose(1, 2)
        if tokens == 1:
            k, v = past
        seen = functional.scaled_dot_product_attention(
            q, k, v, is_causal=tokens > 1, enable_gqa=True
        )
        x = x + self.o(seen.transpose(1, 2).reshape(batch, tokens, -1))
        normed = self.inner_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Stack(nn.Module):
    """Layers one after the other, all with the same past: its values do not matter."""

    def __init__(self, sizes: Sizes, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(sizes) for _ in range(layers)])

    def forward(self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the last layer's output."""
        for layer in self.layers:
            x = layer(x, past)
        return x


def inputs(case: Case, sizes: Sizes, context: int, device: str) -> tuple[Any, Any]:
    """Return random inputs of a step, and the past."""
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    x = torch.randn(case.batch, case.tokens, sizes.hidden, **options)
    past = (case.batch, sizes.kv_heads, context, sizes.head)
    return x, (torch.randn(past, **options), torch.randn(past, **options))
