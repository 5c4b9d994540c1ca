"""Export files: the same text for the same rows, and imports that say what became of each row."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tunekit.cache import Policy, Store, export_json, import_json
from tunekit.errors import ExchangeError, StoreError
from tunekit.space import Violation
from tunekit.trial import Origin

ASSETS = Path(__file__).parent / "assets"
EVERY_DATABASE = True


def anything_goes(config, problem, device):
    return None


def sealed(document: dict) -> str:
    """Return a document's text with the checksum it should have."""
    body = {name: value for name, value in document.items() if name != "checksum"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return json.dumps({**body, "checksum": "sha256:" + hashlib.sha256(text.encode()).hexdigest()})


def everything(store: Store) -> tuple:
    """Return all that a store shows."""
    bests = store.bests()
    return store.devices(), bests, [store.trials(best.key) for best in bests], store.misses()


@pytest.fixture
def full(tmp_path, make):
    return make.filled(tmp_path / "full.db")


@pytest.fixture
def empty(tmp_path):
    return Store.open(tmp_path / "empty.db")


@pytest.fixture
def document(full):
    return json.loads(export_json(full, all_trials=True))


@pytest.mark.parametrize("all_trials", [False, True])
def test_the_text_is_the_same_after_a_round_trip_and_another(full, empty, tmp_path, all_trials):
    text = export_json(full, all_trials=all_trials)
    for target in (empty, Store.open(tmp_path / "third.db")):
        import_json(target, text, legality=anything_goes)
        assert export_json(target, all_trials=all_trials) == text
    assert text.endswith("}\n")
    assert text.isascii()


def test_the_text_does_not_depend_on_the_order_of_writing(full, empty, make):
    empty.put_device(make.other_device)
    empty.put_device(make.device)
    for best in reversed(full.bests()):
        empty.put_best(best)
    fewer = json.loads(export_json(full))
    assert json.loads(export_json(empty))["bests"] == fewer["bests"]


def test_one_gpus_rows_are_exported_with_that_device_alone(full, empty, make):
    text = export_json(full, gpu=make.other_device.slug, all_trials=True)
    document = json.loads(text)
    assert [row["slug"] for row in document["devices"]] == [make.other_device.slug]
    assert len(document["bests"]) == 1
    import_json(empty, text, legality=anything_goes)
    assert empty.devices() == [make.other_device]


def test_an_earlier_environments_baseline_is_exported(document):
    assert [row["provenance"]["driver"] for row in document["baselines"]] == ["570.1"]


def test_exporting_nothing_is_an_error_that_says_so(store, full):
    with pytest.raises(StoreError, match="holds nothing to export"):
        export_json(store)
    with pytest.raises(StoreError, match=r"no rows of the GPU 'tpu': it has nvidia-a100-.*, nv"):
        export_json(full, gpu="tpu")


def test_trials_without_a_best_are_exported_if_they_are_asked_for(store, make):
    store.add_trials(make.key(), [(make.trial(), make.provenance())])
    for gpu in (None, make.device.slug):
        with pytest.raises(StoreError, match="trials without a best, which --all-trials exports"):
            export_json(store, gpu=gpu)
    assert len(json.loads(export_json(store, all_trials=True))["trials"]) == 1


def test_imported_rows_are_shown_as_imported(full, empty):
    report = import_json(empty, export_json(full, all_trials=True), legality=anything_goes)
    assert (report.added, report.replaced, report.kept, report.refused) == (14, 0, 0, [])
    assert {best.provenance.origin for best in empty.bests()} == {Origin.IMPORTED}
    key = full.bests()[0].key
    assert {origin.origin for _, origin in empty.trials(key)} == {Origin.IMPORTED}
    assert {trial for trial, _ in empty.trials(key)} == {trial for trial, _ in full.trials(key)}


def test_a_local_result_takes_an_imported_rows_place_by_the_usual_rule(full, empty, make):
    import_json(empty, export_json(full), legality=anything_goes)
    slower, faster = make.best(1e6, config=make.config(num_warps=8)), make.best(1e-3)
    assert not empty.put_best(replace(slower, key=make.key()))
    assert empty.put_best(replace(faster, key=make.key()))
    assert empty.best(make.key())[0].provenance.origin is Origin.MEASURED


def test_a_row_with_an_illegal_config_is_refused_by_number(full, empty, make):
    def no_wide_tiles(config, problem, device):
        assert device in (make.device, make.other_device)
        return Violation("tile", "too wide") if config.block_m == 256 else None

    report = import_json(empty, export_json(full), legality=no_wide_tiles)
    ((number, reason),) = report.refused
    assert full.bests()[number - 1].config.block_m == 256
    assert "best 2: the config is not legal for 256x" in reason
    assert "tile: too wide" in reason
    assert len(empty.bests()) == len(full.bests()) - 1


def test_the_stores_own_word_on_a_device_goes_before_the_files(full, empty, make, document):
    empty.put_device(make.device)
    for row in document["devices"]:
        row["shared_bytes"] = 1 << 40
    seen = set()

    def look(config, problem, device):
        seen.add(device.shared_bytes)

    import_json(empty, sealed(document), legality=look)
    assert seen == {make.device.shared_bytes, 1 << 40}
    assert make.device in empty.devices()


def remove(row, name):
    del row[name]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda row: row.update(choice="cublas"), "choice: expected one of triton, vendor"),
        (lambda row: row.update(choice="vendor", vendor=None), "was not measured"),
        (
            lambda row: row["measurement"].update(median_us=1e6, low_us=1e6, high_us=1e6),
            "is faster",
        ),
        (lambda row: row.update(trials=-1), "trials"),
        (lambda row: row.update(trials=True), "trials"),
        (lambda row: row.update(count=1 << 70), "count"),
        (lambda row: row["measurement"].update(median_us=0), "median_us"),
        (lambda row: row["measurement"].update(median_us=-1.0), "median_us"),
        (lambda row: row["measurement"].update(median_us=True), "median_us"),
        (lambda row: row["measurement"].update(median_us="10"), "median_us"),
        (lambda row: row["measurement"].update(median_us=10**400), "median_us"),
        (lambda row: row["measurement"].update(low_us=1e6), "outside low_us to high_us"),
        (lambda row: row["measurement"].update(p20_us=1e6), "out of order"),
        (lambda row: row["measurement"].update(error_ratio=3.5), "at most 1, found 3.5"),
        (lambda row: row["measurement"].update(error_ratio=None), "verified result, found None"),
        (lambda row: remove(row["measurement"], "high_us"), "high_us"),
        (lambda row: row["key"].update(dtype="float12"), "dtype: expected one of float16, "),
        (lambda row: row["key"].update(dtype=["float16"]), "dtype"),
        (lambda row: row["key"].update(m=0), "m: expected a whole number from 1 to 2147483647"),
        (lambda row: row["key"].update(m=2**40), "m: expected"),
        (lambda row: remove(row["key"], "m"), "m: expected a whole number"),
        (lambda row: row["key"].update(dtype="bf16"), "dtype: expected"),
        (lambda row: row["key"].update(precision="tf32"), "is for float32"),
        (lambda row: row["key"].update(family=7), "family"),
        (lambda row: row["key"].update(epilogue="gelu"), "unknown field 'epilogue'"),
        (lambda row: row["key"].update(gpu="tpu-v9"), "does not describe its device 'tpu-v9'"),
        (lambda row: row["config"].update(num_ctas=2), "unknown field 'num_ctas'"),
        (lambda row: row["config"].update(block_m=64.5), "block_m"),
        (lambda row: row.update(config=None), "config"),
        (lambda row: row["config"].update(num_warps="x" * 10**6), "num_warps"),
        (lambda row: row["provenance"].update(created_at="yesterday"), "created_at"),
        (lambda row: row["provenance"].update(origin="imported"), "origin"),
        (lambda row: row["provenance"].update(driver=None), "driver: expected text"),
        (lambda row: row["provenance"].update(torch="\ud800"), "torch"),
        (lambda row: row["provenance"].update(source="a\0b"), "source"),
        (lambda row: row["provenance"].update(compiler="x" * 10**6), "compiler"),
        (lambda row: row.clear(), "choice"),
    ],
)
def test_a_bad_row_is_refused_with_its_reason_and_the_rest_is_taken(document, empty, harm, words):
    harm(document["bests"][1])
    report = import_json(empty, sealed(document), legality=anything_goes)
    assert [number for number, _ in report.refused] == [2]
    assert words in report.refused[0][1]
    assert "\n" not in report.refused[0][1]
    assert len(report.refused[0][1]) <= 300
    assert len(empty.bests()) == 5


