"""Measure a stack of transformer layers with tuned linear layers against plain torch.

    python scripts/layer_stack.py [--cache FILE] [--trials 80] > layer-stack.json
    python scripts/layer_stack.py --cache FILE --no-tune
    python scripts/layer_stack.py --toy --device cpu --no-tune --starts 0

The layers have the sizes of Llama 3 8B and random weights in bfloat16: seven `nn.Linear` each,
grouped-query attention over a cache of `--context` tokens, RMS norm, SwiGLU; no rotation, no
embedding, no sampling. Their shapes are recorded on tensors without memory and tuned by
`tunekit tune`, unless the cache has them. Then plain torch and the same modules after
`tunekit.replace_linear` run in turn, in shuffled rounds: decoding at batch 1, 16 and 64, and a
prefill of 2,048 tokens, eager and as CUDA graphs. Tokens a second are of the stack alone.

Last, new processes are timed from their start to their first product. One JSON document on stdout,
progress on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from decoder_stack import CASES, TOY_CASES, TOY_SIZES, Case, Sizes, Stack, inputs

import tunekit
from tunekit.cache import Store
from tunekit.device import driver_version
from tunekit.shapes import load_shapes
from tunekit.table import served_rows

SIDES = ("torch", "tunekit")

START = """
import sys, time, torch
x = torch.zeros({m}, {k}, device="{device}", dtype=torch.bfloat16)
w = torch.zeros({n}, {k}, device="{device}", dtype=torch.bfloat16)
if "{side}" == "tunekit":
    import tunekit
    y = tunekit.matmul(x, w.t(), on_miss="fallback")
else:
    y = torch.matmul(x, w.t())
y[0, 0].item()
print(time.time() - float(sys.argv[1]))
"""
"""What a new process does until its first result is there."""


def main(argv: Sequence[str] | None = None) -> int:
    """Tune what is missing, measure, and print one JSON document."""
    arguments = parse(argv)
    sizes, cases = (TOY_SIZES, TOY_CASES) if arguments.toy else (Sizes(), CASES)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cache = str(arguments.cache or folder / "tuned.db")
        shapes = folder / "shapes.yaml"
        record_shapes(shapes, sizes, cases, arguments)
        if not arguments.no_tune:
            subprocess.run(tune_command(shapes, cache, arguments), check=True, stdout=sys.stderr)
        os.environ["TUNEKIT_CACHE"] = cache
        found = {
            "first_result_seconds": first_result(cases[0], sizes, arguments),
            "cases": [row for case in cases for row in measure(case, sizes, arguments)],
            "problems": served(shapes, cache),
        }
        print(json.dumps(about(sizes, arguments) | found, indent=1))
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", help="a path or URL; by default one that is thrown away")
    parser.add_argument("--no-tune", action="store_true", help="take the cache as it is")
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=512, help="tokens a new token attends to")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.05, help="of one side in one round")
    parser.add_argument("--starts", type=int, default=5, help="processes a side, 0: none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--toy", action="store_true", help="sizes that any machine can run")
    return parser.parse_args(argv)


def record_shapes(
    path: Path, sizes: Sizes, cases: Sequence[Case], arguments: argparse.Namespace
) -> None:
    """Write the shapes of all cases, from tensors without memory."""
    with torch.device("meta"), tunekit.record(path):
        model = Stack(sizes, arguments.layers).bfloat16()
        for case in cases:
            model(*inputs(case, sizes, arguments.context, "meta"))


def tune_command(shapes: Path, cache: str, arguments: argparse.Namespace) -> list[str]:
    """Return the command that tunes what a cache lacks."""
    trials = str(arguments.trials)
    command = ["tune", "--shapes", str(shapes), "--cache", cache, "--trials", trials]
    return [sys.executable, "-m", "tunekit", *command]


def measure(case: Case, sizes: Sizes, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time both sides of a case, eager and, on a GPU, as CUDA graphs."""
    device = arguments.device
    torch.manual_seed(0)
    model = Stack(sizes, arguments.layers).to(device, torch.bfloat16).eval()
    x, past = inputs(case, sizes, arguments.context, device)
    rows = []
    with torch.inference_mode():
        outputs, graphs = {}, {}
        for side in SIDES:
            with on(side, model):
                outputs[side] = model(x, past).float()
                if device == "cuda":
                    graphs[side] = captured(model, x, past).replay
        error = (outputs["tunekit"] - outputs["torch"]).abs().max() / outputs["torch"].abs().max()
        modes = {"eager": dict.fromkeys(SIDES, lambda: model(x, past)), "graph": graphs}
        for mode, steps in modes.items():
            if not steps:
                continue
            times = interleaved(model, steps, arguments)
            row = {"case": case.name, "mode": mode, "largest_error": float(error)}
            rows.append(row | summary(times, case))
            print(describe(rows[-1]), file=sys.stderr, flush=True)
    return rows


