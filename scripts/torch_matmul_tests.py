"""Run torch's own samples for products against `tunekit.matmul` in place of `torch.matmul`.

    python scripts/torch_matmul_tests.py [--device cuda] [--backend triton] [--jobs 12] > tests.json

The samples are those of torch's OpInfo tests (`torch.testing._internal`, which needs expecttest):
matmul, mm, bmm, mv, dot, addmm, baddbmm, linear. Each is checked as torch checks operators: value,
dtype, shape and strides, samples that are not contiguous, lazily negated or conjugated ones,
`out=`, gradients, second gradients, forward mode and vmap. On the CPU with `--backend triton` the
kernels run in Triton's interpreter: set TRITON_INTERPRET=1. Then the errors of some forty wrong
calls are compared. Prints one JSON document; exits 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import Any

import torch
import triton
from torch.testing import assert_close
from wrong_calls import unlike_torch, wrong_calls

import tunekit
from tunekit import dispatch
from tunekit.products import SUPPORTED

Product = Callable[..., torch.Tensor]
Check = Callable[..., None]

MAPPED: dict[str, Callable[..., torch.Tensor]] = {
    "matmul": lambda mm, a, b: mm(a, b),
    "__rmatmul__": lambda mm, a, b: mm(b, a),
    "mm": lambda mm, a, b: mm(a, b),
    "bmm": lambda mm, a, b: mm(a, b),
    "mv": lambda mm, a, b: mm(a, b),
    "dot": lambda mm, a, b: mm(a, b),
    "addmm": lambda mm, c, a, b, beta=1, alpha=1: beta * c + alpha * mm(a, b),
    "addmv": lambda mm, c, a, b, beta=1, alpha=1: beta * c + alpha * mm(a, b),
    "baddbmm": lambda mm, c, a, b, beta=1, alpha=1: beta * c + alpha * mm(a, b),
    "nn.functional.linear": lambda mm, x, w, bias=None: (
        mm(x, w.mT if w.dim() > 1 else w) + (0 if bias is None else bias)
    ),
}
"""Torch's operators as products and sums."""

SLACK = {torch.float16: 2e-2, torch.bfloat16: 1.5e-1, torch.float32: 1e-3, torch.complex64: 1e-3}
"""By how much, absolute and relative, results may differ in the last places of a dtype."""


@dataclass
class Tally:
    """How many checks were made of each sort, and what failed."""

    made: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    torchs: list[str] = field(default_factory=list)
    """What fails in the same way with torch's function in place of ours."""

    def check(self, where: str, check: Check, ours: Product, theirs: Product, *rest: Any) -> None:
        """Make one check, and note how it went."""
        what = check.__name__
        self.made[what] += 1
        error = _raised(check, ours, theirs, *rest)
        if error is None:
            return
        text = " ".join(str(error).split())[:300]
        same = type(_raised(check, theirs, theirs, *rest)) is type(error)
        note = f"{what} of {where}: {type(error).__name__}: {text}"
        (self.torchs if same else self.failed).append(note)


def _raised(check: Check, *arguments: Any) -> Exception | None:
    try:
        check(*arguments)
    except Exception as error:  # which one it is, is the question
        return error
    return None


def samples_of_torch(device: str) -> Iterator[tuple[str, torch.dtype, Any]]:
    """Yield torch's samples: the operator's name, the dtype, and the OpInfo sample."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if op.name in MAPPED and op.variant_test_name == "":
            dtypes = op.dtypes if device == "cpu" else op.dtypesIfCUDA
            for dtype in sorted(dtypes, key=str):
                for sample in op.sample_inputs(device, dtype, requires_grad=False):
                    yield op.name, dtype, sample


def run(samples: Iterable[tuple[str, torch.dtype, Any]], backend: str, tally: Tally) -> None:
    """Make every check on every sample."""
    multiply = partial(tunekit.matmul, backend=backend, on_miss="fallback")
    for name, dtype, sample in samples:
        if backend == "triton" and dtype not in SUPPORTED:
            continue
        where = f"{name} {dtype} {_shapes(sample)}"
        for check in CHECKS:
            if check.__name__ == "out" and name not in ("matmul", "mm", "bmm", "mv", "dot"):
                continue
            if check in DIFFERENTIATED and not (dtype.is_floating_point or dtype.is_complex):
                continue
            ours, theirs = (partial(MAPPED[name], of) for of in (multiply, torch.matmul))
            tally.check(where, check, ours, theirs, dtype, sample)


def value(ours: Product, theirs: Product, dtype: torch.dtype, sample: Any) -> None:
    """Compare a result with torch's in numbers, dtype, shape and strides."""
    found = ours(sample.input, *sample.args, **sample.kwargs)
    expected = theirs(sample.input, *sample.args, **sample.kwargs)
    _alike(found, expected, dtype)
    assert found.stride() == expected.stride(), (found.stride(), expected.stride())


def noncontiguous(ours: Product, theirs: Product, dtype: torch.dtype, sample: Any) -> None:
    """Compare on operands with gaps between their elements."""
    value(ours, theirs, dtype, sample.noncontiguous())


def lazy(ours: Product, theirs: Product, dtype: torch.dtype, sample: Any) -> None:
    """Compare on operands whose memory holds their negative or their conjugate."""

    def views(tensor: torch.Tensor) -> torch.Tensor:
        negated = torch._neg_view(tensor) if dtype != torch.bool else tensor
        return negated.conj() if dtype.is_complex else negated

    value(ours, theirs, dtype, _mapped(sample, views))


