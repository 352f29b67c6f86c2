"""AM-II NIC with several host processes: allocation of its endpoint frames, and isolation between the processes."""

from __future__ import annotations

import random
import tracemalloc

import pytest

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
TIMEOUT = 50 * MILLISECOND
"""Requests to release an endpoint whose frame belongs to another one."""
ADDRESS = 0x4000
"""Address of a host's data."""


def shared_nic(frames: int = 2, *, stay_time: int = 0, hosts: int = 3, channels: int = 32) -> SharedNic:
    return SharedNic(Settings(frames=frames, stay=stay_time, channels=channels, attempt=0), hosts)


def lets_go(card: SharedNic, endpoint: int) -> None:
    """The endpoint's host releases the frame and copies the endpoint out when the NIC is done."""
    card.ring(endpoint, layout.RELEASED)
    assert card.notifications_of(endpoint)[-1] == UNLOADED
    card.copy_out(endpoint)


# Whose frame another host gets.


def test_a_host_gets_a_frame_if_two_others_have_all() -> None:
    card = shared_nic()
    first, second, third = (card.number(host) for host in range(3))
    card.create(first)
    card.create(second)
    card.create(third)
    assert card.notifications == [(first, LOADED), (second, LOADED), (first, RELEASE)]
    lets_go(card, first)
    assert card.notifications[-2:] == [(first, UNLOADED), (third, LOADED)]
    assert card.counter("forced") == card.counter("invalid") == 0


def test_a_frame_is_taken_from_the_host_that_has_most() -> None:
    card = shared_nic(3)
    other_endpoint, many_endpoints, third = (
        card.number(1),
        [card.number(0, index) for index in range(2)],
        card.number(2),
    )
    card.create(other_endpoint)  # in its frame for longest
    for endpoint in many_endpoints:
        card.create(endpoint)
    card.create(third)
    assert card.notifications[-1] == (many_endpoints[0], RELEASE)


def test_an_idle_endpoint_of_a_host_gives_up_its_frame() -> None:
    card = shared_nic()
    busy_endpoint, idle_endpoint, expected = card.number(0), card.number(0, 1), card.number(1)
    card.create(busy_endpoint)
    card.create(idle_endpoint)
    card.request(busy_endpoint)
    card.create(expected)
    assert card.notifications[-1] == (idle_endpoint, RELEASE)


def test_a_host_that_has_most_gets_no_frame_of_another() -> None:
    card = shared_nic(3, hosts=2)
    own_endpoints, foreign_endpoint = [card.number(0, index) for index in range(3)], card.number(1)
    card.create(foreign_endpoint)
    for endpoint in own_endpoints:
        card.create(endpoint)
    assert card.notifications_of(foreign_endpoint) == [LOADED]
    assert card.notifications[-1] == (own_endpoints[0], RELEASE)


def test_a_host_that_releases_slowly_gets_no_frame_of_another_meanwhile() -> None:
    """A frame counts as its host's until vacated; else a slow host would get the others' frames too."""
    card = shared_nic(7)
    own_endpoints = [card.number(0, index) for index in range(7)]
    foreign_endpoints = [card.number(host, index) for host in (1, 2) for index in range(2)]
    for endpoint in (*own_endpoints[:3], *foreign_endpoints):
        card.create(endpoint)
    for endpoint in own_endpoints[:3]:
        card.request(endpoint)  # which is never answered
        card.ring(endpoint, layout.UNLOAD)
    for endpoint in own_endpoints[3:]:
        card.create(endpoint)
    card.elapse(10 * MILLISECOND)
    assert [card.notifications_of(endpoint) for endpoint in foreign_endpoints] == [[LOADED]] * 4
    assert card.counter("invalid") == 0


def test_the_host_with_fewer_frames_gets_the_next_one() -> None:
    """However many of another's wait before it."""
    card = shared_nic(3)
    own_endpoints, foreign_endpoint, third = (
        [card.number(0, index) for index in range(3)],
        card.number(1),
        card.number(2),
    )
    card.create(foreign_endpoint)
    for endpoint in own_endpoints:
        card.create(endpoint)
    assert card.notifications[-1] == (own_endpoints[0], RELEASE)
    card.create(third)
    card.notifications.clear()
    card.ring(own_endpoints[0], layout.RELEASED)
    assert [endpoint for endpoint, subject in card.notifications if subject == LOADED] == [third]


