"""The privileged endpoint: a mapper daemon's access to probe packets and to its NIC's route table (`mapping_port`).

Only a host whose kernel the NIC trusts has one; to a process that shares its NIC with others it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from protocols.am2 import page as layout
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.token import Token
from protocols.myrinet.mapper.route_tables import Collected, Table, parts_of, paths_of

if TYPE_CHECKING:
    from protocols.am2.host.bundle import Bundle
    from protocols.am2.host.library import ActiveMessages

_HERE: Final = 0
"""The place of its translation table that leads to itself, for `wait_for_room`."""


class PrivilegedEndpoint(Endpoint):
    """An endpoint whose rings hold probe packets and parts of route tables. on_probe: is called with each packet of the
    mappers' that has arrived."""

    def __init__(self, library: ActiveMessages, bundle: Bundle, number: int, message: int) -> None:
        super().__init__(library, bundle, number, message)
        self.on_probe: Callable[[bytes], object] | None = None
        self._tables: list[Table] = []  # those that were read
        self._collected: Collected | None = None
        self.map(_HERE, self.name, 0)
        self.set_handler(layout.PROBE, self._probe)
        self.set_handler(layout.ROUTES, self._part)

    async def send_probe(self, frame: bytes) -> None:
        """Send a complete frame, with the source route that it has."""
        await self._put(layout.PROBE, frame, 0, 0, 0, 1)

    async def write_routes(self, table: Table) -> None:
        """Replace all routes of the NIC."""
        parts = parts_of(table, (), self.library.max_medium)
        for number, part in enumerate(parts):
            await self._put(layout.ROUTES, part, table.epoch, table.author, number, len(parts))

    async def read_routes(self) -> Table:
        """Return the NIC's routes. The call handles what arrives meanwhile."""
        self._tables.clear()
        while not self._tables:
            await self._put(layout.ROUTES, b"", 0, 0, 0, 1)  # again if there was no room for all its parts
            if not self.handle() and not self._tables:  # other tasks may handle it
                await self.bundle.change("the NIC's routes")
        return self._tables.pop()

    async def _put(self, form: int, data: bytes, epoch: int, author: int, part: int, parts: int) -> None:
        while not self.outbox.control(form, data, epoch, author, part, parts):
            await self.wait_for_room(_HERE)

    def _probe(self, _: Token, data: memoryview) -> None:
        if self.on_probe is not None:
            self.on_probe(bytes(data))

    def _part(self, token: Token, data: memoryview) -> None:
        version = token.origin.message, token.origin.tag
        collected = self._collected
        if collected is None or collected.version != version:
            collected = self._collected = Collected(version, self.inbox.total)
        table = collected.add(self.inbox.offset, paths_of(data))
        if table is not None:
            self._collected = None
            self._tables.append(table)
