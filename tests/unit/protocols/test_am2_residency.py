"""AM-II's endpoints in and out of the NIC's endpoint frames: three kinds of faults, and how one leaves its frame."""

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
from protocols.am2.settings import MILLISECOND, Settings
from tests.unit.protocols.am2_single_nic import TAG, SentMessage, SingleNic

AT_ONCE = Settings(stay=0)
LOADED, RELEASE, UNLOADED, FAULT = layout.LOADED, layout.RELEASE, layout.UNLOADED, layout.FAULT


def region(endpoint: int, subject: int) -> int:
    return endpoint << layout.SUBJECT_BITS | subject


# Faults.


def test_a_message_for_an_endpoint_that_is_not_resident_is_refused_and_interrupts_the_host_once() -> None:
    card = SingleNic()
    card.create(4, load=False)
    assert card.arrive(4, 1)[0][:2] == (KIND_NACK, REASON_NOT_RESIDENT)
    assert card.arrive(4, 2, channel=1)[0][:2] == (KIND_NACK, REASON_NOT_RESIDENT)
    assert card.notifications == [(4, FAULT)]
    card.load(4)
    assert card.notifications.pop() == (4, LOADED)
    assert card.arrive(4, 1, stamp=2)[0][:2] == (KIND_ACK, 0)
    assert card.notifications[-1] == (4, layout.ARRIVED_REQUESTS)


def test_a_copy_of_a_refused_packet_is_not_accepted_when_the_endpoint_is_resident() -> None:
    card = SingleNic()
    card.create(4, load=False)
    card.arrive(4, 1, stamp=7)
    card.load(4)
    assert card.arrive(4, 1, stamp=7) == []
    assert card.counter("old") == 1


def test_a_doorbell_of_a_non_resident_endpoint_sends_nothing() -> None:
    card = SingleNic()
    card.create(4, load=False)
    card.ring(4, 0)
    assert card.take_packets() == []
    assert card.counter("invalid") == 1


def test_messages_written_before_a_load_are_sent_after_it() -> None:
    card = SingleNic()
    card.create(4, load=False)
    card.memory.bound_endpoints[0] = 4
    card.memory.frames[0][:] = card.memory.backing_pages[4]
    card.write(4, 2, 5)
    card.write(4, 17, 6)
    card.ring(4, layout.LOAD)
    assert [sent.message for sent in card.take_packets()] == [102, 117]


def test_unmapped_data_is_requested_and_sent_when_it_is_mapped() -> None:
    card = SingleNic()
    card.create(4)
    card.request(4, 0, form=FORM_MEDIUM, data=3)
    assert card.take_packets() == []
    assert card.notifications == [(region(4, layout.SEND_STAGING), layout.UNMAPPED)]
    card.memory.mapped_regions[region(4, layout.SEND_STAGING)] = memoryview(b"abcdef")
    card.ring(region(4, layout.SEND_STAGING), layout.MAPPED)
    assert card.sent[0][:-1].endswith(b"abc")


def test_a_message_whose_data_does_not_exist_is_returned() -> None:
    card = SingleNic()
    card.create(4)
    card.request(4, 0, form=FORM_MEDIUM, data=3)
    card.ring(region(4, layout.SEND_STAGING), layout.ABSENT)
    assert card.take_packets() == []
    assert card.notifications[-1] == (4, layout.ARRIVED_REPLIES)
    assert card.owner(4, 0) == layout.RETURNED


@pytest.mark.parametrize(("form", "subject"), [(FORM_MEDIUM, layout.RECEIVE_STAGING), (FORM_BULK, layout.SEGMENT)])
def test_a_message_for_an_unmapped_region_is_refused_until_it_is_mapped(form: int, subject: int) -> None:
    card = SingleNic()
    card.create(4)
    layout.set_segment_length(card.page(4), 100)
    assert card.arrive(4, form=form, data=b"xyz", total=3)[0][:2] == (KIND_NACK, REASON_NO_MAPPING)
    assert card.notifications == [(region(4, subject), layout.UNMAPPED)]
    memory = bytearray(32 * 8192)
    card.memory.mapped_regions[region(4, subject)] = memoryview(memory)
    assert card.arrive(4, form=form, data=b"xyz", total=3, stamp=2)[0][:2] == (KIND_ACK, 0)
    assert memory[:3] == b"xyz"


def test_a_bulk_message_is_delivered_once_when_all_its_parts_have_arrived_in_any_order() -> None:
    card = SingleNic()
    card.create(4)
    layout.set_segment_length(card.page(4), 100)
    memory = bytearray(100)
    card.memory.mapped_regions[region(4, layout.SEGMENT)] = memoryview(memory)
    for channel, (offset, data) in enumerate([(43, b"two"), (46, b"end"), (40, b"one")]):
        assert card.notifications == []
        assert card.arrive(4, channel=channel, form=FORM_BULK, data=data, total=9, offset=offset)[0][0] == KIND_ACK
    assert card.notifications == [(4, layout.ARRIVED_REQUESTS)]
    assert memory[40:49] == b"onetwoend"
    entry = layout.READ_ENTRY(card.page(4), layout.SLOT_OFFSETS[layout.ARRIVED_REQUESTS])
    assert entry[14:16] == (40, 9)


