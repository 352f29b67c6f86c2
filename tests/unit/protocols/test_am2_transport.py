"""AM-II's transport: channels, answers, times, incarnations, and arbitrary received frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.active_messages.am_errors import Status
from protocols.am2 import codec
from protocols.am2 import page as layout
from protocols.am2.codec import (
    FORM_BULK,
    FORM_LOST_REPLY,
    KIND_ACK,
    KIND_MESSAGE,
    KIND_NACK,
    REASON_BAD_TAG,
    REASON_OVERRUN,
    REASON_RESTARTED,
)
from protocols.am2.firmware import Firmware
from protocols.am2.settings import MILLISECOND, SECOND, Settings
from protocols.core.firmware import Adapter
from protocols.myrinet.envelope import add_envelope
from protocols.myrinet.mapper.route_tables import Path, Table
from tests.unit.protocols.am2_single_nic import ADDRESSES, TAG, SingleNic, read_entry

ENDPOINT, OTHER_ENDPOINT = 4, 5
FEW_RETRIES = Settings(timeout=MILLISECOND, longest_timeout=4 * MILLISECOND, retries=3)


def receiver_of(frame: bytes) -> int:
    """Return the incarnation of the peer that a message's packet is for."""
    _, _, _, _, _, _, receiver, *_ = codec.unpack_message(frame[:-1])
    return receiver


def loaded_nic(settings: Settings | None = None, incarnation: int = 1, peer: int = 1) -> SingleNic:
    nic = SingleNic(settings, incarnation, peer)
    nic.create(ENDPOINT)
    return nic


# Sending.


def test_each_packet_has_its_own_channel_until_all_are_in_use() -> None:
    nic = loaded_nic(Settings(channels=3))
    for slot in range(5):
        nic.request(ENDPOINT, slot, slot)
    first = nic.take_packets()
    assert [(packet.channel, packet.message) for packet in first] == [(0, 100), (1, 101), (2, 102)]
    nic.answer(first[1])
    assert [(packet.channel, packet.sequence, packet.message) for packet in nic.take_packets()] == [(1, 1, 103)]
    assert [nic.owner(ENDPOINT, slot) for slot in range(5)] == [layout.IN_FLIGHT, layout.FREE, *[layout.IN_FLIGHT] * 3]


