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
    return endpoint << layout.SUBJECTS | subject


# Faults.


def test_a_message_for_an_endpoint_that_is_not_resident_is_refused_and_interrupts_the_host_once() -> None:
    card = SingleNic()
    card.create(4, load=False)
    assert card.arrive(4, 1)[0][:2] == (KIND_NACK, REASON_NOT_RESIDENT)
    assert card.arrive(4, 2, channel=1)[0][:2] == (KIND_NACK, REASON_NOT_RESIDENT)
    assert card.told == [(4, FAULT)]
    card.load(4)
    assert card.told.pop() == (4, LOADED)
    assert card.arrive(4, 1, stamp=2)[0][:2] == (KIND_ACK, 0)
    assert card.told[-1] == (4, layout.ARRIVED_REQUESTS)


def test_the_copy_of_a_packet_that_was_refused_is_not_taken_when_the_endpoint_has_come() -> None:
    card = SingleNic()
    card.create(4, load=False)
    card.arrive(4, 1, stamp=7)
    card.load(4)
    assert card.arrive(4, 1, stamp=7) == []
    assert card.counted("old") == 1


def test_a_host_that_rings_for_an_endpoint_that_is_not_resident_has_nothing_sent() -> None:
    card = SingleNic()
    card.create(4, load=False)
    card.ring(4, 0)
    assert card.taken() == []
    assert card.counted("invalid") == 1


def test_what_was_written_before_an_endpoint_came_into_a_frame_is_sent_then() -> None:
    card = SingleNic()
    card.create(4, load=False)
    card.memory.bound[0] = 4
    card.memory.frames[0][:] = card.memory.pages[4]
    card.write(4, 2, 5)
    card.write(4, 17, 6)
    card.ring(4, layout.LOAD)
    assert [sent.message for sent in card.taken()] == [102, 117]


def test_data_that_the_nic_cannot_reach_is_asked_for_and_sent_when_it_can() -> None:
    card = SingleNic()
    card.create(4)
    card.request(4, 0, form=FORM_MEDIUM, data=3)
    assert card.taken() == []
    assert card.told == [(region(4, layout.STAGED), layout.UNMAPPED)]
    card.memory.reachable[region(4, layout.STAGED)] = memoryview(b"abcdef")
    card.ring(region(4, layout.STAGED), layout.MAPPED)
    assert card.sent[0][:-1].endswith(b"abc")


def test_data_that_is_nowhere_comes_back() -> None:
    card = SingleNic()
    card.create(4)
    card.request(4, 0, form=FORM_MEDIUM, data=3)
    card.ring(region(4, layout.STAGED), layout.ABSENT)
    assert card.taken() == []
    assert card.told[-1] == (4, layout.ARRIVED_REPLIES)
    assert card.owner(4, 0) == layout.RETURNED


@pytest.mark.parametrize(("form", "subject"), [(FORM_MEDIUM, layout.STAGING), (FORM_BULK, layout.SEGMENT)])
def test_a_message_whose_data_finds_no_mapping_is_refused_until_there_is_one(form: int, subject: int) -> None:
    card = SingleNic()
    card.create(4)
    layout.set_segment(card.page(4), 100)
    assert card.arrive(4, form=form, data=b"xyz", total=3)[0][:2] == (KIND_NACK, REASON_NO_MAPPING)
    assert card.told == [(region(4, subject), layout.UNMAPPED)]
    memory = bytearray(32 * 8192)
    card.memory.reachable[region(4, subject)] = memoryview(memory)
    assert card.arrive(4, form=form, data=b"xyz", total=3, stamp=2)[0][:2] == (KIND_ACK, 0)
    assert memory[:3] == b"xyz"


def test_a_bulk_message_is_shown_once_when_all_its_parts_are_there_in_any_order() -> None:
    card = SingleNic()
    card.create(4)
    layout.set_segment(card.page(4), 100)
    memory = bytearray(100)
    card.memory.reachable[region(4, layout.SEGMENT)] = memoryview(memory)
    for channel, (offset, data) in enumerate([(43, b"two"), (46, b"end"), (40, b"one")]):
        assert card.told == []
        assert card.arrive(4, channel=channel, form=FORM_BULK, data=data, total=9, offset=offset)[0][0] == KIND_ACK
    assert card.told == [(4, layout.ARRIVED_REQUESTS)]
    assert memory[40:49] == b"onetwoend"
    entry = layout.READ(card.page(4), layout.PLACES[layout.ARRIVED_REQUESTS])
    assert entry[14:16] == (40, 9)


