"""AM-II NIC with several host processes: allocation of its endpoint frames, and isolation between the processes."""

from __future__ import annotations

import mmap
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from protocols.active_messages.am_errors import Status
from protocols.am2 import page as layout
from protocols.am2.codec import (
    FORM_BULK,
    FORM_LOST_REPLY,
    FORM_MEDIUM,
    KIND_ACK,
    KIND_NACK,
    REASON_BAD_SEGMENT,
    REASON_NOT_RESIDENT,
    REASON_OVERRUN,
)
from protocols.am2.nic_memory import NO_ENDPOINT
from protocols.am2.settings import MILLISECOND, Settings
from tests.unit.protocols.am2_shared_nic import HEAP, SharedNic
from tests.unit.protocols.am2_single_nic import TAG, SentMessage

LOADED, RELEASE, UNLOADED, FAULT = layout.LOADED, layout.RELEASE, layout.UNLOADED, layout.FAULT
RELEASE_TIMEOUT = 50 * MILLISECOND
"""Time that a host has to release a frame before its endpoint is forced out."""
ADDRESS = 0x4000
"""Address of a message's data in a host's heap."""


def shared_nic(frames: int = 2, *, min_residence: int = 0, hosts: int = 3, channels: int = 32) -> SharedNic:
    return SharedNic(Settings(frames=frames, stay=min_residence, channels=channels, attempt=0), hosts)


def release_frame(nic: SharedNic, endpoint: int) -> None:
    """Release the endpoint's frame as its host, and copy the endpoint out when the NIC is done."""
    nic.ring_doorbell(endpoint, layout.RELEASED)
    assert nic.notifications_of(endpoint)[-1] == UNLOADED
    nic.copy_out(endpoint)


# Choice of the frame to reclaim.


def test_a_host_gets_a_frame_though_two_others_have_them_all() -> None:
    nic = shared_nic()
    first, second, third = (nic.endpoint_number(host) for host in range(3))
    nic.create(first)
    nic.create(second)
    nic.create(third)
    assert nic.notifications == [(first, LOADED), (second, LOADED), (first, RELEASE)]
    release_frame(nic, first)
    assert nic.notifications[-2:] == [(first, UNLOADED), (third, LOADED)]
    assert nic.counter("forced") == nic.counter("invalid") == 0


def test_a_frame_is_reclaimed_from_the_host_that_has_the_most() -> None:
    nic = shared_nic(3)
    other_endpoint, many_endpoints, third = (
        nic.endpoint_number(1),
        [nic.endpoint_number(0, index) for index in range(2)],
        nic.endpoint_number(2),
    )
    nic.create(other_endpoint)  # in its frame for longest
    for endpoint in many_endpoints:
        nic.create(endpoint)
    nic.create(third)
    assert nic.notifications[-1] == (many_endpoints[0], RELEASE)


def test_an_idle_endpoint_of_a_host_gives_up_its_frame() -> None:
    nic = shared_nic()
    busy, idle, waiting = (
        nic.endpoint_number(0),
        nic.endpoint_number(0, 1),
        nic.endpoint_number(1),
    )
    nic.create(busy)
    nic.create(idle)
    nic.request(busy)
    nic.create(waiting)
    assert nic.notifications[-1] == (idle, RELEASE)


def test_the_host_with_the_most_frames_gets_none_of_another_host() -> None:
    nic = shared_nic(3, hosts=2)
    own_endpoints, foreign_endpoint = [nic.endpoint_number(0, index) for index in range(3)], nic.endpoint_number(1)
    nic.create(foreign_endpoint)
    for endpoint in own_endpoints:
        nic.create(endpoint)
    assert nic.notifications_of(foreign_endpoint) == [LOADED]
    assert nic.notifications[-1] == (own_endpoints[0], RELEASE)


def test_a_host_that_releases_slowly_gets_no_frame_of_another_meanwhile() -> None:
    """A frame counts as its host's until vacated; else a slow host would get the others' frames too."""
    nic = shared_nic(7)
    own_endpoints = [nic.endpoint_number(0, index) for index in range(7)]
    foreign_endpoints = [nic.endpoint_number(host, index) for host in (1, 2) for index in range(2)]
    for endpoint in (*own_endpoints[:3], *foreign_endpoints):
        nic.create(endpoint)
    for endpoint in own_endpoints[:3]:
        nic.request(endpoint)  # which is never answered
        nic.ring_doorbell(endpoint, layout.UNLOAD)
    for endpoint in own_endpoints[3:]:
        nic.create(endpoint)
    nic.elapse(10 * MILLISECOND)
    assert [nic.notifications_of(endpoint) for endpoint in foreign_endpoints] == [[LOADED]] * 4
    assert nic.counter("invalid") == 0


