"""Route tables: what a NIC is given, and how it travels.

A table comes in parts, each a frame's payload: the length of the route by which to acknowledge, that route, then for every
destination its number (2 bytes), its address (6), the length of its route (1) and the route as frames have it. The epoch and
the author, which is the leader that has made it, tell tables apart; of one author the greater epoch is the later table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import Route, route_bytes, route_of

_ENTRY: Final = struct.Struct("!H6sB")


@dataclass(frozen=True, slots=True)
class Path:
    """How to reach a NIC. route: as a frame has it; address: its MAC."""

    route: bytes
    address: bytes


@dataclass(frozen=True, slots=True)
class Table:
    """Of one NIC. paths: by node number; who is not in it cannot be reached."""

    epoch: int
    author: int
    paths: Mapping[int, Path]

    @property
    def version(self) -> tuple[int, int]:
        return self.epoch, self.author


def parts_of(table: Table, way_back: Route, most: int) -> list[bytes]:
    """most: bytes of a part. At least one, though it may say nothing."""
    head = bytes((len(way_back),)) + route_bytes(way_back)
    parts = [head]
    for number, path in sorted(table.paths.items()):
        entry = _ENTRY.pack(number, path.address, len(path.route)) + path.route
        if len(parts[-1]) + len(entry) > most and len(parts[-1]) > len(head):
            parts.append(head)
        parts[-1] += entry
    return parts


def way_back_of(part: Buffer) -> tuple[bytes, int]:
    """The route by which to acknowledge, and where the entries begin. Raises MalformedError."""
    end = 1 + part[0] if part else 1
    if end > len(part):
        raise MalformedError("route")
    route_of(part[1:end])
    return bytes(part[1:end]), end


def paths_of(part: Buffer) -> dict[int, Path]:
    """The entries. Raises MalformedError."""
    _, at = way_back_of(part)
    paths: dict[int, Path] = {}
    while at < len(part):
        if at + _ENTRY.size > len(part):
            raise MalformedError("entry")
        number, address, length = _ENTRY.unpack_from(part, at)
        at += _ENTRY.size
        route = bytes(part[at : at + length])
        if len(route) != length:
            raise MalformedError("entry")
        route_of(route)
        paths[number] = Path(route, address)
        at += length
    return paths


@dataclass(slots=True)
class Collected:
    """A table of which not all parts have come."""

    version: tuple[int, int]
    count: int
    parts: dict[int, dict[int, Path]] = field(default_factory=dict)

    def add(self, part: int, paths: dict[int, Path]) -> Table | None:
        """The table, once it is whole."""
        self.parts[part] = paths
        if len(self.parts) < self.count:
            return None
        whole: dict[int, Path] = {}
        for some in self.parts.values():
            whole.update(some)
        return Table(*self.version, whole)
