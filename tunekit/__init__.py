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
    from tunekit.dispatch import explain as explain
    from tunekit.dispatch import matmul as matmul
    from tunekit.dispatch import reload as reload
    from tunekit.dispatch import warmup as warmup
    from tunekit.errors import TunekitError as TunekitError
    from tunekit.key import Problem as Problem
    from tunekit.key import TuningKey as TuningKey
    from tunekit.nn import linear as linear
    from tunekit.nn import replace_linear as replace_linear
    from tunekit.policies import Policy as Policy
    from tunekit.policies import policy as policy
    from tunekit.policies import set_policy as set_policy
    from tunekit.recorder import record as record
    from tunekit.scaled import scaled_mm as scaled_mm
    from tunekit.serving import MissWarning as MissWarning
    from tunekit.tuner import tune as tune

__version__ = VERSION

_HOME = {
    "Config": "tunekit.config",
    "MissWarning": "tunekit.serving",
    "Policy": "tunekit.policies",
    "Problem": "tunekit.key",
    "TunekitError": "tunekit.errors",
    "TuningKey": "tunekit.key",
    "explain": "tunekit.dispatch",
    "linear": "tunekit.nn",
    "matmul": "tunekit.dispatch",
    "policy": "tunekit.policies",
    "record": "tunekit.recorder",
    "reload": "tunekit.dispatch",
    "scaled_mm": "tunekit.scaled",
    "set_policy": "tunekit.policies",
    "replace_linear": "tunekit.nn",
    "tune": "tunekit.tuner",
    "warmup": "tunekit.dispatch",
}

_MODULES = ("nn",)
"""Public modules that load at first use too."""

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tunekit.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
