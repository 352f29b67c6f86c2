#!/usr/bin/env python3
"""Measure the layout of the product's source, and fail where it exceeds a limit.

    ci/house.py                      print one line for each measure: value, limit
    ci/house.py --list MEASURE       print the places that a measure counts
    ci/house.py --limits             exit with 1 if a measure is above its limit

The measures count in the modules of testbed/ and protocols/, without generated codecs and templates; that of docstrings
counts in tests/ and ci/, too.
"""

from __future__ import annotations

import argparse
import ast
import gc
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ROOMS: Final = ("testbed", "protocols")
DOCUMENTED_ROOMS: Final = (*ROOMS, "tests", "ci")
SMALL_MODULE: Final = 50  # lines
LONG_FUNCTION: Final = 80  # lines
MANY_PARAMETERS: Final = 10
VAGUE_WORDS: Final = (
    "What ", "The same", "Who ", "Whoever ", "Whatever ", "Whose ", "That ", "Of ", "As ", "So ", "It ", "Its ", "Such ",
    "They ", "Those ", "Nothing", "Nobody", "Something", "Somebody", "And ", "Also ", "Or ",
)  # fmt: skip
"""Words with which a docstring must not begin: its subject would be missing, or a pronoun without a noun before it."""
STANDARD_SETS: Final = {
    "__init__.py", "__main__.py", "codec.py", "frames.py", "firmware.py", "states.py", "profile.py", "protocol.py",
    "counters.py", "settings.py", "fields.py", "fabric.py", "plug.py", "host.py", "paper.py", "network.py", "endpoint.py",
    "channel.py", "peers.py", "sender.py", "receiver.py", "card.py", "split_driver.py",
}  # fmt: skip
"""File names that the rooms of protocols and fabrics repeat, for modules of any length."""
SETS_ROOMS: Final = ("protocols/", "testbed/fabric/", "testbed/sim/", "testbed/runtime/", "testbed/nic/")
TEMPLATES: Final = ("testbed/protocol_template/postcard/", "testbed/protocol_template/tests/")
"""Folders of the package that `testbed protocol new` writes, which are no rooms of the product."""
NOUNS: Final = {"matching", "routing", "wiring"}
"""Words in -ing that are nouns of the field, and so no participles."""


@dataclass(slots=True)
class Module:
    path: Path
    name: str
    tree: ast.Module
    lines: int
    imports: set[str] = field(default_factory=set)
    nodes: list[ast.AST] = field(init=False)
    """All nodes of the tree."""

    def __post_init__(self) -> None:
        self.nodes = list(ast.walk(self.tree))

    @property
    def place(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


def modules(rooms: tuple[str, ...] = ROOMS) -> list[Module]:
    """Parse the modules of these folders, without generated ones."""
    results = []
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.name == "codec.py" or path.relative_to(ROOT).as_posix().startswith(TEMPLATES):
                continue  # generated, or to be copied
            text = path.read_text()
            tree = ast.parse(text)
            dotted = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
            results.append(Module(path, dotted, tree, len(text.splitlines())))
    names = {module.name for module in results}
    for module in results:
        module.imports = set(imported(module, names))
    return results


def imported(module: Module, names: set[str]) -> Iterator[str]:
    """Yield the modules in `names` that a module imports when it is imported: not in functions or TYPE_CHECKING blocks."""
    pending: list[ast.stmt] = list(module.tree.body)
    while pending:
        statement = pending.pop()
        match statement:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases if alias.name in names)
            case ast.ImportFrom(module=str(source), names=aliases, level=0):
                for alias in aliases:
                    inner = f"{source}.{alias.name}"
                    yield inner if inner in names else source
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                pending += orelse
            case ast.If() | ast.Try() | ast.With():
                pending += [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
            case _:
                pass


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


# The measures. Each returns a line for each place that it counts.


def statements(modules: list[Module]) -> list[str]:
    return [module.place for module in modules for node in module.nodes if isinstance(node, ast.stmt)]


def circles(modules: list[Module]) -> list[str]:
    """Circles of imports: strongly connected components of several modules (Tarjan 1972)."""
    graph = {module.name: sorted(module.imports & {other.name for other in modules}) for module in modules}
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    result: list[str] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for other in graph[name]:
            if other not in numbers:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], numbers[other])
        if lowest[name] == numbers[name]:
            place = stack.index(name)
            component, stack[place:] = stack[place:], []
            if len(component) > 1:
                result.append(" ".join(sorted(component)))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in numbers:
            visit(name)
    return result


