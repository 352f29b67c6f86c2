"""Fabrics and protocols are known by their capabilities: outside their packages no code compares their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from testbed import registry
from testbed.spec.kinds import kinds

ROOT = Path(testbed.__file__).parent
ROOMS_OF_FABRICS = ("fabric", "spec")
"""Rooms that may name fabrics."""
ROOMS_OF_PROTOCOLS = ("runtime/sockets", "workloads/active_messages", "registry.py")
"""Rooms that may name protocols: the kernel's TCP and UDP, the workloads of one interface, and the default."""
ALSO_HEADERS = {"ethernet"}
"""Fabrics named as a header of every frame: only comparisons with them are findings."""

ALSO_IN_IPROUTE2 = {"via"}
"""Protocols named as a keyword of iproute2: only comparisons with them are findings."""


def sources(rooms: tuple[str, ...], names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield path and text of each module outside `rooms` in which one of `names` occurs."""
    for path in sorted(ROOT.rglob("*.py")):
        module_path = path.relative_to(ROOT).as_posix()
        if not any(module_path == package or module_path.startswith(f"{package}/") for package in rooms):
            text = path.read_text()
            if words_in(text) & names:
                yield module_path, text


def words_in(text: str) -> set[str]:
    """Return the words of an identifier or a sentence, in lower case."""
    return set(re.findall(r"[a-z]+\d*", re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", text).lower()))


def names_and_strings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each identifier and each string except docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield node.lineno, text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.alias(name=text):
                yield node.lineno, text
            case ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text) | ast.ClassDef(name=text):
                yield node.lineno, text
            case ast.ImportFrom(module=str(text)):
                yield node.lineno, text


def conditions(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string in a comparison, a membership test or a match pattern."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, comparators=others):
                operands = [left, *others]
            case ast.MatchValue(value=value):
                operands = [value]
            case _:
                continue
        for operand in operands:
            constants = operand.elts if isinstance(operand, ast.Tuple | ast.List | ast.Set) else [operand]
            yield from (
                (part.lineno, part.value)
                for part in constants
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )


def test_no_code_outside_their_rooms_names_a_fabric() -> None:
    fabric_names = {*kinds(), "crossbar", "crossbars"}
    modules = list(sources(ROOMS_OF_FABRICS, fabric_names))
    findings = [
        f"{module_path}:{line}: {text!r}"
        for module_path, source in modules
        for line, text in names_and_strings(source)
        if words_in(text) & (fabric_names - ALSO_HEADERS)
    ]
    findings += [
        f"{module_path}:{line}: {text!r}"
        for module_path, source in modules
        for line, text in conditions(source)
        if text in ALSO_HEADERS
    ]
    assert not findings


def test_no_code_outside_their_rooms_names_a_protocol() -> None:
    protocol_names = set(registry.offered(registry.PROTOCOLS)) | set(registry.offered(registry.FIELDS)) - set(kinds())
    headers = {"tcp", "udp"}  # also names of headers
    modules = list(sources(ROOMS_OF_PROTOCOLS, protocol_names - headers))
    findings = [
        f"{module_path}:{line}: {text!r}"
        for module_path, source in modules
        for line, text in names_and_strings(source)
        if words_in(text) & (protocol_names - headers - ALSO_IN_IPROUTE2)
    ]
    findings += [
        f"{module_path}:{line}: {text!r}"
        for module_path, source in modules
        for line, text in conditions(source)
        if text in ALSO_IN_IPROUTE2
    ]
    assert not findings


@pytest.mark.parametrize(
    "source",
    ["if kind == 'myrinet': pass", "MyrinetWay()", "from testbed.fabric.myrinet import route", "x.crossbars()"],
)
def test_a_name_is_found_in_strings_identifiers_and_imports(source: str) -> None:
    assert any(words_in(text) & {"myrinet", "crossbars"} for _, text in names_and_strings(source))


def test_a_name_in_a_condition_is_found() -> None:
    source = "if kind in ('ethernet', x): pass\nmatch kind:\n    case 'atm': pass\n"
    assert [text for _, text in conditions(source)] == ["ethernet", "atm"]
