"""The harness of torch's own tests, on samples of ours: torch's take long to import."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import tunekit

SCRIPTS = Path(__file__).parents[1] / "scripts"
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("forget"),
]


class Sample:
    """What torch's `SampleInput` is to the harness."""

    def __init__(self, input, args=(), kwargs=None):
        self.input, self.args, self.kwargs = input, tuple(args), kwargs or {}

    def noncontiguous(self):
        def spread(one):
            return torch.stack([one, one], -1)[..., 0] if isinstance(one, torch.Tensor) else one

        kwargs = {name: spread(one) for name, one in self.kwargs.items()}
        return Sample(spread(self.input), map(spread, self.args), kwargs)


@pytest.fixture(scope="module")
def harness():
    """The script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        spec = importlib.util.spec_from_file_location("harness", SCRIPTS / "torch_matmul_tests.py")
        module = sys.modules["harness"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
        del sys.modules["harness"]
        sys.modules.pop("wrong_calls", None)


def samples(*dtypes):
    for dtype in dtypes:
        a, b, c = (torch.randn(size).to(dtype) for size in ((3, 4), (4, 5), (3, 5)))
        yield "mm", dtype, Sample(a, (b,))
        yield "addmm", dtype, Sample(c, (a, b), {"beta": 2, "alpha": 0.5})
        yield "matmul", dtype, Sample(torch.randn(2, 3, 4).to(dtype), (b,))
        yield "nn.functional.linear", dtype, Sample(a, (b.t().contiguous(),))


def test_torchs_checks_pass_through_torch(harness):
    tally = harness.Tally()
    harness.run(samples(torch.complex64, torch.int64), "auto", tally)
    assert tally.failed == []
    assert tally.made["value"] == 8


@pytest.mark.interpreted
def test_torchs_checks_pass_through_the_kernels(harness):
    tally = harness.Tally()
    few = [one for one in samples(torch.float32, torch.float64) if one[0] != "addmm"]
    harness.run(few, "triton", tally)
    assert tally.failed == []
    assert tally.made["gradients"] == 3  # no kernel takes float64


def test_a_wrong_product_is_noticed(harness, monkeypatch):
    monkeypatch.setattr(tunekit, "matmul", lambda a, b, out=None, **how: torch.matmul(a, b) + 1)
    tally = harness.Tally()
    harness.run(samples(torch.float64), "auto", tally)
    assert {line.split()[0] for line in tally.failed} >= {"value", "noncontiguous", "out"}
    assert not tally.torchs


def test_what_torch_cannot_do_itself_is_told_apart(harness):
    tally = harness.Tally()
    harness.run(
        [("mm", torch.float64, Sample(torch.ones(3, 4), (torch.ones(5, 6),)))], "auto", tally
    )
    assert tally.failed == []
    assert len(tally.torchs) == sum(tally.made.values())


def test_forty_wrong_calls_fail_as_in_torch(harness):
    from wrong_calls import unlike_torch, wrong_calls

    assert len(wrong_calls()) >= 40
    assert list(unlike_torch()) == []


def test_wrong_calls_fail_as_in_torch_on_a_gpu_too(harness, monkeypatch):
    from wrong_calls import unlike_torch

    from tunekit import products, serving
    from tunekit.device import KNOWN_DEVICES

    monkeypatch.setattr(serving, "_device_info", lambda *_: KNOWN_DEVICES["sm_90"])
    monkeypatch.setattr(products, "on_gpu", lambda a: True)
    assert list(unlike_torch(on_miss="fallback")) == []