def test_the_host_with_fewer_frames_gets_the_next_one() -> None:
    """However many endpoints of another host wait before it."""
    nic = shared_nic(3)
    own_endpoints, foreign_endpoint, third = (
        [nic.endpoint_number(0, index) for index in range(3)],
        nic.endpoint_number(1),
        nic.endpoint_number(2),
    )
    nic.create(foreign_endpoint)
    for endpoint in own_endpoints:
        nic.create(endpoint)
    assert nic.notifications[-1] == (own_endpoints[0], RELEASE)
    nic.create(third)
    nic.notifications.clear()
    nic.ring_doorbell(own_endpoints[0], layout.RELEASED)
    assert [endpoint for endpoint, subject in nic.notifications if subject == LOADED] == [third]


def test_only_as_many_endpoints_leave_as_wait_for_a_frame() -> None:
    nic = shared_nic(4, min_residence=MILLISECOND, hosts=2)
    own_endpoints, foreign_endpoints = (
        [nic.endpoint_number(0, index) for index in range(4)],
        [nic.endpoint_number(1, index) for index in range(2)],
    )
    for endpoint in own_endpoints:
        nic.create(endpoint)
    for endpoint in foreign_endpoints:
        nic.create(endpoint)
    nic.elapse(3 * MILLISECOND)
    for endpoint in own_endpoints:
        if RELEASE in nic.notifications_of(endpoint):
            release_frame(nic, endpoint)
    nic.elapse(3 * MILLISECOND)
    assert [endpoint for endpoint in own_endpoints if RELEASE in nic.notifications_of(endpoint)] == own_endpoints[:2]
    assert [nic.notifications_of(endpoint) for endpoint in foreign_endpoints] == [[LOADED]] * 2


def test_an_endpoint_keeps_its_frame_for_the_minimum_residence_though_another_host_waits() -> None:
    nic = shared_nic(1, min_residence=3 * MILLISECOND)
    first, second = nic.endpoint_number(0), nic.endpoint_number(1)
    nic.create(first)
    nic.elapse(MILLISECOND)
    nic.create(second)
    assert nic.notifications == [(first, LOADED)]
    assert nic.receive_message(first, 1)[0].kind == KIND_ACK
    assert nic.firmware.pending_work() == [
        f"endpoint {first} is to leave its frame: 0 packets are unacknowledged",
        f"endpoint {second} waits for a frame that other host processes use",
    ]
    nic.elapse(2 * MILLISECOND)
    assert nic.notifications[-1] == (first, RELEASE)
    assert nic.receive_message(first, 2, channel=1)[0].verdict == (KIND_NACK, REASON_NOT_RESIDENT)
    release_frame(nic, first)
    assert nic.notifications[-1] == (second, LOADED)


def test_at_most_as_many_endpoints_of_a_host_wait_as_it_has_frames() -> None:
    """Otherwise one host could make all its endpoints wait ahead of the others'."""
    nic = shared_nic(2, hosts=2)
    nic.create(nic.endpoint_number(0))
    nic.create(nic.endpoint_number(0, 1))
    window = nic.windows[0]
    for extra in range(2, 9):
        endpoint = nic.endpoint_number(0, extra)
        nic.create(endpoint, load=False)
        window.bind(extra % 2, endpoint)
        nic.ring_doorbell(endpoint, layout.LOAD)
    assert nic.counter("invalid") == 7
    assert nic.notifications_of(nic.endpoint_number(0)) == [LOADED]


def test_an_endpoint_that_its_host_has_not_bound_is_skipped() -> None:
    nic = shared_nic(1, hosts=2)
    first, second = nic.endpoint_number(0), nic.endpoint_number(1)
    nic.create(first)
    nic.create(second)
    nic.windows[1].bind(0, NO_ENDPOINT)
    release_frame(nic, first)
    assert nic.notifications_of(second) == []
    assert nic.counter("invalid") == 1
    nic.load(first)
    assert nic.notifications[-1] == (first, LOADED)


def test_messages_of_a_loaded_endpoint_reach_an_endpoint_of_its_node_at_once() -> None:
    """The message is delivered too if an answer from the network has made the room."""
    nic = shared_nic()
    first, second, third = (nic.endpoint_number(host) for host in range(3))
    nic.create(first)
    nic.create(second)
    nic.request(first)
    (packet,) = nic.take_packets()
    nic.create(third, load=False)
    page = memoryview(nic.windows[2].pages[third])
    layout.WRITE_ENTRY[1](
        page, layout.SLOT_OFFSETS[0], layout.READY, 0, 0, 0, 0, 0, 0, 0, 1, 1, third, second, TAG, 7, 0, 0, 41
    )  # fmt: skip
    page.release()
    nic.ring_doorbell(first, layout.UNLOAD)
    nic.ring_doorbell(first, layout.RELEASED)
    nic.load(third)
    assert nic.notifications_of(third) == []
    nic.answer(packet)
    assert nic.notifications_of(second)[-1] == layout.ARRIVED_REQUESTS


