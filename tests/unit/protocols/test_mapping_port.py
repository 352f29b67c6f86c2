"""The privileged endpoint in the NIC: probe packets and routes for a mapper daemon, and for no untrusted process."""

from __future__ import annotations

import pytest

from protocols.am2 import page as layout
from protocols.myrinet.envelope import add_envelope
from protocols.myrinet.mapper import codec
from protocols.myrinet.mapper.route_tables import Path, Table, paths_of, split_table
from tests.unit.protocols.am2_shared_nic import SharedNic
from tests.unit.protocols.am2_single_nic import ADDRESSES, SingleNic

ENDPOINT = 4
PROBE = add_envelope(codec.pack_frame(ADDRESSES[0], ADDRESSES[1], codec.KIND_LOOP, 1, 1, 1, 7, 0, 0, 0, 0, b""), b"")
STAGED, STAGING = (
    ENDPOINT << layout.SUBJECT_BITS | subject for subject in (layout.SEND_STAGING, layout.RECEIVE_STAGING)
)


class DaemonsNic(SingleNic):
    """NIC of node 0, whose endpoint 4 is a mapper daemon's. staged, staging: memory of the endpoint."""

    def __init__(self, *, mapped: bool = True) -> None:
        super().__init__()
        self.create(ENDPOINT)
        self.ring(ENDPOINT, layout.PRIVILEGE)
        self.sent.clear()
        self.staged, self.staging = (memoryview(bytearray(32 * self.firmware.settings.medium)) for _ in range(2))
        if mapped:
            self.map()

    def map(self) -> None:
        self.memory.mapped_regions.update({STAGED: self.staged, STAGING: self.staging})

    def put(self, form: int, data: bytes, slot: int = 0, epoch: int = 0, author: int = 0) -> None:
        start = slot * self.firmware.settings.medium
        self.staged[start : start + len(data)] = data
        layout.WRITE_ENTRY[0](
            self.page(ENDPOINT), layout.SLOT_OFFSETS[slot], layout.READY, 0, 0, len(data), start, 0, form, 0, 0, 0, ENDPOINT,
            ENDPOINT, author, epoch, 0, 1,
        )  # fmt: skip
        self.ring(ENDPOINT, slot)

    def come(self, slot: int) -> tuple[int, bytes]:
        """Return form and data of what the daemon has got at a place of its ring."""
        offset = layout.SLOT_OFFSETS[layout.ARRIVED_REQUESTS + slot]
        entry = layout.READ_ENTRY(self.page(ENDPOINT), offset)
        start = slot * self.firmware.settings.medium
        return entry[6], bytes(self.staging[start : start + entry[3]])


def test_a_probe_packet_leaves_as_written_by_the_daemon_and_its_slot_is_freed() -> None:
    card = DaemonsNic()
    card.put(layout.PROBE, PROBE)
    assert card.sent == [PROBE]
    assert card.owner(ENDPOINT, 0) == layout.FREE


def test_mappers_packets_are_passed_to_the_daemon_in_order_until_its_ring_is_full() -> None:
    card = DaemonsNic()
    for _ in range(layout.RING_SIZE + 1):
        card.firmware.receive(0, PROBE)
    assert [card.come(slot) for slot in range(layout.RING_SIZE)] == [(layout.PROBE, PROBE)] * layout.RING_SIZE
    assert card.notifications == [(ENDPOINT, layout.ARRIVED_REQUESTS + slot) for slot in range(layout.RING_SIZE)]
    assert card.counter("overruns") == 1
    card.page(ENDPOINT)[layout.SLOT_OFFSETS[layout.ARRIVED_REQUESTS]] = layout.FREE
    card.firmware.receive(0, PROBE)
    assert card.counter("overruns") == 1


def test_a_probe_packet_in_unmapped_memory_leaves_once_it_is_mapped() -> None:
    card = DaemonsNic(mapped=False)
    card.put(layout.PROBE, PROBE)
    assert card.sent == []
    assert card.notifications == [(STAGED, layout.UNMAPPED)]
    card.map()
    card.ring(STAGED, layout.MAPPED)
    assert card.sent == [PROBE]


def test_the_daemon_reads_the_routes_that_it_has_written() -> None:
    card = DaemonsNic()
    paths = {1: Path(b"\x81", ADDRESSES[1])}
    (part,) = split_table(Table(9, 1, paths), (), card.firmware.settings.medium)
    card.put(layout.ROUTES, part, epoch=9, author=1)
    card.put(layout.ROUTES, b"", 1)
    form, data = card.come(0)
    assert (form, paths_of(data)) == (layout.ROUTES, paths)


@pytest.mark.parametrize(("form", "data"), [(layout.ROUTES, b"\x09\x81"), (6, PROBE), (layout.PROBE, b"")])
def test_an_invalid_entry_is_only_counted(form: int, data: bytes) -> None:
    card = DaemonsNic()
    card.put(form, data)
    assert card.counter("invalid") == 1
    assert card.sent == []
    assert card.owner(ENDPOINT, 0) == layout.FREE


def test_mappers_packets_are_dropped_after_the_daemons_endpoint_is_destroyed() -> None:
    card = DaemonsNic()
    card.ring(ENDPOINT, layout.DESTROY)
    card.notifications.clear()
    card.firmware.receive(0, PROBE)
    assert card.notifications == []
    assert card.counter("malformed") == 1


def test_a_process_that_shares_its_nic_cannot_have_a_privileged_endpoint() -> None:
    card = SharedNic()
    endpoint = card.number(1)
    card.create(endpoint)
    card.ring(endpoint, layout.PRIVILEGE)
    assert card.counter("invalid") == 1
    card.sent.clear()
    page = card.page(endpoint)
    card.windows[1].heap.bytes[: len(PROBE)] = PROBE
    layout.set_address(page, layout.SEND_STAGING, 0)
    layout.WRITE_ENTRY[0](
        page,
        layout.SLOT_OFFSETS[0],
        layout.READY,
        0,
        0,
        len(PROBE),
        0,
        0,
        layout.PROBE,
        0,
        0,
        0,
        endpoint,
        endpoint,
        0,
        0,
        0,
        1,
    )
    card.ring(endpoint, 0)
    assert card.sent == []
    assert card.counter("invalid") == 2
    assert page[layout.SLOT_OFFSETS[0] : layout.SLOT_OFFSETS[0] + 2] == bytes((layout.RETURNED, 1))  # BAD_ARGUMENTS
