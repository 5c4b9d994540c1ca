"""From a model's own matrix products to a tuned cache, and what it gains.

    python examples/tune_a_model.py [--cache tuned.db] [--trials 80]

The model has the sizes of a transformer of 8 billion parameters, and no memory: on torch's `meta`
device a forward pass only works out shapes, so it needs no GPU and no weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import tunekit
from tunekit.cache import Store
from tunekit.progress import Narrator, PlainDisplay
from tunekit.shapes import load_shapes
from tunekit.table import served_rows

HIDDEN, FEED_FORWARD, QKV, LAYERS = 4096, 14336, 6144, 32


class Block(torch.nn.Module):
    """The linear layers of a transformer's block; attention itself is no matrix product here."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(HIDDEN, QKV, bias=False)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up = torch.nn.Linear(HIDDEN, 2 * FEED_FORWARD, bias=False)
        self.down = torch.nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform tokens, (tokens, hidden)."""
        x = x + self.out(self.qkv(x)[:, :HIDDEN])
        gate, up = self.up(x).chunk(2, dim=-1)
        return x + self.down(torch.nn.functional.silu(gate) * up)


def record_shapes(path: Path, tokens: int) -> None:
    """Write the products of one forward pass, with counts, to a shapes file."""
    with torch.device("meta"), tunekit.record(path):
        model = torch.nn.Sequential(*(Block() for _ in range(LAYERS))).bfloat16()
        model(torch.empty(tokens, HIDDEN, dtype=torch.bfloat16))


def time_of_a_pass(cache: Path, shapes: Path) -> tuple[float, float]:
    """Return the microseconds of all products of a pass: as tuned, and all by the vendor."""
    counts = {shape.problem: shape.count for shape in load_shapes(shapes)}
    ours = vendor = 0.0
    with Store.open(cache, create=False) as store:
        for row in served_rows(store.bests()):
            best, count = row.best, counts.get(row.best.key.problem, 0)
            if best.vendor is None:
                continue
            chosen = best.measurement if best.choice.value == "triton" else best.vendor
            ours += count * chosen.median_us
            vendor += count * best.vendor.median_us
    return ours, vendor


def main() -> None:
    """Record, tune, and say what it gains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("tuned.db"))
    parser.add_argument("--shapes", type=Path, default=Path("model-shapes.yaml"))
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--trials", type=int, default=80)
    chosen = parser.parse_args()

    record_shapes(chosen.shapes, chosen.tokens)
    narrator = Narrator(PlainDisplay(sys.stderr), verbose=False)
    tunekit.tune(chosen.shapes, cache=chosen.cache, trials=chosen.trials, on_event=narrator)
    ours, vendor = time_of_a_pass(chosen.cache, chosen.shapes)
    print(f"products of a pass of {chosen.tokens} tokens: {ours / 1000:.2f} ms tuned,")
    print(f"{vendor / 1000:.2f} ms by the vendor's library: {vendor / ours:.3f} times as fast")
    print(f"now: TUNEKIT_CACHE={chosen.cache} python your_program.py")


if __name__ == "__main__":
    main()
