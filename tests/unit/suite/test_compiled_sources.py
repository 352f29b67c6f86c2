"""Rules for modules that can be compiled: constructs that behave differently there (docs/internals/compiled.md)."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["netns-testbed"]["compiled"]
MODULES = [f"{room}/{name}.py" for room, names in ROOMS.items() for name in names]
NEUTRAL_BASES = {"ABC", "Generic", "Protocol"}
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
UNKNOWN = {"object", "memoryview", "bytearray", "slice", "complex", "Exception", "BaseException"}


def violations(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    type_checking_names = _imported_for_types(tree)
    classes = {node.name: node.lineno for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            later_classes = {name for name, line in classes.items() if line > node.lineno}
            yield from _violations_of_class(node, type_checking_names | later_classes)
        elif isinstance(node, ast.Delete) and any(isinstance(target, ast.Attribute) for target in node.targets):
            yield f"{node.lineno}: an attribute is deleted"
        elif isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            yield f"{node.lineno}: __getattr__ creates attributes on demand"
        elif isinstance(node, ast.FunctionDef) and any(
            ast.unparse(decorator) == "coroutine" for decorator in node.decorator_list
        ):
            yield f"{node.lineno}: {node.name} is a generator that is awaited"
        elif isinstance(node, ast.Constant) and node.value == "__weakref__":
            yield f"{node.lineno}: __weakref__ allows weak references"
        elif isinstance(node, ast.Attribute) and node.attr == "__code__":
            yield f"{node.lineno}: code objects are read"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_slice(node.value):
            yield f"{node.lineno}: a slice in a variable: bytes would take it for an integer"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _violations_of_handlers(node)
            yield from _reread_after_none(node.body)
        elif isinstance(node, ast.Compare):
            for comparator in node.comparators:
                if isinstance(comparator, ast.Tuple) and any(
                    isinstance(element, ast.Starred) for element in comparator.elts
                ):
                    yield f"{node.lineno}: in a tuple with a star"


def _violations_of_handlers(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    exception_names: dict[str, set[str]] = {}
    for node in _nodes_of(function):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            exception_names.setdefault(node.name, set()).add(ast.unparse(node.type))
    assigned = {
        node.id for node in _nodes_of(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    } | {argument.arg for argument in function.args.args}
    for name, classes in exception_names.items():
        if len(classes) > 1 or name in assigned:
            yield f"{function.lineno}: {name} has the types {' and '.join(sorted(classes))}, or is assigned elsewhere"


def _reread_after_none(body: list[ast.stmt]) -> Iterator[str]:
    """Report attributes that are read again where a test has found them None: compiled code takes them for None still, also
    if a call has set them."""
    for number, statement in enumerate(body):
        if isinstance(statement, ast.If | ast.While):
            path, is_none = _compared_with_none(statement.test)
            if path:
                none_branch = statement.body if is_none else statement.orelse
                yield from _reads(path, none_branch)
                if not is_none and not statement.orelse and isinstance(statement.body[-1], _LEAVING):
                    yield from _reads(path, body[number + 1 :])
        for field in ("body", "orelse", "finalbody", "handlers"):
            for block in [getattr(statement, field, [])]:
                handled = [inner for handler in block for inner in handler.body] if field == "handlers" else block
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _reread_after_none(handled)


def _compared_with_none(test: ast.expr) -> tuple[str, bool]:
    """Return the attribute that a test compares with None, empty for other tests, and whether it must be None."""
    if (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Attribute)
        and isinstance(test.ops[0], ast.Is | ast.IsNot)
        and ast.unparse(test.comparators[0]) == "None"
    ):
        return ast.unparse(test.left), isinstance(test.ops[0], ast.Is)
    return "", False


def _reads(path: str, body: list[ast.stmt]) -> Iterator[str]:
    """Report the first access to an attribute in these statements, if it is a read."""
    accesses = [
        node
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == path
    ]
    first = min(accesses, key=lambda node: (node.lineno, node.col_offset), default=None)
    if first is not None and isinstance(first.ctx, ast.Load):
        yield f"{first.lineno}: {path} is read where it was None before"


def _nodes_of(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes within a function, without those of functions in it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _nodes_of(node)


def _imported_for_types(tree: ast.Module) -> set[str]:
    """Return the names that a module imports only for type checkers."""
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def _violations_of_class(node: ast.ClassDef, type_checking_names: set[str]) -> Iterator[str]:
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
    if "runtime_checkable" in decorators:
        yield f"{node.lineno}: {node.name} is checked at runtime"
    bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
    implementation_bases = [
        base for base in bases if base.rpartition(".")[2] not in NEUTRAL_BASES | _compiled_protocols()
    ]
    if len(implementation_bases) > 1 or implementation_bases != bases[: len(implementation_bases)]:
        yield f"{node.lineno}: {node.name} has several bases, or one after a Protocol"
    is_dataclass = "dataclass" in decorators
    unknown_types = UNKNOWN | type_checking_names
    if is_dataclass:  # quotation marks do not help in a dataclass
        unknown_types |= {repr(name) for name in unknown_types}
    is_typed = is_dataclass or "NamedTuple" in bases
    for statement in node.body:
        if isinstance(statement, ast.Assign) and not _is_plain(statement):
            yield f"{statement.lineno}: {node.name}.{ast.unparse(statement)}"
        elif is_typed and isinstance(statement, ast.AnnAssign) and ast.unparse(statement.annotation) in unknown_types:
            yield f"{statement.lineno}: {node.name}.{ast.unparse(statement)}: mypyc does not find its type"


def _is_slice(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "slice"


def _is_plain(statement: ast.Assign) -> bool:
    is_slots = ast.unparse(statement.targets[0]) == "__slots__"
    return is_slots or isinstance(statement.value, ast.Constant)


@pytest.mark.parametrize("path", MODULES)
def test_a_compiled_module_follows_the_rules(path: str) -> None:
    assert not list(violations((ROOT / path).read_text()))


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self): ...\n    g = f",
        "class A:\n    join = staticmethod(b''.join)",
        "class A(B, C): ...",
        "class A(Firmware, B): ...",
        "@runtime_checkable\nclass A(Protocol): ...",
        "class A(NamedTuple):\n    handle: object",
        "@dataclass(frozen=True)\nclass A:\n    view: memoryview",
        "@dataclass\nclass A:\n    view: 'memoryview'",
        "if TYPE_CHECKING:\n    from b import B\nclass A(NamedTuple):\n    b: B",
        "class A(NamedTuple):\n    b: B\nclass B: ...",
        "x in (1, *rest)",
        "del self.x",
        "@coroutine\ndef f():\n    yield 1",
        "class A:\n    def __getattr__(self, name):\n        return 1",
        "A.f.__code__",
        "HEAD: Final = slice(6, 14)",
        "class A:\n    __slots__ = ('__weakref__',)",
        "def f():\n    try: g()\n    except A as e: h(e)\n    except B as e: h(e)",
        "def f():\n    e = 1\n    try: g()\n    except A as e: h(e)",
        "def f():\n    if a.b is None:\n        a.load()\n        return a.b is not None",
        "def f():\n    for a in g():\n        if a.b is not None:\n            continue\n        a.load()\n        h(a.b)",
    ],
)  # fmt: skip
def test_a_violation_is_reported(source: str) -> None:
    assert len(list(violations(source))) == 1


def test_valid_constructs_are_not_reported() -> None:
    valid = "class A(Protocol, Generic[T]):\n    __slots__ = ('a',)\n    a: int\n    b = 1\nx in (1, 2)\ndel found[0]"
    typed = (
        "if TYPE_CHECKING:\n    from b import B\nclass A(NamedTuple):\n    b: 'B'\n    c: 'memoryview'\n    d: B | None"
    )
    caught = (
        "def f():\n    def g():\n        try: h()\n        except A as e: ...\n    try: g()\n    except B as e: ..."
    )
    assigned = "def f():\n    if a.b is None:\n        a.b = load()\n        g(a.b)\n    if a.b is not None: return a.b"
    assert not list(violations(valid))
    assert not list(violations(assigned))
    assert not list(violations("class A(B, Nic, firmware.Host): ..."))
    assert not list(violations(caught))
    assert not list(violations(typed))


def test_compiled_classes_with_interpreted_subclasses_allow_them() -> None:
    packages = [ROOT / "testbed/protocol_template/postcard", ROOT / "tests"]
    inherited = {base for package in packages for path in package.rglob("*.py") for base in _compiled_bases(path)}
    assert ("protocols/core/peers.py", "Peer") in inherited
    for path, name in sorted(inherited):
        (definition,) = [
            node
            for node in ast.parse((ROOT / path).read_text()).body
            if isinstance(node, ast.ClassDef) and node.name == name
        ]
        decorators = {ast.unparse(decorator) for decorator in definition.decorator_list}
        assert "mypyc_attr(allow_interpreted_subclasses=True)" in decorators, f"{path}: {name}"


def _compiled_bases(path: Path) -> Iterator[tuple[str, str]]:
    """Yield file and name of compiled classes, except Protocols, from which classes of a module inherit."""
    tree = ast.parse(path.read_text())
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            first, *attributes = ast.unparse(base).partition("[")[0].split(".")
            *package, name = ".".join([imported.get(first, first), *attributes]).split(".")
            module = "/".join(package) + ".py"
            if module in MODULES and name not in _protocols_of(module):
                yield module, name


@cache
def _compiled_protocols() -> frozenset[str]:
    """Return the names of the Protocols of compiled modules, which mypyc makes traits."""
    return frozenset().union(*map(_protocols_of, MODULES))


@cache
def _protocols_of(module: str) -> frozenset[str]:
    classes = [node for node in ast.parse((ROOT / module).read_text()).body if isinstance(node, ast.ClassDef)]
    return frozenset(
        node.name for node in classes if any(ast.unparse(base).partition("[")[0] == "Protocol" for base in node.bases)
    )