def test_no_more_endpoints_leave_than_others_wait() -> None:
    card = shared_nic(4, stay_time=MILLISECOND, hosts=2)
    own_endpoints, foreign_endpoints = (
        [card.number(0, index) for index in range(4)],
        [card.number(1, index) for index in range(2)],
    )
    for endpoint in own_endpoints:
        card.create(endpoint)
    for endpoint in foreign_endpoints:
        card.create(endpoint)
    card.elapse(3 * MILLISECOND)
    for endpoint in own_endpoints:
        if RELEASE in card.notifications_of(endpoint):
            lets_go(card, endpoint)
    card.elapse(3 * MILLISECOND)
    assert [endpoint for endpoint in own_endpoints if RELEASE in card.notifications_of(endpoint)] == own_endpoints[:2]
    assert [card.notifications_of(endpoint) for endpoint in foreign_endpoints] == [[LOADED]] * 2


def test_an_endpoint_keeps_its_frame_for_the_minimum_residence_though_another_host_waits() -> None:
    card = shared_nic(1, stay_time=3 * MILLISECOND)
    first, second = card.number(0), card.number(1)
    card.create(first)
    card.elapse(MILLISECOND)
    card.create(second)
    assert card.notifications == [(first, LOADED)]
    assert card.arrive(first, 1)[0][0] == KIND_ACK
    assert card.firmware.pending_work() == [
        f"endpoint {first} is to leave its frame: 0 packets are unacknowledged",
        f"endpoint {second} waits for a frame that other host processes use",
    ]
    card.elapse(2 * MILLISECOND)
    assert card.notifications[-1] == (first, RELEASE)
    assert card.arrive(first, 2, channel=1)[0][:2] == (KIND_NACK, REASON_NOT_RESIDENT)
    lets_go(card, first)
    assert card.notifications[-1] == (second, LOADED)


def test_at_most_as_many_endpoints_of_a_host_wait_as_it_has_frames() -> None:
    """Otherwise one host could make all its endpoints wait ahead of the others'."""
    card = shared_nic(2, hosts=2)
    card.create(card.number(0))
    card.create(card.number(0, 1))
    window = card.windows[0]
    for extra in range(2, 9):
        endpoint = card.number(0, extra)
        card.create(endpoint, load=False)
        window.bind(extra % 2, endpoint)
        card.ring(endpoint, layout.LOAD)
    assert card.counter("invalid") == 7
    assert card.notifications_of(card.number(0)) == [LOADED]


def test_an_endpoint_that_its_host_has_not_bound_is_skipped() -> None:
    card = shared_nic(1, hosts=2)
    first, second = card.number(0), card.number(1)
    card.create(first)
    card.create(second)
    card.windows[1].bind(0, NO_ENDPOINT)
    lets_go(card, first)
    assert card.notifications_of(second) == []
    assert card.counter("invalid") == 1
    card.load(first)
    assert card.notifications[-1] == (first, LOADED)


def test_messages_of_a_loaded_endpoint_reach_an_endpoint_of_the_own_node_at_once() -> None:
    """The message is delivered too if an answer from the network has made the room."""
    card = shared_nic()
    first, second, third = (card.number(host) for host in range(3))
    card.create(first)
    card.create(second)
    card.request(first)
    (packet,) = card.take_packets()
    card.create(third, load=False)
    page = memoryview(card.windows[2].pages[third])
    layout.WRITE_ENTRY[1](
        page, layout.SLOT_OFFSETS[0], layout.READY, 0, 0, 0, 0, 0, 0, 0, 1, 1, third, second, TAG, 7, 0, 0, 41
    )  # fmt: skip
    page.release()
    card.ring(first, layout.UNLOAD)
    card.ring(first, layout.RELEASED)
    card.load(third)
    assert card.notifications_of(third) == []
    card.answer(packet)
    assert card.notifications_of(second)[-1] == layout.ARRIVED_REQUESTS


# A host that does not let go.


