"""The privileged endpoint in the NIC: probe packets and routes for a mapper daemon, but for no untrusted process."""

from __future__ import annotations

import pytest

from protocols.active_messages.am_errors import Status
from protocols.am2 import page as layout
from protocols.am2.nic_memory import NO_ENDPOINT
from protocols.myrinet.envelope import add_envelope
from protocols.myrinet.mapper import codec
from protocols.myrinet.mapper.route_tables import Path, Table, paths_of, split_table
from tests.unit.protocols.am2_shared_nic import SharedNic
from tests.unit.protocols.am2_single_nic import ADDRESSES, SingleNic, read_entry

ENDPOINT = 4
PROBE = add_envelope(codec.pack_frame(ADDRESSES[0], ADDRESSES[1], codec.KIND_LOOP, 1, 1, 1, 7, 0, 0, 0, 0, b""), b"")
SEND_STAGING, RECEIVE_STAGING = (
    ENDPOINT << layout.SUBJECT_BITS | subject for subject in (layout.SEND_STAGING, layout.RECEIVE_STAGING)
)


class DaemonNic(SingleNic):
    """NIC of node 0, whose endpoint 4 is a mapper daemon's. send_staging, receive_staging:
    memory of the endpoint."""

    def __init__(self, *, is_mapped: bool = True, routed: bool = False) -> None:
        super().__init__(routed=routed)
        self.create(ENDPOINT)
        self.ring_doorbell(ENDPOINT, layout.PRIVILEGE)
        self.sent.clear()
        self.send_staging, self.receive_staging = (
            memoryview(bytearray(32 * self.firmware.settings.medium)) for _ in range(2)
        )
        if is_mapped:
            self.map_staging()

    def map_staging(self) -> None:
        self.memory.mapped_regions.update({SEND_STAGING: self.send_staging, RECEIVE_STAGING: self.receive_staging})

    def post(self, form: int, data: bytes, slot: int = 0, epoch: int = 0, author: int = 0) -> None:
        start = slot * self.firmware.settings.medium
        self.send_staging[start : start + len(data)] = data
        layout.WRITE_ENTRY[0](
            self.page(ENDPOINT), layout.SLOT_OFFSETS[slot], layout.READY, 0, 0, len(data), start, 0, form, 0, 0, 0, ENDPOINT,
            ENDPOINT, author, epoch, 0, 1,
        )  # fmt: skip
        self.ring_doorbell(ENDPOINT, slot)

    def received(self, slot: int) -> tuple[int, bytes]:
        """Return form and data of the entry in a slot of the daemon's receive ring."""
        entry = read_entry(self.page(ENDPOINT), layout.ARRIVED_REQUESTS + slot)
        start = slot * self.firmware.settings.medium
        return entry.form, bytes(self.receive_staging[start : start + entry.length])


def test_a_probe_packet_leaves_as_written_by_the_daemon_and_its_slot_is_freed() -> None:
    nic = DaemonNic()
    nic.post(layout.PROBE, PROBE)
    assert nic.sent == [PROBE]
    assert nic.owner(ENDPOINT, 0) == layout.FREE


def test_mappers_packets_are_passed_to_the_daemon_in_order_until_its_ring_is_full() -> None:
    nic = DaemonNic()
    for _ in range(layout.RING_SIZE + 1):
        nic.firmware.receive(0, PROBE)
    assert [nic.received(slot) for slot in range(layout.RING_SIZE)] == [(layout.PROBE, PROBE)] * layout.RING_SIZE
    assert nic.notifications == [(ENDPOINT, layout.ARRIVED_REQUESTS + slot) for slot in range(layout.RING_SIZE)]
    assert nic.counter("overruns") == 1
    nic.page(ENDPOINT)[layout.SLOT_OFFSETS[layout.ARRIVED_REQUESTS]] = layout.FREE
    nic.firmware.receive(0, PROBE)
    assert nic.counter("overruns") == 1


