"""The lead of a run from the workers that were hired for it."""

from __future__ import annotations

from collections.abc import Callable

from tunekit.fleet.hiring import Hired
from tunekit.fleet.identity import made_by
from tunekit.fleet.leading import Lead
from tunekit.runner import Runner
from tunekit.trial import Origin


def open_lead(open_runner: Callable[..., Runner], hired: Hired) -> Lead:
    """Hear the workers, and learn meanwhile what they are going to be judged by."""
    replayed = hired.origin is Origin.REPLAYED
    lead = Lead(hired.crew, hired.place, ground=open_runner(hired.device) if replayed else None)
    if not (replayed or hired.crew.is_local):
        made_by(Origin.MEASURED)  # loads the kernels, while the workers do so too
    return lead
