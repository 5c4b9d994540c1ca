"""What is put into a store comes out of it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from sqlalchemy.engine.default import DefaultDialect

from tunekit.cache import Store
from tunekit.errors import StoreError
from tunekit.trial import Origin, Status

EVERY_DATABASE = True


def test_a_best_comes_back_whole_in_another_store_object(store, make):
    best = make.best()
    assert store.put_best(best)
    assert Store.open(store.location, create=False).bests() == [best]
    assert store.best(best.key) == [best]


def test_a_best_without_a_vendor_measurement_has_none(store, make):
    best = make.best(vendor=None)
    store.put_best(best)
    assert store.best(best.key) == [best]


def test_a_key_has_one_best_for_each_compiler_whatever_the_driver(store, make):
    first = make.best(provenance=make.provenance(compiler="a"))
    second = make.best(provenance=make.provenance(compiler="b"))
    upgraded = make.best(9.0, provenance=make.provenance(compiler="a", driver="999"))
    for best in (second, first, upgraded):
        assert store.put_best(best)
    assert store.best(make.key()) == [upgraded, second]


@pytest.mark.parametrize(
    "field",
    [
        {"m": 513},
        {"dtype": "float16"},
        {"out_dtype": "float32"},
        {"layout": "nn"},
        {"aligned": False},
        {"batch": 2},
        {"scaling": "row"},
    ],
)
def test_keys_that_differ_in_one_field_never_share_a_row(store, make, field):
    store.put_best(make.best())
    assert store.best(make.key(**field)) == []
    store.put_best(make.best(20.0, key=make.key(**field)))
    assert [best.key for best in store.best(make.key(**field))] == [make.key(**field)]
    assert len(store.bests()) == 2


def test_keys_that_were_tried_are_counted_whether_or_not_one_works(store, make):
    assert store.tried() == {}
    first, second = make.key(), make.key(m=7)
    made = make.provenance()
    store.add_trials(first, [(make.trial(), made)])
    failed = [make.trial(None, block_m=size) for size in (16, 32)]
    store.add_trials(second, [(trial, made) for trial in failed])
    assert store.tried() == {second: 2, first: 1}
    assert store.tried(gpu=first.gpu) == store.tried()
    assert store.tried(gpu="another") == {}


def test_what_came_of_the_trials_of_many_keys_is_what_each_key_says(store, make, monkeypatch):
    monkeypatch.setattr("tunekit.cache.store.KEYS_AT_ONCE", 2)
    store.put_device(make.other_device)
    keys = [make.key(m=size) for size in (5, 3, 4)] + [make.key(m=3, gpu=make.other_device.slug)]
    compilers = [make.provenance(compiler=name) for name in ("a", "b")]
    for turn in range(2):  # so that the rows of a key do not lie together
        for key in keys:
            for made in compilers:
                trials = [make.trial(1.0 + key.m, num_stages=turn + 1), make.trial(None)]
                store.add_trials(key, [(trial, made) for trial in trials])
    found = dict(store.outcomes())
    assert set(found) == set(keys)
    for key, outcomes in found.items():
        said = [(made.fingerprint.compiler, trial.outcome) for trial, made in store.trials(key)]
        assert outcomes == said
    other = dict(store.outcomes(gpu=make.other_device.slug))
    assert other == {keys[3]: found[keys[3]]}
    assert dict(store.outcomes(gpu="another")) == {}


def test_bests_are_sorted_by_key_and_narrowed_by_gpu_and_family(store, make):
    store.put_device(make.other_device)
    keys = [
        make.key(m=1024),
        make.key(m=64),
        make.key(gpu=make.other_device.slug),
        make.key(family="grouped"),
    ]
    for key in keys:
        store.put_best(make.best(key=key))
    assert [best.key for best in store.bests()] == sorted(keys)
    assert [b.key for b in store.bests(gpu=make.other_device.slug)] == [keys[2]]
    assert [b.key for b in store.bests(family="grouped")] == [keys[3]]
    assert store.bests(gpu="no-such-gpu") == []


def test_trials_come_back_in_the_order_of_their_first_storing(store, make):
    made = [(make.trial(20.0 - n, num_stages=n), make.provenance()) for n in (4, 2, 3)]
    store.add_trials(make.key(), made[:2])
    store.add_trials(make.key(), made[2:])
    assert store.trials(make.key()) == made
    again = (make.trial(1.0, num_stages=4), make.provenance(created_at="2025-06-02T12:00:00Z"))
    store.add_trials(make.key(), [again])
    assert store.trials(make.key()) == [again, *made[1:]]


def test_trials_are_kept_apart_by_environment_and_kernel_source(store, make):
    trial = make.trial()
    origins = [
        make.provenance(),
        make.provenance(driver="999"),
        make.provenance(source="edited"),
        make.provenance(compiler="other"),
    ]
    store.add_trials(make.key(), [(trial, origin) for origin in origins])
    assert store.trials(make.key()) == [(trial, origin) for origin in origins]
    assert store.trials(make.key(), compiler="other") == [(trial, origins[-1])]


def test_a_replayed_trial_does_not_overwrite_a_measured_one(store, make):
    replayed = make.provenance(origin=Origin.REPLAYED)
    store.add_trials(make.key(), [(make.trial(20.0), replayed)])
    store.add_trials(make.key(), [(make.trial(10.0), make.provenance())])
    store.add_trials(make.key(), [(make.trial(5.0), replayed)])
    assert store.trials(make.key()) == [(make.trial(10.0), make.provenance())]


def test_trials_are_counted_by_how_they_ended(store, make):
    trials = [make.trial(), make.trial(num_stages=2), make.trial(None, num_warps=8)]
    store.add_trials(make.key(), [(trial, make.provenance()) for trial in trials])
    assert store.trial_counts(make.key()) == {Status.OK: 2, Status.COMPILE_ERROR: 1}
    assert store.trial_counts(make.key(m=1)) == {}


def test_an_error_text_that_no_file_could_hold_is_made_readable(store, make):
    odd = replace(make.trial(None), error="line \ud800 \0" + "x" * 100_000)
    store.add_trials(make.key(), [(odd, make.provenance())])
    ((kept, _),) = store.trials(make.key())
    assert kept.error.startswith("line ? ")
    assert len(kept.error) == 4000
    assert kept.error.isprintable()


def test_a_device_is_stored_once_and_updated(store, make):
    store.put_device(make.device)
    assert store.devices() == [make.device]
    changed = replace(make.device, memory_bytes=make.device.memory_bytes - 4096)
    store.put_device(changed)
    assert store.devices() == [changed]


def test_rows_of_an_unknown_device_are_refused_by_its_name(store, make):
    key = make.key(gpu="unheard-of-sm90-1")
    for write in (
        lambda: store.put_best(make.best(key=key)),
        lambda: store.add_trials(key, [(make.trial(), make.provenance())]),
        lambda: store.record_misses({key: 1}),
    ):
        with pytest.raises(StoreError, match="unheard-of-sm90-1"):
            write()
    assert store.bests() == []


def test_misses_add_up(store, make):
    store.record_misses({make.key(): 2, make.key(m=7): 1})
    store.record_misses({make.key(): 3})
    assert store.misses() == {make.key(m=7): 1, make.key(): 5}


def test_misses_are_forgotten_key_by_key(store, make):
    store.record_misses({make.key(): 2, make.key(m=7): 1, make.key(m=8): 4})
    store.clear_misses([make.key(), make.key(m=8), make.key(m=9)])
    assert store.misses() == {make.key(m=7): 1}
    store.clear_misses([])
    store.record_misses({make.key(): 3})
    assert store.misses() == {make.key(m=7): 1, make.key(): 3}


def test_the_largest_sizes_are_stored(store, make):
    key = make.key(m=2**31 - 1, n=2**31 - 1, k=2**31 - 1, batch=2**31 - 1)
    store.put_best(make.best(key=key))
    assert store.best(key)[0].key == key


def test_all_trials_of_one_call_are_kept_or_none(store, make):
    good, bad = make.trial(), make.trial(num_stages=2)
    nameless = make.provenance(driver=None)
    with pytest.raises(StoreError):
        store.add_trials(make.key(), [(good, make.provenance()), (bad, nameless)])
    assert store.trials(make.key()) == []


def test_what_could_not_be_read_again_is_not_stored(store, make):
    with pytest.raises(ValueError, match="median_us"):
        store.put_best(make.best(measurement=make.measurement(median_us=float("nan"))))
    imported = make.provenance(origin=Origin.IMPORTED)
    with pytest.raises(ValueError, match="origin"):
        store.put_best(make.best(provenance=imported))
    assert store.bests() == []


def test_an_indeterminate_version_blocks_nothing(store, make):
    unknown = make.best(provenance=make.provenance(driver="unknown"))
    assert store.put_best(unknown)
    known = make.best(provenance=make.provenance())
    assert store.put_best(known)
    assert store.best(make.key()) == [known]


def test_an_interrupt_while_a_connection_closes_prints_no_traceback(store, monkeypatch, caplog):
    def interrupted(dialect, connection):
        raise KeyboardInterrupt

    monkeypatch.setattr(DefaultDialect, "do_rollback", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.bests()
    assert caplog.records == []


def test_other_trouble_of_a_pool_is_still_logged(caplog):
    logger = logging.getLogger("sqlalchemy.pool.impl.NullPool")
    for kind, logged in ((RuntimeError, 1), (KeyboardInterrupt, 0)):
        caplog.clear()
        try:
            raise kind
        except kind:
            logger.exception("Exception during reset or similar")
        assert len(caplog.records) == logged