def test_a_full_ring_refuses_until_the_host_has_read() -> None:
    card = SingleNic()
    card.create(4)
    for channel in range(16):
        assert card.arrive(4, channel, channel=channel)[0][0] == KIND_ACK
    assert card.arrive(4, 16, channel=16)[0][:2] == (KIND_NACK, REASON_OVERRUN)
    assert card.arrive(4, 99, channel=17, reply=True)[0][0] == KIND_ACK  # replies have a ring of their own
    card.page(4)[layout.SLOT_OFFSETS[layout.ARRIVED_REQUESTS]] = layout.FREE
    assert card.arrive(4, 16, channel=16, stamp=2)[0][0] == KIND_ACK


# Leaving.


def test_an_endpoint_without_packets_in_flight_leaves_when_the_host_has_released_it() -> None:
    card = SingleNic(AT_ONCE)
    card.create(4)
    card.arrive(4, 77)
    card.notifications.clear()
    card.ring(4, layout.UNLOAD)
    assert card.notifications == [(4, RELEASE)]
    card.ring(4, layout.RELEASED)
    assert card.notifications == [(4, RELEASE), (4, UNLOADED)]
    entry = layout.SLOT_OFFSETS[layout.ARRIVED_REQUESTS]
    assert card.memory.backing_pages[4][entry] == layout.READY
    assert layout.READ_ARGUMENTS[1](card.memory.backing_pages[4], entry + layout.ARGUMENTS_OFFSET) == (77,)


def test_a_reloaded_endpoint_continues_at_its_ring_positions() -> None:
    card = SingleNic(AT_ONCE)
    card.create(4)
    card.arrive(4, 1)
    card.arrive(4, 2, channel=1)
    for subject in (layout.UNLOAD, layout.RELEASED):
        card.ring(4, subject)
    card.memory.bound_endpoints[0] = -1
    card.load(4)
    card.notifications.clear()
    card.arrive(4, 3, channel=2)
    assert card.notifications == [(4, layout.ARRIVED_REQUESTS + 2)]


def test_an_endpoint_keeps_its_frame_and_accepts_messages_for_the_minimum_residence() -> None:
    card = SingleNic(Settings(stay=3 * MILLISECOND))
    card.create(4)
    card.elapse(1 * MILLISECOND)
    card.ring(4, layout.UNLOAD)
    assert card.notifications == []
    assert card.firmware.deadline == 3 * MILLISECOND
    assert card.arrive(4, 1)[0][0] == KIND_ACK
    card.elapse(2 * MILLISECOND)
    assert card.notifications[-1] == (4, RELEASE)
    assert card.arrive(4, 2, channel=1)[0][:2] == (KIND_NACK, REASON_NOT_RESIDENT)


def make_leaving(card: SingleNic) -> SentMessage:
    """An endpoint with one packet that is not answered is to leave; the packet."""
    card.create(4)
    card.request(4, 0, 41)
    (packet,) = card.take_packets()
    card.ring(4, layout.UNLOAD)
    card.ring(4, layout.RELEASED)
    assert card.notifications == [(4, RELEASE)]
    return packet


def test_an_endpoint_does_not_leave_before_its_packet_is_answered() -> None:
    card = SingleNic(AT_ONCE)
    packet = make_leaving(card)
    card.elapse(20 * MILLISECOND)
    assert (4, UNLOADED) not in card.notifications
    card.answer(packet)
    assert card.notifications[-1] == (4, UNLOADED)
    assert card.memory.backing_pages[4][layout.SLOT_OFFSETS[0]] == layout.FREE


def test_the_nack_for_the_latest_sending_lets_an_endpoint_leave_and_one_for_an_earlier_does_not() -> None:
    card = SingleNic(AT_ONCE)
    first = make_leaving(card)
    card.elapse(6 * MILLISECOND)  # it is sent again
    (resent_packet,) = card.take_packets()
    assert resent_packet.stamp != first.stamp
    card.answer(resent_packet, REASON_NOT_RESIDENT, stamp=first.stamp)
    assert (4, UNLOADED) not in card.notifications
    card.answer(resent_packet, REASON_NOT_RESIDENT)
    assert card.notifications[-1] == (4, UNLOADED)
    assert card.memory.backing_pages[4][layout.SLOT_OFFSETS[0]] == layout.READY
    card.memory.bound_endpoints[0] = -1
    card.load(4)
    (packet,) = card.take_packets()
    assert packet.message == resent_packet.message
    assert packet.kind == KIND_MESSAGE
    card.answer(packet)
    assert card.owner(4, 0) == layout.FREE


