"""Residency of AM-II's endpoints in the NIC's endpoint frames: faults of three kinds, loading and unloading."""

from __future__ import annotations

import pytest

from protocols.am2 import page as layout
from protocols.am2.codec import (
    FORM_BULK,
    FORM_MEDIUM,
    KIND_ACK,
    KIND_MESSAGE,
    KIND_NACK,
    REASON_NO_MAPPING,
    REASON_NOT_RESIDENT,
    REASON_OVERRUN,
)
from protocols.am2.nic_memory import NO_ENDPOINT
from protocols.am2.settings import MILLISECOND, Settings
from tests.unit.protocols.am2_single_nic import TAG, SentMessage, SingleNic, read_entry

ENDPOINT, OTHER_ENDPOINT = 4, 5
NO_MIN_RESIDENCE = Settings(stay=0)
LOADED, RELEASE, UNLOADED, FAULT = layout.LOADED, layout.RELEASE, layout.UNLOADED, layout.FAULT


def region_of(endpoint: int, subject: int) -> int:
    return endpoint << layout.SUBJECT_BITS | subject


# Faults.


def test_a_message_for_an_endpoint_that_is_not_resident_is_refused_and_interrupts_the_host_once() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT, load=False)
    assert nic.receive_message(ENDPOINT, 1)[0].verdict == (KIND_NACK, REASON_NOT_RESIDENT)
    assert nic.receive_message(ENDPOINT, 2, channel=1)[0].verdict == (KIND_NACK, REASON_NOT_RESIDENT)
    assert nic.notifications == [(ENDPOINT, FAULT)]
    nic.load(ENDPOINT)
    assert nic.notifications.pop() == (ENDPOINT, LOADED)
    assert nic.receive_message(ENDPOINT, 1, stamp=2)[0].verdict == (KIND_ACK, 0)
    assert nic.notifications[-1] == (ENDPOINT, layout.ARRIVED_REQUESTS)


def test_a_copy_of_a_refused_packet_is_not_accepted_when_the_endpoint_is_resident() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT, load=False)
    nic.receive_message(ENDPOINT, 1, stamp=7)
    nic.load(ENDPOINT)
    assert nic.receive_message(ENDPOINT, 1, stamp=7) == []
    assert nic.counter("old") == 1


def test_a_doorbell_of_a_non_resident_endpoint_sends_nothing() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT, load=False)
    nic.ring_doorbell(ENDPOINT, 0)
    assert nic.take_packets() == []
    assert nic.counter("invalid") == 1


def test_messages_written_before_a_load_are_sent_after_it() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT, load=False)
    nic.memory.bound_endpoints[0] = ENDPOINT
    nic.memory.frames[0][:] = nic.memory.backing_pages[ENDPOINT]
    nic.write(ENDPOINT, 2, 5)
    nic.write(ENDPOINT, 17, 6)
    nic.ring_doorbell(ENDPOINT, layout.LOAD)
    assert [sent.message for sent in nic.take_packets()] == [102, 117]


def test_unmapped_data_is_requested_and_sent_when_it_is_mapped() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT)
    nic.request(ENDPOINT, 0, form=FORM_MEDIUM, data=3)
    assert nic.take_packets() == []
    assert nic.notifications == [(region_of(ENDPOINT, layout.SEND_STAGING), layout.UNMAPPED)]
    nic.memory.mapped_regions[region_of(ENDPOINT, layout.SEND_STAGING)] = memoryview(b"abcdef")
    nic.ring_doorbell(region_of(ENDPOINT, layout.SEND_STAGING), layout.MAPPED)
    assert nic.sent[0][:-1].endswith(b"abc")


def test_a_message_whose_data_does_not_exist_is_returned() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT)
    nic.request(ENDPOINT, 0, form=FORM_MEDIUM, data=3)
    nic.ring_doorbell(region_of(ENDPOINT, layout.SEND_STAGING), layout.ABSENT)
    assert nic.take_packets() == []
    assert nic.notifications[-1] == (ENDPOINT, layout.ARRIVED_REPLIES)
    assert nic.owner(ENDPOINT, 0) == layout.RETURNED