def out(ours: Product, theirs: Product, dtype: torch.dtype, sample: Any) -> None:
    """Compare what is written to a result of the right form, of another, and to an empty one."""
    expected = theirs(sample.input, *sample.args)
    for form in (expected, expected.new_empty(0), _gaps(expected)):
        place = torch.full_like(form, 7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            product: Any = ours
            result = product.args[0](sample.input, *sample.args, out=place)
        assert result is place
        _alike(place, expected, dtype)


def gradients(ours: Product, theirs: Product, dtype: torch.dtype, sample: Any) -> None:
    """Compare the gradients of every operand, and the gradients of those."""
    found, expected = (_derivatives(product, sample) for product in (ours, theirs))
    for mine, other in zip(found, expected, strict=True):
        _alike(mine, other, dtype, 4)


def forward_mode(ours: Product, theirs: Product, dtype: torch.dtype, sample: Any) -> None:
    """Compare the tangent of the result."""
    operands = _operands(sample)
    tangents = tuple(torch.ones_like(one) for one in operands)

    def of(product: Product) -> Any:
        return torch.func.jvp(_with(product, sample), operands, tangents)[1]

    _alike(of(ours), of(theirs), dtype, 2)


def mapped_over(ours: Product, theirs: Product, dtype: torch.dtype, sample: Any) -> None:
    """Compare two samples at once, all operands mapped over and then the first alone."""
    operands = _operands(sample)
    stacked = tuple(torch.stack([one, one + 1]) for one in operands)
    rest = (None,) * (len(operands) - 1)
    for arguments, dims in ((stacked, 0), ((stacked[0], *operands[1:]), (0, *rest))):
        found, expected = (
            torch.func.vmap(_with(product, sample), dims)(*arguments) for product in (ours, theirs)
        )
        _alike(found, expected, dtype, 2)


CHECKS = (value, noncontiguous, lazy, out, gradients, forward_mode, mapped_over)
DIFFERENTIATED = (gradients, forward_mode)


def _derivatives(product: Product, sample: Any) -> list[torch.Tensor]:
    operands = [one.detach().clone().requires_grad_() for one in _operands(sample)]
    result = _with(product, sample)(*operands)
    first = torch.autograd.grad(
        result, operands, torch.ones_like(result), create_graph=True, materialize_grads=True
    )
    total = sum((one.abs() ** 2).sum() for one in first)
    second: tuple[torch.Tensor, ...] = ()
    if isinstance(total, torch.Tensor) and total.requires_grad:
        second = torch.autograd.grad(total, operands, materialize_grads=True)
    return [*first, *second]


def _operands(sample: Any) -> tuple[torch.Tensor, ...]:
    tensors = (sample.input, *sample.args, *sample.kwargs.values())
    return tuple(one for one in tensors if isinstance(one, torch.Tensor))


def _with(product: Product, sample: Any) -> Callable[..., torch.Tensor]:
    """Return a product as a function of its tensors alone."""
    numbers = {k: v for k, v in sample.kwargs.items() if not isinstance(v, torch.Tensor)}
    return lambda *tensors: product(*tensors, **numbers)


def _mapped(sample: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def each(one: Any) -> Any:
        return change(one) if isinstance(one, torch.Tensor) else one

    made = type(sample)(each(sample.input), args=tuple(map(each, sample.args)))
    made.kwargs = {name: each(one) for name, one in sample.kwargs.items()}
    return made


def _gaps(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((*tensor.shape, 2))[..., 0]


def _alike(found: Any, expected: Any, dtype: torch.dtype, factor: float = 1) -> None:
    slack = SLACK.get(dtype)
    how = {} if slack is None else {"rtol": slack * factor, "atol": slack * factor}
    assert_close(found, expected, equal_nan=True, **how)


def _shapes(sample: Any) -> str:
    return " ".join(str(tuple(one.shape)) for one in _operands(sample))


def tally_of_part(device: str, backend: str, parts: int, part: int) -> tuple[Tally, set[str]]:
    """Make the checks on one part of the samples; also return the untuned problems met."""
    torch.manual_seed(0)
    tally = Tally()
    run(islice(samples_of_torch(device), part, None, parts), backend, tally)
    return tally, {str(key) for key in dispatch.miss_counts()}


def whole_tally(device: str, backend: str, jobs: int) -> tuple[Tally, set[str]]:
    """Make every check, here or in so many processes."""
    part = partial(tally_of_part, device, backend, jobs)
    if jobs == 1:
        return part(0)
    whole, untuned = Tally(), set[str]()
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for tally, met in pool.map(part, range(jobs)):
            whole.made += tally.made
            whole.failed += tally.failed
            whole.torchs += tally.torchs
            untuned |= met
    return whole, untuned


def main() -> int:
    """Run the checks and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--backend", default="auto", choices=["auto", "triton"])
    parser.add_argument("--jobs", type=int, default=1, help="in so many processes")
    arguments = parser.parse_args()
    tally, untuned = whole_tally(arguments.device, arguments.backend, arguments.jobs)
    wrong = list(unlike_torch(arguments.device))
    document = {
        "what": "torch's samples for products, against tunekit.matmul",
        "command": "python " + " ".join(sys.argv),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "device": arguments.device,
        "backend": arguments.backend,
        "untuned_problems": len(untuned),
        "checks": dict(sorted(tally.made.items())),
        "failed": tally.failed,
        "failed_in_torch_too": tally.torchs,
        "wrong_calls": len(wrong_calls(arguments.device)),
        "wrong_calls_unlike_torch": wrong,
    }
    print(json.dumps(document, indent=1))
    return 1 if tally.failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
