"""Multiply every tuned key in a fresh process and check what runs.

    python scripts/check_served.py [--cache FILE] > served.json

For each key of the cache: the result is right against the reference, the config that ran is the one
`tunekit show` names, and nothing was compiled, searched or timed. Prints one JSON document; exits 1
if a check fails.
"""

from __future__ import annotations

# ruff: noqa: E402  (the clock starts before the imports it is to include)
import time

STARTED = time.perf_counter()

import argparse
import json
import platform
import sys
from datetime import datetime, timezone
from typing import Any

import torch
import triton

import tunekit
from tunekit import dispatch
from tunekit.cache import Store
from tunekit.device import detect, driver_version
from tunekit.kernels.matmul_family import MATMUL
from tunekit.trial import Best, Choice

NEVER_LOADED = (
    "optuna", "tunekit.measure", "tunekit.timing", "tunekit.compile_pool", "tunekit.gpu_runner",
    "tunekit.child",
)  # fmt: skip


def main() -> int:
    """Check every key of this GPU and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", help="path or URL; default: where tunekit.matmul looks")
    arguments = parser.parse_args()
    compiled: list[str] = []
    events: list[int] = []
    watch(compiled, events)
    device = detect(0)
    with Store.open(arguments.cache, create=False) as store:
        bests = store.bests(gpu=device.slug)
    keys = [check(best) for best in bests]
    loaded = [name for name in NEVER_LOADED if name in sys.modules]
    document = {
        "what": "every tuned key multiplied in a process that did not tune it",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": device.name,
        "driver": driver_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "tunekit": tunekit.__version__,
        "kernels_compiled": len(compiled),
        "device_events_created": len(events),
        "tuner_modules_loaded": loaded,
        "first_result_s": keys[0]["at_s"] if keys else None,
        "keys": keys,
    }
    print(json.dumps(document, indent=1))
    good = keys and all(key["right"] and key["as_shown"] for key in keys)
    return 0 if good and not compiled and not events and not loaded else 1


def watch(compiled: list[str], events: list[int]) -> None:
    """Note every compilation and every event that could time something."""

    def listen(*, src: Any, cache_hit: bool, **rest: Any) -> None:
        if not cache_hit:
            compiled.append(str(src.name))

    triton.knobs.compilation.listener = listen
    create = torch.cuda.Event.__new__

    def counted(cls: Any, *arguments: Any, **settings: Any) -> Any:
        events.append(1)
        return create(cls, *arguments, **settings)

    torch.cuda.Event.__new__ = counted  # type: ignore[method-assign]


def check(best: Best) -> dict[str, Any]:
    """Multiply one key's problem and compare the result and what ran."""
    prepared = MATMUL.prepare(best.key.problem, detect(0), index=0, seed=7)
    result = tunekit.matmul(prepared.a, prepared.b)
    torch.cuda.synchronize()
    at_s = time.perf_counter() - STARTED
    prepared.out.copy_(result)
    error_ratio = MATMUL.error_ratio(prepared)
    served = dispatch.served_for(prepared.a, prepared.b)
    choice = Choice.VENDOR if served is None or served.launch is None else Choice.TRITON
    answer = None if served is None else served.answer
    same = answer is not None and answer.best.config == best.config and choice is best.choice
    as_vendor = torch.equal(result, torch.matmul(prepared.a, prepared.b))
    forced = tunekit.matmul(prepared.a, prepared.b, backend="triton")
    prepared.out.copy_(forced)
    triton_error_ratio = MATMUL.error_ratio(prepared)
    # The vendor's own rounding is the vendor's: it may sum split products in the output dtype.
    right = as_vendor if choice is Choice.VENDOR else error_ratio <= 1
    return {
        "problem": str(best.key.problem),
        "choice": choice.value,
        "config": str(best.config),
        "grade": None if answer is None else answer.grade.value,
        "as_shown": same,
        "error_ratio": error_ratio,
        "triton_error_ratio": triton_error_ratio,
        "right": right and triton_error_ratio <= 1,
        "at_s": round(at_s, 3),
    }


if __name__ == "__main__":
    sys.exit(main())
