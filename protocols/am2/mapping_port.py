"""The NIC's half of the privileged endpoint, by which a mapper daemon on the host accesses the network.

A privileged endpoint gives a mapper daemon the paper's two special functions: to send and receive probe packets with
explicit source routes, and to read and write the NIC's route table. An entry of its rings is not a message: its form is
`page.PROBE` or `page.ROUTES`, and its data is a complete frame, or a part of a table (`mapper.route_tables`). For a
part of a table, the fields tag, message, offset and total contain the table's author and epoch, the part's number, and
the number of parts.

A received probe packet is dropped if the ring has no room, like a packet lost on the wire; the mapper sends another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.card import Card
from protocols.am2.nic_endpoint import NicEndpoint
from protocols.core.malformed import MalformedError
from protocols.myrinet.mapper.route_tables import PartialTable, Path, Table, paths_of, split_table

_NUMBER_MASK: Final = 0xFFFF


class MappingPort:
    """The NIC's half of the privileged endpoint. install: replaces the NIC's routes."""

    __slots__ = ("_card", "_install", "_parts_received", "_version")

    def __init__(self, card: Card, install: Callable[[Table], None]) -> None:
        self._card = card
        self._install = install
        self._parts_received: PartialTable | None = None
        self._version = (0, 0)

    def on_doorbell(self, endpoint: NicEndpoint) -> None:
        """Process the entries that the daemon has written."""
        page = endpoint.page
        assert page is not None
        for slot in range(layout.REPLIES):
            if page[layout.SLOT_OFFSETS[slot]] == layout.READY and not self._take_entry(endpoint, page, slot):
                return

    def receive(self, frame: bytes) -> None:
        """Pass a received mapping packet to the daemon."""
        if (endpoint := self._card.privileged) is not None:
            self._deliver(endpoint, layout.PROBE, frame, self._version, 0, 1)

    def _take_entry(self, endpoint: NicEndpoint, page: memoryview, slot: int) -> bool:
        """Process one entry. Returns False if its data is not mapped yet."""
        nic, entry_offset = self._card.nic, layout.SLOT_OFFSETS[slot]
        (
            _, _, _, length, begin, _, form, _, _, _, _, _, author, epoch, part, part_count,
        ) = layout.READ_ENTRY(page, entry_offset)  # fmt: skip
        view = self._region_view(endpoint, page, layout.SEND_STAGING) if length else memoryview(b"")
        if view is None:
            return False
        if form == layout.ROUTES and not length and self._region_view(endpoint, page, layout.RECEIVE_STAGING) is None:
            return False
        data = nic.dma_read((view[begin : begin + length],)) if length else b""
        page[entry_offset] = layout.FREE
        if page[layout.NOTIFY_OFFSET]:
            page[layout.NOTIFY_OFFSET] = 0
            nic.post_completion(endpoint.number << layout.SUBJECT_BITS | slot)
        if form == layout.PROBE and len(data) == length > 0:
            nic.send_later(lambda: data)
        elif form == layout.ROUTES and not length:
            self._read_routes(endpoint)
        elif form == layout.ROUTES and part < part_count:
            self._write_routes((epoch, author & _NUMBER_MASK), part, part_count, data)
        else:
            self._card.counters.invalid += 1
        return True

    def _write_routes(self, version: tuple[int, int], part: int, part_count: int, data: bytes) -> None:
        """Add a part of a table; install the table once all its parts have been written."""
        parts_received = self._parts_received
        if parts_received is None or (parts_received.version, parts_received.count) != (version, part_count):
            parts_received = self._parts_received = PartialTable(version, part_count)
        try:
            table = parts_received.add(part, paths_of(data))
        except MalformedError:
            self._card.counters.invalid += 1
            return
        if table is not None:
            self._parts_received, self._version = None, version
            self._install(table)

    def _read_routes(self, endpoint: NicEndpoint) -> None:
        """Pass the present routes to the daemon."""
        card = self._card
        paths = {
            number: Path(peer.route, peer.address)
            for number, peer in card.peers.known.items()
            if number != card.number and peer.route is not None
        }
        parts = split_table(Table(*self._version, paths), (), card.settings.medium)
        for part, data in enumerate(parts):
            self._deliver(endpoint, layout.ROUTES, data, self._version, part, len(parts))

    def _deliver(
        self, endpoint: NicEndpoint, form: int, data: bytes, version: tuple[int, int], part: int, part_count: int
    ) -> None:
        """Put an entry into the endpoint's ring; drop it if the endpoint is not resident, or has no room or mapping."""
        card, page, medium = self._card, endpoint.page, self._card.settings.medium
        if page is None or endpoint.is_leaving:
            if not endpoint.has_faulted:
                endpoint.has_faulted = True
                card.nic.interrupt(endpoint.number << layout.SUBJECT_BITS | layout.FAULT)
            return
        slot = layout.ARRIVED_REQUESTS + endpoint.next_request
        entry_offset = layout.SLOT_OFFSETS[slot]
        if page[entry_offset] or len(data) > medium:
            card.counters.overruns += 1
            return
        view = self._region_view(endpoint, page, layout.RECEIVE_STAGING)
        if view is None:
            return
        begin = endpoint.next_request * medium
        card.nic.dma_write(view[begin : begin + len(data)], data)
        epoch, author = version
        layout.WRITE_ENTRY[0](
            page, entry_offset, layout.FREE, 0, card.number, len(data), 0, 0, form, 0, form, 0, endpoint.number,
            endpoint.number, author, epoch, part, part_count,
        )  # fmt: skip
        page[entry_offset] = layout.READY
        endpoint.next_request = endpoint.next_request + 1 & layout.RING_SIZE - 1
        card.nic.post_completion(endpoint.number << layout.SUBJECT_BITS | slot)

    def _region_view(self, endpoint: NicEndpoint, page: memoryview, subject: int) -> memoryview | None:
        """Return a region of the endpoint if it is mapped; otherwise request a mapping from the host, and return
        None."""
        region = endpoint.number << layout.SUBJECT_BITS | subject
        view = endpoint.frames.region_view(page, region, 0, 0)
        if view is None and region not in endpoint.requested_regions:
            endpoint.requested_regions.add(region)
            self._card.nic.interrupt(region << layout.SUBJECT_BITS | layout.UNMAPPED)
        return view
