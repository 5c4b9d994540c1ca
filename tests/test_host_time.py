"""The script that measures host time, on calls and a clock of ours."""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import tunekit
from tunekit import products, serving
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import dense_operands, describe

SCRIPT = Path(__file__).parents[1] / "scripts" / "host_time.py"
H200 = KNOWN_DEVICES["sm_90"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("host_time", SCRIPT)
    module = sys.modules["host_time"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["host_time"]


class Clock:
    """A clock that a call moves by what it costs."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, us):
        self.now += us * 1e-6


def test_every_call_is_timed_in_every_round_and_the_wait_is_not(script):
    clock, order = Clock(), []

    def call(name, us):
        order.append(name)
        clock.spend(us)

    calls = {name: partial(call, name, us) for name, us in (("x", 3), ("y", 5), ("z", 8))}
    times = script.interleaved(
        calls, rounds=8, repeat=4, wait=lambda: clock.spend(1000), clock=clock
    )
    assert {name: script.summary(each)["median_us"] for name, each in times.items()} == {
        "x": 3, "y": 5, "z": 8,
    }  # fmt: skip
    rounds = [tuple(order[60 + 12 * r : 72 + 12 * r : 4]) for r in range(8)]
    assert all(sorted(one) == ["x", "y", "z"] for one in rounds)
    assert len(set(rounds)) > 1


def test_a_call_that_gets_slower_is_not_flat(script):
    clock, calls = Clock(), [0]

    def slower():
        calls[0] += 1
        clock.spend(1 + calls[0] / 10_000)

    for call, flat in ((partial(clock.spend, 2), True), (slower, False)):
        found = script.flatness(call, 16_000, wait=lambda: None, clock=clock)
        assert (found["last_over_first"] <= 1.1) is flat


def test_the_goals_are_parts_of_the_others_times(script):
    # the host was slower in one round, for some of it
    times = {"tunekit": [9.5, 9.5, 19.0], "torch": [10.0, 10.0, 12.0], "autotuned": [40.0] * 3}
    plain = script.ratios(times, prepared_more=False)
    assert plain["torch"]["part"] == 0.95
    assert (plain["torch"]["met"], plain["autotuned"]["met"]) == (False, True)
    assert script.ratios(times, prepared_more=True)["torch"]["met"]


def test_an_opened_database_is_noticed(script, tmp_path):
    with script.databases_opened() as opened:
        sqlite3.connect(tmp_path / "some.db").close()
    assert any("sqlite3.connect" in one for one in opened)
    before = len(opened)
    sqlite3.connect(tmp_path / "some.db").close()
    assert len(opened) == before


def test_no_database_is_opened_after_the_first_call_of_a_key(
    script, own_cache, best_row, monkeypatch
):
    monkeypatch.setattr(serving, "_device_info", lambda *_: H200)
    monkeypatch.setattr(products, "on_gpu", lambda a: True)
    monkeypatch.setattr(MATMUL, "bind", lambda *of: lambda a, b, out: None)
    tunekit.reload()
    a, b = torch.randn(48, 64).half(), torch.randn(64, 64).half().t()
    with Store.open(own_cache) as store:
        store.put_device(H200)
        assert store.put_best(best_row(describe(a, b), Config("pointer", 16, 32, 32)))
    tunekit.matmul(a, b)
    with script.databases_opened() as opened:
        for _ in range(10_000):
            tunekit.matmul(a, b)
        keys = [(torch.empty(m, 64).half(), b) for m in range(1, 300)]
        for _ in range(2):  # other keys, which the rows read at first answer
            for left, right in keys:
                tunekit.matmul(left, right, on_miss="fallback")
    assert opened == []
    tunekit.reload()


def test_each_problem_is_of_a_variant_there_is(script):
    names = {name.partition(",")[0] for name in script.PROBLEMS}
    # On the host the same as `padded`.
    turned = {variant.name for variant in MATMUL.variants if variant.name.startswith("turned")}
    assert names == {variant.name for variant in MATMUL.variants} - turned | {"gluon"}
    for name, problem in script.PROBLEMS.items():
        config = script.config_for(name, H200)
        if "gluon" in name and config is None:
            continue  # a Triton without it
        assert config.variant == name.partition(",")[0]
        assert (config.split_k > 1) is ("split" in name or name == "streamk")
        a, b = dense_operands(problem, torch.device("cpu"))
        assert describe(a, b) == problem


@pytest.mark.interpreted
def test_the_autotuned_kernel_is_called_as_it_wants_to_be(script, monkeypatch):
    monkeypatch.setattr(script.triton, "autotune", lambda configs, key: _with(configs[0]))
    a, b = torch.randn(40, 64), torch.randn(64, 48)
    outs = []
    monkeypatch.setattr(script.torch, "empty_like", lambda x: outs.append(x) or x)
    out = torch.empty(40, 48)
    config = Config("pointer", 16, 16, 32)
    launch = MATMUL.variant("pointer").call(config, describe(a, b), H200, a, b, out)
    script._autotuned(launch)(a, b, out)
    torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)


def _with(config):
    """Return what launches a kernel with one config, as Triton's autotuner does in the end."""

    class Tuned:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            return lambda *a, **k: self.kernel[grid](*a, **k, **config.all_kwargs())

    return Tuned
