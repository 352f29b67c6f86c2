"""AM-II's transport: channels, answers, times, incarnations, and arbitrary received frames."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.active_messages.am_errors import Status
from protocols.am2 import codec
from protocols.am2 import page as layout
from protocols.am2.codec import KIND_ACK, KIND_MESSAGE, KIND_NACK, REASON_BAD_TAG, REASON_OVERRUN, REASON_RESTARTED
from protocols.am2.firmware import Firmware
from protocols.am2.settings import MILLISECOND, SECOND, Settings
from protocols.core.firmware import Adapter
from protocols.myrinet.envelope import add_envelope
from protocols.myrinet.mapper.route_tables import Path, Table
from tests.unit.protocols.am2_single_nic import ADDRESSES, TAG, SingleNic

FEW = Settings(timeout=MILLISECOND, longest_timeout=4 * MILLISECOND, retries=3)


def receiver_of(frame: bytes) -> int:
    """Return the incarnation of the peer that a message's packet is for."""
    _, _, _, _, _, _, receiver, *_ = codec.unpack_message(frame[:-1])
    return receiver


def loaded_nic(settings: Settings | None = None, incarnation: int = 1, peer: int = 1) -> SingleNic:
    card = SingleNic(settings, incarnation, peer)
    card.create(4)
    return card


# Sending.


def test_each_packet_has_its_own_channel_until_all_are_in_use() -> None:
    card = loaded_nic(Settings(channels=3))
    for slot in range(5):
        card.request(4, slot, slot)
    first = card.take_packets()
    assert [(packet.channel, packet.message) for packet in first] == [(0, 100), (1, 101), (2, 102)]
    card.answer(first[1])
    assert [(packet.channel, packet.sequence, packet.message) for packet in card.take_packets()] == [(1, 1, 103)]
    assert [card.owner(4, slot) for slot in range(5)] == [2, 0, 2, 2, 2]