@pytest.mark.parametrize(("form", "subject"), [(FORM_MEDIUM, layout.RECEIVE_STAGING), (FORM_BULK, layout.SEGMENT)])
def test_a_message_for_an_unmapped_region_is_refused_until_it_is_mapped(form: int, subject: int) -> None:
    nic = SingleNic()
    nic.create(ENDPOINT)
    layout.set_segment_length(nic.page(ENDPOINT), 100)
    assert nic.receive_message(ENDPOINT, form=form, data=b"xyz", total=3)[0].verdict == (KIND_NACK, REASON_NO_MAPPING)
    assert nic.notifications == [(region_of(ENDPOINT, subject), layout.UNMAPPED)]
    memory = bytearray(32 * 8192)
    nic.memory.mapped_regions[region_of(ENDPOINT, subject)] = memoryview(memory)
    assert nic.receive_message(ENDPOINT, form=form, data=b"xyz", total=3, stamp=2)[0].verdict == (KIND_ACK, 0)
    assert memory[:3] == b"xyz"


def test_a_bulk_message_is_delivered_once_when_all_its_parts_have_arrived_in_any_order() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT)
    layout.set_segment_length(nic.page(ENDPOINT), 100)
    memory = bytearray(100)
    nic.memory.mapped_regions[region_of(ENDPOINT, layout.SEGMENT)] = memoryview(memory)
    for channel, (offset, data) in enumerate([(43, b"two"), (46, b"end"), (40, b"one")]):
        assert nic.notifications == []
        assert (
            nic.receive_message(ENDPOINT, channel=channel, form=FORM_BULK, data=data, total=9, offset=offset)[0].kind
            == KIND_ACK
        )
    assert nic.notifications == [(ENDPOINT, layout.ARRIVED_REQUESTS)]
    assert memory[40:49] == b"onetwoend"
    entry = read_entry(nic.page(ENDPOINT), layout.ARRIVED_REQUESTS)
    assert (entry.offset, entry.total) == (40, 9)


def test_a_full_ring_refuses_until_the_host_has_read() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT)
    for channel in range(16):
        assert nic.receive_message(ENDPOINT, channel, channel=channel)[0].kind == KIND_ACK
    assert nic.receive_message(ENDPOINT, 16, channel=16)[0].verdict == (KIND_NACK, REASON_OVERRUN)
    assert (
        nic.receive_message(ENDPOINT, 99, channel=17, reply=True)[0].kind == KIND_ACK
    )  # replies have a ring of their own
    nic.page(ENDPOINT)[layout.SLOT_OFFSETS[layout.ARRIVED_REQUESTS]] = layout.FREE
    assert nic.receive_message(ENDPOINT, 16, channel=16, stamp=2)[0].kind == KIND_ACK


# Unloading.


def test_an_endpoint_without_packets_in_flight_leaves_when_the_host_has_released_it() -> None:
    nic = SingleNic(NO_MIN_RESIDENCE)
    nic.create(ENDPOINT)
    nic.receive_message(ENDPOINT, 77)
    nic.notifications.clear()
    nic.ring_doorbell(ENDPOINT, layout.UNLOAD)
    assert nic.notifications == [(ENDPOINT, RELEASE)]
    nic.ring_doorbell(ENDPOINT, layout.RELEASED)
    assert nic.notifications == [(ENDPOINT, RELEASE), (ENDPOINT, UNLOADED)]
    entry = layout.SLOT_OFFSETS[layout.ARRIVED_REQUESTS]
    assert nic.memory.backing_pages[ENDPOINT][entry] == layout.READY
    assert layout.READ_ARGUMENTS[1](nic.memory.backing_pages[ENDPOINT], entry + layout.ARGUMENTS_OFFSET) == (77,)


def test_a_reloaded_endpoint_continues_at_its_ring_positions() -> None:
    nic = SingleNic(NO_MIN_RESIDENCE)
    nic.create(ENDPOINT)
    nic.receive_message(ENDPOINT, 1)
    nic.receive_message(ENDPOINT, 2, channel=1)
    for subject in (layout.UNLOAD, layout.RELEASED):
        nic.ring_doorbell(ENDPOINT, subject)
    nic.memory.bound_endpoints[0] = NO_ENDPOINT
    nic.load(ENDPOINT)
    nic.notifications.clear()
    nic.receive_message(ENDPOINT, 3, channel=2)
    assert nic.notifications == [(ENDPOINT, layout.ARRIVED_REQUESTS + 2)]