def contended_frame(card: SharedNic) -> tuple[int, int]:
    """Endpoint 0 of host 0 has the only frame, endpoint 0 of host 1 waits for it."""
    card.create(card.number(0))
    card.create(card.number(1))
    assert card.notifications[-1] == (card.number(0), RELEASE)
    return card.number(0), card.number(1)


def test_an_endpoint_that_its_host_does_not_release_is_forced_out() -> None:
    card = shared_nic(1)
    first, second = contended_frame(card)
    card.elapse(TIMEOUT - 1)
    assert card.counter("forced") == 0
    assert card.firmware.deadline == TIMEOUT
    card.elapse(1)
    assert card.notifications[-2:] == [(first, UNLOADED), (second, LOADED)]
    assert card.counter("forced") == 1
    assert card.firmware.deadline is None


def test_the_time_to_release_begins_with_the_request() -> None:
    """The NIC itself may be late: it is a process, too."""
    card = shared_nic(1, stay_time=MILLISECOND)
    first, second = card.number(0), card.number(1)
    card.create(first)
    card.create(second)
    card.now = 80 * MILLISECOND
    card.firmware.on_timer(card.now)
    assert card.notifications[-1] == (first, RELEASE)
    card.elapse(TIMEOUT - 1)
    assert card.counter("forced") == 0
    card.elapse(1)
    assert card.notifications[-1] == (second, LOADED)


def test_late_writes_of_a_host_are_sent_once_after_the_next_load() -> None:
    card = shared_nic(1)
    first, second = contended_frame(card)
    card.request(first, 0, 41)
    card.elapse(TIMEOUT)
    card.request(first, 1, 42)
    assert card.take_packets() == []
    assert card.notifications_of(first)[-1] == UNLOADED
    card.ring(first, layout.RELEASED)  # it comes late
    card.copy_out(first)
    card.load(first)
    assert card.notifications[-1] == (second, RELEASE)
    lets_go(card, second)
    assert [(packet.origin, packet.message) for packet in card.take_packets()] == [(first, 100), (first, 101)]
    card.ring(first, 0)  # a doorbell for a message already in flight
    assert card.take_packets() == []
    assert card.counter("invalid") == 0


def test_refused_packets_of_a_forced_out_endpoint_are_sent_once_after_the_next_load() -> None:
    card = shared_nic(1)
    first, second = card.number(0), card.number(1)
    card.create(first)
    card.request(first, 0, 41)
    (packet,) = card.take_packets()
    card.create(second)
    card.elapse(TIMEOUT)
    assert card.counter("forced") == 1
    assert UNLOADED not in card.notifications_of(first)  # its packet may be taken yet
    card.take_packets()
    card.elapse(100 * MILLISECOND)
    last = card.take_packets()[-1]
    assert last[:4] == packet[:4]
    card.answer(last, REASON_OVERRUN)
    assert card.notifications[-2:] == [(first, UNLOADED), (second, LOADED)]
    card.copy_out(first)
    card.load(first)
    lets_go(card, second)
    (resent_packet,) = card.take_packets()
    assert resent_packet[5:7] == (first, 100)


@pytest.mark.parametrize("subject", [layout.RELEASED, layout.UNLOAD])
def test_late_doorbells_of_a_host_are_no_errors(subject: int) -> None:
    card = shared_nic(1)
    first, second = contended_frame(card)
    card.ring(first, layout.UNLOAD)  # both have come upon it
    card.elapse(TIMEOUT)
    card.ring(first, subject)
    assert card.counter("invalid") == 0
    assert card.notifications[-1] == (second, LOADED)


# Endpoints and hosts that go.

STATES = ("on the host", "awaiting", "resident", "to leave", "leaving", "released")


