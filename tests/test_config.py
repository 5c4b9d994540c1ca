"""A config survives being written and read, and nothing malformed becomes one."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.config import MAX_FIELD, Config
from tunekit.errors import ConfigError, TunekitError

NUMBERS = [f.name for f in fields(Config) if f.name not in ("variant", "switches")]
PLAIN = {"variant": "tiles", "block_m": 64, "block_n": 128, "block_k": 32}

positive = st.integers(1, MAX_FIELD)
switches = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
    st.integers(-MAX_FIELD, MAX_FIELD),
    max_size=4,
)
configs = st.builds(
    Config,
    variant=st.text(st.characters(codec="utf-8"), min_size=1, max_size=64),
    switches=switches.map(lambda own: tuple(sorted(own.items()))),
    **{name: positive for name in NUMBERS},
)
not_a_whole_number = st.one_of(
    st.booleans(),
    st.none(),
    st.floats(),
    st.text(),
    st.lists(st.integers()),
    st.integers(max_value=0),
)


@given(configs)
def test_a_config_survives_json(config):
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@given(configs, configs)
def test_configs_are_equal_exactly_if_their_plain_forms_are(one, other):
    assert (one == other) == (one.to_dict() == other.to_dict())
    assert len({one, other}) == (1 if one == other else 2)


def test_switches_are_ordered_however_they_were_written():
    plain = {**PLAIN, "switches": {"wide": 1, "early": 0}}

    config = Config.from_dict(plain)

    assert config.switches == (("early", 0), ("wide", 1))
    assert config.switch("wide") == 1
    assert config.switch("absent") == 0
    assert config.switch("absent", 7) == 7


def test_absent_fields_take_their_defaults():
    assert Config.from_dict(PLAIN) == Config("tiles", 64, 128, 32)


@pytest.mark.parametrize("name", ["block_q", "num_ctas", "Block_M", ""])
def test_an_unknown_field_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"unknown field {name!r}"):
        Config.from_dict({**PLAIN, name: 1})


@pytest.mark.parametrize("name", list(PLAIN))
def test_a_missing_field_is_refused_by_name(name):
    plain = {key: value for key, value in PLAIN.items() if key != name}
    with pytest.raises(ConfigError, match=f"lacks the field {name!r}"):
        Config.from_dict(plain)


@given(st.sampled_from(NUMBERS), not_a_whole_number)
def test_a_field_that_is_no_whole_number_from_one_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=name):
        Config.from_dict({**PLAIN, name: value})


def test_a_field_past_the_limit_is_refused():
    with pytest.raises(ConfigError, match="block_m"):
        Config.from_dict({**PLAIN, "block_m": MAX_FIELD + 1})


@pytest.mark.parametrize("variant", ["", 3, None, True, "x" * 65, ["tiles"]])
def test_a_variant_that_is_no_name_is_refused(variant):
    with pytest.raises(ConfigError, match="variant"):
        Config.from_dict({**PLAIN, "variant": variant})


@pytest.mark.parametrize(
    "own", [{"wide": True}, {"wide": 1.0}, {"wide": "1"}, {3: 1}, {"wide": MAX_FIELD + 1}, [], "no"]
)
def test_malformed_switches_are_refused(own):
    with pytest.raises(ConfigError, match="switch"):
        Config.from_dict({**PLAIN, "switches": own})


@given(st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text())))
def test_what_is_no_object_is_refused(plain):
    with pytest.raises(ConfigError, match="object of named fields"):
        Config.from_dict(plain)


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Config("tiles", 64, 64, 32).block_m = 128


@pytest.mark.parametrize("name", NUMBERS)
def test_the_text_of_a_config_shows_every_field(name):
    config = Config("tiles", 64, 128, 32, switches=(("wide", 1),))
    other = Config.from_dict({**config.to_dict(), name: 77})
    assert str(other) != str(config)
    assert "wide=1" in str(config)


def test_config_errors_are_the_users_to_act_on():
    assert issubclass(ConfigError, TunekitError)
    assert issubclass(ConfigError, ValueError)
