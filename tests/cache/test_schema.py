"""The published JSON Schema and the reader say the same of every row."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest

from tunekit.cache import exchange_schema, export_json
from tunekit.cache.fields import ContradictionError, RefusedRowError
from tunekit.cache.plain import (
    baseline_from_plain,
    best_from_plain,
    device_from_plain,
    trial_from_plain,
)
from tunekit.cache.rows import DEVICE_FIELDS, KEY_FIELDS, MEASUREMENT_FIELDS, VERSION_FIELDS

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is in the group `test`")

ROOT = Path(__file__).parents[2]
SCHEMA = exchange_schema()
READERS = {
    "device": device_from_plain,
    "best": best_from_plain,
    "baseline": baseline_from_plain,
    "trial": trial_from_plain,
}
ODD = [
    *(None, True, False, 0, -1, 1, 2, 1.0, 2.5, -0.0, 5e-324, 0.5, 1e15, 1e308),
    *(2**10, 2**20, 2**20 + 1, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63, 10**400),
    *("", "x", "\0", "\n", "a\n", "a\u202eb", "\ud800", "\x9b", "é", "卡", "x" * 64, "x" * 65),
    *("x" * 200, "x" * 201, "x" * 4000, "x" * 4001, "measured", "imported", "ok", "timeout"),
    *("float16", "bf16", "float32", "tf32", "ieee", "nn", "NN", "row", "triton", "vendor", "torch"),
    *("2025-06-01T12:00:00Z", "2025-06-01T12:00:00", "2025-06-01T12:00:00.5+00:00"),
    *("2025-13-01T12:00:00Z", "2025-06-01", "2025-06-01T12:00:00Z\n", "2025-06-01T12:00:00+02:00"),
    *([], {}, [1], {"": 1}, {"a": True}, {"a": 1}, {"a\n": 1}, {"a": 2**21}),
]


def validator(name: str):
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


@pytest.fixture
def document(tmp_path, make):
    whole = json.loads(export_json(make.filled(tmp_path / "full.db"), all_trials=True))
    whole["bests"][0]["distance"] = {"expected": 0.01, "bound": 0.02}
    return whole


def rows_of(document, name: str) -> list:
    return document[f"{name}s"]


def refusal(name: str, row) -> RefusedRowError | None:
    try:
        READERS[name](row)
    except RefusedRowError as error:
        return error
    return None


def places(value, path=()):
    """Yield the path of every value inside a row."""
    items = value.items() if isinstance(value, dict) else ()
    for name, inside in items:
        yield (*path, name)
        yield from places(inside, (*path, name))


def agree(name: str, row, valid) -> bool:
    """Say whether both take a row, or both refuse it; contradictions are the reader's alone."""
    refused = refusal(name, row)
    if valid.is_valid(row):
        assert refused is None or isinstance(refused, ContradictionError), (name, row, refused)
        return refused is None
    assert refused is not None, (name, row, next(valid.iter_errors(row)).message)
    return False


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("draft/2020-12/schema")


def test_the_page_shows_the_schema_that_is_installed():
    page = (ROOT / "docs" / "exchange.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- cache/exchange.schema.json -->\n```json\n")[2].partition("```")[0]
    assert shown == (ROOT / "cache" / "exchange.schema.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("all_trials", [False, True])
def test_every_export_is_valid(tmp_path, make, all_trials):
    text = export_json(make.filled(tmp_path / "full.db"), all_trials=all_trials)
    jsonschema.validate(json.loads(text), SCHEMA, jsonschema.Draft202012Validator)


def test_every_field_that_is_written_is_described():
    described = {name: set(part.get("properties", ())) for name, part in SCHEMA["$defs"].items()}
    assert described["device"] == {"slug", *DEVICE_FIELDS}
    assert described["key"] == set(KEY_FIELDS)
    assert described["measurement"] >= set(MEASUREMENT_FIELDS)
    assert described["provenance"] >= set(VERSION_FIELDS)


@pytest.mark.parametrize("name", READERS)
def test_one_odd_value_anywhere_is_judged_alike(document, name):
    valid, taken, refused = validator(name), 0, 0
    for row in {tuple(places(row)): row for row in rows_of(document, name)}.values():
        for path in places(row):
            if name in ("best", "trial") and path[0] in ("key", "provenance") and path[1:]:
                continue  # as in a baseline
            for odd in ODD:
                changed = copy.deepcopy(row)
                here = changed
                for step in path[:-1]:
                    here = here[step]
                here[path[-1]] = odd
                ok = agree(name, changed, valid)
                taken, refused = taken + ok, refused + (not ok)
    assert taken > 50, taken
    assert refused > 500, refused


@pytest.mark.parametrize("name", READERS)
def test_a_missing_or_an_added_field_is_judged_alike(document, name):
    valid = validator(name)
    for row in {tuple(places(row)): row for row in rows_of(document, name)}.values():
        for path in [(), *places(row)]:
            changed = copy.deepcopy(row)
            here = changed
            for step in path[:-1]:
                here = here[step]
            inside = here[path[-1]] if path else here
            if isinstance(inside, dict):
                inside["later"] = 1
                agree(name, changed, valid)
            if path:
                del here[path[-1]]
                agree(name, changed, valid)
    for odd in ODD:
        agree(name, odd, valid)


@pytest.mark.parametrize("name", READERS)
def test_several_odd_values_are_judged_alike(document, name):
    valid, chance = validator(name), random.Random(name)
    for _ in range(200):
        changed = copy.deepcopy(chance.choice(rows_of(document, name)))
        for _ in range(chance.randrange(1, 5)):
            path = chance.choice([*places(changed)])
            here = changed
            for step in path[:-1]:
                here = here[step]
            here[path[-1]] = chance.choice(ODD)
        agree(name, changed, valid)