def in_state(state: str) -> tuple[SharedNic, int, int]:
    """A NIC with one frame, an endpoint of host 0 that is in that state, and one of host 1 that comes into the frame if the
    first is gone. Host 2 has the frame while the first waits."""
    card = shared_nic(1, stay_time=MILLISECOND if state == "to leave" else 0)
    first, second, third = (card.number(host) for host in range(3))
    if state == "awaiting":
        card.create(third)
        card.create(first)
        card.create(second)
        return card, first, second
    card.create(first, load=state != "on the host")
    if state == "released":
        card.request(first)  # what is not answered keeps it
        card.take_packets()
    card.create(second, load=state != "resident")
    if state == "released":
        card.ring(first, layout.RELEASED)
    return card, first, second


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("ending", ["destroyed", "detached"])
def test_the_frame_of_a_destroyed_endpoint_is_given_to_a_waiting_one(state: str, ending: str) -> None:
    card, first, second = in_state(state)
    if ending == "destroyed":
        card.ring(first, layout.DESTROY)
        assert card.notifications_of(first)[-1] == UNLOADED
    else:
        card.detach(0)
        assert card.notifications_of(first)[-1:] != [UNLOADED]
    if state == "resident":
        card.load(second)
    if state == "awaiting":
        lets_go(card, card.number(2))
    assert card.notifications_of(second) == [LOADED]
    assert card.counter("invalid") == 0
    assert card.arrive(first, 1)[-1][0] == KIND_NACK
    assert card.counter("bad_endpoints") == 1
    card.elapse(7_000 * MILLISECOND)
    assert card.notifications_of(second) == [LOADED]
    assert card.firmware.pending_work() == []
    assert card.firmware.deadline is None


def test_a_detached_hosts_endpoint_is_not_forced_out() -> None:
    card = shared_nic(1)
    contended_frame(card)
    card.detach(0)
    card.elapse(TIMEOUT)
    assert card.counter("forced") == 0


def test_the_memory_of_a_detached_host_is_released() -> None:
    """No operation in progress keeps a reference to the memory or writes to it."""
    card = shared_nic(channels=2)
    first = card.number(0)
    card.create(first)
    page = card.page(first)
    layout.set_segment_length(page, 100)
    layout.set_address(page, layout.SEGMENT, ADDRESS)
    layout.set_address(page, layout.SEND_STAGING, ADDRESS)
    assert card.arrive(first, form=FORM_BULK, data=b"half", total=8)[0][0] == KIND_ACK
    write(card, first, 1, FORM_MEDIUM, length=3, address=0)
    write(card, first, 0, FORM_BULK, length=100_000, address=ADDRESS)
    packets = card.take_packets()
    assert len(packets) == 2  # of many: there are two channels
    page.release()
    before = [bytes(memory) for memory in (card.windows[0].descriptors, card.windows[0].heap.bytes)]
    window = card.detach(0)
    assert [window.descriptors, window.heap.bytes] == before
    window.descriptors.clear()  # BufferError where anybody has a view of it
    window.heap.bytes.clear()
    card.elapse(TIMEOUT)
    for packet in card.take_packets()[-2:]:
        card.answer(packet, REASON_OVERRUN)


def test_messages_of_a_detached_host_are_not_resent_forever() -> None:
    """The peer has no room, so its retransmissions would occupy the channel forever."""
    card = shared_nic(channels=1)
    first, second = card.number(0), card.number(1)
    card.create(first)
    card.create(second)
    card.request(first)
    card.request(second)
    (packet,) = card.take_packets()
    card.detach(0)
    card.answer(packet, REASON_OVERRUN)
    assert [packet.origin for packet in card.take_packets()] == [second]


def test_a_host_inherits_nothing_from_its_slots_previous_host() -> None:
    card = shared_nic()
    first = card.number(0)
    card.create(first)
    card.request(first)
    card.ring(first << layout.SUBJECT_BITS | layout.SEGMENT, layout.ABSENT)
    card.detach(0)
    card.take_packets()
    card.attach(0)
    card.notifications.clear()
    assert card.arrive(first, 1)[0][0] == KIND_NACK
    card.create(first)
    assert card.notifications == [(first, LOADED)]
    assert card.take_packets() == []
    assert card.arrive(first, 1, channel=1)[0][0] == KIND_ACK


# What a host may not.


def write(
    card: SharedNic, endpoint: int, slot: int, form: int, *, length: int, address: int, total: int | None = None
) -> None:
    """Write a message with data, and ring its doorbell. total: bytes of data of the whole message; None: length."""
    layout.WRITE_ENTRY[0](
        card.page(endpoint), layout.SLOT_OFFSETS[slot], layout.READY, 0, 1, length, address, 0, form, slot >> 4, 1, 0,
        endpoint, 3, TAG, slot + 100, 0, length if total is None else total,
    )  # fmt: skip
    card.ring(endpoint, slot)