def test_a_packet_is_resent_with_growing_timeouts_until_its_message_is_returned() -> None:
    nic = loaded_nic(FEW_RETRIES)
    nic.request(ENDPOINT, 0, 1)
    resend_times = [0] * len(nic.take_packets())
    while not nic.notifications:
        deadline = nic.firmware.deadline
        assert deadline is not None
        nic.elapse(deadline - nic.now)
        resend_times += [nic.now // MILLISECOND] * len(nic.take_packets())
    assert resend_times == [0, 1, 3, 7]
    assert nic.notifications == [(ENDPOINT, layout.ARRIVED_REPLIES)]
    assert read_entry(nic.page(ENDPOINT), layout.ARRIVED_REPLIES).status == Status.UNREACHABLE
    assert nic.owner(ENDPOINT, 0) == layout.RETURNED
    assert nic.firmware.deadline is None
    assert nic.firmware.pending_work() == []


def test_a_packet_that_waits_in_its_nic_is_not_resent_before_it_has_left() -> None:
    nic = loaded_nic(FEW_RETRIES)
    nic.holds_frames = True
    nic.request(ENDPOINT, 0, 1)
    nic.elapse(20 * MILLISECOND)
    assert len(nic.take_packets()) == 1
    nic.transmit_held_frames()
    nic.elapse(MILLISECOND - 1)
    assert nic.take_packets() == []
    nic.elapse(1)
    assert len(nic.take_packets()) == 1
    nic.elapse(20 * MILLISECOND)  # the resend waits, too
    assert nic.take_packets() == []
    nic.transmit_held_frames()
    nic.elapse(3 * MILLISECOND)
    assert len(nic.take_packets()) == 1


def test_an_answer_to_an_earlier_transmission_leaves_no_timer_behind() -> None:
    nic = loaded_nic(replace(FEW_RETRIES, keepalive=0))
    nic.request(ENDPOINT, 0, 1)
    first = nic.take_packets()[0]
    nic.holds_frames = True
    nic.elapse(MILLISECOND)
    assert len(nic.take_packets()) == 1
    nic.answer(first)
    nic.request(ENDPOINT, 1, 1)
    nic.transmit_held_frames()
    nic.answer(nic.take_packets()[0])
    nic.elapse(20 * MILLISECOND)
    assert nic.take_packets() == []
    assert nic.firmware.deadline is None


def test_no_timer_runs_when_all_packets_are_answered() -> None:
    nic = loaded_nic(Settings(keepalive=0))
    nic.request(ENDPOINT, 0, 1)
    nic.answer(nic.take_packets()[0])
    nic.elapse(2 * MILLISECOND)
    assert nic.firmware.deadline is None


def test_a_duplicated_or_late_answer_is_only_counted() -> None:
    nic = loaded_nic(Settings(channels=1))
    nic.request(ENDPOINT, 0, 1)
    (packet,) = nic.take_packets()
    nic.answer(packet)
    nic.request(ENDPOINT, 1, 1)
    (second,) = nic.take_packets()
    nic.answer(packet)
    nic.answer(packet, REASON_OVERRUN)
    nic.answer(packet, REASON_BAD_TAG)
    assert nic.counter("late_answers") == 3
    assert nic.owner(ENDPOINT, 1) == layout.IN_FLIGHT
    nic.answer(second)
    assert nic.owner(ENDPOINT, 1) == layout.FREE


def test_a_refused_packet_is_resent_with_another_stamp() -> None:
    nic = loaded_nic()
    nic.request(ENDPOINT, 0, 1)
    (packet,) = nic.take_packets()
    nic.answer(packet, REASON_OVERRUN)
    nic.elapse(2 * MILLISECOND)
    (resent_packet,) = nic.take_packets()
    assert resent_packet == packet._replace(stamp=resent_packet.stamp)
    assert resent_packet.stamp != packet.stamp


@pytest.mark.parametrize("reply", [False, True])
def test_a_rejected_message_is_returned_with_its_reason(reply: bool) -> None:
    nic = loaded_nic()
    slot = 16 if reply else 0
    nic.request(ENDPOINT, slot, 1)
    nic.answer(nic.take_packets()[0], REASON_BAD_TAG)
    entry = read_entry(nic.page(ENDPOINT), layout.ARRIVED_REPLIES)
    status = Status.REPLY_REJECTED if reply else Status.BAD_TAG
    assert (entry.owner, entry.status, entry.node, entry.length) == (layout.READY, status, 0, slot)


def test_messages_are_returned_as_the_reply_ring_has_room() -> None:
    nic = loaded_nic(Settings(scan=MILLISECOND))
    for slot in range(20):
        nic.request(ENDPOINT, slot, 1)
    for packet in nic.take_packets():
        nic.answer(packet, REASON_BAD_TAG)
    assert len(nic.notifications) == 16
    nic.page(ENDPOINT)[layout.SLOT_OFFSETS[layout.ARRIVED_REPLIES]] = layout.FREE
    nic.elapse(2 * MILLISECOND)
    assert len(nic.notifications) == 17


def test_the_host_is_notified_of_a_free_slot_only_on_request() -> None:
    nic = loaded_nic()
    nic.request(ENDPOINT, 0, 1)
    nic.request(ENDPOINT, 1, 1)
    first, second = nic.take_packets()
    nic.answer(first)
    assert nic.notifications == []
    nic.page(ENDPOINT)[layout.NOTIFY_OFFSET] = 1
    nic.answer(second)
    assert nic.notifications == [(ENDPOINT, 1)]
    assert not nic.page(ENDPOINT)[layout.NOTIFY_OFFSET]


@pytest.mark.parametrize(
    ("offset", "value"), [(2, 99), (23, 17), (20, 3), (21, 1), (25, 5)], ids=["node", "count", "form", "ring", "origin"]
)
def test_an_invalid_entry_is_returned_and_not_sent(offset: int, value: int) -> None:
    nic = loaded_nic()
    nic.write(ENDPOINT, 0, 1)
    nic.page(ENDPOINT)[layout.SLOT_OFFSETS[0] + offset] = value
    nic.ring_doorbell(ENDPOINT, 0)
    assert nic.take_packets() == []
    assert nic.counter("invalid") == 1
    assert read_entry(nic.page(ENDPOINT), layout.ARRIVED_REPLIES).status == Status.BAD_ARGUMENTS


def test_a_nic_loiters_with_an_endpoint_for_its_attempts_before_it_sends_for_others() -> None:
    nic = loaded_nic(Settings(attempts=2, attempt=1_000))
    nic.create(OTHER_ENDPOINT)
    nic.request(ENDPOINT, 0, 1)
    nic.request(OTHER_ENDPOINT, 0, 1)
    nic.elapse(1_000)
    nic.request(ENDPOINT, 1, 1)
    assert [packet.origin for packet in nic.take_packets()] == [ENDPOINT, ENDPOINT]
    assert nic.firmware.deadline == 4_000
    nic.elapse(3_000)
    assert [packet.origin for packet in nic.take_packets()] == [OTHER_ENDPOINT]
    nic.request(ENDPOINT, 2, 1)
    assert nic.take_packets() == []
    nic.elapse(4_000)
    assert [packet.origin for packet in nic.take_packets()] == [ENDPOINT]


def test_the_turn_of_an_endpoint_ends_when_it_is_unloaded() -> None:
    nic = loaded_nic(Settings(attempts=2, attempt=1_000, stay=0))
    nic.create(OTHER_ENDPOINT)
    nic.request(ENDPOINT, 0, 1)
    nic.answer(nic.take_packets()[0])
    nic.request(OTHER_ENDPOINT, 0, 1)
    assert nic.take_packets() == []
    nic.ring_doorbell(ENDPOINT, layout.UNLOAD)
    nic.elapse(1)
    assert [packet.origin for packet in nic.take_packets()] == [OTHER_ENDPOINT]


def test_loitering_is_off_with_an_attempt_of_0() -> None:
    """Section "Endpoint scheduling": the NIC stays with an empty endpoint, since its host may write more."""
    for settings, origins in ((Settings(), [ENDPOINT]), (Settings(attempt=0), [ENDPOINT, OTHER_ENDPOINT])):
        nic = loaded_nic(settings)
        nic.create(OTHER_ENDPOINT)
        nic.request(ENDPOINT, 0, 1)
        nic.request(OTHER_ENDPOINT, 0, 1)
        assert [packet.origin for packet in nic.take_packets()] == origins


# Receiving.


def test_a_duplicated_packet_is_answered_again_and_not_delivered() -> None:
    nic = loaded_nic()
    first = nic.receive_message(ENDPOINT, 1)
    assert nic.receive_message(ENDPOINT, 1, stamp=2) == [first[0]._replace(stamp=2)]
    wrong_tag = nic.receive_message(ENDPOINT, 1, tag=TAG + 1, channel=1)
    assert wrong_tag[0].verdict == (KIND_NACK, REASON_BAD_TAG)
    assert nic.receive_message(ENDPOINT, 1, tag=TAG + 1, channel=1, stamp=2)[0].verdict == (KIND_NACK, REASON_BAD_TAG)
    assert len(nic.notifications) == 1
    assert nic.counter("duplicates") == 2


def test_a_message_to_its_own_node_is_delivered_without_a_frame() -> None:
    nic = loaded_nic()
    nic.write(ENDPOINT, 0, 42)
    slot_offset = layout.SLOT_OFFSETS[0]
    nic.page(ENDPOINT)[slot_offset + 3] = 0
    nic.page(ENDPOINT)[slot_offset + layout.MESSAGE_OFFSET + 6 : slot_offset + layout.MESSAGE_OFFSET + 8] = b"\0\4"
    nic.ring_doorbell(ENDPOINT, 0)
    assert nic.sent == []
    assert nic.notifications == [(ENDPOINT, layout.ARRIVED_REQUESTS)]
    assert nic.owner(ENDPOINT, 0) == layout.FREE


def test_a_frame_with_its_own_source_address_is_dropped() -> None:
    nic = loaded_nic()
    frame = codec.pack_answer(ADDRESSES[0], ADDRESSES[0], KIND_ACK, 0, 0, 0, 1, 1, 0, 0, 0, 1)
    nic.firmware.receive(0, add_envelope(frame, b""))
    assert nic.counter("strangers") == 1


# Incarnations.


@pytest.mark.parametrize("incarnation", [1, 5])
def test_a_packet_for_another_incarnation_is_answered_with_the_present_one(
    incarnation: int,
) -> None:
    nic = loaded_nic(incarnation=incarnation)
    for receiver in (0, incarnation - 1, incarnation + 1):
        assert nic.receive_message(ENDPOINT, 1, receiver=receiver)[0].verdict == (KIND_NACK, REASON_RESTARTED)
    assert nic.notifications == []
    assert nic.receive_message(ENDPOINT, 1, receiver=incarnation)[0].kind == KIND_ACK


def test_without_acknowledgements_a_packet_for_incarnation_0_is_accepted() -> None:
    nic = loaded_nic(Settings(reliable=False), incarnation=5)
    assert nic.receive_message(ENDPOINT, 1, receiver=0) == []
    assert nic.notifications == [(ENDPOINT, layout.ARRIVED_REQUESTS)]
    assert nic.receive_message(ENDPOINT, 1, receiver=4)[0].verdict == (KIND_NACK, REASON_RESTARTED)
    assert len(nic.notifications) == 1


@pytest.mark.parametrize("incarnation", [1, 7])
def test_packets_sent_before_the_peers_incarnation_is_known_are_resent_as_first_transmissions(
    incarnation: int,
) -> None:
    nic = loaded_nic(FEW_RETRIES, peer=0)
    nic.request(ENDPOINT, 0, 1)
    nic.elapse(2 * MILLISECOND)
    assert {receiver_of(frame) for frame in nic.sent} == {0}
    first, *_, last = nic.take_packets()
    nic.introduce(incarnation)
    assert receiver_of(nic.sent[0]) == incarnation
    (resent_packet,) = nic.take_packets()
    assert resent_packet == first._replace(stamp=resent_packet.stamp)
    assert resent_packet.stamp > last.stamp
    assert nic.notifications == []
    nic.elapse(7 * MILLISECOND)
    assert len(nic.take_packets()) == 3  # the maximum number of retries, at the intervals of a first transmission
    nic.elapse(4 * MILLISECOND)
    assert nic.notifications == [(ENDPOINT, layout.ARRIVED_REPLIES)]


def test_messages_in_progress_to_a_restarted_peer_are_returned_and_later_ones_sent() -> None:
    nic = loaded_nic(peer=7)
    nic.request(ENDPOINT, 0, 1)
    nic.take_packets()
    nic.introduce(8)
    assert nic.notifications == [(ENDPOINT, layout.ARRIVED_REPLIES), (1, layout.LOST)]
    assert nic.counter("restarts") == 1
    nic.request(ENDPOINT, 1, 1)
    assert receiver_of(nic.sent.pop()) == 8
    nic.introduce(7)
    assert nic.counter("restarts") == 1
    assert nic.receive_message(ENDPOINT, 1, sender=7) == []
    assert nic.receive_message(ENDPOINT, 1, sender=8)[0].kind == KIND_ACK


def test_parts_of_a_bulk_message_from_a_former_incarnation_are_discarded() -> None:
    nic = loaded_nic()
    layout.set_segment_length(nic.page(ENDPOINT), 100)
    nic.memory.mapped_regions[ENDPOINT << layout.SUBJECT_BITS | layout.SEGMENT] = memoryview(bytearray(100))
    nic.receive_message(ENDPOINT, form=FORM_BULK, data=b"abc", total=6)
    nic.receive_message(ENDPOINT, form=FORM_BULK, data=b"def", total=6, offset=3, sender=2)
    assert nic.notifications == [(1, layout.LOST)]
    nic.receive_message(ENDPOINT, form=FORM_BULK, data=b"abc", total=6, sender=2, channel=1)
    assert nic.notifications[-1] == (ENDPOINT, layout.ARRIVED_REQUESTS)


@pytest.mark.parametrize(
    ("is_reply", "end"),
    [
        (False, {"form": FORM_BULK, "data": b"x", "total": 6, "offset": 100}),
        (False, {"form": FORM_BULK, "data": b"x", "total": 6, "tag": TAG + 1}),
        (True, {"form": FORM_LOST_REPLY}),
    ],
    ids=["bad segment", "bad tag", "lost reply"],
)
def test_parts_of_a_bulk_message_that_has_ended_undelivered_are_discarded(is_reply: bool, end: dict[str, Any]) -> None:
    nic = loaded_nic()
    page = nic.page(ENDPOINT)
    layout.set_segment_length(page, 100)
    layout.set_tag(page, TAG)
    nic.memory.mapped_regions[ENDPOINT << layout.SUBJECT_BITS | layout.SEGMENT] = memoryview(bytearray(100))
    nic.receive_message(ENDPOINT, form=FORM_BULK, data=b"abc", total=6, reply=is_reply)
    nic.receive_message(ENDPOINT, channel=1, reply=is_reply, **end)
    nic.notifications.clear()
    nic.receive_message(ENDPOINT, form=FORM_BULK, data=b"def", total=6, offset=3, channel=2, reply=is_reply)
    assert nic.notifications == []
    nic.receive_message(ENDPOINT, form=FORM_BULK, data=b"abc", total=6, channel=3, reply=is_reply)
    assert nic.notifications == [(ENDPOINT, layout.ARRIVED_REPLIES if is_reply else layout.ARRIVED_REQUESTS)]


# Routes.


def routed_nic(settings: Settings | None = None) -> SingleNic:
    nic = SingleNic()
    nic.firmware = Firmware(Adapter(0, ADDRESSES, routed=True), nic, nic.memory, settings or Settings())
    nic.create(ENDPOINT)
    return nic


def test_messages_wait_for_the_first_routes() -> None:
    nic = routed_nic()
    nic.request(ENDPOINT, 0, 1)
    assert nic.sent == []
    nic.firmware.install(0, Table(1, 1, {1: Path(b"\x81\x82", ADDRESSES[1])}))
    assert nic.sent[0][14:18] == b"\x81\x82\x00\x04"
    assert nic.sent[0][:6] == ADDRESSES[1]


def test_without_acknowledgements_messages_that_waited_for_routes_are_sent_once() -> None:
    nic = routed_nic(Settings(reliable=False))
    nic.request(ENDPOINT, 0, 1)
    nic.firmware.install(0, Table(1, 1, {1: Path(b"\x81\x82", ADDRESSES[1])}))
    assert (len(nic.sent), nic.owner(ENDPOINT, 0), nic.firmware.deadline) == (1, layout.FREE, None)
    nic.introduce(1)
    assert len(nic.sent) == 1


def test_messages_without_a_route_are_unreachable_after_the_detour_time() -> None:
    nic = routed_nic()
    nic.firmware.install(0, Table(1, 1, {1: Path(b"\x81", ADDRESSES[1])}))
    nic.request(ENDPOINT, 0, 1)
    nic.firmware.install(0, Table(2, 1, {}))
    nic.request(ENDPOINT, 1, 1)
    nic.elapse(2 * SECOND - 10 * MILLISECOND)
    assert nic.notifications == []
    nic.elapse(20 * MILLISECOND)
    assert sorted(nic.notifications) == [(ENDPOINT, layout.ARRIVED_REPLIES), (ENDPOINT, layout.ARRIVED_REPLIES + 1)]
    nic.request(ENDPOINT, 2, 1)
    assert nic.notifications[-1] == (ENDPOINT, layout.ARRIVED_REPLIES + 2)


def test_messages_that_waited_for_a_route_use_it() -> None:
    nic = routed_nic()
    nic.firmware.install(0, Table(1, 1, {1: Path(b"\x81", ADDRESSES[1])}))
    nic.request(ENDPOINT, 0, 1)
    nic.firmware.install(0, Table(2, 1, {}))
    nic.request(ENDPOINT, 1, 1)
    nic.elapse(1 * SECOND)
    sent_before = len(nic.sent)
    nic.firmware.install(nic.now, Table(3, 1, {1: Path(b"\x82", ADDRESSES[1])}))
    nic.elapse(10 * MILLISECOND)
    assert {frame[14] for frame in nic.sent[sent_before:]} == {0x82}
    assert len(nic.sent) - sent_before >= 2
    nic.elapse(3 * SECOND)
    assert nic.notifications == []


def test_unanswered_packets_wait_for_a_route_when_the_peer_is_introduced() -> None:
    nic = routed_nic()
    nic.firmware.install(0, Table(1, 1, {1: Path(b"\x81", ADDRESSES[1])}))
    nic.request(ENDPOINT, 0, 1)
    nic.firmware.install(0, Table(2, 1, {}))
    nic.sent.clear()
    nic.introduce(1)
    assert nic.sent == []
    nic.firmware.install(0, Table(3, 1, {1: Path(b"\x82", ADDRESSES[1])}))
    nic.elapse(10 * MILLISECOND)
    assert nic.sent[0][14] == 0x82


def test_a_frame_whose_route_is_not_used_up_is_dropped() -> None:
    nic = routed_nic()
    frame = codec.pack_answer(ADDRESSES[0], ADDRESSES[1], KIND_ACK, 0, 1, 0, 1, 1, 0, 0, 0, 1)
    nic.firmware.receive(0, add_envelope(frame, b"\x81"))
    assert nic.counter("malformed") == 1


# Arbitrary frames and pages.


@given(
    kind=st.sampled_from([KIND_MESSAGE, KIND_ACK, KIND_NACK]),
    reason=st.integers(0, 7),
    identity=st.tuples(*[st.integers(0, 3)] * 4),
    channel_fields=st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF_FFFF)),
    message_fields=st.tuples(
        st.integers(0, 255), st.integers(0, 255), st.integers(0, 255), st.integers(0, 255), st.integers(0, 5),
        st.integers(3, 5), st.sampled_from([0, TAG]), st.integers(0, 3), st.integers(0, 200), st.integers(0, 200),
    ),
    payload=st.binary(max_size=100),
    has_valid_form=st.booleans(),
    peer=st.integers(0, 2),
)  # fmt: skip
def test_arbitrary_frames_with_valid_checksums_are_harmless(
    kind: int,
    reason: int,
    identity: tuple[int, int, int, int],
    channel_fields: tuple[int, int, int, int],
    message_fields: tuple[int, int, int, int, int, int, int, int, int, int],
    payload: bytes,
    has_valid_form: bool,
    peer: int,
) -> None:
    nic = loaded_nic(peer=peer)
    layout.set_segment_length(nic.page(ENDPOINT), 100)
    nic.request(ENDPOINT, 0, 1)
    if kind == KIND_MESSAGE:
        fields = (message_fields[0] % 3 if has_valid_form else message_fields[0], *message_fields[1:])
        frame = codec.pack_message(ADDRESSES[0], ADDRESSES[1], reason, *identity, *channel_fields, *fields, payload)
    else:
        frame = codec.pack_answer(ADDRESSES[0], ADDRESSES[1], kind, reason, *identity, *channel_fields, payload)
    for _ in range(2):
        nic.firmware.receive(0, add_envelope(frame, b""))
    nic.elapse(20 * MILLISECOND)
    assert nic.page(ENDPOINT)[layout.SLOT_OFFSETS[0]] in (layout.IN_FLIGHT, layout.FREE, layout.RETURNED)