def test_duplicates_and_rows_of_other_sections_are_numbered_on(document, empty):
    document["bests"].append(document["bests"][0])
    document["trials"].append(document["trials"][0])
    document["trials"][1] = "trial"
    document["baselines"].append({})
    document["devices"].append({**document["devices"][0], "slug": "another"})
    report = import_json(empty, sealed(document), legality=anything_goes)
    bests, baselines, trials = (len(document[s]) for s in ("bests", "baselines", "trials"))
    assert [number for number, _ in report.refused] == [
        bests,
        bests + baselines,
        bests + baselines + 2,
        bests + baselines + trials,
        bests + baselines + trials + 3,
    ]
    reasons = [reason.split(":")[0] for _, reason in report.refused]
    assert reasons == ["best 7", "baseline 2", "trial 2", f"trial {trials}", "device 3"]


def test_a_file_of_the_next_schema_is_read_and_what_it_adds_is_ignored(document, empty, caplog):
    document["schema"] += 1
    document["exported_by"] = {"tunekit": "9.0"}
    for rows in (document["bests"], document["trials"], document["devices"]):
        for row in rows:
            row["energy_uj"] = 5
    for row in document["bests"]:
        row["measurement"]["clock_mhz"] = 1980
        row["provenance"]["cuda"] = None
    report = import_json(empty, sealed(document), legality=anything_goes)
    assert (report.added, report.refused) == (14, [])
    assert "schema 4, one newer" in caplog.text