# Hosts that do not release a frame.


def contended_frame(nic: SharedNic) -> tuple[int, int]:
    """Give host 0's endpoint the only frame, for which host 1's waits; return both endpoints."""
    nic.create(nic.endpoint_number(0))
    nic.create(nic.endpoint_number(1))
    assert nic.notifications[-1] == (nic.endpoint_number(0), RELEASE)
    return nic.endpoint_number(0), nic.endpoint_number(1)


def test_an_endpoint_that_its_host_does_not_release_is_forced_out() -> None:
    nic = shared_nic(1)
    first, second = contended_frame(nic)
    nic.elapse(RELEASE_TIMEOUT - 1)
    assert nic.counter("forced") == 0
    assert nic.firmware.deadline == RELEASE_TIMEOUT
    nic.elapse(1)
    assert nic.notifications[-2:] == [(first, UNLOADED), (second, LOADED)]
    assert nic.counter("forced") == 1
    assert nic.firmware.deadline is None


def test_the_time_to_release_begins_with_the_request() -> None:
    """The NIC itself may be late: it is a process, too."""
    nic = shared_nic(1, min_residence=MILLISECOND)
    first, second = nic.endpoint_number(0), nic.endpoint_number(1)
    nic.create(first)
    nic.create(second)
    nic.now = 80 * MILLISECOND
    nic.firmware.on_timer(nic.now)
    assert nic.notifications[-1] == (first, RELEASE)
    nic.elapse(RELEASE_TIMEOUT - 1)
    assert nic.counter("forced") == 0
    nic.elapse(1)
    assert nic.notifications[-1] == (second, LOADED)


def test_late_writes_of_a_host_are_sent_once_after_the_next_load() -> None:
    nic = shared_nic(1)
    first, second = contended_frame(nic)
    nic.request(first, 0, 41)
    nic.elapse(RELEASE_TIMEOUT)
    nic.request(first, 1, 42)
    assert nic.take_packets() == []
    assert nic.notifications_of(first)[-1] == UNLOADED
    nic.ring_doorbell(first, layout.RELEASED)  # late
    nic.copy_out(first)
    nic.load(first)
    assert nic.notifications[-1] == (second, RELEASE)
    release_frame(nic, second)
    assert [(packet.origin, packet.message) for packet in nic.take_packets()] == [(first, 100), (first, 101)]
    nic.ring_doorbell(first, 0)  # a doorbell for a message already in flight
    assert nic.take_packets() == []
    assert nic.counter("invalid") == 0


def test_refused_packets_of_a_forced_out_endpoint_are_sent_once_after_the_next_load() -> None:
    nic = shared_nic(1)
    first, second = nic.endpoint_number(0), nic.endpoint_number(1)
    nic.create(first)
    nic.request(first, 0, 41)
    (packet,) = nic.take_packets()
    nic.create(second)
    nic.elapse(RELEASE_TIMEOUT)
    assert nic.counter("forced") == 1
    assert UNLOADED not in nic.notifications_of(first)  # the peer may still accept its packet
    nic.take_packets()
    nic.elapse(100 * MILLISECOND)
    last = nic.take_packets()[-1]
    assert last == packet._replace(stamp=last.stamp)
    nic.answer(last, REASON_OVERRUN)
    assert nic.notifications[-2:] == [(first, UNLOADED), (second, LOADED)]
    nic.copy_out(first)
    nic.load(first)
    release_frame(nic, second)
    (resent_packet,) = nic.take_packets()
    assert (resent_packet.origin, resent_packet.message) == (first, 100)


@pytest.mark.parametrize("subject", [layout.RELEASED, layout.UNLOAD])
def test_late_doorbells_of_a_host_are_no_errors(subject: int) -> None:
    nic = shared_nic(1)
    first, second = contended_frame(nic)
    nic.ring_doorbell(first, layout.UNLOAD)  # the host unloads it as well
    nic.elapse(RELEASE_TIMEOUT)
    nic.ring_doorbell(first, subject)
    assert nic.counter("invalid") == 0
    assert nic.notifications[-1] == (second, LOADED)


# Destroyed endpoints and detached hosts.

STATES = ("on the host", "awaiting", "resident", "to leave", "leaving", "released")


