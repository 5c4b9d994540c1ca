"""Which problems the kernels compute, on whatever device: known without torch or Triton."""

from __future__ import annotations

from tunekit.key import Problem

OUTPUTS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
    "float8_e4m3fn": ("bfloat16", "float16", "float32"),
    "float8_e5m2": ("bfloat16", "float16", "float32"),
    "int8": ("int32",),
}
"""Operand dtypes the family's kernels take, and what each may be multiplied into."""


def unsupported(problem: Problem) -> str | None:
    """Return why no kernel of the family computes a problem, or None."""
    outputs = OUTPUTS.get(problem.dtype)
    if outputs is None:
        return f"{problem.dtype} operands are not supported: use one of {', '.join(OUTPUTS)}"
    if problem.out_dtype not in outputs:
        allowed = " or ".join(outputs)
        return f"{problem.dtype} operands give out_dtype {allowed}, not {problem.out_dtype}"
    if problem.scaling != "none" and not problem.dtype.startswith("float8"):
        return f"{problem.dtype} operands are not scaled: scaling is for float8"
    if problem.scaling != "none" and problem.batch != 1:
        return "scaled products are not batched"
    return None