def test_fields_that_were_added_later_default_where_they_are_missing(document, empty):
    for row in document["bests"]:
        del row["count"], row["key"]["batch"], row["config"]["split_k"]
        for mark in ("final", "contended"):
            del row["measurement"][mark]
    report = import_json(empty, sealed(document), legality=anything_goes)
    assert report.refused == []
    assert {best.count for best in empty.bests()} == {1}
    assert {best.measurement.final for best in empty.bests()} == {False}


def test_a_file_of_the_first_schema_is_read_whole(empty, full):
    """A reader of version n reads the files of n - 1: this one was written by that version."""
    text = (ASSETS / "export-schema-1.json").read_text(encoding="utf-8")
    report = import_json(empty, text, legality=anything_goes)
    assert (report.added, report.refused) == (14, [])
    assert export_json(empty, all_trials=True) == export_json(full, all_trials=True)


def test_a_number_without_a_fraction_is_a_whole_one_however_it_is_written(document, empty):
    """JavaScript and others write 5.0 as 5 and know no difference."""
    row = document["bests"][0]
    row["key"]["m"], row["config"]["block_m"] = float(row["key"]["m"]), 64.0
    row["trials"], row["measurement"]["repetitions"] = 40.0, 100.0
    row["measurement"]["median_us"] = 9
    assert import_json(empty, sealed(document), legality=anything_goes).refused == []
    assert [type(best.key.m) for best in empty.bests()] == [int] * 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: "", "not whole JSON"),
        (lambda d: sealed(d)[: len(sealed(d)) // 2], "not whole JSON"),
        (lambda d: sealed(d) + "x", "not whole JSON"),
        (lambda d: "[]", "not an export"),
        (lambda d: "null", "not an export"),
        (lambda d: sealed({**d, "format": "other"}), "not an export"),
        (lambda d: sealed({**d, "schema": 5}), "schema 5, and this tunekit reads up to 4: upgrade"),
        (lambda d: sealed({**d, "schema": True}), "schema: expected"),
        (lambda d: sealed({**d, "schema": "1"}), "schema: expected"),
        (lambda d: sealed({**d, "bests": {}}), "bests: expected a list"),
        (lambda d: json.dumps({**d, "bests": d["bests"][1:]}), "checksum"),
        (lambda d: json.dumps({**d, "checksum": None}), "checksum"),
        (lambda d: sealed({**d, "later": float("nan")}), "cannot be read"),
        (lambda d: sealed({**d, "later": float("-inf")}), "cannot be read"),
        (lambda d: "9" * 5000, "number that cannot be read"),
        (lambda d: "[" * 100_000, "nested"),
        (lambda d: '{"a":' * 100_000, "nested"),
    ],
)
def test_what_is_no_whole_export_is_refused_and_nothing_changes(full, document, change, words):
    before = everything(full)
    with pytest.raises(ExchangeError, match=words) as raised:
        import_json(full, change(document), policy=Policy.REPLACE, legality=anything_goes)
    assert "\n" not in str(raised.value)
    assert everything(full) == before


def test_an_imported_replay_is_known_to_be_one(full, empty):
    import_json(empty, export_json(full), legality=anything_goes)
    (replayed,) = [best for best in full.bests() if best.replayed]
    (imported,) = [best for best in empty.bests() if best.replayed]
    assert imported.key == replayed.key
    assert imported.provenance.origin is Origin.IMPORTED
    assert (imported.imported_replay, replayed.imported_replay) == (True, False)


@pytest.mark.parametrize("text", ["GPU\x1b[31m", "GPU\nand more", "GPU\x9b", "\u202eGPU"])
def test_what_a_terminal_would_obey_is_refused(document, empty, text):
    document["bests"][1]["provenance"]["device_name"] = text
    report = import_json(empty, sealed(document), legality=anything_goes)
    ((number, reason),) = report.refused
    assert number == 2
    assert "device_name: expected text" in reason
    assert reason.isprintable()


def test_the_error_text_of_a_trial_may_have_lines(document, empty):
    trials = [row for row in document["trials"] if row["error"] is not None]
    trials[0]["error"] = "first\n\x1b[31msecond"
    assert import_json(empty, sealed(document), legality=anything_goes).refused == []
