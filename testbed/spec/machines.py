"""Machines files: the computers over which a cluster is spread, from TOML or Python::

    [[machine]]
    name = "lab1"
    address = "lab1.example.org"
    user = "root"
    key = "~/.ssh/lab"
    cores = 8
    memory = "16GiB"
    underlay = "192.168.7.1"
    underlay_mtu = 9000

Parsing is strict, as for descriptions: all problems are reported together, with the nearest valid names. Whether a machine
has the properties is checked on the machine.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from testbed.errors import DescriptionError, Problem
from testbed.spec.annotations import After, Bounds, Listed, Schema
from testbed.spec.element import Element, Field
from testbed.spec.element_schema import element_schema
from testbed.spec.elements import MAX_MTU, FilePath, Name, Size
from testbed.spec.loader import read_text, table_of
from testbed.spec.names import MAX_PORT
from testbed.spec.parser import read_list
from testbed.spec.problems import MismatchError, format_value, item, join_alternatives, nearest

MIN_UNDERLAY_MTU = 576
"""RFC 791, section 3.1: every host must accept datagrams of this size, in bytes."""


def _ssh_argument(value: str) -> str:
    """Check a host name or a user name: it becomes an argument of ssh, and must not look like an option."""
    if not value or value.startswith("-") or not value.isprintable() or any(character in value for character in " @/"):
        raise MismatchError("a name or an address that does not begin with '-' and has no space, '@' or '/'")
    return value


def _underlay(value: str) -> str:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise MismatchError("an IPv4 or IPv6 address without a prefix length, such as '192.168.7.1'") from None
    if (
        address.is_multicast
        or address.is_loopback
        or address.is_unspecified
        or address.is_link_local
        or str(address) == "255.255.255.255"
        or (address.version == 6 and (address.scope_id or address.ipv4_mapped))
    ):
        raise MismatchError("a unicast address that is not loopback or link-local, without a zone")
    return str(address)


Host = Annotated[str, After(_ssh_argument), Schema({"type": "string", "examples": ["lab1.example.org", "192.168.7.1"]})]
UnderlayAddress = Annotated[str, After(_underlay), Schema({"type": "string", "examples": ["192.168.7.1", "fd07::1"]})]


class Machine(Element):
    """A computer that is reached by ssh. For absent keys, OpenSSH's configuration or the machine's properties apply."""

    if TYPE_CHECKING:

        def __init__(self, **keys: object) -> None: ...

    name: Name = Field(description="Name of the machine in pins and messages.")
    address: Host | None = Field(None, description="Host name or address of its sshd; default: its name.")
    user: Host | None = Field(None, description="User who logs in; default: as configured for OpenSSH.")
    port: Annotated[int, Bounds(ge=1, le=MAX_PORT)] | None = Field(
        None, description="Port of its sshd; default: as configured for OpenSSH, or 22."
    )
    key: FilePath | None = Field(
        None, description="File of the private key; default: keys and agent as configured for OpenSSH."
    )
    python: FilePath = Field("python3", description="Path of the machine's Python in which testbed is installed.")
    cores: Annotated[int, Bounds(ge=1)] | None = Field(None, description="Cores to use; default: all.")
    memory: Size | None = Field(None, description="Memory to use; default: all.")
    underlay: UnderlayAddress | None = Field(
        None, description="Address in the network that carries links to other machines."
    )
    underlay_mtu: Annotated[int, Bounds(ge=MIN_UNDERLAY_MTU, le=MAX_MTU)] | None = Field(
        None, description="MTU of that network; default: MTU of the interface with the underlay address."
    )


class Machines(Element):
    """The machines of a cluster, with unique names."""

    if TYPE_CHECKING:

        def __init__(self, *, machines: Sequence[Machine]) -> None: ...

    machines: Annotated[tuple[Machine, ...], Listed, Bounds(min_length=1)] = Field(key="machine")

    def _check(self) -> None:
        if problems := _contradictions(list(enumerate(self.machines))):
            raise DescriptionError("machines", problems)


def load(path: str | Path) -> Machines:
    """Load a machines file; relative paths of keys are made absolute. Raises DescriptionError, NotFoundError,
    PermissionDeniedError."""
    file = Path(path)
    machines = parse(table_of(read_text(file), str(path)), str(path))
    base = file.absolute().parent
    problems: list[Problem] = []
    with_absolute_keys: list[Machine] = []
    for index, machine in enumerate(machines.machines):
        key = machine.key
        try:
            absolute = str(base / Path(key).expanduser()) if key else None
        except RuntimeError:  # the user of '~user' does not exist
            problems.append(
                Problem(
                    f"{item('machine', index, machine.name)}.key", format_value(key), "a home directory that exists"
                )
            )
            continue
        with_absolute_keys.append(machine.model_copy(update={"key": absolute}) if key else machine)
    if problems:
        raise DescriptionError(str(path), problems)
    return Machines(machines=tuple(with_absolute_keys))


def parse(data: Mapping[str, object], source: str = "TOML") -> Machines:
    """Make the machines from a table as in TOML. source: name for error messages. Raises DescriptionError with all
    problems."""
    known = ("machine",)
    problems = [
        Problem("", f"unknown key {format_value(key)}", f"the key {join_alternatives(known)}", nearest(key, known))
        for key in data
        if key not in known
    ]
    if not data.get("machine"):
        problems.append(Problem("", "no machine", "tables that begin with [[machine]]"))
        raise DescriptionError(source, problems)
    reading = read_list(Machine, data["machine"], "machine")
    problems += reading.problems
    problems += _contradictions(list(zip(reading.indices, reading.elements, strict=True)))
    if problems:
        raise DescriptionError(source, problems)
    return Machines(machines=reading.elements)


def _contradictions(machines: Sequence[tuple[int, Machine]]) -> list[Problem]:
    """Return the problems of duplicate names and underlay addresses, and of underlays of both IP versions. machines: each
    with its index in the file."""
    problems = []
    for key in ("name", "underlay"):
        counts = Counter(getattr(machine, key) for _, machine in machines)
        problems += [
            Problem(
                f"{item('machine', index, machine.name)}.{key}", format_value(value), f"another {key} for each machine"
            )
            for index, machine in machines
            if (value := getattr(machine, key)) is not None and counts[value] > 1
        ]
    versions = {":" in machine.underlay for _, machine in machines if machine.underlay is not None}
    if len(versions) > 1:
        problems.append(Problem("machine", "underlay addresses of IPv4 and of IPv6", "one version for all machines"))
    return problems


def json_schema() -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a machines file, for editors."""
    definitions: dict[str, Any] = {}
    machine = element_schema(Machine, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Machines",
        "description": "The computers over which a cluster is spread.",
        "type": "object",
        "additionalProperties": False,
        "properties": {"machine": {"type": "array", "items": machine, "minItems": 1}},
        "required": ["machine"],
        "$defs": dict(sorted(definitions.items())),
    }