def state_of(card: SharedNic, endpoint: int) -> tuple[object, ...]:
    """Return the state that a NIC reports about an endpoint, except the counter of invalid messages."""
    counts = {name: count for name, count in card.firmware.counter_values().items() if name != "invalid"}
    return (
        counts,
        card.firmware.deadline,
        card.firmware.pending_work(),
        bytes(card.windows[card.host_of(endpoint)].descriptors),
    )


@pytest.mark.parametrize("state", [*STATES, "nowhere"])
def test_doorbells_for_another_hosts_endpoint_are_only_counted(state: str) -> None:
    if state == "nowhere":
        card = shared_nic(1)
        first = card.number(0)
    else:
        card, first, _ = in_state(state)
    intruder = card.windows[1].ring
    card.host_notifications.clear()
    before = state_of(card, first)
    rung = [first << layout.SUBJECT_BITS | subject for subject in range(1 << layout.SUBJECT_BITS)]
    for subject in range(1 << layout.SUBJECT_BITS):
        region = first << layout.SUBJECT_BITS | subject
        rung += [region << layout.SUBJECT_BITS | region_subject for region_subject in layout.REGION_SUBJECTS]
    for count, index in enumerate(rung, 1):
        intruder(card.now, index)
        assert card.counter("invalid") == count, hex(index)
    assert state_of(card, first) == before
    assert card.host_notifications == []
    assert card.take_packets() == []


def test_doorbells_of_64_bits_are_counted() -> None:
    card = shared_nic()
    rng = random.Random(1)
    before = card.counter("invalid")
    for count in range(1, 2_000):
        card.windows[1].ring(card.now, rng.getrandbits(64) | 1 << 40)
        assert card.counter("invalid") == before + count
    assert card.notifications == []


def test_a_message_whose_origin_is_another_hosts_endpoint_is_returned() -> None:
    card = shared_nic()
    first, second = card.number(0), card.number(1)
    card.create(first)
    card.create(second)
    page = card.page(second)
    layout.WRITE_ENTRY[0](
        page, layout.SLOT_OFFSETS[0], layout.READY, 0, 1, 0, 0, 0, 0, 0, 1, 0, first, 3, TAG, 100, 0, 0
    )  # fmt: skip
    card.ring(second, 0)
    assert card.take_packets() == []
    assert page[layout.SLOT_OFFSETS[0]] == layout.RETURNED
    offset = layout.SLOT_OFFSETS[layout.ARRIVED_REPLIES]
    assert page[offset : offset + 2] == bytes((layout.READY, 1))  # BAD_ARGUMENTS
    assert card.host_notifications[-1] == (1, second, layout.ARRIVED_REPLIES)
    assert card.counter("invalid") == 1


@pytest.mark.parametrize("form", [FORM_MEDIUM, FORM_BULK])
def test_changes_of_an_entry_after_its_doorbell_are_ignored(form: int) -> None:
    """An entry is read once: while its data is fetched a host makes another one of it."""
    card = shared_nic()
    first = card.number(0)
    card.create(first)
    page, heap = card.page(first), card.windows[0].heap
    layout.set_address(page, layout.SEND_STAGING, ADDRESS)
    heap.bytes[ADDRESS : ADDRESS + 4] = b"data"

    class Changing:
        def view(self, address: int, length: int) -> memoryview:
            page[layout.SLOT_OFFSETS[0] + 1 : layout.SLOT_OFFSETS[0] + layout.ENTRY_SIZE] = bytes([0xA5]) * (
                layout.ENTRY_SIZE - 1
            )
            return heap.view(address, length)

        def fence(self) -> None: ...

    card.detach(0)
    attached_window = card.attach(0)
    card.nic.detach(card.now, 0, 2)
    attached_window.ring = card.nic.attach(card.now, 0, Changing(), memoryview(attached_window.descriptors))
    card.create(first)
    page = card.page(first)
    layout.set_address(page, layout.SEND_STAGING, ADDRESS)
    write(card, first, 0, form, length=4, address=0 if form == FORM_MEDIUM else ADDRESS)
    (frame,) = card.sent
    assert frame[:-1].endswith(b"data")
    (packet,) = card.take_packets()
    assert packet[5:7] == (first, 100)
    assert card.counter("invalid") == 0