def test_a_packet_refused_before_does_not_keep_an_endpoint_from_leaving() -> None:
    card = SingleNic(AT_ONCE)
    card.create(4)
    card.request(4, 0, 41)
    card.answer(card.take_packets()[0], REASON_OVERRUN)
    card.ring(4, layout.UNLOAD)
    card.ring(4, layout.RELEASED)
    assert card.notifications[-1] == (4, UNLOADED)
    assert card.counter("taken_back") == 1


def test_a_partly_sent_bulk_message_continues_after_the_next_load() -> None:
    card = SingleNic(Settings(stay=0, channels=2, packet=512))
    card.create(4)
    data = bytes(range(256)) * 8
    card.memory.mapped_regions[region(4, 0)] = memoryview(data)
    card.request(4, 0, form=FORM_BULK, data=len(data))
    first, second = card.take_packets()
    card.ring(4, layout.UNLOAD)
    card.ring(4, layout.RELEASED)
    card.answer(second)
    assert card.take_packets() == []
    card.answer(first, REASON_OVERRUN)
    assert card.notifications[-1] == (4, UNLOADED)
    card.memory.bound_endpoints[0] = -1
    card.load(4)
    offsets = []
    while packets := card.take_packets():
        for packet in packets:
            offsets.append(packet.offset)
            card.answer(packet)
    assert sorted(offsets) == [0, 1024, 1536]
    assert card.owner(4, 0) == layout.ANSWERED


def test_messages_that_wait_for_a_channel_stay_in_the_page_of_an_unloaded_endpoint() -> None:
    card = SingleNic(Settings(stay=0, channels=1, attempt=0))
    card.create(4)
    card.create(5)
    card.request(5, 0, 1)
    card.request(4, 0, 2)
    (packet,) = card.take_packets()
    card.ring(4, layout.UNLOAD)
    card.ring(4, layout.RELEASED)
    assert card.notifications[-1] == (4, UNLOADED)
    card.answer(packet)
    assert card.take_packets() == []
    card.memory.bound_endpoints[0] = -1
    card.load(4)
    assert [(packet.origin, packet.message) for packet in card.take_packets()] == [(4, 100)]


def test_a_freed_endpoint_receives_nothing_and_answers_to_it_are_ignored() -> None:
    card = SingleNic()
    card.create(4)
    card.request(4, 0, 1)
    (packet,) = card.take_packets()
    card.ring(4, layout.DESTROY)
    card.answer(packet)
    assert card.arrive(4, 1)[0][0] == KIND_NACK
    assert card.counter("bad_endpoints") == 1
    assert card.firmware.pending_work() == []


STATES = ("absent", "on the host", "resident", "asked to leave", "leaving", "released")
SAID = (layout.MAPPED, layout.ABSENT)
"""Completions about a region."""
TOLD: dict[tuple[str, int], list[int]] = {
    ("on the host", layout.LOAD): [LOADED],
    ("resident", layout.UNLOAD): [RELEASE],
    ("leaving", layout.RELEASED): [],
    ("absent", layout.CREATE): [],
    **{(state, layout.DESTROY): [UNLOADED] for state in STATES[1:]},
    **{(state, reported): [] for state in STATES[1:] for reported in SAID},
}
"""Requests of the host's kernel by state, and the answers."""


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "command", [layout.CREATE, layout.DESTROY, layout.LOAD, layout.UNLOAD, layout.RELEASED, *SAID, 100]
)
def test_doorbells_that_are_invalid_in_a_state_are_only_counted(state: str, command: int) -> None:
    card = SingleNic(Settings(stay=MILLISECOND if state == "asked to leave" else 0))
    if state != "absent":
        card.create(4, load=state != "on the host")
    if state == "released":
        card.request(4, 0, 1)  # or it would be released at once
    if STATES.index(state) >= STATES.index("asked to leave"):
        card.ring(4, layout.UNLOAD)
    if state == "released":
        card.ring(4, layout.RELEASED)
    if state == "on the host":
        card.memory.bound_endpoints[0] = 4
    card.notifications.clear()
    card.ring(region(4, layout.SEND_STAGING) if command in SAID else 4, command)
    expected = TOLD.get((state, command))
    if state == "leaving" and command == layout.RELEASED:
        expected = [UNLOADED]
    assert card.notifications == [(4, subject) for subject in expected or ()]
    assert card.counter("invalid") == (expected is None)


def test_tags_are_those_of_the_page() -> None:
    card = SingleNic()
    card.create(4)
    assert card.arrive(4, 1, tag=TAG)[0][0] == KIND_ACK
    layout.set_tag(card.page(4), TAG + 1)
    assert card.arrive(4, 1, tag=TAG, channel=1)[0][0] == KIND_NACK
    assert card.arrive(4, 1, tag=TAG + 1, channel=2)[0][0] == KIND_ACK
