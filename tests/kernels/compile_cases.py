"""Compiles kernels for GPUs that are not here and prints what came of it, as JSON lines.

Run in a process of its own, without TRITON_INTERPRET: Triton decides at import whether kernels are
compiled or interpreted.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.stand_ins import StandIn, stand_ins
from tunekit.kernels.target import compile_call
from tunekit.key import Problem


def compiled(case: dict) -> dict:
    """Compile one case and say how much shared memory it takes, or how it failed."""
    problem = Problem(**case["problem"])
    config = Config.from_dict(case["config"])
    device = KNOWN_DEVICES[case["arch"]]
    variant = MATMUL.variant(config.variant)
    operands = stand_ins(problem)
    if "strides" in case:
        operands = tuple(
            dataclasses.replace(operand, strides=tuple(strides))
            for operand, strides in zip(operands, case["strides"], strict=True)
        )
    assert all(isinstance(operand, StandIn) for operand in operands)
    predicted = variant.shared_bytes(config, problem, device)
    try:
        binary = compile_call(variant.call(config, problem, device, *operands), device)
    except Exception as error:
        failure = MATMUL.failure(error)
        if failure is None:
            raise
        return {"status": failure[0].value, "error": failure[1], "predicted": predicted}
    return {"status": "ok", "shared": binary.metadata.shared, "predicted": predicted}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(compiled(json.loads(line))), flush=True)
