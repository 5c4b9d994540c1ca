"""A row that cannot be read is left out alone, is logged, and heals with the next save."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tunekit.cache import Store, export_json, import_sqlite


def change(store, *statements):
    with sqlite3.connect(store.location) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        'UPDATE config SET text = \'{"variant": "poin\' WHERE id = 2',
        "UPDATE config SET text = '[1, 2]' WHERE id = 2",
        "UPDATE config SET text = replace(text, '\"num_warps\":8', '\"num_warps\":null')",
        'UPDATE config SET text = replace(text, \'"num_warps":8\', \'"num_warps":8,"ctas":2\')',
        "UPDATE best SET median_us = NULL WHERE id = 2",
        "UPDATE best SET low_us = 'fast' WHERE id = 2",
        "UPDATE best SET high_us = -1.0 WHERE id = 2",
        "UPDATE best SET repetitions = NULL WHERE id = 2",
        "UPDATE best SET choice = 'cublas' WHERE id = 2",
        "UPDATE best SET origin = 'dreamt' WHERE id = 2",
        "UPDATE best SET origin = CAST(x'ff6d' AS TEXT) WHERE id = 2",
        "UPDATE best SET environment_id = 99 WHERE id = 2",
        "UPDATE best SET trials = 'many' WHERE id = 2",
        "UPDATE best SET space_size = -1 WHERE id = 2",
        "UPDATE best SET count = x'00' WHERE id = 2",
        "UPDATE best SET error_ratio = 9e999 WHERE id = 2",
        "UPDATE best SET expected_distance = 0.1 WHERE id = 2",
        "UPDATE best SET expected_distance = 0.1, distance_bound = 0.05 WHERE id = 2",
        "UPDATE best SET expected_distance = 'far', distance_bound = 0.05 WHERE id = 2",
        "UPDATE best SET created_at = x'ff' WHERE id = 2",
        "UPDATE baseline SET median_us = NULL WHERE id = 2",
        "UPDATE problem SET layout = 'zz' WHERE m = 64",
    ],
)
def test_one_damaged_row_costs_only_itself(store, make, damage, caplog):
    good = make.best()
    bad = make.best(key=make.key(m=64), config=make.config(num_warps=8))
    store.put_best(good)
    store.put_best(bad)
    change(store, damage)
    assert store.bests() == [good]
    assert "damaged" in caplog.text
    assert bad.config.variant in export_json(store)
    if "problem" not in damage:
        change(store, "DELETE FROM config WHERE id = 2")
        assert store.put_best(bad)
        assert store.bests() == [bad, good]


def test_a_config_that_lacks_a_newer_field_takes_its_default(store, make):
    store.put_best(make.best())
    change(store, "UPDATE config SET text = replace(text, '\"split_k\":1,', '')")
    assert store.bests() == [make.best()]


def test_damaged_trials_are_left_out_alone(store, make):
    trials = [make.trial(), make.trial(num_stages=2), make.trial(None, num_warps=8)]
    store.add_trials(make.key(), [(trial, make.provenance()) for trial in trials])
    change(
        store,
        "UPDATE trial SET median_us = NULL WHERE id = 2",
        "UPDATE trial SET status = 'bored' WHERE id = 3",
    )
    assert store.trials(make.key()) == [(trials[0], make.provenance())]
    compiler = make.provenance().fingerprint.compiler
    assert dict(store.outcomes()) == {make.key(): [(compiler, trials[0].outcome)]}


@pytest.mark.parametrize("field", ["driver", "triton", "device_name"])
def test_a_version_that_is_not_known_blocks_nothing(store, make, field, tmp_path):
    """A null where a version belongs costs the rows made there, until they are made again."""
    good = make.best(key=make.key(m=64), provenance=make.provenance(torch="2.14.0"))
    store.put_best(make.best())
    store.put_best(good)
    change(
        store,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'environment'",
    )
    change(store, f"UPDATE environment SET {field} = NULL WHERE torch = '2.13.0'")
    with Store.open(store.location) as again:
        assert again.bests() == [good]
        assert len(json.loads(export_json(again))["bests"]) == 1
        report = import_sqlite(
            Store.open(tmp_path / "other.db"), Path(store.location), legality=lambda *_: None
        )
        ((_, reason),) = report.refused
        assert f"{field}: expected text" in reason
        assert "found None" in reason
        assert report.added == 1
        assert again.put_best(make.best())
        assert again.bests() == [good, make.best()]


@pytest.mark.parametrize("field", ["shared_bytes", "multiprocessors", "arch", "name"])
@pytest.mark.parametrize("value", ["NULL", "x'ff'", "'many'", "1.5"])
def test_a_damaged_device_is_left_out_and_healed_by_the_next_that_is_put(store, make, field, value):
    """Its fields decide what is legal, so nothing else than numbers and text may come out."""
    if field in ("arch", "name") and value in ("'many'", "1.5"):
        pytest.skip("SQLite makes text of it, which a name may be")
    store.put_best(make.best())
    change(
        store,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'device'",
    )
    change(store, f"UPDATE device SET {field} = {value} WHERE slug = '{make.device.slug}'")
    with Store.open(store.location) as again:
        assert make.device not in again.devices()
        assert again.bests() == [make.best()]
        again.put_device(make.device)
        assert make.device in again.devices()


@pytest.mark.parametrize("value", ["x'ff'", "'many'", "-1"])
def test_a_damaged_count_of_misses_is_left_out(store, make, value):
    store.record_misses({make.key(): 2, make.key(m=64): 3})
    change(store, f"UPDATE miss SET count = {value} WHERE count = 2")
    assert store.misses() == {make.key(m=64): 3}