def nic_in_state(state: str) -> tuple[SharedNic, int, int]:
    """Return a NIC with one frame, an endpoint of host 0 in `state`, and one of host 1 that gets the frame when the first is
    gone. While the first is "awaiting" the frame, host 2 has it."""
    nic = shared_nic(1, min_residence=MILLISECOND if state == "to leave" else 0)
    first, second, third = (nic.endpoint_number(host) for host in range(3))
    if state == "awaiting":
        nic.create(third)
        nic.create(first)
        nic.create(second)
        return nic, first, second
    nic.create(first, load=state != "on the host")
    if state == "released":
        nic.request(first)  # an unanswered packet keeps it in the frame
        nic.take_packets()
    nic.create(second, load=state != "resident")
    if state == "released":
        nic.ring_doorbell(first, layout.RELEASED)
    return nic, first, second


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("ending", ["destroyed", "detached"])
def test_the_frame_of_a_destroyed_endpoint_is_given_to_a_waiting_one(state: str, ending: str) -> None:
    nic, first, second = nic_in_state(state)
    if ending == "destroyed":
        nic.ring_doorbell(first, layout.DESTROY)
        assert nic.notifications_of(first)[-1] == UNLOADED
    else:
        nic.detach(0)
        assert nic.notifications_of(first)[-1:] != [UNLOADED]
    if state == "resident":
        nic.load(second)
    if state == "awaiting":
        release_frame(nic, nic.endpoint_number(2))
    assert nic.notifications_of(second) == [LOADED]
    assert nic.counter("invalid") == 0
    assert nic.receive_message(first, 1)[-1].kind == KIND_NACK
    assert nic.counter("bad_endpoints") == 1
    nic.elapse(7_000 * MILLISECOND)
    assert nic.notifications_of(second) == [LOADED]
    assert nic.firmware.pending_work() == []
    assert nic.firmware.deadline is None


def test_a_detached_hosts_endpoint_is_not_forced_out() -> None:
    nic = shared_nic(1)
    contended_frame(nic)
    nic.detach(0)
    nic.elapse(RELEASE_TIMEOUT)
    assert nic.counter("forced") == 0


def test_the_memory_of_a_detached_host_is_released() -> None:
    """No operation in progress keeps a reference to the memory or writes to it."""
    nic = shared_nic(channels=2)
    first = nic.endpoint_number(0)
    nic.create(first)
    page = nic.page(first)
    layout.set_segment_length(page, 100)
    layout.set_address(page, layout.SEGMENT, ADDRESS)
    layout.set_address(page, layout.SEND_STAGING, ADDRESS)
    assert nic.receive_message(first, form=FORM_BULK, data=b"half", total=8)[0].kind == KIND_ACK
    post_message(nic, first, 1, FORM_MEDIUM, length=3, address=0)
    post_message(nic, first, 0, FORM_BULK, length=100_000, address=ADDRESS)
    packets = nic.take_packets()
    assert len(packets) == 2  # of many: there are two channels
    page.release()
    before = [bytes(memory) for memory in (nic.windows[0].descriptors, nic.windows[0].heap.bytes)]
    window = nic.detach(0)
    assert [window.descriptors, window.heap.bytes] == before
    window.descriptors.clear()  # raises BufferError if anything has a view of it
    window.heap.bytes.clear()
    nic.elapse(RELEASE_TIMEOUT)
    for packet in nic.take_packets()[-2:]:
        nic.answer(packet, REASON_OVERRUN)


def test_messages_of_a_detached_host_are_not_resent_forever() -> None:
    """The peer has no room, so its retransmissions would occupy the channel forever."""
    nic = shared_nic(channels=1)
    first, second = nic.endpoint_number(0), nic.endpoint_number(1)
    nic.create(first)
    nic.create(second)
    nic.request(first)
    nic.request(second)
    (packet,) = nic.take_packets()
    nic.detach(0)
    nic.answer(packet, REASON_OVERRUN)
    assert [packet.origin for packet in nic.take_packets()] == [second]


def test_a_host_inherits_nothing_from_its_slots_previous_host() -> None:
    nic = shared_nic()
    first = nic.endpoint_number(0)
    nic.create(first)
    nic.request(first)
    nic.ring_doorbell(first << layout.SUBJECT_BITS | layout.SEGMENT, layout.ABSENT)
    nic.detach(0)
    nic.take_packets()
    nic.attach(0)
    nic.notifications.clear()
    assert nic.receive_message(first, 1)[0].kind == KIND_NACK
    nic.create(first)
    assert nic.notifications == [(first, LOADED)]
    assert nic.take_packets() == []
    assert nic.receive_message(first, 1, channel=1)[0].kind == KIND_ACK


# Access to other hosts' endpoints and memory.


WRITE_TAGS = """
import mmap, sys, time
from protocols.am2.page import SIZE, set_tag
with open(sys.argv[1], "r+b") as file:
    page = memoryview(mmap.mmap(file.fileno(), SIZE))
end = time.monotonic() + 1
while time.monotonic() < end:
    for tag in (1 << 63 | 1, (1 << 64) - 1) * 500:
        set_tag(page, tag)
"""


