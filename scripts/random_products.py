"""Multiply thousands of random operands with random configs, and hold each result to a reference.

    python scripts/random_products.py -o docs/benchmarks/random-products-h200.json

Shapes, strides, dtypes, offsets, batches and configs are random, operands lie in NaN, the output is
poisoned; what lies between and around its elements must stay as it was. At most `--kernels` kernels
are compiled: an example that would need another one is drawn again. The first example is one whose
operands have more than 2^31 elements each. An interrupted run goes on where it ended, and what
failed is listed with the number that draws it again (`--only N`). Exit status 1: something failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import triton
from random_operands import Example, draw

import tunekit
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES, DeviceInfo, detect
from tunekit.kernels import Prepared
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import interpreting
from tunekit.kernels.reference import error_ratio, expected, fill_with_poison
from tunekit.kernels.target import compile_key
from tunekit.key import Problem

ATTEMPTS = 400
"""How often an example is drawn again before it is given up."""

CONFIGS_EACH = 5
"""Configs of a variant in each of the problems that they are drawn from."""

LARGE = (70001, 66000, 32771)
"""M, N, K: A and B have over 2^31 elements, and so has C."""


class Run:
    """What was tried so far, kept in a file."""

    def __init__(self, output: Path, *, kernels: int, seed: int, device: DeviceInfo) -> None:
        self.output, self.kernels, self.device = output, kernels, device
        self.place = torch.device("cpu" if interpreting() else "cuda")
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
        self.known = set(self.found["kernels"])
        self.pool = config_pool(device)

    def save(self, seconds: float) -> None:
        """Write what was found so far."""
        self.found["kernels"] = sorted(self.known)
        self.found["seconds"] = round(self.found["seconds"] + seconds, 1)
        self.found["date"] = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.output.write_text(json.dumps(self.found, indent=1) + "\n")

    def next_example(self) -> None:
        """Draw and try one example."""
        number = self.found["next"]
        self.found["next"] += 1
        rng = random.Random(f"{self.found['seed']}/{number}")
        drawn = self.drawn(rng)
        if drawn is None:
            self.found["given_up"] += 1
            return
        example, config = drawn
        fault, ratio = tried(example, config, self.device)
        self.found["examples"] += 1
        self.found["worst_error_ratio"] = max(self.found["worst_error_ratio"], min(ratio, 1e9))
        for name, value in (("by_variant", config.variant), ("by_dtype", example.problem.dtype)):
            self.found[name] = dict(Counter(self.found[name]) + Counter([value]))
        if fault:
            strides = [tuple(one.stride()) for one in (example.a, example.b, example.out)]
            failure = {
                "number": number, "problem": str(example.problem), "config": str(config),
                "forms": example.forms, "strides": strides, "fault": fault,
            }  # fmt: skip
            self.found["failures"].append(failure)
            say(str(failure))

    def drawn(self, rng: random.Random) -> tuple[Example, Config] | None:
        """Draw until a config is legal and its kernels are among those that may be compiled."""
        for _ in range(ATTEMPTS):
            example = draw(rng, self.place)
            for config in rng.sample(self.pool, min(40, len(self.pool))):
                if MATMUL.violation(config, example.problem, self.device) is None:
                    keys = self.keys(example, config)
                    if keys <= self.known or len(self.known | keys) <= self.kernels:
                        self.known |= keys
                        return example, config
        return None

    def keys(self, example: Example, config: Config) -> set[str]:
        """Name the kernels that an example needs."""
        operands = (example.a, example.b, example.out, *example.scales)
        call = MATMUL.variant(config.variant).call(config, example.problem, self.device, *operands)
        names = [repr(compile_key(one)) for one in call.sequence()]
        return {hashlib.sha256(name.encode()).hexdigest()[:16] for name in names}


def config_pool(device: DeviceInfo) -> list[Config]:
    """Draw configs of every variant from the spaces of a few kinds of problems."""
    rng = random.Random(0)
    problems = [
        Problem("matmul", 512, 512, 512, "bfloat16"),
        Problem("matmul", 512, 768, 1024, "float16", layout="nn", batch=2),
        Problem("matmul", 511, 513, 515, "float16", aligned=False),
        Problem("matmul", 512, 512, 512, "float32", precision="tf32", layout="nn"),
        Problem("matmul", 512, 512, 2048, "int8", "int32"),
        Problem("matmul", 16, 1024, 1024, "float8_e4m3fn", "bfloat16", scaling="row"),
        Problem("matmul", 1, 1024, 1024, "bfloat16"),
        Problem("matmul", 40, 48, 33, "float32", aligned=False),
    ]
    pool: dict[Config, None] = {}
    for problem in problems:
        by_variant: dict[str, list[Config]] = {}
        for config in MATMUL.space(problem, device).configs:
            if not (interpreting() and config.variant == "gluon"):  # it has no interpreter
                by_variant.setdefault(config.variant, []).append(config)
        for configs in by_variant.values():
            pool.update(dict.fromkeys(rng.sample(configs, min(CONFIGS_EACH, len(configs)))))
    return list(pool)


def tried(example: Example, config: Config, device: DeviceInfo) -> tuple[str, float]:
    """Run an example; returns what is wrong, or nothing, and its error over the tolerance."""
    problem = example.problem
    operands = (example.a, example.b, example.out, *example.scales)
    MATMUL.bind(config, problem, device, *operands)(*operands)
    reference, tolerance = expected(problem, example.a, example.b, example.scales)
    prepared = Prepared(
        problem, device, example.a, example.b, example.out, reference, tolerance, example.scales
    )
    ratio = error_ratio(prepared)
    if not ratio <= 1:
        return f"off by {ratio:.3g} times the tolerance", ratio
    return ("" if surroundings_are_intact(example.out) else "wrote outside its output"), ratio


def surroundings_are_intact(out: torch.Tensor) -> bool:
    """Say whether nothing but the output's own elements was written."""
    fill_with_poison(out)
    memory = out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)
    poison = torch.empty_like(memory[:1])
    fill_with_poison(poison)
    if out.is_floating_point():
        return bool(memory.isnan().all())
    return bool((memory == poison).all())


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
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="try this one number again")
    parser.add_argument("--no-large", action="store_true", help="leave out the largest example")
    arguments = parser.parse_args()
    device = KNOWN_DEVICES["sm_90"] if interpreting() else detect()
    run = Run(arguments.output, kernels=arguments.kernels, seed=arguments.seed, device=device)
    if arguments.only is not None:
        run.found.update(next=arguments.only, failures=[])
        run.next_example()
        return int(bool(run.found["failures"]))
    started = saved = time.monotonic()
    if run.found["large"] is None and not (arguments.no_large or interpreting()):
        run.found["large"] = large_example(device)
        say(str(run.found["large"]))
        torch.cuda.empty_cache()
    while run.found["examples"] < arguments.examples:
        now = time.monotonic()
        if now - started > arguments.seconds:
            break
        run.next_example()
        if now - saved > 20:
            run.save(now - saved)
            say(f"{run.found['examples']} examples, {len(run.known)} kernels")
            saved = now
    run.save(time.monotonic() - saved)
    large_is_right = run.found["large"] is None or run.found["large"]["right"]
    say(
        f"{run.found['examples']} examples on {len(run.known)} kernels,"
        f" {len(run.found['failures'])} failures, {run.found['given_up']} given up"
    )
    return int(bool(run.found["failures"]) or not large_is_right)


if __name__ == "__main__":
    sys.exit(main())
