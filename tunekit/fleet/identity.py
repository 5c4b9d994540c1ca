"""What results depend on as it is installed: on every host of a run it has to be the same."""

from __future__ import annotations

from tunekit.kernels import FAMILIES, family
from tunekit.trial import PROTOCOL, Origin
from tunekit.version import VERSION


def made_by(origin: Origin) -> dict[str, str]:
    """Return versions and fingerprints by name. What is only replayed depends on few of them."""
    found = {"tunekit": VERSION}
    if origin is Origin.REPLAYED:
        return found
    import torch  # which a replay has no need of
    import triton

    found |= {"torch": str(torch.__version__), "triton": triton.__version__, "protocol": PROTOCOL}
    for name in FAMILIES:
        kernels = family(name)
        for variant in (v.name for v in kernels.variants):
            mark = kernels.fingerprint(variant)
            found |= {f"the kernels of {variant}": mark.source, "the compiler": mark.compiler}
    return found
