"""What a search may learn of other keys from the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import Problem, TuningKey
from tunekit.runner import Runner, known_provenance
from tunekit.search import Experience, Grow, shipped_experience
from tunekit.trial import Provenance, Trial

MOST_TRIALS = 20_000
"""Trials read of a GPU kind, the latest: several times what a forest is grown on."""


def stored_experience(
    store: Store,
    runner: Runner,
    *,
    seed: int = 0,
    new: Collection[Problem] = (),
    grow: Grow | None = None,
) -> Experience:
    """Return the shipped portfolio and the stored trials of GPUs with the runner's architecture.

    Only those that the present kernels made, timed as the runner times: what another source did
    says nothing of this one, and another protocol or program gives other times. What differs in
    compiler, origin or GPU is not compared, but counts. Of `new` problems nothing stored is used.
    Forests are grown by `grow`, if it is given.
    """
    judge = _Judge(runner)
    found: list[tuple[DeviceInfo, TuningKey, str, list[Trial]]] = []
    for device in store.devices():
        if device.arch != runner.device.arch:
            continue
        groups: dict[tuple[TuningKey, str], list[Trial]] = defaultdict(list)
        for key, trial, provenance in reversed(store.recent_trials(device.slug, MOST_TRIALS)):
            label = judge.label(key, device, trial.config, provenance)
            if label is not None and key.problem not in new:
                groups[key, label].append(trial)
        for (key, label), trials in sorted(groups.items(), key=lambda group: group[0]):
            found.append((device, key, label, trials))
    known = shipped_experience(seed, grow=grow)
    for device, key, label, trials in found:
        known.note(key.problem, device, trials, made_with=label)
    if found:
        known.settle(whole=True)
    return known


class _Judge:
    """Says which trials count, and which of them this run could have made."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._now: dict[tuple[str, str], Provenance | None] = {}

    def label(
        self, key: TuningKey, device: DeviceInfo, config: Config, made: Provenance
    ) -> str | None:
        """Name how a trial was made, "" as this run would, or None if it does not count."""
        kind = (key.family, config.variant)
        if kind not in self._now:
            self._now[kind] = known_provenance(self._runner, key.problem, config)
        now = self._now[kind]
        if now is None or made.protocol != now.protocol:
            return None
        if made.fingerprint.source != now.fingerprint.source:
            return None
        own = device.slug == self._runner.device.slug and made.origin is self._runner.origin
        if own and made.fingerprint == now.fingerprint:
            return ""
        return f"{made.origin.value} {made.fingerprint.compiler}"