def test_a_process_reads_the_old_or_the_new_tag_while_another_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_bytes(bytes(layout.SIZE))
    tags = set()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), layout.SIZE) as page:
        layout.set_tag(memoryview(page), 1 << 63 | 1)
        with subprocess.Popen([sys.executable, "-c", WRITE_TAGS, path]) as writer:
            while writer.poll() is None:
                tags |= {layout.TAG.unpack_from(page, 0)[0] for _ in range(5000)}
    assert writer.returncode == 0
    assert tags == {1 << 63 | 1, (1 << 64) - 1}


def post_message(
    nic: SharedNic, endpoint: int, slot: int, form: int, *, length: int, address: int, total: int | None = None
) -> None:
    """Write a message with data, and ring its doorbell. total: bytes of data of the whole message; None: length."""
    layout.WRITE_ENTRY[0](
        nic.page(endpoint), layout.SLOT_OFFSETS[slot], layout.READY, 0, 1, length, address, 0, form, slot >> 4, 1, 0,
        endpoint, 3, TAG, slot + 100, 0, length if total is None else total,
    )  # fmt: skip
    nic.ring_doorbell(endpoint, slot)


def observable_state(nic: SharedNic, endpoint: int) -> tuple[object, ...]:
    """Return the state that a NIC reports about an endpoint, except the counter of invalid messages."""
    counts = {name: count for name, count in nic.firmware.counter_values().items() if name != "invalid"}
    return (
        counts,
        nic.firmware.deadline,
        nic.firmware.pending_work(),
        bytes(nic.windows[nic.host_of(endpoint)].descriptors),
    )


@pytest.mark.parametrize("state", [*STATES, "absent"])
def test_doorbells_for_another_hosts_endpoint_are_only_counted(state: str) -> None:
    if state == "absent":
        nic = shared_nic(1)
        first = nic.endpoint_number(0)
    else:
        nic, first, _ = nic_in_state(state)
    ring_doorbell = nic.windows[1].ring_doorbell
    nic.host_notifications.clear()
    before = observable_state(nic, first)
    doorbells = [first << layout.SUBJECT_BITS | subject for subject in range(1 << layout.SUBJECT_BITS)]
    for subject in range(1 << layout.SUBJECT_BITS):
        region = first << layout.SUBJECT_BITS | subject
        doorbells += [region << layout.SUBJECT_BITS | region_subject for region_subject in layout.REGION_EVENTS]
    for count, index in enumerate(doorbells, 1):
        ring_doorbell(nic.now, index)
        assert nic.counter("invalid") == count, hex(index)
    assert observable_state(nic, first) == before
    assert nic.host_notifications == []
    assert nic.take_packets() == []


def test_doorbells_wider_than_an_index_are_counted_as_invalid() -> None:
    nic = shared_nic()
    rng = random.Random(1)
    before = nic.counter("invalid")
    for count in range(1, 2_000):
        nic.windows[1].ring_doorbell(nic.now, rng.getrandbits(64) | 1 << 40)
        assert nic.counter("invalid") == before + count
    assert nic.notifications == []


def test_a_message_whose_origin_is_another_hosts_endpoint_is_returned() -> None:
    nic = shared_nic()
    first, second = nic.endpoint_number(0), nic.endpoint_number(1)
    nic.create(first)
    nic.create(second)
    page = nic.page(second)
    layout.WRITE_ENTRY[0](
        page, layout.SLOT_OFFSETS[0], layout.READY, 0, 1, 0, 0, 0, 0, 0, 1, 0, first, 3, TAG, 100, 0, 0
    )  # fmt: skip
    nic.ring_doorbell(second, 0)
    assert nic.take_packets() == []
    assert page[layout.SLOT_OFFSETS[0]] == layout.RETURNED
    offset = layout.SLOT_OFFSETS[layout.ARRIVED_REPLIES]
    assert page[offset : offset + 2] == bytes((layout.READY, Status.BAD_ARGUMENTS))
    assert nic.host_notifications[-1] == (1, second, layout.ARRIVED_REPLIES)
    assert nic.counter("invalid") == 1