@given(st.lists(st.tuples(st.binary(min_size=112, max_size=112), st.integers(0, 31)), max_size=6))
def test_arbitrary_pages_of_a_host_are_harmless(entries: list[tuple[bytes, int]]) -> None:
    nic = loaded_nic()
    for entry, slot in entries:
        slot_offset = layout.SLOT_OFFSETS[slot]
        nic.page(ENDPOINT)[slot_offset : slot_offset + layout.ENTRY_SIZE] = entry
        nic.page(ENDPOINT)[slot_offset] = layout.READY
        nic.ring_doorbell(ENDPOINT, slot)
        nic.ring_doorbell(ENDPOINT, slot)
    nic.elapse(20 * MILLISECOND)
    for subject in (layout.UNLOAD, layout.RELEASED, layout.DESTROY):
        nic.ring_doorbell(ENDPOINT, subject)


@given(st.binary(max_size=120), st.booleans())
def test_garbage_is_dropped_and_counted(raw: bytes, is_addressed: bool) -> None:
    nic = loaded_nic(peer=0)
    prefix = ADDRESSES[0] + ADDRESSES[1] + b"\x88\xb6\x00\x04" if is_addressed else b""
    nic.firmware.receive(0, prefix + raw)
    assert nic.sent == []
    assert sum(nic.counter(name) for name in ("malformed", "corrupt", "strangers", "stale")) == 1
