"""Multiply thousands of random operands with random configs, and hold each result to a reference.

    python scripts/random_products.py --jobs 12 -o docs/benchmarks/random-products-h200.json

Shapes, strides, dtypes, offsets, batches and configs are random, operands lie in NaN, the output is
poisoned; what lies between and around its elements must stay as it was. The first examples decide
which kernels are compiled, `--kernels` at most: one that would need another is drawn again. Before
them comes one whose operands have more than 2^31 elements each. An interrupted run goes on where it
ended, and what failed is listed with the number that draws it again (`--only N`). Exit status 1:
something failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import triton
from random_trying import Drawing, Outcome, config_pool, trying

import tunekit
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES, DeviceInfo, detect
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.reference import expected, fill_with_poison
from tunekit.kernels.stand_ins import interpreting
from tunekit.key import Problem

LARGE = (70001, 66000, 32771)
"""M, N, K: A and B have over 2^31 elements, and so has C."""


class Run:
    """What was tried so far, kept in a file."""

    def __init__(self, output: Path, *, seed: int, device: DeviceInfo) -> None:
        self.output = output
        self.found: dict[str, Any] = {
            "what": "random products against a float64 reference",
            "command": "python " + " ".join(sys.argv),
            "device": "Triton's interpreter" if interpreting() else device.name,
            "torch": torch.__version__, "triton": triton.__version__,
            "tunekit": tunekit.__version__, "seed": seed,
            "next": 0, "examples": 0, "given_up": 0, "seconds": 0.0, "worst_error_ratio": 0.0,
            "kernels": [], "by_variant": {}, "by_dtype": {}, "failures": [], "large": None,
        }  # fmt: skip
        if output.exists():
            before = json.loads(output.read_text())
            for name in ("device", "torch", "triton", "seed"):
                if before[name] != self.found[name]:
                    raise SystemExit(f"{output} has {name} {before[name]}: remove it to start anew")
            self.found = before

    def save(self, seconds: float) -> None:
        """Write what was found so far."""
        self.found["seconds"] = round(self.found["seconds"] + seconds, 1)
        self.found["date"] = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.output.write_text(json.dumps(self.found, indent=1) + "\n")

    def take(self, one: Outcome) -> None:
        """Add what came of the next number."""
        self.found["next"] = one.number + 1
        if not one.variant:
            self.found["given_up"] += 1
            return
        self.found["examples"] += 1
        worst = max(self.found["worst_error_ratio"], min(one.error_ratio, 1e9))
        self.found["worst_error_ratio"] = worst
        for name, value in (("by_variant", one.variant), ("by_dtype", one.dtype)):
            self.found[name] = dict(Counter(self.found[name]) + Counter([value]))
        if one.failure:
            self.found["failures"].append(one.failure)
            say(str(one.failure))


def large_example(device: DeviceInfo) -> dict[str, Any]:
    """Multiply operands of over 2^31 elements each, and check a sample of rows."""
    m, n, k = LARGE
    generator = torch.Generator(device="cuda").manual_seed(0)
    a = torch.randn(m, k, dtype=torch.bfloat16, device="cuda", generator=generator)
    b = torch.randn(n, k, dtype=torch.bfloat16, device="cuda", generator=generator).t()
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    problem = Problem("matmul", m, n, k, "bfloat16", aligned=False)
    config = Config("pointer", 128, 128, 64, group_size=8, num_warps=8, num_stages=3)
    fill_with_poison(out)
    MATMUL.bind(config, problem, device, a, b, out)(a, b, out)
    rows = torch.tensor([0, 1, m // 2, m - 129, m - 2, m - 1], device="cuda")
    # A row's error follows from its own numbers, so a few rows are a problem of their own.
    part = Problem("matmul", len(rows), n, k, "bfloat16", aligned=False)
    reference, tolerance = expected(part, a[rows], b, ())
    error = ((out[rows].float() - reference).abs() / tolerance).max().item()
    finite = all(bool(torch.isfinite(chunk).all()) for chunk in out.split(4096))
    return {
        "m": m, "n": n, "k": k, "elements": [m * k, k * n, m * n], "config": str(config),
        "error_ratio": error, "all_finite": finite, "right": bool(finite and error <= 1),
    }  # fmt: skip


def say(text: str) -> None:
    """Tell the person who waits."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Try examples until there are enough, or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--kernels", type=int, default=200, help="at most so many are compiled")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes share one GPU")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="try this one number again")
    parser.add_argument("--no-large", action="store_true", help="leave out the largest example")
    arguments = parser.parse_args()
    device = KNOWN_DEVICES["sm_90"] if interpreting() else detect()
    run = Run(arguments.output, seed=arguments.seed, device=device)
    known = run.found["kernels"]
    limit = len(known) or arguments.kernels
    drawing = Drawing(arguments.seed, device, config_pool(device), limit, known)
    if arguments.only is not None:
        again = drawing.outcome(arguments.only)
        say(str(again))
        return int(again.failure is not None)
    started = time.monotonic()
    if run.found["large"] is None and not (arguments.no_large or interpreting()):
        run.found["large"] = large_example(device)
        say(str(run.found["large"]))
        torch.cuda.empty_cache()
    first = [] if known else drawing.settle()
    run.found["kernels"] = sorted(drawing.known)
    with trying(drawing, arguments.jobs) as outcomes:
        for _ in outcomes(first if arguments.jobs > 1 else []):
            pass  # each kernel is compiled once before all processes want it
        go_on(run, outcomes, arguments, started)
    large_is_right = run.found["large"] is None or run.found["large"]["right"]
    say(
        f"{run.found['examples']} examples on {len(drawing.known)} kernels,"
        f" {len(run.found['failures'])} failures, {run.found['given_up']} given up"
    )
    return int(bool(run.found["failures"]) or not large_is_right)


def go_on(
    run: Run,
    outcomes: Callable[[Iterable[int]], Iterable[Outcome]],
    arguments: argparse.Namespace,
    started: float,
) -> None:
    """Try number after number, some for each process at a time, and write what came of them."""
    saved = started
    while run.found["examples"] < arguments.examples:
        missing = arguments.examples - run.found["examples"]
        most = min(missing, arguments.jobs * 16 if arguments.jobs > 1 else 1)
        for one in outcomes(range(run.found["next"], run.found["next"] + most)):
            run.take(one)
        now = time.monotonic()
        if now - saved > 20:
            run.save(now - saved)
            say(f"{run.found['examples']} examples")
            saved = now
        if now - started > arguments.seconds:
            break
    run.save(time.monotonic() - saved)


if __name__ == "__main__":
    sys.exit(main())
