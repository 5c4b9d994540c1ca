"""What the process, a block and a call say of how products are served."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
import torch

import tunekit
from tunekit import policies, products
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import ConfigError, MissError, ProblemError, StoreError
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe
from tunekit.policies import Policy, current
from tunekit.serving import MissWarning

H200 = KNOWN_DEVICES["sm_90"]
CONFIG = Config("pointer", 16, 32, 32, num_stages=2)


@pytest.fixture(autouse=True)
def forget():
    before = current().policy
    tunekit.reload()
    yield
    tunekit.set_policy(**{name: getattr(before, name) for name in Policy.__slots__})
    tunekit.reload()


def operands(m=48, k=64, n=64):
    return torch.randn(m, k).half(), torch.randn(n, k).half().t()


def test_the_innermost_word_counts():
    assert current().policy == Policy("auto", "warn", False, None)
    before = tunekit.set_policy(on_miss="fallback")
    assert before == Policy()
    with tunekit.policy(backend="triton") as outer:
        assert outer == Policy("triton", "fallback")
        with tunekit.policy(backend="vendor", deterministic=True):
            assert current().policy == Policy("vendor", "fallback", True)
            assert current().policy.overridden("auto", "error") == Policy("auto", "error", True)
        assert current().policy == outer
    assert current().policy == Policy(on_miss="fallback")


def test_a_block_ends_with_an_error_too():
    with pytest.raises(ValueError, match="inside"), tunekit.policy(backend="triton"):
        raise ValueError("inside")
    assert current().policy == Policy()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"backend": "cublas"}, "auto, triton or vendor"),
        ({"on_miss": "eror"}, "warn, fallback or error"),
        ({"deterministic": 1}, "true or false"),
        ({"config": "pointer"}, "tunekit.Config"),
        ({"determinstic": True}, "no 'determinstic': use backend, on_miss, deterministic, config"),
    ],
)
def test_a_wrong_policy_lists_what_there_is(wrong, text):
    with pytest.raises(ProblemError, match=text), tunekit.policy(**wrong):
        pass
    with pytest.raises(ProblemError, match=text):
        tunekit.set_policy(**wrong)
    assert current().policy == Policy()


def test_a_block_is_of_its_thread_and_the_process_of_all():
    seen = []
    tunekit.set_policy(on_miss="fallback")
    with tunekit.policy(backend="triton"):
        threads = [
            threading.Thread(target=lambda: seen.append(current().policy)),
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(lambda: seen.append(current().policy),),
            ),
        ]
        for thread in threads:
            thread.start()
            thread.join()
    assert seen == [Policy(on_miss="fallback"), Policy("triton", "fallback")]


@pytest.mark.interpreted
def test_what_was_prepared_under_a_policy_is_kept_for_the_next_block(monkeypatch):
    prepared = []
    bind = MATMUL.bind
    monkeypatch.setattr(MATMUL, "bind", lambda *a: prepared.append(a[0]) or bind(*a))
    a, b = operands()
    for _ in range(3):
        with tunekit.policy(backend="triton", on_miss="fallback"):
            tunekit.matmul(a, b)
    assert len(prepared) == 1


@pytest.mark.interpreted
def test_reload_forgets_what_every_policy_has_prepared():
    a, b = operands()
    with tunekit.policy(backend="triton", on_miss="fallback"):
        tunekit.matmul(a, b)
        assert current().prepared
    tunekit.reload()
    assert not policies.scope_of(Policy("triton", "fallback")).prepared


@pytest.mark.interpreted
def test_a_pinned_config_runs_for_every_product_and_the_cache_is_not_asked(monkeypatch):
    ran = []
    bind = MATMUL.bind
    monkeypatch.setattr(MATMUL, "bind", lambda *a: ran.append(a[0]) or bind(*a))
    monkeypatch.setattr(Store, "open", lambda *a, **k: pytest.fail("the cache was opened"))
    with tunekit.policy(config=CONFIG, backend="triton"):
        a, b = operands()
        results = [tunekit.matmul(a, b) for _ in range(3)]
        assert all(torch.equal(one, results[0]) for one in results)
        tunekit.matmul(*operands(33))
    assert ran == [CONFIG, CONFIG]


@pytest.mark.interpreted
def test_a_pinned_config_that_is_not_legal_here_is_an_error():
    huge = Config("pointer", 256, 256, 256, num_stages=6)
    with tunekit.policy(config=huge, backend="triton"), pytest.raises(ConfigError, match="legal"):
        tunekit.matmul(*operands())


def test_a_miss_is_told_once_for_a_key_under_whatever_policy(pretend_gpu):
    a, b = operands()
    with pytest.warns(MissWarning):
        tunekit.matmul(a, b)
    with tunekit.policy(deterministic=True):
        tunekit.matmul(a, b)  # a second warning would be an error
    with tunekit.policy(on_miss="error"):
        for _ in range(2):
            with pytest.raises(MissError, match="tunekit tune --shape 48,64,64"):
                tunekit.matmul(a, b)


def test_a_warning_names_the_line_that_called(pretend_gpu):
    with pytest.warns(MissWarning) as caught:
        tunekit.matmul(*operands())
    assert caught[0].filename == __file__
    a, b = operands(40)
    a.requires_grad_()
    with pytest.warns(MissWarning) as caught:
        tunekit.matmul(a, b)
    assert caught[0].filename == __file__


@pytest.fixture
def neighbour(own_cache, best_row):
    """A cache with one row, near the operands of these tests but not theirs."""
    with Store.open(own_cache) as store:
        store.put_device(H200)
        assert store.put_best(best_row(describe(*operands(56)), CONFIG))


def test_determinism_leaves_a_neighbours_row_alone(pretend_gpu, neighbour):
    a, b = operands()
    with tunekit.policy(on_miss="fallback"):
        tunekit.matmul(a, b)
        borrowed = products.met(a, b, current().policy)
        assert borrowed.answer.best.config == CONFIG
    with tunekit.policy(on_miss="fallback", deterministic=True):
        tunekit.matmul(a, b)
        assert products.met(a, b, current().policy).launch is None
        own = operands(56)
        tunekit.matmul(*own)
        assert products.met(*own, current().policy).answer.best.config == CONFIG


def test_determinism_makes_a_row_that_does_not_run_an_error(pretend_gpu, neighbour, monkeypatch):
    def broken(*args):
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(MATMUL, "bind", broken)
    own = operands(56)
    assert torch.equal(tunekit.matmul(*own, on_miss="fallback"), torch.matmul(*own))
    with tunekit.policy(deterministic=True), pytest.raises(RuntimeError, match="PassManager"):
        tunekit.matmul(*own)


def test_determinism_makes_a_cache_that_cannot_be_read_an_error(pretend_gpu, own_cache):
    own_cache.write_text("this is not a database, and it is long enough to be read as one" * 100)
    with tunekit.policy(deterministic=True), pytest.raises(StoreError, match="cannot be read"):
        tunekit.matmul(*operands())


def test_a_block_may_be_left_in_another_context_than_it_was_entered_in():
    block = tunekit.policy(backend="vendor")
    contextvars.copy_context().run(block.__enter__)
    assert not block.__exit__(None, None, None)

    async def products():
        with tunekit.policy(backend="vendor"):
            yield 1
            yield 2

    async def unfinished():
        async for _ in products():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(unfinished())
    assert current().policy.backend == "auto"
