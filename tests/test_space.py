"""Legality is one function: it names the rule it applies, and the space is what it allows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem
from tunekit.space import (
    FIELDS,
    Rule,
    Space,
    VariantSpace,
    Violation,
    enumerate_space,
    find_violation,
)

H200 = KNOWN_DEVICES["sm_90"]
T4 = KNOWN_DEVICES["sm_75"]
PROBLEM = Problem("some-family", 64, 64, 64, "bfloat16")

CHOICES = {
    "block_m": (16, 64, 256),
    "block_n": (16, 64),
    "block_k": (32, 64),
    "group_size": (8,),
    "split_k": (1, 2),
    "num_warps": (4, 8),
    "num_stages": (2, 4),
}


def wide(config, problem, device):
    if config.block_m > problem.m:
        return f"block_m={config.block_m} > m={problem.m}"
    return None


def shared(config, problem, device):
    need = (config.block_m + config.block_n) * config.block_k * 2 * config.num_stages
    return f"{need} bytes > {device.shared_bytes}" if need > device.shared_bytes else None


RULES = (Rule("wide", wide), Rule("shared", shared))
TILES = VariantSpace("tiles", CHOICES, RULES)
SWITCHED = VariantSpace("switched", {**CHOICES, "wrap": (0, 1), "early": (1, 2)}, RULES)
LEGAL = Config("tiles", 16, 16, 32, group_size=8, num_stages=2)
LEGAL_SWITCHED = replace(LEGAL, variant="switched", switches=(("early", 1), ("wrap", 0)))

problems = st.builds(
    Problem,
    st.just("some-family"),
    st.integers(1, 512),
    st.integers(1, 512),
    st.integers(1, 512),
    st.just("bfloat16"),
)
devices = st.sampled_from(sorted(KNOWN_DEVICES.values(), key=lambda info: info.arch))


def combinations(variant):
    return math.prod(len(values) for values in variant.choices.values())


@given(problems, devices)
def test_legal_and_pruned_configs_add_up_to_all_combinations(problem, device):
    space = enumerate_space((TILES, SWITCHED), problem, device)

    assert len(space) + sum(space.pruned.values()) == combinations(TILES) + combinations(SWITCHED)
    assert len(set(space.configs)) == len(space) == len(space.configs)
    assert set(space.pruned) <= {"wide", "shared"}


@given(problems, devices)
def test_what_is_enumerated_is_exactly_what_is_legal(problem, device):
    variants = (TILES, SWITCHED)
    legal = set(enumerate_space(variants, problem, device).configs)

    for variant in variants:
        for config in variant.candidates():
            broken = find_violation(variants, config, problem, device)
            assert (broken is None) == (config in legal)


@given(problems, devices)
def test_the_order_is_fixed(problem, device):
    first, second = (enumerate_space((TILES, SWITCHED), problem, device) for _ in range(2))

    assert first.configs == second.configs
    assert first.digest() == second.digest()


def test_the_order_is_that_of_the_choices_with_the_last_field_fastest():
    first, second, *_ = SWITCHED.candidates()

    assert first == LEGAL_SWITCHED
    assert second == replace(first, switches=(("early", 1), ("wrap", 1)))
    assert [c.block_m for c in TILES.candidates()] == sorted(c.block_m for c in TILES.candidates())


def space_of(configs):
    return Space(PROBLEM, H200, tuple(configs))


ALL = tuple(SWITCHED.candidates())
subsets = st.sets(st.sampled_from(ALL), max_size=6)


@given(subsets, subsets)
def test_the_digest_is_the_same_exactly_if_the_set_is(one, other):
    assert (space_of(one).digest() == space_of(other).digest()) == (one == other)


@given(
    st.lists(st.sampled_from(ALL), unique=True, max_size=6).flatmap(
        lambda configs: st.tuples(st.just(configs), st.permutations(configs))
    )
)
def test_the_digest_does_not_depend_on_the_order(pair):
    one, other = pair
    assert space_of(one).digest() == space_of(other).digest()


def test_a_value_more_among_the_choices_is_another_digest_and_keeps_every_config():
    more = replace(TILES, choices={**CHOICES, "num_stages": (2, 3, 4)})
    old, new = (enumerate_space((v,), PROBLEM, H200) for v in (TILES, more))

    assert old.digest() != new.digest()
    assert set(old.configs) < set(new.configs)


def test_a_legal_config_breaks_no_rule():
    assert TILES.violation(LEGAL, PROBLEM, H200) is None
    assert SWITCHED.violation(LEGAL_SWITCHED, PROBLEM, H200) is None


def test_the_first_rule_that_is_broken_is_the_one_named_with_its_numbers():
    config = replace(LEGAL, block_m=256, block_n=64, block_k=64, num_stages=4)  # breaks both

    broken = TILES.violation(config, PROBLEM, T4)

    assert broken == Violation("wide", "block_m=256 > m=64")
    assert str(broken) == "wide: block_m=256 > m=64"
    assert TILES.violation(config, replace(PROBLEM, m=256), T4).rule == "shared"
    assert TILES.violation(config, replace(PROBLEM, m=256), H200) is None


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_that_is_no_choice_is_refused_before_any_rule(name):
    def never(config, problem, device):
        raise AssertionError("a rule was asked about a value no kernel takes")

    broken = replace(TILES, rules=(Rule("never", never),)).violation(
        replace(LEGAL, **{name: 48}), PROBLEM, H200
    )

    assert broken.rule == f"{name}-choice"
    assert f"{name}=48" in broken.reason


@pytest.mark.parametrize(
    "switches",
    [
        (("early", 3), ("wrap", 0)),  # no choice
        (("early", 1), ("late", 0), ("wrap", 0)),  # no switch of this variant
        (("block_m", 16), ("early", 1), ("wrap", 0)),  # a field in a switch's place
        (("early", 1),),  # one is absent: it would be run as something never enumerated
        (("wrap", 0), ("early", 1)),  # the same settings under a second identity
        (("early", 1), ("early", 2), ("wrap", 0)),
        (),
    ],
    ids=["value", "unknown", "field", "absent", "unordered", "twice", "none"],
)
def test_switches_other_than_the_variants_own_are_refused(switches):
    broken = SWITCHED.violation(replace(LEGAL_SWITCHED, switches=switches), PROBLEM, H200)
    assert broken is not None
    assert broken.rule in ("switches-choice", "early-choice")


def test_a_variant_without_switches_takes_none():
    assert TILES.violation(replace(LEGAL, switches=(("wrap", 0),)), PROBLEM, H200) is not None


def test_an_unknown_variant_is_refused_by_name():
    broken = find_violation((TILES, SWITCHED), replace(LEGAL, variant="gone"), PROBLEM, H200)
    assert broken == Violation("variant", "there is no kernel variant 'gone'")


def test_each_config_is_judged_by_its_own_variant():
    only_small = replace(SWITCHED, choices={**SWITCHED.choices, "block_m": (16,)})
    variants = (TILES, only_small)

    assert find_violation(variants, replace(LEGAL, block_m=64), PROBLEM, H200) is None
    assert (
        find_violation(variants, replace(LEGAL_SWITCHED, block_m=64), PROBLEM, H200).rule
        == "block_m-choice"
    )