def test_a_ring_that_is_full_refuses_and_takes_again_when_the_host_has_read() -> None:
    card = SingleNic()
    card.create(4)
    for channel in range(16):
        assert card.arrive(4, channel, channel=channel)[0][0] == KIND_ACK
    assert card.arrive(4, 16, channel=16)[0][:2] == (KIND_NACK, REASON_OVERRUN)
    assert card.arrive(4, 99, channel=17, reply=True)[0][0] == KIND_ACK  # replies have a ring of their own
    card.page(4)[layout.PLACES[layout.ARRIVED_REQUESTS]] = layout.FREE
    assert card.arrive(4, 16, channel=16, stamp=2)[0][0] == KIND_ACK


# Leaving.


def test_an_endpoint_with_nothing_under_way_leaves_when_the_host_has_let_go_of_it() -> None:
    card = SingleNic(AT_ONCE)
    card.create(4)
    card.arrive(4, 77)
    card.told.clear()
    card.ring(4, layout.UNLOAD)
    assert card.told == [(4, RELEASE)]
    card.ring(4, layout.RELEASED)
    assert card.told == [(4, RELEASE), (4, UNLOADED)]
    entry = layout.PLACES[layout.ARRIVED_REQUESTS]
    assert card.memory.pages[4][entry] == layout.READY
    assert layout.READ_ARGUMENTS[1](card.memory.pages[4], entry + layout.ARGUMENTS) == (77,)


def test_an_endpoint_that_comes_again_goes_on_in_its_rings_where_it_was() -> None:
    card = SingleNic(AT_ONCE)
    card.create(4)
    card.arrive(4, 1)
    card.arrive(4, 2, channel=1)
    for subject in (layout.UNLOAD, layout.RELEASED):
        card.ring(4, subject)
    card.memory.bound[0] = -1
    card.load(4)
    card.told.clear()
    card.arrive(4, 3, channel=2)
    assert card.told == [(4, layout.ARRIVED_REQUESTS + 2)]


def test_an_endpoint_keeps_its_frame_for_a_while_and_takes_messages_until_then() -> None:
    card = SingleNic(Settings(stay=3 * MILLISECOND))
    card.create(4)
    card.elapse(1 * MILLISECOND)
    card.ring(4, layout.UNLOAD)
    assert card.told == []
    assert card.firmware.deadline == 3 * MILLISECOND
    assert card.arrive(4, 1)[0][0] == KIND_ACK
    card.elapse(2 * MILLISECOND)
    assert card.told[-1] == (4, RELEASE)
    assert card.arrive(4, 2, channel=1)[0][:2] == (KIND_NACK, REASON_NOT_RESIDENT)


def leaving(card: SingleNic) -> SentMessage:
    """An endpoint with one packet that is not answered is to leave; the packet."""
    card.create(4)
    card.request(4, 0, 41)
    (sent,) = card.taken()
    card.ring(4, layout.UNLOAD)
    card.ring(4, layout.RELEASED)
    assert card.told == [(4, RELEASE)]
    return sent


def test_an_endpoint_does_not_leave_before_its_packet_is_answered() -> None:
    card = SingleNic(AT_ONCE)
    sent = leaving(card)
    card.elapse(20 * MILLISECOND)
    assert (4, UNLOADED) not in card.told
    card.answer(sent)
    assert card.told[-1] == (4, UNLOADED)
    assert card.memory.pages[4][layout.PLACES[0]] == layout.FREE


def test_the_nack_for_the_latest_sending_lets_an_endpoint_leave_and_one_for_an_earlier_does_not() -> None:
    card = SingleNic(AT_ONCE)
    first = leaving(card)
    card.elapse(6 * MILLISECOND)  # it is sent again
    (again,) = card.taken()
    assert again.stamp != first.stamp
    card.answer(again, REASON_NOT_RESIDENT, stamp=first.stamp)
    assert (4, UNLOADED) not in card.told
    card.answer(again, REASON_NOT_RESIDENT)
    assert card.told[-1] == (4, UNLOADED)
    assert card.memory.pages[4][layout.PLACES[0]] == layout.READY
    card.memory.bound[0] = -1
    card.load(4)
    (sent,) = card.taken()
    assert sent.message == again.message
    assert sent.kind == KIND_MESSAGE
    card.answer(sent)
    assert card.owner(4, 0) == layout.FREE