@pytest.mark.parametrize("form", [FORM_MEDIUM, FORM_BULK])
def test_changes_of_an_entry_after_its_doorbell_are_ignored(form: int) -> None:
    """An entry is read once, though its host overwrites it while its data is fetched."""
    nic = shared_nic()
    first = nic.endpoint_number(0)
    nic.create(first)
    page, heap = nic.page(first), nic.windows[0].heap
    layout.set_address(page, layout.SEND_STAGING, ADDRESS)
    heap.bytes[ADDRESS : ADDRESS + 4] = b"data"

    class OverwritingHeap:
        """Heap that overwrites the entry at each access."""

        def view(self, address: int, length: int) -> memoryview:
            page[layout.SLOT_OFFSETS[0] + 1 : layout.SLOT_OFFSETS[0] + layout.ENTRY_SIZE] = bytes([0xA5]) * (
                layout.ENTRY_SIZE - 1
            )
            return heap.view(address, length)

        def fence(self) -> None: ...

    nic.detach(0)
    window = nic.attach(0)
    nic.split_nic.detach(nic.now, 0, 2)
    window.ring_doorbell = nic.split_nic.attach(nic.now, 0, OverwritingHeap(), memoryview(window.descriptors))
    nic.create(first)
    page = nic.page(first)
    layout.set_address(page, layout.SEND_STAGING, ADDRESS)
    post_message(nic, first, 0, form, length=4, address=0 if form == FORM_MEDIUM else ADDRESS)
    (frame,) = nic.sent
    assert frame[:-1].endswith(b"data")
    (packet,) = nic.take_packets()
    assert (packet.origin, packet.message) == (first, 100)
    assert nic.counter("invalid") == 0


@pytest.mark.parametrize(
    ("address", "length"),
    [(HEAP, 1), (HEAP - 3, 4), (0, 4), ((1 << 64) - 1, 4), (ADDRESS, 0xFFFF_FFFF), (1 << 63, 1 << 31)],
)
def test_data_that_is_not_in_a_hosts_heap_is_never_sent(address: int, length: int) -> None:
    nic = shared_nic()
    first = nic.endpoint_number(0)
    nic.create(first)
    post_message(nic, first, 0, FORM_BULK, length=length, address=address)
    region = first << layout.SUBJECT_BITS
    assert nic.notifications[-1] == (region, layout.UNMAPPED)
    nic.ring_doorbell(region, layout.MAPPED)
    assert nic.take_packets() == []
    nic.ring_doorbell(region, layout.ABSENT)
    assert nic.owner(first, 0) == layout.RETURNED
    assert nic.take_packets() == []


@pytest.mark.parametrize("address", [HEAP, HEAP - 1, (1 << 64) - 1])
@pytest.mark.parametrize("form", [FORM_MEDIUM, FORM_BULK])
def test_data_for_memory_outside_a_hosts_heap_is_refused(address: int, form: int) -> None:
    nic = shared_nic()
    first = nic.endpoint_number(0)
    nic.create(first)
    page = nic.page(first)
    layout.set_segment_length(page, (1 << 64) - 1)
    for subject in (layout.RECEIVE_STAGING, layout.SEGMENT):
        layout.set_address(page, subject, address)
    assert nic.receive_message(first, form=form, data=b"xyz", total=3)[0].kind == KIND_NACK
    assert nic.counter("unmapped") == 1


def test_answers_about_regions_that_were_not_requested_are_ignored() -> None:
    """However many there are: the NIC keeps none of them."""
    nic = shared_nic()
    first = nic.endpoint_number(0)
    nic.create(first)
    for subject in range(1 << layout.SUBJECT_BITS):
        nic.ring_doorbell(first << layout.SUBJECT_BITS | subject, layout.ABSENT)
    page = nic.page(first)
    post_message(nic, first, 0, FORM_BULK, length=4, address=0)
    assert nic.notifications[-1] == (first << layout.SUBJECT_BITS, layout.UNMAPPED)
    assert page[layout.SLOT_OFFSETS[0]] == layout.READY


def test_all_hosts_are_notified_of_a_restarted_peer_and_each_only_of_its_own_messages() -> None:
    nic = shared_nic(3)
    endpoints = [nic.endpoint_number(host) for host in range(3)]
    for endpoint in endpoints:
        nic.create(endpoint)
    nic.host_notifications.clear()
    for channel, endpoint in enumerate(endpoints):
        nic.receive_message(endpoint, channel=channel)
    assert nic.host_notifications == [
        (host, endpoint, layout.ARRIVED_REQUESTS) for host, endpoint in enumerate(endpoints)
    ]
    nic.host_notifications.clear()
    nic.receive_message(endpoints[0], sender=2)
    notifications = [
        (host, endpoint, subject) for host, endpoint, subject in nic.host_notifications if subject == layout.LOST
    ]
    assert notifications == [(host, 1, layout.LOST) for host in range(nic.settings.max_hosts)]


