"""Shapes files: the problems to tune, as YAML read with line numbers.

A file is a mapping with a list under `shapes` and, if wanted, `defaults` for its entries. It is
read as plain data from the parser's nodes, never as objects, so that every error can name its line
and an alias that refers to itself or multiplies cannot cost more than the file is long.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tunekit.errors import ProblemError, ShapesError
from tunekit.key import LAYOUTS, MAX_SIZE, PRECISIONS, SCALINGS, Problem, canonical_dtype

FAMILY = "matmul"
"""The kernel family every entry of a shapes file belongs to."""

DEFAULT_DTYPE = "bfloat16"
DEFAULT_LAYOUT = "nt"
"""What an entry is without `dtype` and `layout`: the product `torch.nn.Linear` computes."""

MAX_SHAPES = 100_000
MAX_FILE_BYTES = 16 << 20
_TOO_MANY = f"more than {MAX_SHAPES} problems in all: split the file"

_SIZES = ("m", "n", "k", "batch", "count")
_FIELDS = ("m", "n", "k", "dtype", "layout", "out_dtype", "precision", "aligned", "scaling")
FIELDS = (*_FIELDS, "batch", "count", "name")
"""Every field an entry or `defaults` may have."""

_LISTS = ("m", "n", "k", "dtype", "layout")
_ALLOWED = {"layout": LAYOUTS, "precision": PRECISIONS, "scaling": SCALINGS}
_BETWEEN = re.compile(r"\s*,\s*|(?<=\d)x(?=\d)|\s+")
_DECIMAL = re.compile(r"[1-9][0-9]*(_[0-9]+)*")
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Shape:
    """One problem of a shapes file: how often the program runs it, its name, its line (from 1)."""

    problem: Problem
    count: int = 1
    name: str = ""
    line: int = 0


def load_shapes(path: str | Path) -> list[Shape]:
    """Read a shapes file, lists multiplied out, in the order of the file.

    Raises:
        ShapesError: the file cannot be read, or an entry is malformed; the text names the line.
    """
    reader = _Reader(Path(path))
    return reader.shapes(reader.text())


def read_shapes(text: str, *, path: str | Path) -> list[Shape]:
    """Read the text of a shapes file; `path` is what its errors call it.

    Raises:
        ShapesError: an entry is malformed; the text names the line.
    """
    return _Reader(Path(path)).shapes(text)


def shape_parts(text: str) -> list[str]:
    """Split a problem as people write it: `512,4096,4096,float16`, `512x4096x4096 float16 nt`."""
    return _BETWEEN.split(text.strip())


def parse_shape(text: str) -> Shape:
    """Read `M,N,K[,DTYPE[,LAYOUT]]`, the form of the command line, or what `show` prints.

    Raises:
        ShapesError: the text is not of that form.
    """
    parts = shape_parts(text)
    if len(parts) > 5:  # with what the short form leaves to the rule
        try:
            written = Problem.parse(text, family=FAMILY)
        except ProblemError as error:
            raise ShapesError(f"shape {text!r}: {error}") from error
        if written is not None:
            return Shape(written)
    if not 3 <= len(parts) <= 5:
        raise ShapesError(f"shape {text!r} is not of the form M,N,K[,DTYPE[,LAYOUT]]")
    for name, part in zip("mnk", parts[:3], strict=True):
        if not _DECIMAL.fullmatch(part) or len(part) > 20 or int(part) >= MAX_SIZE:
            raise ShapesError(f"shape {text!r}: {_size_error(name, part)}")
    m, n, k = map(int, parts[:3])
    dtype = parts[3] if len(parts) > 3 else DEFAULT_DTYPE
    layout = parts[4] if len(parts) > 4 else DEFAULT_LAYOUT
    try:
        return Shape(Problem.natural(family=FAMILY, m=m, n=n, k=k, dtype=dtype, layout=layout))
    except ProblemError as error:
        raise ShapesError(f"shape {text!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Value:
    """A field's value or, for the fields that allow it, its alternatives; and where it stands."""

    values: tuple[Any, ...]
    line: int