def test_an_endpoint_keeps_its_frame_and_accepts_messages_for_the_minimum_residence() -> None:
    nic = SingleNic(Settings(stay=3 * MILLISECOND))
    nic.create(ENDPOINT)
    nic.elapse(1 * MILLISECOND)
    nic.ring_doorbell(ENDPOINT, layout.UNLOAD)
    assert nic.notifications == []
    assert nic.firmware.deadline == 3 * MILLISECOND
    assert nic.receive_message(ENDPOINT, 1)[0].kind == KIND_ACK
    nic.elapse(2 * MILLISECOND)
    assert nic.notifications[-1] == (ENDPOINT, RELEASE)
    assert nic.receive_message(ENDPOINT, 2, channel=1)[0].verdict == (KIND_NACK, REASON_NOT_RESIDENT)


def unload_with_unanswered_packet(nic: SingleNic) -> SentMessage:
    """Unload an endpoint, one packet of which is unanswered; return the packet."""
    nic.create(ENDPOINT)
    nic.request(ENDPOINT, 0, 41)
    (packet,) = nic.take_packets()
    nic.ring_doorbell(ENDPOINT, layout.UNLOAD)
    nic.ring_doorbell(ENDPOINT, layout.RELEASED)
    assert nic.notifications == [(ENDPOINT, RELEASE)]
    return packet


def test_an_endpoint_does_not_leave_before_its_packet_is_answered() -> None:
    nic = SingleNic(NO_MIN_RESIDENCE)
    packet = unload_with_unanswered_packet(nic)
    nic.elapse(20 * MILLISECOND)
    assert (ENDPOINT, UNLOADED) not in nic.notifications
    nic.answer(packet)
    assert nic.notifications[-1] == (ENDPOINT, UNLOADED)
    assert nic.memory.backing_pages[ENDPOINT][layout.SLOT_OFFSETS[0]] == layout.FREE


def test_a_nack_for_the_latest_transmission_lets_an_endpoint_leave_and_one_for_an_earlier_does_not() -> None:
    nic = SingleNic(NO_MIN_RESIDENCE)
    first = unload_with_unanswered_packet(nic)
    nic.elapse(6 * MILLISECOND)  # it is resent
    (resent_packet,) = nic.take_packets()
    assert resent_packet.stamp != first.stamp
    nic.answer(resent_packet, REASON_NOT_RESIDENT, stamp=first.stamp)
    assert (ENDPOINT, UNLOADED) not in nic.notifications
    nic.answer(resent_packet, REASON_NOT_RESIDENT)
    assert nic.notifications[-1] == (ENDPOINT, UNLOADED)
    assert nic.memory.backing_pages[ENDPOINT][layout.SLOT_OFFSETS[0]] == layout.READY
    nic.memory.bound_endpoints[0] = NO_ENDPOINT
    nic.load(ENDPOINT)
    (packet,) = nic.take_packets()
    assert packet.message == resent_packet.message
    assert packet.kind == KIND_MESSAGE
    nic.answer(packet)
    assert nic.owner(ENDPOINT, 0) == layout.FREE


def test_a_packet_refused_before_does_not_keep_an_endpoint_from_leaving() -> None:
    nic = SingleNic(NO_MIN_RESIDENCE)
    nic.create(ENDPOINT)
    nic.request(ENDPOINT, 0, 41)
    nic.answer(nic.take_packets()[0], REASON_OVERRUN)
    nic.ring_doorbell(ENDPOINT, layout.UNLOAD)
    nic.ring_doorbell(ENDPOINT, layout.RELEASED)
    assert nic.notifications[-1] == (ENDPOINT, UNLOADED)
    assert nic.counter("taken_back") == 1


def test_a_partly_sent_bulk_message_continues_after_the_next_load() -> None:
    nic = SingleNic(Settings(stay=0, channels=2, packet=512))
    nic.create(ENDPOINT)
    data = bytes(range(256)) * 8
    nic.memory.mapped_regions[region_of(ENDPOINT, 0)] = memoryview(data)
    nic.request(ENDPOINT, 0, form=FORM_BULK, data=len(data))
    first, second = nic.take_packets()
    nic.ring_doorbell(ENDPOINT, layout.UNLOAD)
    nic.ring_doorbell(ENDPOINT, layout.RELEASED)
    nic.answer(second)
    assert nic.take_packets() == []
    nic.answer(first, REASON_OVERRUN)
    assert nic.notifications[-1] == (ENDPOINT, UNLOADED)
    nic.memory.bound_endpoints[0] = NO_ENDPOINT
    nic.load(ENDPOINT)
    offsets = []
    while packets := nic.take_packets():
        for packet in packets:
            offsets.append(packet.offset)
            nic.answer(packet)
    assert sorted(offsets) == [0, 1024, 1536]
    assert nic.owner(ENDPOINT, 0) == layout.ANSWERED


