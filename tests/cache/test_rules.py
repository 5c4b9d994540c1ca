"""Which row stays: the rule for new results and the policies of an import."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunekit.cache import Policy, Store, export_json, import_json
from tunekit.cache.rules import policy_takes
from tunekit.trial import Distance, Origin

EVERY_DATABASE = True


@pytest.mark.parametrize(
    ("new_us", "new_replayed", "same_config", "old_replayed", "replaces"),
    [
        (9.0, False, False, False, True),  # faster
        (11.0, False, False, False, False),  # slower
        (10.0, False, False, False, False),  # as fast
        (11.0, False, True, False, True),  # the same config, measured again
        (11.0, False, False, True, True),  # measured goes before replayed, also when slower
        (9.0, True, False, False, False),  # and is not replaced by it, also when faster
        (9.0, True, True, False, False),  # nor corrected
        (9.0, True, False, True, True),
        (11.0, True, False, True, False),
        (11.0, True, True, True, True),
    ],
)
def test_a_new_best_replaces_by_the_rule(
    store, make, new_us, new_replayed, same_config, old_replayed, replaces
):
    old = make.best(10.0)
    new = make.best(new_us, config=make.config(num_warps=4 if same_config else 8))
    old = make.replayed(old) if old_replayed else old
    new = make.replayed(new) if new_replayed else new
    store.put_best(old)
    assert store.put_best(new) is replaces
    assert store.best(make.key()) == [new if replaces else old]


def test_a_best_that_stays_takes_over_what_was_tried_by_now(store, make):
    old, other = make.best(10.0), make.config(num_warps=8)
    store.put_best(old)
    assert not store.put_best(make.best(11.0, config=other, trials=30))
    assert store.best(make.key()) == [old]
    more = make.best(11.0, config=other, trials=90, space_size=901, distance=Distance(0.01, 0.02))
    assert not store.put_best(more)
    known = replace(old, trials=90, space_size=901, distance=Distance(0.01, 0.02))
    assert store.best(make.key()) == [known]
    assert not store.put_best(make.replayed(replace(more, trials=300)))
    assert store.best(make.key()) == [known]


def test_a_best_that_came_from_elsewhere_keeps_what_was_tried_there(store, make, tmp_path):
    store.put_best(make.best(10.0))
    with Store.open(tmp_path / "here.db") as here:
        import_json(here, export_json(store), legality=lambda *_: None)
        (there,) = here.best(make.key())
        assert not here.put_best(make.best(11.0, config=make.config(num_warps=8), trials=90))
        assert here.best(make.key()) == [there]


def test_force_and_staleness_replace_any_row(store, make):
    old, slower = make.best(10.0), make.replayed(make.best(20.0, config=make.config(num_warps=8)))
    store.put_best(old)
    asked = []
    assert not store.put_best(slower, stale=lambda best: bool(asked.append(best)))
    assert asked == [old]
    assert store.put_best(slower, stale=lambda best: True)
    assert store.put_best(old)
    assert store.put_best(slower, force=True)
    assert store.best(make.key()) == [slower]


def test_a_refused_best_leaves_the_vendor_measurement_it_was_chosen_against(store, make):
    old = make.best(10.0, vendor=make.vendor(12.0))
    store.put_best(old)
    assert not store.put_best(
        make.best(11.0, config=make.config(num_warps=8), vendor=make.vendor(5.0))
    )
    assert store.best(make.key()) == [old]


@pytest.mark.parametrize(
    ("policy", "faster", "newer", "measured_first"),
    [
        (Policy.FASTER, True, False, False),
        (Policy.NEWER, False, True, False),
        (Policy.KEEP, False, False, False),
        (Policy.REPLACE, True, True, True),
        (Policy.FAIL, False, False, False),
    ],
)
def test_each_policy_takes_what_it_says(make, policy, faster, newer, measured_first):
    old = (make.measurement(10.0), make.provenance())
    later = make.provenance(created_at="2026-01-01T00:00:00Z")
    assert policy_takes(policy, (make.measurement(9.0), make.provenance()), old) is faster
    assert policy_takes(policy, (make.measurement(11.0), later), old) is newer
    replayed = make.provenance(origin=Origin.REPLAYED, created_at="2026-01-01T00:00:00Z")
    assert policy_takes(policy, (make.measurement(1.0), replayed), old) is measured_first
    assert policy_takes(policy, (None, make.provenance()), old) is measured_first