def test_a_packet_is_resent_with_growing_timeouts_until_its_message_is_returned() -> None:
    card = loaded_nic(FEW)
    card.request(4, 0, 1)
    resend_times = [0] * len(card.take_packets())
    while not card.notifications:
        deadline = card.firmware.deadline
        assert deadline is not None
        card.elapse(deadline - card.now)
        resend_times += [card.now // MILLISECOND] * len(card.take_packets())
    assert resend_times == [0, 1, 3, 7]
    assert card.notifications == [(4, layout.ARRIVED_REPLIES)]
    assert layout.HEAD.unpack_from(card.page(4), layout.SLOT_OFFSETS[layout.ARRIVED_REPLIES])[1] == Status.UNREACHABLE
    assert card.owner(4, 0) == layout.RETURNED
    assert card.firmware.deadline is None
    assert card.firmware.pending_work() == []


def test_a_packet_that_waits_in_its_nic_is_not_resent_before_it_has_left() -> None:
    card = loaded_nic(FEW)
    card.holds = True
    card.request(4, 0, 1)
    card.elapse(20 * MILLISECOND)
    assert len(card.take_packets()) == 1
    card.leave()
    card.elapse(MILLISECOND - 1)
    assert card.take_packets() == []
    card.elapse(1)
    assert len(card.take_packets()) == 1
    card.elapse(20 * MILLISECOND)  # the resend waits, too
    assert card.take_packets() == []
    card.leave()
    card.elapse(3 * MILLISECOND)
    assert len(card.take_packets()) == 1


def test_an_answer_to_an_earlier_sending_leaves_no_timer_behind() -> None:
    card = loaded_nic(replace(FEW, keepalive=0))
    card.request(4, 0, 1)
    first = card.take_packets()[0]
    card.holds = True
    card.elapse(MILLISECOND)
    assert len(card.take_packets()) == 1
    card.answer(first)
    card.request(4, 1, 1)
    card.leave()
    card.answer(card.take_packets()[0])
    card.elapse(20 * MILLISECOND)
    assert card.take_packets() == []
    assert card.firmware.deadline is None


def test_there_is_no_scan_when_all_packets_are_answered() -> None:
    card = loaded_nic(Settings(keepalive=0))
    card.request(4, 0, 1)
    card.answer(card.take_packets()[0])
    card.elapse(2 * MILLISECOND)
    assert card.firmware.deadline is None


def test_a_duplicated_or_late_answer_is_only_counted() -> None:
    card = loaded_nic(Settings(channels=1))
    card.request(4, 0, 1)
    (packet,) = card.take_packets()
    card.answer(packet)
    card.request(4, 1, 1)
    (second,) = card.take_packets()
    card.answer(packet)
    card.answer(packet, REASON_OVERRUN)
    card.answer(packet, REASON_BAD_TAG)
    assert card.counter("late_answers") == 3
    assert card.owner(4, 1) == layout.IN_FLIGHT
    card.answer(second)
    assert card.owner(4, 1) == layout.FREE


def test_a_refused_packet_is_resent_with_another_stamp() -> None:
    card = loaded_nic()
    card.request(4, 0, 1)
    (packet,) = card.take_packets()
    card.answer(packet, REASON_OVERRUN)
    card.elapse(2 * MILLISECOND)
    (resent_packet,) = card.take_packets()
    assert resent_packet[1:4] == packet[1:4]
    assert resent_packet.stamp != packet.stamp


@pytest.mark.parametrize("reply", [False, True])
def test_an_undone_message_is_returned_with_its_reason(reply: bool) -> None:
    card = loaded_nic()
    slot = 16 if reply else 0
    card.request(4, slot, 1)
    card.answer(card.take_packets()[0], REASON_BAD_TAG)
    entry = layout.HEAD.unpack_from(card.page(4), layout.SLOT_OFFSETS[layout.ARRIVED_REPLIES])
    assert entry[:4] == (layout.READY, Status.REPLY_REJECTED if reply else Status.BAD_TAG, 0, slot)


def test_messages_are_returned_as_the_reply_ring_has_room() -> None:
    card = loaded_nic(Settings(scan=MILLISECOND))
    for slot in range(20):
        card.request(4, slot, 1)
    for packet in card.take_packets():
        card.answer(packet, REASON_BAD_TAG)
    assert len(card.notifications) == 16
    card.page(4)[layout.SLOT_OFFSETS[layout.ARRIVED_REPLIES]] = layout.FREE
    card.elapse(2 * MILLISECOND)
    assert len(card.notifications) == 17


def test_the_host_is_notified_of_a_free_slot_only_on_request() -> None:
    card = loaded_nic()
    card.request(4, 0, 1)
    card.request(4, 1, 1)
    first, second = card.take_packets()
    card.answer(first)
    assert card.notifications == []
    card.page(4)[layout.NOTIFY_OFFSET] = 1
    card.answer(second)
    assert card.notifications == [(4, 1)]
    assert not card.page(4)[layout.NOTIFY_OFFSET]


@pytest.mark.parametrize(
    ("word", "value"), [(2, 99), (23, 17), (20, 3), (21, 1), (25, 5)], ids=["node", "count", "form", "ring", "origin"]
)
def test_an_invalid_entry_is_returned_and_not_sent(word: int, value: int) -> None:
    card = loaded_nic()
    card.write(4, 0, 1)
    card.page(4)[layout.SLOT_OFFSETS[0] + word] = value
    card.ring(4, 0)
    assert card.take_packets() == []
    assert card.counter("invalid") == 1
    assert layout.HEAD.unpack_from(card.page(4), layout.SLOT_OFFSETS[layout.ARRIVED_REPLIES])[1] == Status.BAD_ARGUMENTS


def test_a_nic_loiters_with_an_endpoint_for_its_attempts_before_it_sends_for_others() -> None:
    card = loaded_nic(Settings(attempts=2, attempt=1_000))
    card.create(5)
    card.request(4, 0, 1)
    card.request(5, 0, 1)
    card.elapse(1_000)
    card.request(4, 1, 1)
    assert [packet.origin for packet in card.take_packets()] == [4, 4]
    assert card.firmware.deadline == 4_000
    card.elapse(3_000)
    assert [packet.origin for packet in card.take_packets()] == [5]
    card.request(4, 2, 1)
    assert card.take_packets() == []
    card.elapse(4_000)
    assert [packet.origin for packet in card.take_packets()] == [4]


def test_the_turn_of_an_endpoint_ends_when_it_leaves() -> None:
    card = loaded_nic(Settings(attempts=2, attempt=1_000, stay=0))
    card.create(5)
    card.request(4, 0, 1)
    card.answer(card.take_packets()[0])
    card.request(5, 0, 1)
    assert card.take_packets() == []
    card.ring(4, layout.UNLOAD)
    card.elapse(1)
    assert [packet[5] for packet in card.take_packets()] == [5]


def test_an_attempt_of_0_switches_loitering_off() -> None:
    """Section "Endpoint scheduling": it holds on to an endpoint that has become empty, for which its host may write more."""
    for settings, origins in ((Settings(), [4]), (Settings(attempt=0), [4, 5])):
        card = loaded_nic(settings)
        card.create(5)
        card.request(4, 0, 1)
        card.request(5, 0, 1)
        assert [packet[5] for packet in card.take_packets()] == origins


# Receiving.


def test_a_duplicated_packet_is_answered_again_and_not_delivered() -> None:
    card = loaded_nic()
    first = card.arrive(4, 1)
    assert card.arrive(4, 1, stamp=2) == [(*first[0][:5], 2)]
    wrong_tag = card.arrive(4, 1, tag=TAG + 1, channel=1)
    assert wrong_tag[0][:2] == (KIND_NACK, REASON_BAD_TAG)
    assert card.arrive(4, 1, tag=TAG + 1, channel=1, stamp=2)[0][:2] == (KIND_NACK, REASON_BAD_TAG)
    assert len(card.notifications) == 1
    assert card.counter("duplicates") == 2


def test_a_message_to_the_own_nic_needs_no_wire() -> None:
    card = loaded_nic()
    card.write(4, 0, 42)
    slot_offset = layout.SLOT_OFFSETS[0]
    card.page(4)[slot_offset + 3] = 0
    card.page(4)[slot_offset + layout.MESSAGE_OFFSET + 6 : slot_offset + layout.MESSAGE_OFFSET + 8] = b"\0\4"
    card.ring(4, 0)
    assert card.sent == []
    assert card.notifications == [(4, layout.ARRIVED_REQUESTS)]
    assert card.owner(4, 0) == layout.FREE


def test_an_own_frame_that_returns_from_the_wire_is_dropped() -> None:
    card = loaded_nic()
    frame = codec.pack_answer(ADDRESSES[0], ADDRESSES[0], KIND_ACK, 0, 0, 0, 1, 1, 0, 0, 0, 1)
    card.firmware.receive(0, add_envelope(frame, b""))
    assert card.counter("strangers") == 1


# Incarnations.


@pytest.mark.parametrize("incarnation", [1, 5])
def test_a_packet_for_another_incarnation_is_answered_with_the_present_one(
    incarnation: int,
) -> None:
    card = loaded_nic(incarnation=incarnation)
    for meant_incarnation in (0, incarnation - 1, incarnation + 1):
        assert card.arrive(4, 1, receiver=meant_incarnation)[0][:2] == (KIND_NACK, REASON_RESTARTED)
    assert card.notifications == []
    assert card.arrive(4, 1, receiver=incarnation)[0][0] == KIND_ACK


def test_without_acknowledgements_a_packet_for_incarnation_0_is_accepted() -> None:
    card = loaded_nic(Settings(reliable=False), incarnation=5)
    assert card.arrive(4, 1, receiver=0) == []
    assert card.notifications == [(4, layout.ARRIVED_REQUESTS)]
    assert card.arrive(4, 1, receiver=4)[0][:2] == (KIND_NACK, REASON_RESTARTED)
    assert len(card.notifications) == 1


@pytest.mark.parametrize("incarnation", [1, 7])
def test_packets_sent_before_the_peers_incarnation_is_known_are_resent_as_first_sendings(
    incarnation: int,
) -> None:
    card = loaded_nic(FEW, peer=0)
    card.request(4, 0, 1)
    card.elapse(2 * MILLISECOND)
    assert {receiver_of(frame) for frame in card.sent} == {0}
    first, *_, last = card.take_packets()
    card.introduce(incarnation)
    assert receiver_of(card.sent[0]) == incarnation
    (resent_packet,) = card.take_packets()
    assert resent_packet[:4] == first[:4]
    assert resent_packet.stamp > last.stamp
    assert card.notifications == []
    card.elapse(7 * MILLISECOND)
    assert len(card.take_packets()) == 3  # the maximum number of retries, at the intervals of a first transmission
    card.elapse(4 * MILLISECOND)
    assert card.notifications == [(4, layout.ARRIVED_REPLIES)]


def test_messages_in_progress_to_a_restarted_peer_are_returned_and_later_ones_sent() -> None:
    card = loaded_nic(peer=7)
    card.request(4, 0, 1)
    card.take_packets()
    card.introduce(8)
    assert card.notifications == [(4, layout.ARRIVED_REPLIES), (1, layout.LOST)]
    assert card.counter("restarts") == 1
    card.request(4, 1, 1)
    assert receiver_of(card.sent.pop()) == 8
    card.introduce(7)
    assert card.counter("restarts") == 1
    assert card.arrive(4, 1, sender=7) == []
    assert card.arrive(4, 1, sender=8)[0][0] == KIND_ACK


def test_parts_of_a_bulk_message_from_a_former_incarnation_are_discarded() -> None:
    card = loaded_nic()
    layout.set_segment_length(card.page(4), 100)
    card.memory.mapped_regions[4 << layout.SUBJECT_BITS | layout.SEGMENT] = memoryview(bytearray(100))
    card.arrive(4, form=2, data=b"abc", total=6)
    card.arrive(4, form=2, data=b"def", total=6, offset=3, sender=2)
    assert card.notifications == [(1, layout.LOST)]
    card.arrive(4, form=2, data=b"abc", total=6, sender=2, channel=1)
    assert card.notifications[-1] == (4, layout.ARRIVED_REQUESTS)


# Routes.


def routed_nic(settings: Settings | None = None) -> SingleNic:
    card = SingleNic()
    card.firmware = Firmware(Adapter(0, ADDRESSES, routed=True), card, card.memory, settings or Settings())
    card.create(4)
    return card


def test_messages_wait_for_the_first_routes() -> None:
    card = routed_nic()
    card.request(4, 0, 1)
    assert card.sent == []
    card.firmware.install(0, Table(1, 1, {1: Path(b"\x81\x82", ADDRESSES[1])}))
    assert card.sent[0][14:18] == b"\x81\x82\x00\x04"
    assert card.sent[0][:6] == ADDRESSES[1]


def test_without_acknowledgements_messages_that_waited_for_routes_are_sent_once() -> None:
    card = routed_nic(Settings(reliable=False))
    card.request(4, 0, 1)
    card.firmware.install(0, Table(1, 1, {1: Path(b"\x81\x82", ADDRESSES[1])}))
    assert (len(card.sent), card.owner(4, 0), card.firmware.deadline) == (1, layout.FREE, None)
    card.introduce(1)
    assert len(card.sent) == 1


def test_messages_without_a_route_are_unreachable_after_the_detour_time() -> None:
    card = routed_nic()
    card.firmware.install(0, Table(1, 1, {1: Path(b"\x81", ADDRESSES[1])}))
    card.request(4, 0, 1)
    card.firmware.install(0, Table(2, 1, {}))
    card.request(4, 1, 1)
    card.elapse(2 * SECOND - 10 * MILLISECOND)
    assert card.notifications == []
    card.elapse(20 * MILLISECOND)
    assert sorted(card.notifications) == [(4, layout.ARRIVED_REPLIES), (4, layout.ARRIVED_REPLIES + 1)]
    card.request(4, 2, 1)
    assert card.notifications[-1] == (4, layout.ARRIVED_REPLIES + 2)


def test_messages_that_waited_for_a_route_use_it() -> None:
    card = routed_nic()
    card.firmware.install(0, Table(1, 1, {1: Path(b"\x81", ADDRESSES[1])}))
    card.request(4, 0, 1)
    card.firmware.install(0, Table(2, 1, {}))
    card.request(4, 1, 1)
    card.elapse(1 * SECOND)
    before = len(card.sent)
    card.firmware.install(card.now, Table(3, 1, {1: Path(b"\x82", ADDRESSES[1])}))
    card.elapse(10 * MILLISECOND)
    assert {frame[14] for frame in card.sent[before:]} == {0x82}
    assert len(card.sent) - before >= 2
    card.elapse(3 * SECOND)
    assert card.notifications == []


def test_unanswered_packets_wait_for_a_route_when_the_peer_is_introduced() -> None:
    card = routed_nic()
    card.firmware.install(0, Table(1, 1, {1: Path(b"\x81", ADDRESSES[1])}))
    card.request(4, 0, 1)
    card.firmware.install(0, Table(2, 1, {}))
    card.sent.clear()
    card.introduce(1)
    assert card.sent == []
    card.firmware.install(0, Table(3, 1, {1: Path(b"\x82", ADDRESSES[1])}))
    card.elapse(10 * MILLISECOND)
    assert card.sent[0][14] == 0x82


def test_a_frame_whose_route_is_not_used_up_is_dropped() -> None:
    card = routed_nic()
    frame = codec.pack_answer(ADDRESSES[0], ADDRESSES[1], KIND_ACK, 0, 1, 0, 1, 1, 0, 0, 0, 1)
    card.firmware.receive(0, add_envelope(frame, b"\x81"))
    assert card.counter("malformed") == 1


# Whatever may come.


@given(
    kind=st.sampled_from([KIND_MESSAGE, KIND_ACK, KIND_NACK]),
    reason=st.integers(0, 7),
    numbers=st.tuples(*[st.integers(0, 3)] * 4),
    sending=st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF_FFFF)),
    about=st.tuples(
        st.integers(0, 255), st.integers(0, 255), st.integers(0, 255), st.integers(0, 255), st.integers(0, 5),
        st.integers(3, 5), st.sampled_from([0, TAG]), st.integers(0, 3), st.integers(0, 200), st.integers(0, 200),
    ),
    payload=st.binary(max_size=100),
    again=st.booleans(),
    peer=st.integers(0, 2),
)  # fmt: skip
def test_arbitrary_frames_with_right_checksums_are_harmless(
    kind: int,
    reason: int,
    numbers: tuple[int, int, int, int],
    sending: tuple[int, int, int, int],
    about: tuple[int, int, int, int, int, int, int, int, int, int],
    payload: bytes,
    again: bool,
    peer: int,
) -> None:
    card = loaded_nic(peer=peer)
    layout.set_segment_length(card.page(4), 100)
    card.request(4, 0, 1)
    if kind == KIND_MESSAGE:
        form = (about[0] % 3 if again else about[0], *about[1:])
        frame = codec.pack_message(ADDRESSES[0], ADDRESSES[1], reason, *numbers, *sending, *form, payload)
    else:
        frame = codec.pack_answer(ADDRESSES[0], ADDRESSES[1], kind, reason, *numbers, *sending, payload)
    for _ in range(2):
        card.firmware.receive(0, add_envelope(frame, b""))
    card.elapse(20 * MILLISECOND)
    assert card.page(4)[layout.SLOT_OFFSETS[0]] in (layout.IN_FLIGHT, layout.FREE, layout.RETURNED)


@given(st.lists(st.tuples(st.binary(min_size=112, max_size=112), st.integers(0, 31)), max_size=6))
def test_arbitrary_pages_of_a_host_are_harmless(entries: list[tuple[bytes, int]]) -> None:
    card = loaded_nic()
    for entry, slot in entries:
        slot_offset = layout.SLOT_OFFSETS[slot]
        card.page(4)[slot_offset : slot_offset + layout.ENTRY_SIZE] = entry
        card.page(4)[slot_offset] = layout.READY
        card.ring(4, slot)
        card.ring(4, slot)
    card.elapse(20 * MILLISECOND)
    for subject in (layout.UNLOAD, layout.RELEASED, layout.DESTROY):
        card.ring(4, subject)


@given(st.binary(max_size=120), st.booleans())
def test_garbage_is_dropped_and_counted(raw: bytes, is_addressed: bool) -> None:
    card = loaded_nic(peer=0)
    prefix = ADDRESSES[0] + ADDRESSES[1] + b"\x88\xb6\x00\x04" if is_addressed else b""
    card.firmware.receive(0, prefix + raw)
    assert card.sent == []
    assert sum(card.counter(name) for name in ("malformed", "corrupt", "strangers", "stale")) == 1