def test_a_silent_peer_gets_a_keepalive_for_the_waiting_host_and_all_hosts_are_notified_of_its_loss() -> None:
    keepalive = 1_000 * MILLISECOND
    nic = SharedNic(Settings(frames=3, stay=0, attempt=0, keepalive=keepalive, retries=3), 3)
    endpoints = [nic.endpoint_number(host) for host in range(3)]
    for endpoint in endpoints:
        nic.create(endpoint)
    nic.request(endpoints[1])
    (packet,) = nic.take_packets()
    assert isinstance(packet, SentMessage)
    nic.answer(packet)
    nic.host_notifications.clear()
    nic.elapse(keepalive + 2 * MILLISECOND)
    assert nic.host_notifications == [(host, 1, layout.OWED) for host in range(nic.settings.max_hosts)]
    assert nic.take_packets() == [], "it is not known whether a host waits"
    answer = (1 << layout.ENDPOINT_BITS | endpoints[1]) << layout.SUBJECT_BITS | layout.AWAITED
    nic.windows[0].ring_doorbell(nic.now, answer)
    assert (nic.counter("invalid"), nic.take_packets()) == (1, []), "the endpoint is another host's"
    nic.windows[1].ring_doorbell(nic.now, answer)
    nic.windows[1].ring_doorbell(nic.now, answer)
    assert len(nic.take_packets()) == 1
    nic.host_notifications.clear()
    nic.elapse(keepalive)
    assert nic.host_notifications == [(host, 1, layout.LOST) for host in range(nic.settings.max_hosts)]


def test_the_loss_of_a_reply_is_reported_to_the_requesters_host() -> None:
    nic = shared_nic(3)
    endpoints = [nic.endpoint_number(host) for host in range(3)]
    for endpoint in endpoints:
        nic.create(endpoint)
    nic.host_notifications.clear()
    request = 7
    assert nic.receive_message(endpoints[2], form=FORM_LOST_REPLY, message=request)[0].kind == KIND_ACK
    replier = 1
    subject_number = (
        (request & layout.REQUEST_MASK) << layout.NODE_BITS | replier
    ) << layout.ENDPOINT_BITS | endpoints[2]
    assert nic.host_notifications == [(2, subject_number, layout.LOST_REPLY)]


# Resources of the other hosts.


def test_messages_that_are_always_refused_keep_no_channel_from_another_host() -> None:
    nic = shared_nic(channels=2)
    first, second = nic.endpoint_number(0), nic.endpoint_number(1)
    nic.create(first)
    nic.create(second)
    for slot in range(4):
        nic.request(first, slot)
    nic.request(second)
    first_count, second_count = 0, 0
    for _ in range(200):  # an endpoint has 256 attempts before it is another one's turn
        for packet in nic.take_packets():
            second_count += packet.origin == second
            first_count += packet.origin == first
            nic.answer(packet, 0 if packet.origin == second else REASON_OVERRUN)
        nic.elapse(MILLISECOND)
    assert second_count == 1
    assert 100 < first_count < 500  # all four are resent, but slower than they are refused


def test_repeated_doorbells_allocate_no_memory() -> None:
    """An endpoint that waits for its turn or for memory is queued once."""
    nic = shared_nic(channels=1)
    first = nic.endpoint_number(0)
    nic.create(first)
    nic.request(first, 0)
    nic.request(first, 1)
    post_message(nic, first, 2, FORM_BULK, length=5, address=0)
    nic.take_packets()
    tracemalloc.start()
    for slot in (1, 2) * 2_000:
        nic.ring_doorbell(first, slot)
    allocated_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert allocated_bytes < 10_000


@pytest.mark.parametrize(("length", "total"), [(0, 5), (4, 5), (4, 0)])
def test_an_inconsistent_bulk_message_is_returned_at_once(length: int, total: int) -> None:
    """A peer would never answer it, and it would occupy a channel until given up."""
    nic = shared_nic()
    first = nic.endpoint_number(0)
    nic.create(first)
    post_message(nic, first, 0, FORM_BULK, length=length, address=ADDRESS, total=total)
    assert nic.take_packets() == []
    assert nic.owner(first, 0) == layout.RETURNED


def test_a_part_that_contradicts_an_earlier_part_is_refused_once_and_then_begins_anew() -> None:
    nic = shared_nic()
    first = nic.endpoint_number(0)
    nic.create(first)
    page = nic.page(first)
    layout.set_segment_length(page, 100)
    layout.set_address(page, layout.SEGMENT, ADDRESS)
    assert nic.receive_message(first, form=FORM_BULK, data=b"part", total=8)[0].kind == KIND_ACK
    assert nic.receive_message(first, form=FORM_BULK, data=b"other", total=5, channel=1)[0].verdict == (
        KIND_NACK,
        REASON_BAD_SEGMENT,
    )
    assert nic.receive_message(first, form=FORM_BULK, data=b"other", total=5, channel=2)[0].kind == KIND_ACK


# Random schedules of several hosts.


