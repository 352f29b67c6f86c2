"""The NIC's half of the privileged endpoint, by which a mapper daemon on the host reaches the network.

The paper's mapper daemons have two special functions, which a privileged endpoint gives to privileged processes only: to
send and receive probe packets with source routes of their own, and to read and write the NIC's route table. Entries of
that endpoint's rings are not messages: their form says which of the two they are (`page.PROBE`, `page.ROUTES`), and their
data is a whole frame, or a part of a table (`mapper.route_tables`).

A probe packet that finds no room is dropped, as on the wire; a mapper tries again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.card import Card
from protocols.am2.endpoint_frames import Resident
from protocols.core.malformed import MalformedError
from protocols.myrinet.mapper.route_tables import Collected, Path, Table, parts_of, paths_of

_NUMBERS: Final = 0xFFFF


class MappingPort:
    """The privileged endpoint as its NIC sees it. install: replaces the NIC's routes."""

    __slots__ = ("_card", "_collected", "_install", "_version")

    def __init__(self, card: Card, install: Callable[[Table], None]) -> None:
        self._card = card
        self._install = install
        self._collected: Collected | None = None
        self._version = (0, 0)

    def on_doorbell(self, endpoint: Resident) -> None:
        """Take what the daemon has written."""
        page = endpoint.page
        assert page is not None
        for slot in range(layout.REPLIES):
            if page[layout.PLACES[slot]] == layout.READY and not self._take(endpoint, page, slot):
                return

    def receive(self, frame: bytes) -> None:
        """Give the daemon a packet of the mappers'."""
        if (endpoint := self._card.privileged) is not None:
            self._deliver(endpoint, layout.PROBE, frame, self._version, 0, 1)

    def _take(self, endpoint: Resident, page: memoryview, slot: int) -> bool:
        """Take one entry. Returns False if its data cannot be reached yet."""
        nic, at = self._card.nic, layout.PLACES[slot]
        entry = layout.READ(page, at)
        length, begin, form, author, epoch, part, parts = (entry[field] for field in (3, 4, 6, 12, 13, 14, 15))
        view = self._reach(endpoint, page, layout.STAGED) if length else memoryview(b"")
        if view is None:
            return False
        if form == layout.ROUTES and not length and self._reach(endpoint, page, layout.STAGING) is None:
            return False
        data = nic.dma_read((view[begin : begin + length],)) if length else b""
        page[at] = layout.FREE
        if page[layout.WANTS]:
            page[layout.WANTS] = 0
            nic.post_completion(endpoint.number << layout.SUBJECTS | slot)
        if form == layout.PROBE and len(data) == length > 0:
            nic.send_later(lambda: data)
        elif form == layout.ROUTES and not length:
            self._read(endpoint)
        elif form == layout.ROUTES and part < parts:
            self._write((epoch, author & _NUMBERS), part, parts, data)
        else:
            self._card.counters.invalid += 1
        return True

    def _write(self, version: tuple[int, int], part: int, parts: int, data: bytes) -> None:
        """Install a table once all its parts have been written."""
        collected = self._collected
        if collected is None or (collected.version, collected.count) != (version, parts):
            collected = self._collected = Collected(version, parts)
        try:
            table = collected.add(part, paths_of(data))
        except MalformedError:
            self._card.counters.invalid += 1
            return
        if table is not None:
            self._collected, self._version = None, version
            self._install(table)

    def _read(self, endpoint: Resident) -> None:
        """Give the daemon the present routes."""
        card = self._card
        paths = {
            number: Path(peer.route, peer.address)
            for number, peer in card.peers.known.items()
            if number != card.number and peer.route is not None
        }
        parts = parts_of(Table(*self._version, paths), (), card.settings.medium)
        for part, data in enumerate(parts):
            self._deliver(endpoint, layout.ROUTES, data, self._version, part, len(parts))

    def _deliver(
        self, endpoint: Resident, form: int, data: bytes, version: tuple[int, int], part: int, parts: int
    ) -> None:
        card, page, medium = self._card, endpoint.page, self._card.settings.medium
        if page is None or endpoint.is_leaving:
            if not endpoint.faulted:
                endpoint.faulted = True
                card.nic.interrupt(endpoint.number << layout.SUBJECTS | layout.FAULT)
            return
        place = layout.ARRIVED_REQUESTS + endpoint.next_request
        at = layout.PLACES[place]
        if page[at] or len(data) > medium:
            card.counters.overruns += 1
            return
        view = self._reach(endpoint, page, layout.STAGING)
        if view is None:
            return
        begin = endpoint.next_request * medium
        card.nic.dma_write(view[begin : begin + len(data)], data)
        epoch, author = version
        layout.WRITE[0](
            page, at, layout.FREE, 0, card.number, len(data), 0, 0, form, 0, form, 0, endpoint.number, endpoint.number,
            author, epoch, part, parts,
        )  # fmt: skip
        page[at] = layout.READY
        endpoint.next_request = endpoint.next_request + 1 & layout.ENTRIES - 1
        card.nic.post_completion(endpoint.number << layout.SUBJECTS | place)

    def _reach(self, endpoint: Resident, page: memoryview, subject: int) -> memoryview | None:
        """Return memory of the endpoint if it is mapped; otherwise ask the host for a mapping, and return None."""
        region = endpoint.number << layout.SUBJECTS | subject
        view = endpoint.frames.reach(page, region, 0, 0)
        if view is None and region not in endpoint.requested:
            endpoint.requested.add(region)
            self._card.nic.interrupt(region << layout.SUBJECTS | layout.UNMAPPED)
        return view
