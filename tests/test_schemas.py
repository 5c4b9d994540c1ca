"""Each command's JSON is what its published schema says, and a schema lets nothing else pass."""

from __future__ import annotations

import json
from pathlib import Path

import click
import jsonschema
import pytest

from tests.report.conftest import DEVICE, fill
from tunekit.cli import cli, main

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"
PUBLISHED = {path.stem for path in SCHEMAS.glob("*.json")}


def check(name, text):
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    plain = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(plain)
    return plain


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_schema_is_one_and_lets_nothing_unknown_pass(name):
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": 1, "surprise": True}, schema)


def test_every_command_that_prints_json_has_a_schema():
    printing = {
        name
        for name, command in cli.commands.items()
        if any(isinstance(p, click.Option) and "--json" in p.opts for p in command.params)
    }
    assert {"check" if name == "export-cache" else name for name in printing} == PUBLISHED


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.yaml"
    path.write_text("shapes: [[512, 512, 512]]\n")
    return str(path)


@pytest.fixture
def said(capsys):
    """Return a function that runs a command with --json and gives what it printed."""

    def run(*argv, code=0):
        assert main([*argv, "--json"]) == code
        return capsys.readouterr().out

    return run


def test_of_a_tuned_cache_all_print_what_they_should(said, shapes):
    tune = ("tune", "--shapes", shapes, "--device", "replay", "--sampler", "random", "--quiet")
    plain = check("tune", said(*tune, "--trials", "6"))
    assert plain["keys"] == check("show", said("show"))["keys"]
    assert check("explain", said("explain", "512", "512", "512", "--gpu", DEVICE.slug))["row"]
    bench = said("bench", "--shapes", shapes, "--device", "replay", "--fail-below", "0.1")
    assert check("bench", bench)["passed"]
    assert check("doctor", said("doctor"))["healthy"]
    check("check", said("export-cache", "--check", shapes, "--gpu", DEVICE.slug))


def test_of_rows_that_do_not_serve_too(said, own_cache, shapes):
    fill(own_cache, 3, failing=True)
    assert len(check("show", said("show"))["keys"]) == 3
    found = check("explain", said("explain", "16", "4096", "1024", "--gpu", DEVICE.slug))
    assert found["passed_over"]
    assert check("explain", said("explain", "7", "7", "7", "--gpu", DEVICE.slug))["row"] is None
    missing = said("export-cache", "--check", shapes, "--gpu", DEVICE.slug, code=1)
    assert check("check", missing)["missing"]
    check("doctor", said("doctor"))
