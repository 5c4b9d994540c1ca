"""Linear layers by tuned kernels: one call, one module, and a model's modules swapped in place.

What `tunekit.matmul` does not take, and every wrong input, goes to `torch.nn.functional.linear`
itself, so its errors, its autocast and its subclasses of tensors are torch's own.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

import torch
from torch import is_grad_enabled
from torch._C import (
    _is_any_autocast_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import functional

from tunekit import products
from tunekit.calls import only_a_default_device
from tunekit.dispatch import matmul
from tunekit.errors import ProblemError
from tunekit.kernels.operands import float32_precision
from tunekit.policies import HERE, PROCESS, Kind, Scope, current, remember
from tunekit.products import PLAIN

__all__ = ["Linear", "Replacement", "linear", "replace_linear"]


def linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `input @ weight.t() + bias`, as `torch.nn.functional.linear` does.

    Args:
        input: (*, in_features), any number of leading dimensions or none.
        weight: (out_features, in_features).
        bias: (out_features,), or None. Beside a tuned kernel it is added in a step of its own, so
            that a 16-bit result is rounded twice; where the vendor serves, it is the vendor's.

    Returns:
        (*, out_features), in the dtype of the operands.

    Raises:
        RuntimeError: as torch raises for operands that do not fit.
    """
    if (  # as in `matmul`, and in line for the same reason: a call costs as much as two of these
        is_dynamo_compiling()
        or type(input) not in PLAIN
        or type(weight) not in PLAIN
        or _is_any_autocast_enabled()
        or peek_interpreter_stack() is not None
        or _len_torch_function_stack()
        or _len_torch_dispatch_stack()
        or _is_tracing()
        or forward_ad._current_level >= 0
        or (is_grad_enabled() and (input.requires_grad or weight.requires_grad))
        or (bias is not None and not _is_bare(bias))
    ):
        return _unusual(input, weight, bias)
    scope = HERE.get() or PROCESS.scope
    own = None if bias is None else (bias.shape, bias.dtype, bias.device, bias.layout)
    try:
        at_input, at_weight, dtype = input.data_ptr(), weight.data_ptr(), input.dtype
        kind: Kind = (
            "linear", own, input.shape, weight.shape, input.stride(), weight.stride(), dtype,
            weight.dtype, input.device, weight.device, at_input % 16, at_weight % 16,
        )  # fmt: skip
    except RuntimeError:  # without memory of its own: sparse, nested, or wrapped
        return _unusual(input, weight, bias)
    if dtype is torch.float32:
        kind = (*kind, float32_precision())
    if input.is_neg() or weight.is_neg() or not (at_input and at_weight):
        return _unusual(input, weight, bias)
    prepared = scope.prepared
    run = prepared.get(kind)
    if run is None:
        if not _ours(input, weight, bias):
            return functional.linear(input, weight, bias)
        run = _run_of(input, weight, bias, scope)
        remember(prepared, kind, run)
    return run(input, weight, bias)