class _Reader:
    """Reads one file. Lines in its errors are counted from 1."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._merged: dict[int, dict[str, tuple[Node, int]]] = {}
        self._merging: set[int] = set()

    def shapes(self, text: str) -> list[Shape]:
        """Return every problem of the file with this text."""
        self._check_number(text)
        root = self._parse(text)
        if root is None:
            raise self._error(None, "is empty: it needs a list under `shapes:`")
        if not isinstance(root, MappingNode):
            raise self._error(root, "the file must be a mapping with a list under `shapes:`")
        top = self._mapping(root, ("defaults", "shapes"))
        if "shapes" not in top:
            raise self._error(root, "the file has no `shapes:` list")
        defaults = {} if "defaults" not in top else self._entry(top["defaults"][0])
        listed = top["shapes"][0]
        if not isinstance(listed, SequenceNode):
            raise self._error(listed, "`shapes` must be a list (`- {m: 64, n: 64, k: 64}`)")
        if not listed.value:
            raise self._error(listed, "`shapes` is an empty list: name at least one problem")
        found: list[Shape] = []
        for node in listed.value:
            found += self._expand(node, defaults, MAX_SHAPES - len(found))
        return found

    def text(self) -> str:
        """Return what is in the file."""
        path = self._path
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            raise ShapesError(f"no such shapes file: {path}{_meant(path)}") from None
        except IsADirectoryError:
            raise ShapesError(f"{path} is a folder, not a shapes file") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ShapesError(f"cannot read the shapes file {path}: {reason}") from error
        if len(raw) > MAX_FILE_BYTES:
            raise ShapesError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: split it")
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise ShapesError(f"{path}:{line}: not UTF-8 text: save the file as UTF-8") from error

    def _check_number(self, text: str) -> None:
        """Refuse a file of too many entries before the slow work of building its nodes."""
        if len(text) < MAX_SHAPES * len("[1,1,1]"):
            return
        depth = entries = 0
        try:
            for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
                depth += isinstance(event, yaml.CollectionStartEvent)
                depth -= isinstance(event, yaml.CollectionEndEvent)
                # The file is the first, its list the second, and what begins there an entry.
                entries += depth == 3 and isinstance(event, yaml.CollectionStartEvent)
                if entries > MAX_SHAPES:
                    raise self._error(event, _TOO_MANY)
        except yaml.YAMLError:
            return  # the parser proper says what is wrong

    def _parse(self, text: str) -> Node | None:
        try:
            return yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = 1 if mark is None else mark.line + 1
            what = " ".join(filter(None, (error.context, error.problem)))
            raise ShapesError(f"{self._path}:{line}: not valid YAML: {what}") from error
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            what = f"the character {chr(error.character)!r} is not allowed"
            raise ShapesError(f"{self._path}:{line}: not valid YAML: {what}") from error
        except RecursionError:
            raise ShapesError(f"{self._path}: lists are nested too deeply") from None

    def _mapping(self, node: MappingNode, fields: tuple[str, ...]) -> dict[str, tuple[Node, int]]:
        """Return a mapping's values with the lines of their names; what `<<` merges in is weaker.

        Each mapping is resolved once, so merges of merges cost no more than the file is long.
        """
        if id(node) in self._merged:
            return self._merged[id(node)]
        if id(node) in self._merging:
            raise self._error(node, "a mapping is merged into itself")
        self._merging.add(id(node))
        own: dict[str, tuple[Node, int]] = {}
        merged: dict[str, tuple[Node, int]] = {}
        for name_node, value in node.value:
            name = name_node.value if isinstance(name_node, ScalarNode) else None
            if name_node.tag == _TAG + "merge":
                for source in value.value if isinstance(value, SequenceNode) else [value]:
                    if not isinstance(source, MappingNode):
                        raise self._error(source, "`<<` merges mappings only")
                    merged = {**self._mapping(source, fields), **merged}
                continue
            if name not in fields:
                allowed = ", ".join(fields)
                shown = "a field that is not a name" if name is None else f"unknown field {name!r}"
                raise self._error(name_node, f"{shown}: use one of {allowed}")
            if name in own:
                raise self._error(name_node, f"field {name!r} is given twice: remove one")
            own[name] = (value, name_node.start_mark.line + 1)
        self._merging.remove(id(node))
        self._merged[id(node)] = {**merged, **own}
        return self._merged[id(node)]

    def _entry(self, node: Node) -> dict[str, _Value]:
        """Read and check the fields of one entry, or of `defaults`."""
        if isinstance(node, SequenceNode):
            if len(node.value) != 3:
                raise self._error(node, f"a short entry is [M, N, K], not {len(node.value)} values")
            pairs = {
                name: (value, value.start_mark.line + 1)
                for name, value in zip("mnk", node.value, strict=True)
            }
        elif isinstance(node, MappingNode):
            pairs = self._mapping(node, FIELDS)
        else:
            raise self._error(node, "an entry is {m: M, n: N, k: K, ...} or [M, N, K]")
        entry: dict[str, _Value] = {}
        for name, (value, _) in pairs.items():
            many = name in _LISTS and isinstance(value, SequenceNode)
            nodes = value.value if many else [value]
            if not nodes:
                raise self._error(value, f"{name} is an empty list: give at least one value")
            read = tuple(self._scalar(name, item) for item in nodes)
            entry[name] = _Value(read, value.start_mark.line + 1)
        return entry

    def _scalar(self, name: str, node: Node) -> Any:
        """Read one value of a field and check it by itself."""
        if not isinstance(node, ScalarNode):
            shape = "a list" if isinstance(node, SequenceNode) else "a mapping"
            raise self._error(node, f"{name} must be a single value, not {shape}")
        text, kind = str(node.value), node.tag.removeprefix(_TAG)
        if name in _SIZES:
            whole = kind == "int" and _DECIMAL.fullmatch(text) and len(text) <= 20
            if not whole or int(text) >= MAX_SIZE:
                raise self._error(node, _size_error(name, text))
            return int(text)
        if name == "aligned":
            if kind != "bool":
                raise self._error(node, f"aligned must be true or false, not {text!r}")
            return yaml.SafeLoader.bool_values[text.lower()]
        if name == "name":
            if kind == "null" or not text.isprintable() or not 1 <= len(text) <= 200:
                raise self._error(node, "name must be one line of at most 200 characters")
            return text
        if name in _ALLOWED:
            if text not in _ALLOWED[name]:
                allowed = ", ".join(_ALLOWED[name])
                raise self._error(node, f"unknown {name} {text!r}: use one of {allowed}")
            return text
        try:
            return canonical_dtype(text)
        except ProblemError as error:
            raise self._error(node, str(error)) from error

    def _expand(self, node: Node, defaults: dict[str, _Value], room: int) -> list[Shape]:
        """Return the product of an entry's lists, with the defaults filled in."""
        own = self._entry(node)
        entry = {**defaults, **own}
        for name in "mnk":
            if name not in entry:
                raise self._error(node, f"the entry has no {name!r}: it needs m, n and k")
        number = math.prod(len(value.values) for value in entry.values())
        if number > room:
            raise self._error(node, _TOO_MANY)
        line = node.start_mark.line + 1
        found: list[Shape] = []
        for values in itertools.product(*(value.values for value in entry.values())):
            fields = dict(zip(entry, values, strict=True))
            count, name = fields.pop("count", 1), fields.pop("name", "")
            fields.setdefault("dtype", DEFAULT_DTYPE)
            fields.setdefault("layout", DEFAULT_LAYOUT)
            if "precision" not in own and fields["dtype"] != "float32":
                fields.pop("precision", None)  # a default precision is meant for float32 entries
            try:
                found.append(Shape(Problem.natural(family=FAMILY, **fields), count, name, line))
            except ProblemError as error:
                raise self._error(node, str(error)) from error
        return found

    def _error(self, node: Any, what: str) -> ShapesError:
        if node is None:
            return ShapesError(f"{self._path} {what}")
        return ShapesError(f"{self._path}:{node.start_mark.line + 1}: {what}")


def _meant(path: Path) -> str:
    """Say which file there may have been meant."""
    try:
        there = [file.name for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml")]
    except OSError:
        there = []
    near = difflib.get_close_matches(path.name, there, n=1)
    if near:
        return f": did you mean {path.with_name(near[0])}?"
    return ": `tunekit tune --help` shows how one is written"


def _size_error(name: str, text: str) -> str:
    shown = text if len(text) <= 40 else text[:40] + "..."
    most = "2^31 - 1"
    return f"{name} must be a plain whole number from 1 to {most}, not {shown!r}"
