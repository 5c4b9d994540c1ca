"""What is multiplied, and the key under which its best config is stored."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any

from tunekit.errors import ProblemError

ITEMSIZE: dict[str, int] = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "int32": 4,
}
"""Bytes per element of every dtype a problem may name."""

LAYOUTS = ("nn", "nt", "tn", "tt")
PRECISIONS = ("ieee", "tf32")
SCALINGS = ("none", "tensor", "row")
MAX_SIZE = 1 << 31
"""Sizes stay below this, so that M, N and K fit in 32 bits (their products need not)."""

_WRITTEN = re.compile(
    r"(?:([0-9]{1,19})x)?([0-9]{1,19})x([0-9]{1,19})x([0-9]{1,19}) (\w+) (\w+)(?: -> (\w+))?"
    rf"(?: ({'|'.join(PRECISIONS)}))?(?: scaled per (\w+))?( unaligned)?"
)
_ALIASES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32"}


def canonical_dtype(name: Any) -> str:
    """Return torch's own name of a dtype given as a name or common short form.

    Raises:
        ProblemError: the name is not a dtype tunekit knows.
    """
    text = str(name).removeprefix("torch.")
    text = _ALIASES.get(text, text)
    if text not in ITEMSIZE:
        raise ProblemError(f"unknown dtype {name!r}: use one of {', '.join(ITEMSIZE)}")
    return text


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One product: A (m, k) times B (k, n) gives C (m, n), `batch` times over.

    `layout` says for A, then B, whether the last (`n`) or the second-last (`t`) dimension is the
    contiguous one, so `nt` is `x @ w.t()` with row-major x and w. `aligned` says that bases and
    leading dimensions are multiples of 16 bytes. `precision` matters for float32 alone.
    """

    family: str
    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str = ""
    precision: str = "ieee"
    layout: str = "nt"
    aligned: bool = True
    scaling: str = "none"
    batch: int = 1

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def natural(cls, **given: Any) -> Problem:
        """Make a problem: where not given, it is aligned as densely stored operands are.

        Products of int8 are summed in int32, and so is what they give unless another is asked for.
        """
        if canonical_dtype(given["dtype"]) == "int8":
            given.setdefault("out_dtype", "int32")
        made = cls(**given)
        return made if "aligned" in given else replace(made, aligned=made.naturally_aligned())

    @property
    def flops(self) -> int:
        """Floating-point operations of the product."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def min_bytes(self) -> int:
        """Bytes that must move at least: each operand read once, the result written once."""
        size, out = ITEMSIZE[self.dtype], ITEMSIZE[self.out_dtype]
        return self.batch * ((self.m + self.n) * self.k * size + self.m * self.n * out)

    @classmethod
    def parse(cls, text: str, *, family: str = "matmul") -> Problem | None:
        """Read a problem from what `str` makes of it, or return None if it is not of that form.

        Raises:
            ProblemError: a field is not what a problem may have.
        """
        found = _WRITTEN.fullmatch(" ".join(text.split()))
        if found is None:
            return None
        batch, m, n, k, dtype, layout, out, precision, scaling, unaligned = found.groups()
        return cls(
            *(family, int(m), int(n), int(k), dtype, out or ""),
            precision=precision or "ieee",
            layout=layout,
            aligned=unaligned is None,
            scaling=scaling or "none",
            batch=int(batch or 1),
        )

    def leading_dimensions(self) -> tuple[int, int]:
        """Return the leading dimensions, in elements, of densely stored A and B."""
        a_rows, b_rows = self.layout[0] == "n", self.layout[1] == "n"
        return (self.k if a_rows else self.m), (self.n if b_rows else self.k)

    def naturally_aligned(self) -> bool:
        """Say whether densely stored operands have leading dimensions of whole 16 bytes.

        A single row, or column, has no leading dimension that could be wrong, unless another
        matrix follows it.
        """
        a_lines = self.m if self.layout[0] == "n" else self.k
        b_lines = self.k if self.layout[1] == "n" else self.n
        size = ITEMSIZE[self.dtype]
        lines_and_dimensions = zip((a_lines, b_lines), self.leading_dimensions(), strict=True)
        return all(
            (lines == 1 and self.batch == 1) or ld * size % 16 == 0
            for lines, ld in lines_and_dimensions
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as plain data."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k} {self.dtype} {self.layout}"
        if self.batch != 1:
            text = f"{self.batch}x{text}"
        if self.out_dtype != self.dtype:
            text += f" -> {self.out_dtype}"
        if self.dtype == "float32":
            text += f" {self.precision}"
        if self.scaling != "none":
            text += f" scaled per {self.scaling}"
        return text if self.aligned else text + " unaligned"


@dataclass(frozen=True, slots=True, order=True)
class TuningKey:
    """A problem on a kind of GPU. The first six fields are what users name; the rest refine it."""

    family: str
    m: int
    n: int
    k: int
    dtype: str
    gpu: str
    out_dtype: str = ""
    precision: str = "ieee"
    layout: str = "nt"
    aligned: bool = True
    scaling: str = "none"
    batch: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.gpu, str) or not self.gpu or len(self.gpu) > 200:
            raise ProblemError(f"gpu must be a device slug, not {self.gpu!r}")
        _check(self)

    @staticmethod
    def of(problem: Problem, gpu: str) -> TuningKey:
        """Return the key of a problem on the GPU kind with this slug."""
        return TuningKey(gpu=gpu, **problem.to_dict())

    @property
    def problem(self) -> Problem:
        """The problem without the GPU."""
        return Problem(**{f.name: getattr(self, f.name) for f in fields(Problem)})

    def to_dict(self) -> dict[str, Any]:
        """Return the key as plain data."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        return f"{self.problem} on {self.gpu}"


def _check(subject: Problem | TuningKey) -> None:
    """Refuse a field that is not what a problem may have, and write dtypes by torch's names."""
    if not isinstance(subject.family, str) or not subject.family:
        raise ProblemError(f"family must be the name of a kernel family, not {subject.family!r}")
    for name in ("m", "n", "k", "batch"):
        size: Any = getattr(subject, name)
        whole = isinstance(size, Integral) and not isinstance(size, bool)
        if not whole or not 1 <= size < MAX_SIZE:
            raise ProblemError(f"{name} must be a whole number from 1 to 2^31-1, not {size!r}")
        # NumPy's integers are equal to Python's, but not in JSON or SQL.
        object.__setattr__(subject, name, int(size))
    object.__setattr__(subject, "dtype", canonical_dtype(subject.dtype))
    object.__setattr__(subject, "out_dtype", canonical_dtype(subject.out_dtype or subject.dtype))
    _one_of("precision", subject.precision, PRECISIONS)
    _one_of("layout", subject.layout, LAYOUTS)
    _one_of("scaling", subject.scaling, SCALINGS)
    if not isinstance(subject.aligned, bool):
        raise ProblemError(f"aligned must be true or false, not {subject.aligned!r}")
    if subject.precision != "ieee" and subject.dtype != "float32":
        raise ProblemError(f"precision {subject.precision!r} is for float32, not {subject.dtype}")


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ProblemError(f"unknown {name} {value!r}: use one of {', '.join(allowed)}")