def test_messages_that_wait_for_a_channel_stay_in_the_page_of_an_unloaded_endpoint() -> None:
    nic = SingleNic(Settings(stay=0, channels=1, attempt=0))
    nic.create(ENDPOINT)
    nic.create(OTHER_ENDPOINT)
    nic.request(OTHER_ENDPOINT, 0, 1)
    nic.request(ENDPOINT, 0, 2)
    (packet,) = nic.take_packets()
    nic.ring_doorbell(ENDPOINT, layout.UNLOAD)
    nic.ring_doorbell(ENDPOINT, layout.RELEASED)
    assert nic.notifications[-1] == (ENDPOINT, UNLOADED)
    nic.answer(packet)
    assert nic.take_packets() == []
    nic.memory.bound_endpoints[0] = NO_ENDPOINT
    nic.load(ENDPOINT)
    assert [(packet.origin, packet.message) for packet in nic.take_packets()] == [(ENDPOINT, 100)]


def test_a_freed_endpoint_receives_nothing_and_answers_to_it_are_ignored() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT)
    nic.request(ENDPOINT, 0, 1)
    (packet,) = nic.take_packets()
    nic.ring_doorbell(ENDPOINT, layout.DESTROY)
    nic.answer(packet)
    assert nic.receive_message(ENDPOINT, 1)[0].kind == KIND_NACK
    assert nic.counter("bad_endpoints") == 1
    assert nic.firmware.pending_work() == []


STATES = ("absent", "on the host", "resident", "to leave", "leaving", "released")
REGION_ANSWERS = (layout.MAPPED, layout.ABSENT)
"""Doorbells that answer a notification of an unmapped region."""
NOTIFICATIONS: dict[tuple[str, int], list[int]] = {
    ("on the host", layout.LOAD): [LOADED],
    ("resident", layout.UNLOAD): [RELEASE],
    ("leaving", layout.RELEASED): [UNLOADED],
    ("absent", layout.CREATE): [],
    **{(state, layout.DESTROY): [UNLOADED] for state in STATES[1:]},
    **{(state, answer): [] for state in STATES[1:] for answer in REGION_ANSWERS},
}
"""Notifications after each doorbell that is valid in an endpoint's state; all other doorbells are invalid."""


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "command", [layout.CREATE, layout.DESTROY, layout.LOAD, layout.UNLOAD, layout.RELEASED, *REGION_ANSWERS, 100]
)
def test_doorbells_that_are_invalid_in_a_state_are_only_counted(state: str, command: int) -> None:
    nic = SingleNic(Settings(stay=MILLISECOND if state == "to leave" else 0))
    if state != "absent":
        nic.create(ENDPOINT, load=state != "on the host")
    if state == "released":
        nic.request(ENDPOINT, 0, 1)  # an unanswered packet, else it would leave at once
    if STATES.index(state) >= STATES.index("to leave"):
        nic.ring_doorbell(ENDPOINT, layout.UNLOAD)
    if state == "released":
        nic.ring_doorbell(ENDPOINT, layout.RELEASED)
    if state == "on the host":
        nic.memory.bound_endpoints[0] = ENDPOINT
    nic.notifications.clear()
    nic.ring_doorbell(region_of(ENDPOINT, layout.SEND_STAGING) if command in REGION_ANSWERS else ENDPOINT, command)
    expected = NOTIFICATIONS.get((state, command))
    assert nic.notifications == [(ENDPOINT, subject) for subject in expected or ()]
    assert nic.counter("invalid") == (expected is None)


def test_a_changed_tag_in_the_page_is_in_force_at_once() -> None:
    nic = SingleNic()
    nic.create(ENDPOINT)
    assert nic.receive_message(ENDPOINT, 1, tag=TAG)[0].kind == KIND_ACK
    layout.set_tag(nic.page(ENDPOINT), TAG + 1)
    assert nic.receive_message(ENDPOINT, 1, tag=TAG, channel=1)[0].kind == KIND_NACK
    assert nic.receive_message(ENDPOINT, 1, tag=TAG + 1, channel=2)[0].kind == KIND_ACK