def _unusual(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply where gradients, autocast, a trace, a transform or a subclass has a say."""
    if not torch.compiler.is_compiling() and _is_watched():
        return functional.linear(input, weight, bias)
    if not _ours(input, weight, bias):
        return functional.linear(input, weight, bias)
    product = matmul(input, weight.t())
    return product if bias is None else product + bias


def _is_watched() -> bool:
    """Say whether a mode wants to see torch's own call, which `backend="triton"` takes from it."""
    automatic = current().policy.backend != "triton"
    return _len_torch_dispatch_stack() > 0 or (automatic and not only_a_default_device())


def _run_of(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scope: Scope
) -> Callable[..., torch.Tensor]:
    """Return what makes products of this kind. Nothing is launched."""
    turned = weight.t()
    product = products.prepare(input, turned, scope, None, None)
    served = products.met(input, turned, scope.policy)
    if scope.policy.backend != "triton" and (served is None or served.launch is None):
        by_torch = functional.linear
        return by_torch if served is None else products.counted(served, by_torch, input)
    if served is None:  # many products, of matrices that are told apart by their strides
        by_rows = product
        product = lambda input, weight: by_rows(input, weight.t())  # noqa: E731
    # A prepared launch knows strides, and wants the address alone: what is turned has the same.
    if bias is None:
        return lambda input, weight, bias: product(input, weight)
    return lambda input, weight, bias: product(input, weight).add_(bias)


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` whose product comes from `tunekit.linear`; everything else is its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return `input` (*, in_features) times the weights, plus the bias: (*, out_features)."""
        # A script is a program of torch's own, which could not hold what is chosen in Python.
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return functional.linear(input, self.weight, self.bias)
        return linear(input, self.weight, self.bias)


class Replacement:
    """The modules that one call of `replace_linear` changed. As a context manager it undoes it."""

    def __init__(self, replaced: dict[str, torch.nn.Linear]) -> None:
        self._names = tuple(replaced)
        self._modules = list(replaced.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the modules, as `named_modules` gives them."""
        return self._names

    def undo(self) -> None:
        """Make the modules `torch.nn.Linear` again. A second time does nothing.

        One that was given another class meanwhile, as by a parametrization, stays as it is.
        """
        replaced, self._modules = self._modules, []
        for module in replaced:
            if type(module) is Linear:
                _change_class(module, torch.nn.Linear)
            else:  # those that are done another call may replace anew, and undo
                self._modules.append(module)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"Replacement({len(self._names)} modules)"


def replace_linear(
    model: torch.nn.Module,
    *,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
) -> Replacement:
    """Make the `torch.nn.Linear` modules of a model multiply by `tunekit.linear`, in place.

    A module stays the same object with the same parameters, hooks and name: only its class
    becomes `tunekit.nn.Linear`, so state dicts, tied weights and whoever holds the module notice
    nothing. Left alone is what is not exactly a `torch.nn.Linear` with plain parameters:
    subclasses, parametrizations, weight norm, pruning, quantized weights, and modules whose
    `forward` somebody has replaced. Again on the same model changes nothing more.

    Args:
        model: the module to search, itself included.
        include: names to take, or patterns of names with `*`; by default all.
        exclude: names or patterns to leave out of those.

    Returns:
        What was replaced; its `undo()`, or leaving it as a context, takes it back.

    Raises:
        ProblemError: a name or pattern in `include` fits no linear module of the model.
    """
    modules = dict(_linears(model))
    wanted = None if include is None else _patterns(include)
    for pattern in wanted or ():
        if not fnmatch.filter(modules, pattern):
            there = ", ".join(list(modules)[:8]) or "none at all"
            raise ProblemError(f"no linear module is called {pattern!r}: there are {there}")
    unwanted = _patterns(() if exclude is None else exclude)
    replaced: dict[str, torch.nn.Linear] = {}
    for name, module in modules.items():
        if wanted is not None and not _fits(name, wanted):
            continue
        if type(module) is torch.nn.Linear and not _fits(name, unwanted):
            _change_class(module, Linear)
            replaced[name] = module
    return Replacement(replaced)


def _linears(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Linear]]:
    """Yield the modules that may be replaced, and those that are, by name."""
    for name, module in model.named_modules():
        if type(module) in (torch.nn.Linear, Linear) and _is_plain(module):
            yield name, module


def _is_plain(module: torch.nn.Module) -> bool:
    """Say whether nobody else has a hand in what the module computes."""
    parameters = module._parameters
    plain = type(parameters.get("weight")) is torch.nn.Parameter
    bias = "bias" in parameters and type(parameters["bias"]) in (torch.nn.Parameter, type(None))
    return plain and bias and "forward" not in vars(module)


def _change_class(module: torch.nn.Module, kind: type[torch.nn.Module]) -> None:
    module.__class__ = kind
    # What torch 2.11 has compiled looks at a module's class again only if its attributes changed.
    attributes = vars(module)
    attributes["_changed"] = kind
    del attributes["_changed"]


def _patterns(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _ours(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Say whether `matmul` is to make this product; everything else is torch's."""
    # With `backend="triton"` it says itself why it cannot. Compiled code decides when it runs.
    insists = not torch.compiler.is_compiling() and current().policy.backend == "triton"
    return (
        products.is_ordinary(input)
        and products.is_ordinary(weight)
        and (products.on_gpu(input) or insists)
        and not (input.is_nested or weight.is_nested)
        and input.device == weight.device
        and input.dtype == weight.dtype
        and (input.dtype in products.SUPPORTED or insists)
        and input.layout == torch.strided
        and weight.layout == torch.strided
        and input.dim() >= 1
        and weight.dim() == 2
        and input.shape[-1] == weight.shape[1]
        and input.numel() > 0
        and weight.numel() > 0
        and (bias is None or _fits_beside(bias, weight))
        and not _casts(input)
    )


def _fits_beside(bias: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        products.is_ordinary(bias)
        and bias.dtype == weight.dtype
        and bias.device == weight.device
        and bias.layout == torch.strided
        and bias.dim() == 1
        and bias.shape[0] == weight.shape[0]
    )


def _casts(input: torch.Tensor) -> bool:
    """Say whether autocast would convert operands: torch keeps the weights it has converted."""
    return products.autocast_dtype(input) not in (None, input.dtype)


def _is_bare(bias: torch.Tensor) -> bool:
    """Say whether a bias is a plain tensor that needs no gradient."""
    recorded = torch.is_grad_enabled() and bias.requires_grad
    plain = type(bias) in PLAIN and not recorded
    return plain and not bias.is_neg() and not bias._is_zerotensor()