def test_what_was_refused_before_an_endpoint_is_to_leave_does_not_keep_it() -> None:
    card = SingleNic(AT_ONCE)
    card.create(4)
    card.request(4, 0, 41)
    card.answer(card.taken()[0], REASON_OVERRUN)
    card.ring(4, layout.UNLOAD)
    card.ring(4, layout.RELEASED)
    assert card.told[-1] == (4, UNLOADED)
    assert card.counted("taken_back") == 1


def test_a_bulk_message_that_is_half_way_goes_on_where_it_was() -> None:
    card = SingleNic(Settings(stay=0, channels=2, packet=512))
    card.create(4)
    data = bytes(range(256)) * 8
    card.memory.reachable[region(4, 0)] = memoryview(data)
    card.request(4, 0, form=FORM_BULK, data=len(data))
    first, second = card.taken()
    card.ring(4, layout.UNLOAD)
    card.ring(4, layout.RELEASED)
    card.answer(second)
    assert card.taken() == []
    card.answer(first, REASON_OVERRUN)
    assert card.told[-1] == (4, UNLOADED)
    card.memory.bound[0] = -1
    card.load(4)
    offsets = []
    while sent := card.taken():
        for packet in sent:
            offsets.append(packet.offset)
            card.answer(packet)
    assert sorted(offsets) == [0, 1024, 1536]
    assert card.owner(4, 0) == layout.ANSWERED


def test_what_waits_for_a_channel_waits_in_the_page_of_an_endpoint_that_has_left() -> None:
    card = SingleNic(Settings(stay=0, channels=1, attempt=0))
    card.create(4)
    card.create(5)
    card.request(5, 0, 1)
    card.request(4, 0, 2)
    (sent,) = card.taken()
    card.ring(4, layout.UNLOAD)
    card.ring(4, layout.RELEASED)
    assert card.told[-1] == (4, UNLOADED)
    card.answer(sent)
    assert card.taken() == []
    card.memory.bound[0] = -1
    card.load(4)
    assert [(sent.origin, sent.message) for sent in card.taken()] == [(4, 100)]


def test_an_endpoint_that_is_freed_is_not_there_for_what_comes_and_its_answers_are_nobodys() -> None:
    card = SingleNic()
    card.create(4)
    card.request(4, 0, 1)
    (sent,) = card.taken()
    card.ring(4, layout.DESTROY)
    card.answer(sent)
    assert card.arrive(4, 1)[0][0] == KIND_NACK
    assert card.counted("bad_endpoints") == 1
    assert card.firmware.waiting() == []


STATES = ("absent", "on the host", "resident", "asked to leave", "leaving", "released")
SAID = (layout.MAPPED, layout.ABSENT)
"""Completions about a region."""
TOLD: dict[tuple[str, int], list[int]] = {
    ("on the host", layout.LOAD): [LOADED],
    ("resident", layout.UNLOAD): [RELEASE],
    ("leaving", layout.RELEASED): [],
    ("absent", layout.CREATE): [],
    **{(state, layout.DESTROY): [UNLOADED] for state in STATES[1:]},
    **{(state, said): [] for state in STATES[1:] for said in SAID},
}
"""In which state the host's kernel may say what, and what it is told for it."""


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "command", [layout.CREATE, layout.DESTROY, layout.LOAD, layout.UNLOAD, layout.RELEASED, *SAID, 100]
)
def test_what_makes_no_sense_in_a_state_is_counted_and_changes_nothing(state: str, command: int) -> None:
    card = SingleNic(Settings(stay=MILLISECOND if state == "asked to leave" else 0))
    if state != "absent":
        card.create(4, load=state != "on the host")
    if state == "released":
        card.request(4, 0, 1)  # or it would be gone at once
    if STATES.index(state) >= STATES.index("asked to leave"):
        card.ring(4, layout.UNLOAD)
    if state == "released":
        card.ring(4, layout.RELEASED)
    if state == "on the host":
        card.memory.bound[0] = 4
    card.told.clear()
    card.ring(region(4, layout.STAGED) if command in SAID else 4, command)
    expected = TOLD.get((state, command))
    if state == "leaving" and command == layout.RELEASED:
        expected = [UNLOADED]
    assert card.told == [(4, subject) for subject in expected or ()]
    assert card.counted("invalid") == (expected is None)


def test_tags_are_those_of_the_page() -> None:
    card = SingleNic()
    card.create(4)
    assert card.arrive(4, 1, tag=TAG)[0][0] == KIND_ACK
    layout.set_tag(card.page(4), TAG + 1)
    assert card.arrive(4, 1, tag=TAG, channel=1)[0][0] == KIND_NACK
    assert card.arrive(4, 1, tag=TAG + 1, channel=2)[0][0] == KIND_ACK
