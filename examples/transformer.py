"""Swap the linear layers of a transformer for tuned ones, and take it back.

    python examples/transformer.py

The model stands for any from a library: it is built by other people's code, holds plain
`torch.nn.Linear` modules under names of its own, and is not changed in any file. On a GPU the
layers run what the cache says; on a CPU, as here without one, the same code runs torch's.
"""

from __future__ import annotations

import torch

import tunekit


def build(device: torch.device) -> torch.nn.Module:
    """Return a small encoder as a library would build it."""
    layer = torch.nn.TransformerEncoderLayer(
        d_model=256, nhead=4, dim_feedforward=512, dropout=0.0, batch_first=True
    )
    model = torch.nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return model.to(device=device, dtype=dtype).eval()


def main() -> None:
    """Compare the outputs before, with and after the swap."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(device)
    x = torch.randn(4, 64, 256, device=device, dtype=next(model.parameters()).dtype)
    before = set(model.state_dict())
    with torch.no_grad():
        plain = model(x)
        with tunekit.replace_linear(model, include="layers.*") as swapped:
            tuned = model(x)
            print(f"{len(swapped.names)} layers run by tunekit: {', '.join(swapped.names)}")
        again = model(x)
    assert set(model.state_dict()) == before  # nothing to convert, in either direction
    torch.testing.assert_close(tuned, plain, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(again, plain, rtol=0, atol=0)
    print("the outputs agree, and the model is as it was")


if __name__ == "__main__":
    main()
