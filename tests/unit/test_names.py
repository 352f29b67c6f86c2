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
OF_FABRICS = ("fabric", "spec")
"""The rooms that may name fabrics."""
OF_PROTOCOLS = ("runtime/sockets", "workloads/active_messages", "registry.py")
"""Rooms that may name protocols: the kernel's own ones, the workloads of one interface, and the default."""
GENERAL = {"ethernet"}
"""Fabrics whose names are also those of a header of every frame: only comparisons with them are searched for."""

OF_ROUTES = {"via"}
"""Protocols whose names are also iproute2's word for a route's gateway: only comparisons with them are searched for."""


def sources(rooms: tuple[str, ...], names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield place and text of the product's modules outside those rooms, of those where a name occurs at all."""
    for path in sorted(ROOT.rglob("*.py")):
        module_path = path.relative_to(ROOT).as_posix()
        if not any(module_path == package or module_path.startswith(f"{package}/") for package in rooms):
            text = path.read_text()
            if words_of(text) & names:
                yield module_path, text


def words_of(text: str) -> set[str]:
    """Return the words of an identifier or a sentence, in lower case."""
    return set(re.findall(r"[a-z]+\d*", re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", text).lower()))


def names_and_strings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every identifier and of every string, but for docstrings."""
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
    """Line and text of every string that something is compared with, or looked for in, or matched against."""
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
    modules = list(sources(OF_FABRICS, fabric_names))
    findings = [
        f"{module_path}:{line}: {text!r}"
        for module_path, source in modules
        for line, text in names_and_strings(source)
        if words_of(text) & (fabric_names - GENERAL)
    ]
    findings += [
        f"{module_path}:{line}: {text!r}"
        for module_path, source in modules
        for line, text in conditions(source)
        if text in GENERAL
    ]
    assert not findings


def test_no_code_outside_their_rooms_names_a_protocol() -> None:
    protocol_names = set(registry.offered(registry.PROTOCOLS)) | set(registry.offered(registry.FIELDS)) - set(kinds())
    headers = {"tcp", "udp"}  # are headers, too
    modules = list(sources(OF_PROTOCOLS, protocol_names - headers))
    findings = [
        f"{module_path}:{line}: {text!r}"
        for module_path, source in modules
        for line, text in names_and_strings(source)
        if words_of(text) & (protocol_names - headers - OF_ROUTES)
    ]
    findings += [
        f"{module_path}:{line}: {text!r}"
        for module_path, source in modules
        for line, text in conditions(source)
        if text in OF_ROUTES
    ]
    assert not findings


@pytest.mark.parametrize(
    "source",
    ["if kind == 'myrinet': pass", "MyrinetWay()", "from testbed.fabric.myrinet import route", "x.crossbars()"],
)
def test_a_name_is_found_wherever_it_stands(source: str) -> None:
    assert any(words_of(text) & {"myrinet", "crossbars"} for _, text in names_and_strings(source))


def test_a_name_in_a_condition_is_found() -> None:
    source = "if kind in ('ethernet', x): pass\nmatch kind:\n    case 'atm': pass\n"
    assert [text for _, text in conditions(source)] == ["ethernet", "atm"]