@pytest.mark.parametrize(
    ("address", "length"),
    [(HEAP, 1), (HEAP - 3, 4), (0, 4), ((1 << 64) - 1, 4), (ADDRESS, 0xFFFF_FFFF), (1 << 63, 1 << 31)],
)
def test_data_that_is_not_in_a_hosts_heap_is_never_sent(address: int, length: int) -> None:
    card = shared_nic()
    first = card.number(0)
    card.create(first)
    write(card, first, 0, FORM_BULK, length=length, address=address)
    region = first << layout.SUBJECT_BITS
    assert card.notifications[-1] == (region, layout.UNMAPPED)
    card.ring(region, layout.MAPPED)
    assert card.take_packets() == []
    card.ring(region, layout.ABSENT)
    assert card.owner(first, 0) == layout.RETURNED
    assert card.take_packets() == []


@pytest.mark.parametrize("address", [HEAP, HEAP - 1, (1 << 64) - 1])
@pytest.mark.parametrize("form", [FORM_MEDIUM, FORM_BULK])
def test_data_for_memory_outside_a_hosts_heap_is_refused(address: int, form: int) -> None:
    card = shared_nic()
    first = card.number(0)
    card.create(first)
    page = card.page(first)
    layout.set_segment_length(page, (1 << 64) - 1)
    for subject in (layout.RECEIVE_STAGING, layout.SEGMENT):
        layout.set_address(page, subject, address)
    assert card.arrive(first, form=form, data=b"xyz", total=3)[0][0] == KIND_NACK
    assert card.counter("unmapped") == 1


def test_answers_about_memory_that_was_not_requested_are_forgotten() -> None:
    """However often: the NIC has no memory for that."""
    card = shared_nic()
    first = card.number(0)
    card.create(first)
    for subject in range(1 << layout.SUBJECT_BITS):
        card.ring(first << layout.SUBJECT_BITS | subject, layout.ABSENT)
    page = card.page(first)
    write(card, first, 0, FORM_BULK, length=4, address=0)
    assert card.notifications[-1] == (first << layout.SUBJECT_BITS, layout.UNMAPPED)
    assert page[layout.SLOT_OFFSETS[0]] == layout.READY


def test_all_hosts_are_notified_of_a_restarted_peer_and_of_nothing_else_of_each_other() -> None:
    card = shared_nic(3)
    endpoints = [card.number(host) for host in range(3)]
    for endpoint in endpoints:
        card.create(endpoint)
    card.host_notifications.clear()
    for channel, endpoint in enumerate(endpoints):
        card.arrive(endpoint, channel=channel)
    assert card.host_notifications == [
        (host, endpoint, layout.ARRIVED_REQUESTS) for host, endpoint in enumerate(endpoints)
    ]
    card.host_notifications.clear()
    card.arrive(endpoints[0], sender=2)
    notifications = [
        (host, endpoint, subject) for host, endpoint, subject in card.host_notifications if subject == layout.LOST
    ]
    assert notifications == [(host, 1, layout.LOST) for host in range(card.settings.max_hosts)]


def test_a_silent_peer_gets_a_keepalive_for_the_waiting_host_and_all_hosts_are_notified_of_its_loss() -> None:
    keepalive = 1_000 * MILLISECOND
    card = SharedNic(Settings(frames=3, stay=0, attempt=0, keepalive=keepalive, retries=3), 3)
    endpoints = [card.number(host) for host in range(3)]
    for endpoint in endpoints:
        card.create(endpoint)
    card.request(endpoints[1])
    (packet,) = card.take_packets()
    assert isinstance(packet, SentMessage)
    card.answer(packet)
    card.host_notifications.clear()
    card.elapse(keepalive + 2 * MILLISECOND)
    assert card.host_notifications == [(host, 1, layout.OWED) for host in range(card.settings.max_hosts)]
    assert card.take_packets() == [], "it is not known whether a host waits"
    answer = (1 << layout.ENDPOINT_BITS | endpoints[1]) << layout.SUBJECT_BITS | layout.AWAITED
    card.windows[0].ring(card.now, answer)
    assert (card.counter("invalid"), card.take_packets()) == (1, []), "the endpoint is another host's"
    card.windows[1].ring(card.now, answer)
    card.windows[1].ring(card.now, answer)
    assert len(card.take_packets()) == 1
    card.host_notifications.clear()
    card.elapse(keepalive)
    assert card.host_notifications == [(host, 1, layout.LOST) for host in range(card.settings.max_hosts)]


