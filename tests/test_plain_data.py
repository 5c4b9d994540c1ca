"""What is read is plain data: nothing is unpickled or evaluated, and no SQL is built of strings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    path
    for folder in ("tunekit", "cache", "kernels", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))  # does not follow the two links
]
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_YAML = {
    "load",
    "load_all",
    "full_load",
    "unsafe_load",
    "Loader",
    "UnsafeLoader",
    "FullLoader",
}
UNSAFE_TORCH = {"load"}
SQL_CALLS = {"text", "execute", "executemany", "executescript", "exec_driver_sql", "literal_column"}
SQL_WORDS = ("select ", "insert ", "update ", "delete ", "create ", "drop ", "alter ", "pragma ")


def faults(source: str) -> list[str]:
    """Return what a module does that none of ours may."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            modules = names if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"imports {m}" for m in modules if m.partition(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.Call):
            found += call_faults(node)
        elif isinstance(node, (ast.JoinedStr, ast.BinOp)):
            begins = first_text(node)
            if built(node) and begins.lower().startswith(SQL_WORDS):
                found.append(f"builds SQL: {begins!r}")
    return found


def call_faults(call: ast.Call) -> list[str]:
    function = call.func
    if isinstance(function, ast.Name) and function.id in UNSAFE_CALLS:
        return [f"calls {function.id}"]
    if not isinstance(function, (ast.Attribute, ast.Name)):
        return []
    name = function.attr if isinstance(function, ast.Attribute) else function.id
    of = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
    if (of == "yaml" and name in UNSAFE_YAML) or (of == "torch" and name in UNSAFE_TORCH):
        return [f"calls {of}.{name}"]
    if name in SQL_CALLS and call.args and built(call.args[0]):
        return [f"builds the SQL of {name}: {ast.unparse(call.args[0])}"]
    return []


def built(node: ast.expr) -> bool:
    """Say whether a string is put together from what is only known when it runs."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) and varies(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        return isinstance(first(node), (ast.Constant, ast.JoinedStr)) and bool(first_text(node))
    of_format = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return of_format and node.func.attr in ("format", "join", "replace")


def varies(node: ast.expr) -> bool:
    """Say whether an expression holds a name that is not a module's constant."""
    return any(isinstance(n, ast.Name) and not n.id.isupper() for n in ast.walk(node))


def first(node: ast.expr) -> ast.expr:
    return first(node.left) if isinstance(node, ast.BinOp) else node


def first_text(node: ast.expr) -> str:
    node = first(node)
    if isinstance(node, ast.JoinedStr):
        node = node.values[0] if node.values else node
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


# What runs the program that `tunekit record` was asked to run, as Python itself would.
ALLOWED = {"tunekit/recorder/program.py": {"calls compile", "calls exec"}}


@pytest.mark.parametrize(("file", "name"), zip(FILES, NAMES, strict=True), ids=NAMES)
def test_nothing_is_unpickled_or_evaluated_and_no_sql_is_built(file, name):
    assert set(faults(file.read_text(encoding="utf-8"))) == ALLOWED.get(name, set())


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "eval('1')",
        "exec(compile(text, 'x', 'exec'))",
        "yaml.load(text)",
        "yaml.unsafe_load(text)",
        "torch.load(path)",
        "connection.execute(f'SELECT * FROM {table}')",
        "connection.execute('SELECT * FROM ' + table)",
        "connection.execute('SELECT * FROM %s' % table)",
        "connection.execute('SELECT {}'.format(table))",
        "statement = f'DELETE FROM {table}'",
        "statement = 'delete from ' + table + ' where id = 1'",
    ],
)
def test_the_look_finds_what_it_looks_for(source):
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "re.compile('x')",
        "connection.execute('SELECT 1')",
        "connection.execute('SELECT * FROM t WHERE id = ?', (number,))",
        "text = f'{count} rows selected'",
        "yaml.compose(text, Loader=yaml.SafeLoader)",
        "torch.tensor([1])",
    ],
)
def test_the_look_lets_pass_what_is_harmless(source):
    assert not faults(source)