def on(side: str, model: Stack) -> contextlib.AbstractContextManager[Any]:
    """Have the model's linear layers multiply, inside the block, by one of the two sides."""
    return tunekit.replace_linear(model) if side == "tunekit" else contextlib.nullcontext()


def captured(model: Stack, x: torch.Tensor, past: Any) -> torch.cuda.CUDAGraph:
    """Return a step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(x, past)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x, past)
    return graph


def interleaved(
    model: Stack, steps: dict[str, Callable[[], Any]], arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Return the seconds a step of each side, a number for each round."""
    repeats = {}
    for side, step in steps.items():
        with on(side, model):
            once = max(timed(step, 3, arguments.device), 1e-7)
        repeats[side] = max(1, round(arguments.seconds / once))
    times: dict[str, list[float]] = {side: [] for side in steps}
    order, shuffle = list(steps), random.Random(0).shuffle
    for _ in range(arguments.rounds):
        shuffle(order)
        for side in order:
            with on(side, model):
                times[side].append(timed(steps[side], repeats[side], arguments.device))
    return times


def timed(step: Callable[[], Any], repeats: int, device: str) -> float:
    """Return the seconds a step of several in a row, host and device together."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        step()
    synchronize()
    return (time.perf_counter() - started) / repeats


def summary(times: dict[str, list[float]], case: Case) -> dict[str, Any]:
    """Return tokens a second of each side, and what each round says of their ratio."""
    tokens = case.batch * case.tokens
    ratios = [a / b for a, b in zip(times["torch"], times["tunekit"], strict=True)]
    return {
        "tokens_per_second": {
            side: spread([tokens / seconds for seconds in found]) for side, found in times.items()
        },
        "speedup": spread(ratios),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the deciles around it."""
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return {"median": statistics.median(values), "p10": deciles[0], "p90": deciles[-1]}


def first_result(case: Case, sizes: Sizes, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time new processes from their start to their first product, the sides in turn."""
    m, n = case.batch * case.tokens, sizes.hidden
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(arguments.starts):
        for side in SIDES:
            code = START.format(m=m, n=n, k=n, device=arguments.device, side=side)
            times[side].append(start(code))
    return {side: spread(found) for side, found in times.items() if len(found) > 1}


def start(code: str) -> float:
    """Return what a new process says that it took, in seconds."""
    command = [sys.executable, "-c", code, str(time.time())]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def served(shapes: Path, cache: str) -> list[dict[str, Any]]:
    """Return what the cache says of each problem."""
    problems = {shape.problem for shape in load_shapes(shapes)}
    with Store.open(cache) as store:
        rows = served_rows(best for best in store.bests() if best.key.problem in problems)
    fields = ("m", "n", "k", "gpu", "choice", "variant", "triton_us", "vendor_us", "ratio")
    return [{name: row.to_dict()[name] for name in fields} for row in rows]


def about(sizes: Sizes, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what it is measured on, and how."""
    gpu = arguments.device == "cuda"
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or "cpu",
        "driver": driver_version() if gpu else "",
        "versions": versions | {"tunekit": tunekit.__version__},
        "sizes": asdict(sizes),
        "settings": vars(arguments),
    }


def describe(row: dict[str, Any]) -> str:
    """Return a row as a line."""
    speed = row["tokens_per_second"]
    sides = ", ".join(f"{side} {speed[side]['median']:.0f}" for side in SIDES)
    ratio = row["speedup"]
    return (
        f"{row['case']} {row['mode']}: tokens/s {sides}; speedup {ratio['median']:.3f}"
        f" ({ratio['p10']:.3f}-{ratio['p90']:.3f})"
    )


if __name__ == "__main__":
    sys.exit(main())