def test_the_loss_of_a_reply_is_reported_to_the_requesters_host() -> None:
    card = shared_nic(3)
    endpoints = [card.number(host) for host in range(3)]
    for endpoint in endpoints:
        card.create(endpoint)
    card.host_notifications.clear()
    request = 7
    assert card.arrive(endpoints[2], form=FORM_LOST_REPLY, message=request)[0][0] == KIND_ACK
    replier = 1
    named = ((request & layout.REQUEST_MASK) << layout.NODE_BITS | replier) << layout.ENDPOINT_BITS | endpoints[2]
    assert card.host_notifications == [(2, named, layout.LOST_REPLY)]


# What a host may not do to the others.


def test_messages_that_are_always_refused_keep_no_channel_from_another_host() -> None:
    card = shared_nic(channels=2)
    first, second = card.number(0), card.number(1)
    card.create(first)
    card.create(second)
    for slot in range(4):
        card.request(first, slot)
    card.request(second)
    second_count, first_count = 0, 0
    for _ in range(200):  # an endpoint has 256 attempts before it is another one's turn
        for packet in card.take_packets():
            second_count += packet.origin == second
            first_count += packet.origin == first
            card.answer(packet, 0 if packet.origin == second else REASON_OVERRUN)
        card.elapse(MILLISECOND)
    assert second_count == 1
    assert 100 < first_count < 500  # all four now and then, and not as fast as they are refused


def test_repeated_doorbells_take_no_memory() -> None:
    """An endpoint that waits for its turn or for memory is queued once."""
    card = shared_nic(channels=1)
    first = card.number(0)
    card.create(first)
    card.request(first, 0)
    card.request(first, 1)
    write(card, first, 2, FORM_BULK, length=5, address=0)
    card.take_packets()
    tracemalloc.start()
    for slot in (1, 2) * 2_000:
        card.ring(first, slot)
    memory_before, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory_before < 10_000


@pytest.mark.parametrize(("length", "total"), [(0, 5), (4, 5), (4, 0)])
def test_an_inconsistent_bulk_message_is_returned_at_once(length: int, total: int) -> None:
    """A peer would never answer it, and it would occupy a channel until given up."""
    card = shared_nic()
    first = card.number(0)
    card.create(first)
    write(card, first, 0, FORM_BULK, length=length, address=ADDRESS, total=total)
    assert card.take_packets() == []
    assert card.owner(first, 0) == layout.RETURNED


def test_parts_of_two_messages_of_one_number_are_answered() -> None:
    card = shared_nic()
    first = card.number(0)
    card.create(first)
    page = card.page(first)
    layout.set_segment_length(page, 100)
    layout.set_address(page, layout.SEGMENT, ADDRESS)
    assert card.arrive(first, form=FORM_BULK, data=b"part", total=8)[0][0] == KIND_ACK
    assert card.arrive(first, form=FORM_BULK, data=b"other", total=5, channel=1)[0][:2] == (
        KIND_NACK,
        REASON_BAD_SEGMENT,
    )
    assert card.arrive(first, form=FORM_BULK, data=b"other", total=5, channel=2)[0][0] == KIND_ACK


# Any course.


