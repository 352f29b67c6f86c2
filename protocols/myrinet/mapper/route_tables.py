"""Route tables of NICs, and their encoding in frames.

A table is sent in parts, each of which is a frame's payload. A part begins with the route for its acknowledgement,
after the route's length (1 byte). For every destination follow number (2 bytes), MAC address (6), length of the route
(1), and the route as in frames. A table is identified by its author, which is the leader that made it, and its epoch;
of two tables of one author, the one with the greater epoch, by serial-number arithmetic, is the later.
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
    """A path to a NIC. route: as in a frame. address: its MAC."""

    route: bytes
    address: bytes


@dataclass(frozen=True, slots=True)
class Table:
    """The routes of one NIC. paths: by node number, without the nodes that cannot be reached."""

    epoch: int
    author: int
    paths: Mapping[int, Path]

    @property
    def version(self) -> tuple[int, int]:
        """Epoch and author."""
        return self.epoch, self.author


def split_table(table: Table, return_route: Route, max_size: int) -> list[bytes]:
    """Encode a table as parts of at most `max_size` bytes; at least one part, possibly without entries. return_route:
    for the acknowledgements."""
    head = bytes((len(return_route),)) + route_bytes(return_route)
    parts = [head]
    for number, path in sorted(table.paths.items()):
        entry = _ENTRY.pack(number, path.address, len(path.route)) + path.route
        if len(parts[-1]) + len(entry) > max_size and len(parts[-1]) > len(head):
            parts.append(head)
        parts[-1] += entry
    return parts


def return_route_of(part: Buffer) -> tuple[bytes, int]:
    """Decode the route for the acknowledgement of a part. Returns it as in frames, and the offset of the part's
    entries. Raises MalformedError."""
    end = 1 + part[0] if part else 1
    if end > len(part):
        raise MalformedError("route")
    route_of(part[1:end])
    return bytes(part[1:end]), end


def paths_of(part: Buffer) -> dict[int, Path]:
    """Decode the entries of a part, by node number. Raises MalformedError."""
    _, offset = return_route_of(part)
    paths: dict[int, Path] = {}
    while offset < len(part):
        if offset + _ENTRY.size > len(part):
            raise MalformedError("entry")
        number, address, length = _ENTRY.unpack_from(part, offset)
        offset += _ENTRY.size
        route = bytes(part[offset : offset + length])
        if len(route) != length:
            raise MalformedError("entry")
        route_of(route)
        paths[number] = Path(route, address)
        offset += length
    return paths


@dataclass(slots=True)
class PartialTable:
    """A table of which parts are missing. count: number of the table's parts. parts: the received ones, by number."""

    version: tuple[int, int]
    count: int
    parts: dict[int, dict[int, Path]] = field(default_factory=dict)

    def add(self, part: int, paths: dict[int, Path]) -> Table | None:
        """Add a part. Returns the table once it is complete, otherwise None."""
        self.parts[part] = paths
        if len(self.parts) < self.count:
            return None
        complete: dict[int, Path] = {}
        for paths in self.parts.values():
            complete.update(paths)
        return Table(*self.version, complete)
