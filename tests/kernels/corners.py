"""Compile a variant's configs for GPUs that are not here; run by the `compile_corners` fixture.

A process of its own: the tests' kernels are interpreted, and there is no way back.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys

from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem


def _main(variant: str, cases: str, count: str) -> None:
    from tunekit.kernels.stand_ins import stand_ins
    from tunekit.kernels.target import compile_call
    from tunekit.space import enumerate_space

    module, name = variant.split(":")
    kernel = getattr(importlib.import_module(module), name)()
    for arch, fields in json.loads(cases):
        device, problem = KNOWN_DEVICES[arch], Problem(**fields)
        legal = enumerate_space((kernel.space,), problem, device).configs
        assert legal, f"{problem} has no config on {arch}"
        others = random.Random(0).sample(legal, min(int(count), len(legal)))
        for config in {legal[0], legal[-1], *others}:
            call = kernel.call(config, problem, device, *stand_ins(problem))
            compiled = compile_call(call, device)
            found = {
                "config": f"{arch} {problem}: {config}",
                "shared": compiled.metadata.shared,
                "predicted": kernel.shared_bytes(config, problem, device),
                "ptx": sorted(_telling(compiled.asm.get("ptx", ""))),
            }
            print(json.dumps(found), flush=True)


def _telling(ptx: str) -> set[str]:
    wanted = ("wgmma.mma_async", "cp.async.bulk.tensor", "cp.async.cg", "setmaxnreg", "v4.b32")
    return {word for word in wanted if word in ptx}


if __name__ == "__main__":
    _main(*sys.argv[1:])
    # Triton's bindings complain about what is alive when the interpreter ends.
    sys.stdout.flush()
    os._exit(0)
