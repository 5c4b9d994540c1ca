"""What is compiled next, by what compilations have taken."""

from __future__ import annotations

from tunekit.compile_order import Durations
from tunekit.config import Config
from tunekit.key import Problem

ONE, OTHER = (Problem("matmul", m, 512, 512, "bfloat16") for m in (64, 1023))
FAST, SLOW = Config("pointer", 64, 64, 32), Config("streamk", 64, 64, 32)


def test_with_nothing_known_the_oldest_is_the_next():
    durations = Durations()
    assert durations.first([(ONE, FAST), (ONE, SLOW)]) == 0
    durations.learn(ONE, FAST, 0.4)
    assert durations.first([(ONE, FAST), (ONE, SLOW)]) == 0


def test_what_is_expected_to_take_twice_the_average_goes_first():
    durations = Durations()
    for _ in range(9):
        durations.learn(ONE, FAST, 0.4)
    durations.learn(ONE, SLOW, 2.0)
    assert durations.first([(ONE, FAST), (ONE, FAST), (OTHER, SLOW), (ONE, SLOW)]) == 2
    assert durations.first([(ONE, FAST), (OTHER, FAST)]) == 0


def test_a_problem_whose_kernels_take_longer_is_known_by_itself():
    durations = Durations()
    for _ in range(9):
        durations.learn(ONE, FAST, 0.4)
    durations.learn(OTHER, FAST, 3.0)
    assert durations.first([(ONE, FAST), (OTHER, FAST)]) == 1
    assert durations.first([(ONE, FAST), (Problem("matmul", 8, 8, 8, "bfloat16"), FAST)]) == 0


def test_what_was_found_compiled_and_what_is_no_compilation_say_nothing():
    durations = Durations()
    durations.learn(ONE, SLOW, 2.0)
    for _ in range(100):
        durations.learn(ONE, FAST, 0.004)
        durations.learn(ONE, None, 9.0)
    assert durations.first([(ONE, None), (ONE, FAST), (ONE, SLOW)]) == 0  # all took as long
