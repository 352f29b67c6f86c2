"""Compiled classes inherit from the compiled Protocols that they implement, which makes calls direct.

The exceptions are explained in docs/internals/compiled.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tests.unit.suite.test_compiled_sources import MODULES, ROOT

Name = tuple[str, str]
"""Path of the module of a class, and name of the class."""

Arity = tuple[int, int] | None
"""Minimum and maximum number of positional arguments of a method; None: an attribute or a property."""

EXCEPTIONS = {
    *((("testbed/sim/recorder.py", "NicWatcher"), actions) for actions in ("HostActions", "NodeActions")),
    (("protocols/mpi/device.py", "Device"), "PostingDevice"),
    (("protocols/openmx/endpoint.py", "Endpoint"), "Host"),
    (("protocols/core/completion.py", "Completion"), "Awaited"),
    *(((f"protocols/{protocol}/split_driver.py", "Nic"), "SharedNic") for protocol in ("am2", "emp", "openmx", "via")),
}
"""Compiled classes that implement a compiled Protocol without inheriting from it; this includes their subclasses."""


class Class(NamedTuple):
    """Definition of a class. members: methods and attributes without inherited ones."""

    bases: list[Name]
    members: Mapping[str, Arity]

    @property
    def is_protocol(self) -> bool:
        return ("typing.py", "Protocol") in self.bases


@cache
def classes() -> Mapping[Name, Class]:
    """Return the classes of the compiled modules."""
    return dict(chain.from_iterable(classes_of(ROOT / module) for module in MODULES))


def classes_of(path: Path) -> Iterator[tuple[Name, Class]]:
    module = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text())
    own = {node.name: f"{module[:-3].replace('/', '.')}.{node.name}" for node in _class_definitions(tree)}
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = imported | own
    for node in _class_definitions(tree):
        bases = []
        for base in node.bases:
            first, *rest = ast.unparse(base).partition("[")[0].split(".")
            *room, name = ".".join([names.get(first, first), *rest]).split(".")
            bases.append(("/".join(room) + ".py", name))
        yield (module, node.name), Class(bases, dict(_members(node)))


def _class_definitions(tree: ast.AST) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _members(definition: ast.ClassDef) -> Iterator[tuple[str, Arity]]:
    for node in definition.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, None if node.decorator_list else _arity(node.args)
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, None
    for attribute in ast.walk(definition):
        match attribute:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name, None


def _arity(arguments: ast.arguments) -> tuple[int, int]:
    maximum = len(arguments.posonlyargs) + len(arguments.args)
    return maximum - len(arguments.defaults), maximum


def ancestors(name: Name) -> list[Name]:
    """Return a class and its base classes, direct and indirect; the class itself is the last."""
    definition = classes().get(name)
    bases = definition.bases if definition is not None else []
    return [*(ancestor for base in bases for ancestor in ancestors(base)), name]


def members(name: Name) -> dict[str, Arity]:
    members_by_name: dict[str, Arity] = {}
    for ancestor in ancestors(name):
        members_by_name |= classes()[ancestor].members if ancestor in classes() else {}
    return members_by_name


def implements(name: Name, protocol: Name) -> bool:
    """Return whether a class has the attributes and methods of a Protocol, with compatible numbers of arguments."""
    own = members(name)
    for member, required in members(protocol).items():
        if member not in own:
            return False
        arity = own[member]
        if required is None or arity is None:
            if required is not arity:
                return False
        elif arity[0] > required[0] or arity[1] < required[1]:
            return False
    return True


def protocols() -> list[Name]:
    return [name for name, definition in classes().items() if definition.is_protocol]


def test_compiled_classes_inherit_from_the_compiled_protocols_that_they_implement() -> None:
    not_inheriting = {
        (name, protocol[1])
        for protocol in protocols()
        for name, definition in classes().items()
        if not definition.is_protocol and implements(name, protocol) and protocol not in ancestors(name)
    }
    assert not_inheriting >= EXCEPTIONS
    assert not [
        (name, protocol)
        for name, protocol in not_inheriting
        if not EXCEPTIONS.intersection((ancestor, protocol) for ancestor in ancestors(name))
    ]


def test_interpreted_classes_do_not_inherit_from_compiled_protocols() -> None:
    """mypyc raises an error at instantiation: interpreted classes cannot inherit from compiled traits."""
    inherits = re.compile(rf"^ *class \w+\(.*\b({'|'.join(name for _, name in protocols())})\b", re.MULTILINE)
    paths = [path for package in ("protocols", "testbed", "tests") for path in (ROOT / package).rglob("*.py")]
    candidates = [path for path in paths if inherits.search(path.read_text())]
    assert ROOT / "protocols/emp/firmware.py" in candidates
    for path in candidates:
        if str(path.relative_to(ROOT)) not in MODULES:
            for name, definition in classes_of(path):
                assert definition.is_protocol or not set(protocols()).intersection(definition.bases), name


def test_a_class_implements_a_protocol_if_it_has_its_members() -> None:
    nic, firmware = ("protocols/core/firmware.py", "Nic"), ("protocols/core/firmware.py", "Firmware")
    assert implements(("testbed/nic/priced.py", "PricedNic"), nic)
    assert implements(("protocols/ssam/sba100.py", "Sba100"), firmware)
    assert not implements(("testbed/nic/priced.py", "PricedNic"), firmware)
    assert not implements(("testbed/nic/priced.py", "PricedNic"), ("protocols/core/split_memory.py", "SharedActions"))
