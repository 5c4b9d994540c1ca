"""How trials are dealt out among keys."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tunekit.tuner.allocation import (
    BATCH,
    MOST_BATCHES,
    Standing,
    batch_for,
    deal,
    grants,
    is_settled,
    left_to_run,
    weights,
)


def standing(trials, target=80, space=1000, worth=1.0, tried=1):
    return Standing(tried, trials, target, -(-target // 2), space, worth)


def left(*standings):
    return left_to_run(standings)


def test_below_their_floors_all_have_a_batch_and_those_above_wait():
    dealt = grants([standing(0), standing(36), standing(40), standing(0, target=6)], 240)
    assert dealt == [BATCH, 4, 0, 3]


def test_keys_with_many_trials_have_larger_batches_as_far_as_they_still_learn_in_between():
    assert [batch_for(target) for target in (1, 24, 44, 45, 80, 200)] == [8, 8, 8, 9, 16, 16]
    sixteen = [replace(standing(trials), batch=16) for trials in (0, 36, 40)]
    assert grants([*sixteen, standing(0)], 1000) == [16, 4, 0, BATCH]
    assert grants(sixteen[2:], 31) == [31]  # less than two batches are one
    assert grants(sixteen[2:], 36) == [16]


def test_above_the_floors_trials_go_by_worth_and_a_key_without_a_share_ends():
    dealt = grants([standing(40, worth=1000.0), standing(40, worth=1.0), standing(40)], 120)
    assert dealt == [30, None, None]
    dealt = grants([standing(40), standing(40, worth=3.0)], 8)
    assert dealt == [2, 6]


def test_a_large_share_is_proposed_in_parts_that_keep_the_compilers_busy():
    (count,) = grants([standing(40)], 10_000)
    assert count == MOST_BATCHES * BATCH
    assert grants([standing(40)], 100) == [25]
    assert grants([standing(40)], 20) == [BATCH]
    assert grants([standing(40)], 15) == [15]


def test_a_run_that_has_had_its_trials_ends_every_key():
    assert grants([standing(40), standing(200)], 0) == [None, None]
    assert grants([], 10) == []


def test_nothing_moves_before_every_key_has_results():
    assert grants([standing(4, 8), standing(4, 8, tried=0)], 8) == [0, 0]
    assert grants([standing(4, 8), standing(4, 8)], 8) == [4, 4]


def test_a_key_where_nothing_works_counts_as_an_average_one():
    assert weights([1.0, None, 3.0]) == [1.0, 2.0, 3.0]
    assert weights([None, None]) == [1.0, 1.0]
    assert weights([0.0, None]) == [1.0, 1.0]


@given(
    st.integers(0, 2000),
    st.lists(st.tuples(st.floats(1e-9, 1e9), st.integers(0, 300)), max_size=12),
)
def test_what_is_dealt_is_all_there_is_room_for(count, keys):
    room = [space for _, space in keys]
    shares = deal(count, [weight for weight, _ in keys], room)
    assert sum(shares) == min(count, sum(room))
    assert all(0 <= share <= space for share, space in zip(shares, room, strict=True))


def test_equal_keys_share_alike():
    assert deal(10, [1.0] * 4, [100] * 4) == [3, 3, 2, 2]


def test_a_run_is_to_have_what_its_keys_bring():
    assert left(standing(0), standing(0)) == 160
    assert left(standing(8), standing(16)) == 136


def test_an_interrupted_run_still_has_as_many_to_do_as_are_missing():
    # three keys of 80, of which one has taken 80 from the others
    assert left(standing(40), standing(120), standing(40)) == 40
    assert left(standing(40), standing(160), standing(40)) == 0


def test_keys_that_gave_trials_away_are_settled_and_those_that_were_left_are_not():
    taken, gave = standing(160), standing(40)
    assert is_settled([gave, gave], [taken, gave, gave])
    assert not is_settled([gave], [gave])
    assert not is_settled([gave, gave], [gave, gave, standing(100)])


def test_trials_of_a_larger_run_are_not_taken_from_keys_that_have_none_yet():
    assert left(standing(400), standing(0), standing(0)) == 160