def small_modules(modules: list[Module]) -> list[str]:
    return [
        f"{module.lines:3} {module.place}"
        for module in modules
        if module.lines < SMALL_MODULE and not is_standard(module) and module.path.name != "entry.py"
    ]


def is_standard(module: Module) -> bool:
    name = module.path.name
    return name.startswith("__") or (name in STANDARD_SETS and module.place.startswith(SETS_ROOMS))


def participles(modules: list[Module]) -> list[str]:
    return [
        module.place
        for module in modules
        if re.fullmatch(r"[a-z]+ing", module.path.stem) and module.path.stem not in NOUNS
    ]


def repeated_names(modules: list[Module]) -> list[str]:
    places = defaultdict(list)
    for module in modules:
        if not is_standard(module):
            places[module.path.name].append(module.place)
    return [" ".join(paths) for paths in places.values() if len(paths) > 1]


def long_functions(modules: list[Module]) -> list[str]:
    return [
        f"{length:3} {module.place}:{node.lineno} {node.name}"
        for module in modules
        for node in functions(module)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONG_FUNCTION
    ]


def many_parameters(modules: list[Module]) -> list[str]:
    lines = []
    for module in modules:
        for node in functions(module):
            arguments = node.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            count -= bool(arguments.args) and arguments.args[0].arg in ("self", "cls")
            if count > MANY_PARAMETERS:
                lines.append(f"{count:3} {module.place}:{node.lineno} {node.name}")
    return lines


def vague_docstrings(modules: list[Module]) -> list[str]:
    """Docstrings that begin with one of VAGUE_WORDS, including those below assignments."""
    return [
        f"{module.place}:{node.lineno} {text.splitlines()[0]}"
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str) and (text := node.value.value.strip()).startswith(VAGUE_WORDS)
    ]


def local_imports(modules: list[Module]) -> list[str]:
    """Imports within functions, outside cli/."""
    return [
        f"{module.place}:{node.lineno}"
        for module in modules
        if not module.place.startswith("testbed/cli/")
        for function in functions(module)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def type_checking(modules: list[Module]) -> list[str]:
    return [module.place for module in modules if "if TYPE_CHECKING" in module.path.read_text()]


@dataclass(frozen=True, slots=True)
class Measure:
    lines: Callable[[list[Module]], list[str]]
    limit: int | None
    """None: printed, not limited."""
    rooms: tuple[str, ...] = ROOMS


MEASURES: Final = {
    "statements": Measure(statements, None),
    "import circles": Measure(circles, 0),
    f"modules below {SMALL_MODULE} lines": Measure(small_modules, 20),
    "modules named by a participle": Measure(participles, 20),
    "file names that occur twice": Measure(repeated_names, 0),
    f"functions above {LONG_FUNCTION} lines": Measure(long_functions, 0),
    f"functions of more than {MANY_PARAMETERS} parameters": Measure(many_parameters, 0),
    "docstrings that begin with a vague word": Measure(vague_docstrings, 0, DOCUMENTED_ROOMS),
    "imports within functions": Measure(local_imports, None),
    "modules with TYPE_CHECKING blocks": Measure(type_checking, None),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="MEASURE", help="the measure's name, or the first words of it")
    parser.add_argument("--limits", action="store_true")
    requested = parser.parse_args()
    gc.disable()  # millions of nodes exist until the end, and each collection would visit all of them
    documented = modules(DOCUMENTED_ROOMS)
    product = [module for module in documented if module.path.relative_to(ROOT).parts[0] in ROOMS]
    results = {DOCUMENTED_ROOMS: documented, ROOMS: product}
    if requested.list:
        names = [name for name in MEASURES if name.startswith(requested.list)]
        if not names:
            parser.error(f"no measure {requested.list!r}; there are: {', '.join(MEASURES)}")
        for name in names:
            for line, count in Counter(MEASURES[name].lines(results[MEASURES[name].rooms])).items():
                print(f"{count:5} {line}" if count > 1 else line)
        return 0
    exceeded = False
    for name, measure in MEASURES.items():
        value = len(measure.lines(results[measure.rooms]))
        above = measure.limit is not None and value > measure.limit
        exceeded |= above
        limit = "" if measure.limit is None else f"limit {measure.limit}{', exceeded' if above else ''}"
        print(f"{name:45} {value:7,}  {limit}".rstrip())
    print(f"{'modules':45} {len(results[ROOMS]):7,}")
    return int(exceeded and requested.limits)


if __name__ == "__main__":
    sys.exit(main())
