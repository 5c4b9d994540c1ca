"""Which of two rows for one key stays."""

from __future__ import annotations

from enum import Enum

from tunekit.trial import Best, Measurement, Origin, Provenance


class Policy(str, Enum):
    """What an import does with a row whose place in the store is taken by another.

    `FASTER` takes the lower median, `NEWER` the later date; under both, what was measured stays
    before what was only replayed. `KEEP` leaves the store's row, `REPLACE` takes the file's, `FAIL`
    refuses the whole file.
    """

    FASTER = "faster"
    NEWER = "newer"
    KEEP = "keep"
    REPLACE = "replace"
    FAIL = "fail"


def supersedes(new: Best, old: Best) -> bool:
    """Say whether a new result takes the place of the stored one.

    Measured goes before replayed. Otherwise, measuring the same config again corrects its row, and
    another config has to be faster.
    """
    measured = new.provenance.origin is Origin.MEASURED
    if measured is not (old.provenance.origin is Origin.MEASURED):
        return measured
    return new.config == old.config or new.measurement.median_us < old.measurement.median_us


def has_tried_more(new: Best, old: Best) -> bool:
    """Say whether a new result that the stored one outlasts was found with more trials."""
    return new.trials > old.trials and new.provenance.origin is old.provenance.origin


def policy_takes(
    policy: Policy,
    new: tuple[Measurement | None, Provenance],
    old: tuple[Measurement | None, Provenance],
) -> bool:
    """Say whether an imported row takes the place of the stored one. No measurement is slowest."""
    if policy is Policy.REPLACE:
        return True
    if policy in (Policy.KEEP, Policy.FAIL):
        return False
    (new_time, new_from), (old_time, old_from) = new, old
    measured = new_from.origin is Origin.MEASURED
    was_measured = old_from.origin is Origin.MEASURED
    if policy is Policy.NEWER:
        newer = new_from.created_at[:19] > old_from.created_at[:19]
        return newer and (measured or not was_measured)
    if measured is not was_measured:
        return measured
    if new_time is None or old_time is None:
        return new_time is not None
    return new_time.median_us < old_time.median_us
