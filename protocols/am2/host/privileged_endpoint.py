"""The privileged endpoint: a mapper daemon's access to probe packets and to its NIC's route table (`mapping_port`).

It requires a host whose kernel the NIC trusts: a process that shares its NIC with others cannot have a privileged
endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from protocols.am2 import page as layout
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.token import Token
from protocols.myrinet.mapper.route_tables import PartialTable, Table, paths_of, split_table

if TYPE_CHECKING:
    from protocols.am2.host.bundle import Bundle
    from protocols.am2.host.library import ActiveMessages

_LOOPBACK_INDEX: Final = 0
"""Index of the translation table that is mapped to the endpoint itself, for `wait_for_room`."""


class PrivilegedEndpoint(Endpoint):
    """An endpoint whose rings contain probe packets and parts of route tables. on_probe: called with each mapping
    packet that arrives."""

    def __init__(self, library: ActiveMessages, bundle: Bundle, number: int, last_request: int) -> None:
        super().__init__(library, bundle, number, last_request)
        self.on_probe: Callable[[bytes], object] | None = None
        self._tables: list[Table] = []  # complete tables that the NIC has passed
        self._parts_received: PartialTable | None = None
        self.map(_LOOPBACK_INDEX, self.name, 0)
        self.set_handler(layout.PROBE, self._on_probe)
        self.set_handler(layout.ROUTES, self._on_part)

    async def send_probe(self, frame: bytes) -> None:
        """Send a mapping packet. frame: complete, with its source route."""
        await self._write_entry(layout.PROBE, frame, 0, 0, 0, 1)

    async def write_routes(self, table: Table) -> None:
        """Replace all routes of the NIC. Waits for room, and handles messages that arrive meanwhile."""
        parts = split_table(table, (), self.library.max_medium)
        for number, part in enumerate(parts):
            await self._write_entry(layout.ROUTES, part, table.epoch, table.author, number, len(parts))

    async def read_routes(self) -> Table:
        """Return the NIC's routes. Handles messages that arrive meanwhile."""
        self._tables.clear()
        while not self._tables:
            await self._write_entry(layout.ROUTES, b"", 0, 0, 0, 1)  # repeated if the ring lacked room
            if not self.handle() and not self._tables:  # another task may have handled the table
                await self.bundle.next_change("the NIC's routes")
        return self._tables.pop()

    async def _write_entry(self, form: int, data: bytes, epoch: int, author: int, part: int, part_count: int) -> None:
        while not self.outbox.pass_entry(form, data, epoch, author, part, part_count):
            await self.wait_for_room(_LOOPBACK_INDEX)

    def _on_probe(self, _: Token, data: memoryview) -> None:
        if self.on_probe is not None:
            self.on_probe(bytes(data))

    def _on_part(self, token: Token, data: memoryview) -> None:
        version = token.origin.message, token.origin.tag
        parts_received = self._parts_received
        if parts_received is None or parts_received.version != version:
            parts_received = self._parts_received = PartialTable(version, self.inbox.total)
        table = parts_received.add(self.inbox.offset, paths_of(data))
        if table is not None:
            self._parts_received = None
            self._tables.append(table)