class Kernels:
    """Kernels of host processes, each of which acts on completions at random times; some disobey. resident: as
    completed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.frames = self.rng.randrange(1, 5)
        self.card = SharedNic(Settings(frames=self.frames, stay=self.rng.choice([0, 2 * MILLISECOND])), 3)
        self.seen = 0  # of what was shown
        self.resident: set[int] = set()
        self.wanted: set[int] = set()  # LOAD was requested, and LOADED has not been reported
        self.unheard: list[tuple[int, int, int]] = []  # shown, and not seen by the host yet
        self.packets: list[SentMessage] = []  # without an answer yet
        self.channel = 0

    def look(self) -> None:
        card = self.card
        for host, number, subject in card.host_notifications[self.seen :]:
            self.unheard.append((host, number, subject))
            if subject == LOADED:
                assert number not in self.resident
                self.resident.add(number)
                self.wanted.discard(number)
            elif subject == UNLOADED:
                self.resident.discard(number)
                self.wanted.discard(number)
            # Where one leaves and another one comes at once it is shown in that order.
            assert len(self.resident) <= self.frames
        self.seen = len(card.host_notifications)

    def hear(self, host: int) -> None:
        """Let a host handle the oldest of its completions."""
        oldest = next((completion for completion in self.unheard if completion[0] == host), None)
        if oldest is None:
            return
        self.unheard.remove(oldest)
        _, number, subject = oldest
        window = self.card.windows[host]
        if subject == RELEASE and number in window.pages:
            self.card.ring(number, layout.RELEASED)
        elif subject == UNLOADED and number in window.bound_endpoints:
            if number in window.pages:
                self.card.copy_out(number)
            else:
                window.bind(window.bound_endpoints.index(number), NO_ENDPOINT)

    def step(self) -> None:
        card, chance = self.card, self.rng
        host = chance.randrange(3)
        if host not in card.windows:
            if not chance.randrange(4):
                card.attach(host)
            return
        window, number = card.windows[host], card.number(host, chance.randrange(5))
        is_attached, is_bound = number in window.pages, number in window.bound_endpoints
        action = chance.randrange(12)
        if action < 3:
            self.hear(host)
        elif (
            action == 3
            and not is_attached
            and not is_bound
            and number not in [endpoint for _, endpoint, _ in self.unheard]
        ):
            card.create(number, load=False)  # numbers are assigned in turn: no request for it is pending
        elif action in (4, 5) and is_attached and not is_bound and NO_ENDPOINT in window.bound_endpoints:
            self.wanted.add(number)
            card.load(number)
        elif action == 6 and number in self.resident and is_attached:
            card.ring(number, layout.UNLOAD)
        elif action == 7 and is_attached and not chance.randrange(6):
            card.ring(number, layout.DESTROY)
            del window.pages[number]
        elif action == 8 and number in self.resident and is_bound and is_attached:
            card.request(number, chance.randrange(16), 1)
        elif action == 9:
            self.channel += 1
            card.arrive(number, 1, channel=self.channel % 32, sequence=self.channel // 32 % 2, stamp=self.channel)
        elif action == 10 and not chance.randrange(20):
            self.unheard = [completion for completion in self.unheard if completion[0] != host]
            for leaving in [
                leaving_endpoint
                for leaving_endpoint in (*self.resident, *self.wanted)
                if card.host_of(leaving_endpoint) == host
            ]:
                self.resident.discard(leaving)
                self.wanted.discard(leaving)
            card.detach(host)
        else:
            card.elapse(chance.randrange(4 * MILLISECOND))
        self.packets += [packet for packet in card.take_packets() if isinstance(packet, SentMessage)]
        if self.packets and chance.randrange(2):
            answered_packet = self.packets.pop(chance.randrange(len(self.packets)))
            card.answer(answered_packet, chance.choice([0, 0, REASON_OVERRUN]))

    def settle(self) -> None:
        """Let all hosts act on their completions: no endpoint waits forever."""
        for _ in range(2_000):
            if not (self.wanted or self.unheard):
                return
            for host in list(self.card.windows):
                self.hear(host)
            self.look()
            self.card.elapse(MILLISECOND)
            for packet in self.card.take_packets():
                if len(packet) == 8:
                    self.card.answer(packet)
            self.look()
        raise AssertionError(f"{self.wanted} wait for a frame: {self.card.firmware.pending_work()}")


@pytest.mark.parametrize("seed", range(60))
def test_frames_in_use_are_limited_and_all_waiting_endpoints_get_one(seed: int) -> None:
    kernels = Kernels(seed)
    for _ in range(400):
        kernels.step()
        kernels.look()
    kernels.settle()
    assert kernels.card.counter("loaded") > 5