class HostKernels:
    """Kernels of host processes, each of which handles notifications at random times; some ring wrong doorbells.

    resident: endpoints reported as LOADED and not as UNLOADED since. loading: endpoints for which LOAD was rung and not
    reported. unhandled: notifications that their hosts have not handled. packets: not answered yet.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.frames = self.rng.randrange(1, 5)
        self.nic = SharedNic(Settings(frames=self.frames, stay=self.rng.choice([0, 2 * MILLISECOND])), 3)
        self.observed = 0  # notifications
        self.resident: set[int] = set()
        self.loading: set[int] = set()
        self.unhandled: list[tuple[int, int, int]] = []
        self.packets: list[SentMessage] = []
        self.channel = 0

    def observe(self) -> None:
        nic = self.nic
        for host, number, subject in nic.host_notifications[self.observed :]:
            self.unhandled.append((host, number, subject))
            if subject == LOADED:
                assert number not in self.resident
                self.resident.add(number)
                self.loading.discard(number)
            elif subject == UNLOADED:
                self.resident.discard(number)
                self.loading.discard(number)
            # An endpoint that replaces another is reported after the other has left.
            assert len(self.resident) <= self.frames
        self.observed = len(nic.host_notifications)

    def handle_oldest(self, host: int) -> None:
        """Handle the oldest notification of a host."""
        oldest = next((notification for notification in self.unhandled if notification[0] == host), None)
        if oldest is None:
            return
        self.unhandled.remove(oldest)
        _, number, subject = oldest
        window = self.nic.windows[host]
        if subject == RELEASE and number in window.pages:
            self.nic.ring_doorbell(number, layout.RELEASED)
        elif subject == UNLOADED and number in window.bound_endpoints:
            if number in window.pages:
                self.nic.copy_out(number)
            else:
                window.bind(window.bound_endpoints.index(number), NO_ENDPOINT)

    def step(self) -> None:
        nic, rng = self.nic, self.rng
        host = rng.randrange(3)
        if host not in nic.windows:
            if not rng.randrange(4):
                nic.attach(host)
            return
        window, number = nic.windows[host], nic.endpoint_number(host, rng.randrange(5))
        is_created, is_bound = number in window.pages, number in window.bound_endpoints
        action = rng.randrange(12)
        if action < 3:
            self.handle_oldest(host)
        elif (
            action == 3
            and not is_created
            and not is_bound
            and number not in [endpoint for _, endpoint, _ in self.unhandled]
        ):
            nic.create(number, load=False)  # numbers are assigned in turn: no request for it is pending
        elif action in (4, 5) and is_created and not is_bound and NO_ENDPOINT in window.bound_endpoints:
            self.loading.add(number)
            nic.load(number)
        elif action == 6 and number in self.resident and is_created:
            nic.ring_doorbell(number, layout.UNLOAD)
        elif action == 7 and is_created and not rng.randrange(6):
            nic.ring_doorbell(number, layout.DESTROY)
            del window.pages[number]
        elif action == 8 and number in self.resident and is_bound and is_created:
            nic.request(number, rng.randrange(16), 1)
        elif action == 9:
            self.channel += 1
            nic.receive_message(
                number, 1, channel=self.channel % 32, sequence=self.channel // 32 % 2, stamp=self.channel
            )
        elif action == 10 and not rng.randrange(20):
            self.unhandled = [notification for notification in self.unhandled if notification[0] != host]
            self.resident = {endpoint for endpoint in self.resident if nic.host_of(endpoint) != host}
            self.loading = {endpoint for endpoint in self.loading if nic.host_of(endpoint) != host}
            nic.detach(host)
        else:
            nic.elapse(rng.randrange(4 * MILLISECOND))
        self.packets += [packet for packet in nic.take_packets() if isinstance(packet, SentMessage)]
        if self.packets and rng.randrange(2):
            packet = self.packets.pop(rng.randrange(len(self.packets)))
            nic.answer(packet, rng.choice([0, 0, REASON_OVERRUN]))

    def settle(self) -> None:
        """Let all hosts handle their notifications, until no endpoint waits for a frame."""
        for _ in range(2_000):
            if not (self.loading or self.unhandled):
                return
            for host in list(self.nic.windows):
                self.handle_oldest(host)
            self.observe()
            self.nic.elapse(MILLISECOND)
            for packet in self.nic.take_packets():
                if isinstance(packet, SentMessage):
                    self.nic.answer(packet)
            self.observe()
        raise AssertionError(f"{self.loading} wait for a frame: {self.nic.firmware.pending_work()}")


@pytest.mark.parametrize("seed", range(60))
def test_no_more_endpoints_are_resident_than_there_are_frames_and_all_that_wait_get_one(seed: int) -> None:
    kernels = HostKernels(seed)
    for _ in range(400):
        kernels.step()
        kernels.observe()
    kernels.settle()
    assert kernels.nic.counter("loaded") > 5
