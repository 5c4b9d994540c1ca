"""tunekit: the fastest right matmul on the GPU you have, tuned once, proven, and served.

>>> import tunekit
>>> c = tunekit.matmul(a, b)          # what torch.matmul(a, b) means, from tuned kernels

Importing this package loads neither torch nor Triton nor the tuner: each name below loads what it
needs at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tunekit.version import VERSION

if TYPE_CHECKING:
    from tunekit.config import Config as Config
    from tunekit.dispatch import matmul as matmul
    from tunekit.dispatch import reload as reload
    from tunekit.errors import TunekitError as TunekitError
    from tunekit.key import Problem as Problem
    from tunekit.key import TuningKey as TuningKey
    from tunekit.tuner import tune as tune

__version__ = VERSION

_HOME = {
    "Config": "tunekit.config",
    "Problem": "tunekit.key",
    "TunekitError": "tunekit.errors",
    "TuningKey": "tunekit.key",
    "matmul": "tunekit.dispatch",
    "reload": "tunekit.dispatch",
    "tune": "tunekit.tuner",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