def test_a_probe_packet_in_unmapped_memory_leaves_once_it_is_mapped() -> None:
    nic = DaemonNic(is_mapped=False)
    nic.post(layout.PROBE, PROBE)
    assert nic.sent == []
    assert nic.notifications == [(SEND_STAGING, layout.UNMAPPED)]
    nic.map_staging()
    nic.ring_doorbell(SEND_STAGING, layout.MAPPED)
    assert nic.sent == [PROBE]


def test_an_entry_written_while_the_daemons_endpoint_leaves_its_frame_is_processed_after_the_next_load() -> None:
    nic = DaemonNic()
    nic.ring_doorbell(ENDPOINT, layout.UNLOAD)
    nic.elapse(10_000_000)
    assert nic.notifications == [(ENDPOINT, layout.RELEASE)]
    nic.post(layout.PROBE, PROBE)
    assert nic.sent == []
    nic.ring_doorbell(ENDPOINT, layout.RELEASED)
    nic.memory.bound_endpoints[nic.memory.bound_endpoints.index(ENDPOINT)] = NO_ENDPOINT
    nic.load(ENDPOINT)
    assert nic.sent == [PROBE]
    assert nic.owner(ENDPOINT, 0) == layout.FREE


def test_a_message_that_waits_for_a_route_leaves_when_the_daemons_table_is_mapped() -> None:
    nic = DaemonNic(is_mapped=False, routed=True)
    nic.create(0)
    nic.request(0)
    assert nic.sent == []
    (part,) = split_table(Table(9, 1, {1: Path(b"\x81", ADDRESSES[1])}), (), nic.firmware.settings.medium)
    nic.post(layout.ROUTES, part, epoch=9, author=1)
    assert nic.sent == []
    nic.map_staging()
    nic.ring_doorbell(SEND_STAGING, layout.MAPPED)
    assert len(nic.sent) == 1


def test_the_daemon_reads_the_routes_that_it_has_written() -> None:
    nic = DaemonNic()
    paths = {1: Path(b"\x81", ADDRESSES[1])}
    (part,) = split_table(Table(9, 1, paths), (), nic.firmware.settings.medium)
    nic.post(layout.ROUTES, part, epoch=9, author=1)
    nic.post(layout.ROUTES, b"", 1)
    form, data = nic.received(0)
    assert (form, paths_of(data)) == (layout.ROUTES, paths)


@pytest.mark.parametrize(("form", "data"), [(layout.ROUTES, b"\x09\x81"), (6, PROBE), (layout.PROBE, b"")])
def test_an_invalid_entry_is_only_counted(form: int, data: bytes) -> None:
    nic = DaemonNic()
    nic.post(form, data)
    assert nic.counter("invalid") == 1
    assert nic.sent == []
    assert nic.owner(ENDPOINT, 0) == layout.FREE


def test_mappers_packets_are_dropped_after_the_daemons_endpoint_is_destroyed() -> None:
    nic = DaemonNic()
    nic.ring_doorbell(ENDPOINT, layout.DESTROY)
    nic.notifications.clear()
    nic.firmware.receive(0, PROBE)
    assert nic.notifications == []
    assert nic.counter("malformed") == 1


def test_a_process_that_shares_its_nic_cannot_have_a_privileged_endpoint() -> None:
    nic = SharedNic()
    endpoint = nic.endpoint_number(1)
    nic.create(endpoint)
    nic.ring_doorbell(endpoint, layout.PRIVILEGE)
    assert nic.counter("invalid") == 1
    nic.sent.clear()
    page = nic.page(endpoint)
    nic.windows[1].heap.bytes[: len(PROBE)] = PROBE
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
    nic.ring_doorbell(endpoint, 0)
    assert nic.sent == []
    assert nic.counter("invalid") == 2
    assert page[layout.SLOT_OFFSETS[0] : layout.SLOT_OFFSETS[0] + 2] == bytes((layout.RETURNED, Status.BAD_ARGUMENTS))
