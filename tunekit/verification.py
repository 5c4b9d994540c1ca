"""Whether a config computes the right result, and the same one every time."""

from __future__ import annotations

import torch

from tunekit.config import Config
from tunekit.kernels import Family, Launch, Prepared
from tunekit.trial import Status, Trial


def verify(
    kernels: Family, config: Config, prepared: Prepared, *, runs: int
) -> Trial | tuple[Launch, float]:
    """Run a config on a poisoned output `runs` times, comparing the first run with the reference.

    Returns:
        Its launch and its error over the tolerance, or the failed trial of a config that is wrong
        or whose runs differ in a single bit.
    """
    launch = kernels.launch(config, prepared)
    first = None
    ratio = 0.0
    for _ in range(runs):
        kernels.poison(prepared)
        launch()
        if first is None:
            ratio = kernels.error_ratio(prepared)
            if not ratio <= 1:
                text = f"the result is off by {ratio:.3g} times the tolerance"
                return Trial(config, Status.WRONG_RESULT, error=text)
            first = prepared.out.clone() if runs > 1 else prepared.out
        elif not torch.equal(first, prepared.out):
            text = "two runs on the same operands gave different bits"
            return Trial(config, Status.NOT_REPEATABLE, error=text)
    return launch, ratio


def changed_since(
    kernels: Family, config: Config, prepared: Prepared, launch: Launch, error_ratio: float
) -> Trial | None:
    """Check a config again after many launches: equal bits have an equal error.

    Returns:
        The failed trial of a config whose error is another now, else None.
    """
    kernels.poison(prepared)
    launch()
    now = kernels.error_ratio(prepared)
    if now == error_ratio:
        return None
    text = f"its error was {error_ratio:.3g} of the tolerance, and after many launches {now:.3g}"
    return Trial(config, Status.NOT_REPEATABLE if now <= 1 else Status.WRONG_RESULT, error=text)
