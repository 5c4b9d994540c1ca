"""Which configs to try next: Optuna's ask and tell over an enumerated space.

A space is a few thousand legal configs at most, so it is listed, and every proposal is one of the
list that was not proposed before. Optuna sees named parameters. `SpaceSampler` stands between
Optuna's sampler and the study: it takes the sampler's proposal and moves it to the nearest legal
config still untried, so the study records exactly what is run. A failed trial is told as a finite
bad value, because Optuna forgets trials that are told as failed.

The default sampler, `transfer`, is such a sampler of our own. All searches of a run share one
`Experience`: it holds the trials of every key, and the forest that learns from them.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # Optuna imports tqdm, which complains where a notebook has no widgets. Neither is of use here.
    warnings.filterwarnings("ignore", message="IProgress not found")
    import optuna  # noqa: F401

from tunekit.search.budget import DEFAULT_TRIALS, Budget
from tunekit.search.experience import Experience
from tunekit.search.forest import Forest, Grow
from tunekit.search.portfolio import load_portfolios, shipped_experience
from tunekit.search.roofline import least_us
from tunekit.search.searcher import SAMPLERS, Searcher
from tunekit.search.storage import StudyStorage, open_storage
from tunekit.search.threads import one_thread

__all__ = [
    "DEFAULT_TRIALS",
    "SAMPLERS",
    "Budget",
    "Experience",
    "Forest",
    "Grow",
    "Searcher",
    "StudyStorage",
    "least_us",
    "load_portfolios",
    "one_thread",
    "open_storage",
    "shipped_experience",
]
