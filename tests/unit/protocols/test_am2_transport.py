"""AM-II's transport: channels, answers, times, incarnations, and all that may come by a wire."""

from __future__ import annotations

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
from protocols.myrinet.envelope import sealed
from protocols.myrinet.mapper.route_tables import Path, Table
from tests.unit.protocols.am2_single_nic import ADDRESSES, TAG, SingleNic

FEW = Settings(timeout=MILLISECOND, longest_timeout=4 * MILLISECOND, retries=3)


def receiver_of(frame: bytes) -> int:
    """Return the incarnation of the peer that a message's packet is for."""
    _, _, _, _, _, _, receiver, *_ = codec.unpack_message(frame[:-1])
    return receiver


def ready(own: Settings | None = None, incarnation: int = 1, peer: int = 1) -> SingleNic:
    card = SingleNic(own, incarnation, peer)
    card.create(4)
    return card


# Sending.


def test_messages_are_on_channels_of_their_own_until_these_are_all_taken() -> None:
    card = ready(Settings(channels=3))
    for slot in range(5):
        card.request(4, slot, slot)
    first = card.taken()
    assert [(packet.channel, packet.message) for packet in first] == [(0, 100), (1, 101), (2, 102)]
    card.answer(first[1])
    assert [(packet.channel, packet.sequence, packet.message) for packet in card.taken()] == [(1, 1, 103)]
    assert [card.owner(4, slot) for slot in range(5)] == [2, 0, 2, 2, 2]


def test_a_packet_is_sent_again_ever_later_until_the_peer_is_given_up_and_the_message_comes_back() -> None:
    card = ready(FEW)
    card.request(4, 0, 1)
    times = [0] * len(card.taken())
    while not card.told:
        deadline = card.firmware.deadline
        assert deadline is not None
        card.elapse(deadline - card.now)
        times += [card.now // MILLISECOND] * len(card.taken())
    assert times == [0, 1, 3, 7]
    assert card.told == [(4, layout.ARRIVED_REPLIES)]
    assert layout.HEAD.unpack_from(card.page(4), layout.PLACES[layout.ARRIVED_REPLIES])[1] == Status.UNREACHABLE
    assert card.owner(4, 0) == layout.RETURNED
    assert card.firmware.deadline is None
    assert card.firmware.waiting() == []


def test_a_packet_that_waits_in_its_nic_is_not_resent_before_it_has_left() -> None:
    card = ready(FEW)
    card.holds = True
    card.request(4, 0, 1)
    card.elapse(20 * MILLISECOND)
    assert len(card.taken()) == 1
    card.leave()
    card.elapse(MILLISECOND - 1)
    assert card.taken() == []
    card.elapse(1)
    assert len(card.taken()) == 1
    card.elapse(20 * MILLISECOND)  # the resend waits, too
    assert card.taken() == []
    card.leave()
    card.elapse(3 * MILLISECOND)
    assert len(card.taken()) == 1


def test_an_answer_to_an_earlier_sending_leaves_no_timer_behind() -> None:
    card = ready(FEW)
    card.request(4, 0, 1)
    first = card.taken()[0]
    card.holds = True
    card.elapse(MILLISECOND)
    assert len(card.taken()) == 1
    card.answer(first)
    card.request(4, 1, 1)
    card.leave()
    card.answer(card.taken()[0])
    card.elapse(20 * MILLISECOND)
    assert card.taken() == []
    assert card.firmware.deadline is None


def test_nothing_is_looked_at_when_everything_is_answered() -> None:
    card = ready()
    card.request(4, 0, 1)
    card.answer(card.taken()[0])
    card.elapse(2 * MILLISECOND)
    assert card.firmware.deadline is None


def test_an_answer_that_comes_twice_or_late_is_counted_and_nothing_else() -> None:
    card = ready(Settings(channels=1))
    card.request(4, 0, 1)
    (sent,) = card.taken()
    card.answer(sent)
    card.request(4, 1, 1)
    (second,) = card.taken()
    card.answer(sent)
    card.answer(sent, REASON_OVERRUN)
    card.answer(sent, REASON_BAD_TAG)
    assert card.counted("late_answers") == 3
    assert card.owner(4, 1) == layout.UNDER_WAY
    card.answer(second)
    assert card.owner(4, 1) == layout.FREE


def test_what_was_refused_is_sent_again_after_a_while_as_the_same_packet_of_another_stamp() -> None:
    card = ready()
    card.request(4, 0, 1)
    (sent,) = card.taken()
    card.answer(sent, REASON_OVERRUN)
    card.elapse(2 * MILLISECOND)
    (again,) = card.taken()
    assert again[1:4] == sent[1:4]
    assert again.stamp != sent.stamp


@pytest.mark.parametrize("reply", [False, True])
def test_what_is_undone_comes_back_with_its_reason(reply: bool) -> None:
    card = ready()
    slot = 16 if reply else 0
    card.request(4, slot, 1)
    card.answer(card.taken()[0], REASON_BAD_TAG)
    entry = layout.HEAD.unpack_from(card.page(4), layout.PLACES[layout.ARRIVED_REPLIES])
    assert entry[:4] == (layout.READY, Status.REPLY_REJECTED if reply else Status.BAD_TAG, 0, slot)


def test_messages_come_back_as_far_as_there_is_room_and_the_rest_later() -> None:
    card = ready(Settings(scan=MILLISECOND))
    for slot in range(20):
        card.request(4, slot, 1)
    for sent in card.taken():
        card.answer(sent, REASON_BAD_TAG)
    assert len(card.told) == 16
    card.page(4)[layout.PLACES[layout.ARRIVED_REPLIES]] = layout.FREE
    card.elapse(2 * MILLISECOND)
    assert len(card.told) == 17


def test_the_host_is_told_of_a_free_slot_only_if_it_wants_one() -> None:
    card = ready()
    card.request(4, 0, 1)
    card.request(4, 1, 1)
    first, second = card.taken()
    card.answer(first)
    assert card.told == []
    card.page(4)[layout.WANTS] = 1
    card.answer(second)
    assert card.told == [(4, 1)]
    assert not card.page(4)[layout.WANTS]


@pytest.mark.parametrize(
    ("place", "value"), [(2, 99), (23, 17), (20, 3), (21, 1), (25, 5)], ids=["node", "count", "form", "ring", "origin"]
)
def test_an_entry_that_makes_no_sense_comes_back_and_is_not_sent(place: int, value: int) -> None:
    card = ready()
    card.write(4, 0, 1)
    card.page(4)[layout.PLACES[0] + place] = value
    card.ring(4, 0)
    assert card.taken() == []
    assert card.counted("invalid") == 1
    assert layout.HEAD.unpack_from(card.page(4), layout.PLACES[layout.ARRIVED_REPLIES])[1] == Status.BAD_ARGUMENTS


def test_a_nic_that_loiters_stays_with_an_endpoint_for_its_attempts_and_then_sends_what_others_have() -> None:
    card = ready(Settings(attempts=2, attempt=1_000))
    card.create(5)
    card.request(4, 0, 1)
    card.request(5, 0, 1)
    card.elapse(1_000)
    card.request(4, 1, 1)
    assert [packet.origin for packet in card.taken()] == [4, 4]
    assert card.firmware.deadline == 4_000
    card.elapse(3_000)
    assert [packet.origin for packet in card.taken()] == [5]
    card.request(4, 2, 1)
    assert card.taken() == []
    card.elapse(4_000)
    assert [packet.origin for packet in card.taken()] == [4]


def test_a_nic_stays_no_longer_with_an_endpoint_that_leaves() -> None:
    card = ready(Settings(attempts=2, attempt=1_000, stay=0))
    card.create(5)
    card.request(4, 0, 1)
    card.answer(card.taken()[0])
    card.request(5, 0, 1)
    assert card.taken() == []
    card.ring(4, layout.UNLOAD)
    card.elapse(1)
    assert [one[5] for one in card.taken()] == [5]


def test_a_nic_loiters_unless_it_is_told_not_to() -> None:
    """Section "Endpoint scheduling": it holds on to an endpoint that has become empty, for which its host may write more."""
    for own, sent in ((Settings(), [4]), (Settings(attempt=0), [4, 5])):
        card = ready(own)
        card.create(5)
        card.request(4, 0, 1)
        card.request(5, 0, 1)
        assert [one[5] for one in card.taken()] == sent


# Receiving.


def test_a_packet_that_comes_again_is_answered_as_before_and_not_delivered() -> None:
    card = ready()
    first = card.arrive(4, 1)
    assert card.arrive(4, 1, stamp=2) == [(*first[0][:5], 2)]
    wrong = card.arrive(4, 1, tag=TAG + 1, channel=1)
    assert wrong[0][:2] == (KIND_NACK, REASON_BAD_TAG)
    assert card.arrive(4, 1, tag=TAG + 1, channel=1, stamp=2)[0][:2] == (KIND_NACK, REASON_BAD_TAG)
    assert len(card.told) == 1
    assert card.counted("duplicates") == 2


def test_a_message_to_itself_needs_no_wire() -> None:
    card = ready()
    card.write(4, 0, 42)
    place = layout.PLACES[0]
    card.page(4)[place + 3] = 0
    card.page(4)[place + layout.MESSAGE + 6 : place + layout.MESSAGE + 8] = b"\0\4"
    card.ring(4, 0)
    assert card.sent == []
    assert card.told == [(4, layout.ARRIVED_REQUESTS)]
    assert card.owner(4, 0) == layout.FREE


def test_a_frame_of_its_own_that_comes_back_by_a_wire_is_a_strangers() -> None:
    card = ready()
    frame = codec.pack_answer(ADDRESSES[0], ADDRESSES[0], KIND_ACK, 0, 0, 0, 1, 1, 0, 0, 0, 1)
    card.firmware.receive(0, sealed(frame, b""))
    assert card.counted("strangers") == 1


# Incarnations.


@pytest.mark.parametrize("incarnation", [1, 5])
def test_nobody_takes_what_is_not_meant_for_him_but_says_who_he_is_and_takes_what_is_sent_then(
    incarnation: int,
) -> None:
    card = ready(incarnation=incarnation)
    for meant in (0, incarnation - 1, incarnation + 1):
        assert card.arrive(4, 1, receiver=meant)[0][:2] == (KIND_NACK, REASON_RESTARTED)
    assert card.told == []
    assert card.arrive(4, 1, receiver=incarnation)[0][0] == KIND_ACK


def test_without_acknowledgements_what_knows_of_nobody_is_taken_as_it_does_not_come_again() -> None:
    card = ready(Settings(reliable=False), incarnation=5)
    assert card.arrive(4, 1, receiver=0) == []
    assert card.told == [(4, layout.ARRIVED_REQUESTS)]
    assert card.arrive(4, 1, receiver=4)[0][:2] == (KIND_NACK, REASON_RESTARTED)
    assert len(card.told) == 1


@pytest.mark.parametrize("incarnation", [1, 7])
def test_what_was_sent_before_a_peer_has_said_who_it_is_is_sent_again_to_that_incarnation_as_if_for_the_first_time(
    incarnation: int,
) -> None:
    card = ready(FEW, peer=0)
    card.request(4, 0, 1)
    card.elapse(2 * MILLISECOND)
    assert {receiver_of(frame) for frame in card.sent} == {0}
    first, *_, last = card.taken()
    card.introduce(incarnation)
    assert receiver_of(card.sent[0]) == incarnation
    (again,) = card.taken()
    assert again[:4] == first[:4]
    assert again.stamp > last.stamp
    assert card.told == []
    card.elapse(7 * MILLISECOND)
    assert len(card.taken()) == 3  # all the retries that there are, after the times of a first sending
    card.elapse(4 * MILLISECOND)
    assert card.told == [(4, layout.ARRIVED_REPLIES)]


def test_a_peer_that_has_started_again_has_all_messages_to_it_come_back_and_later_ones_go_there() -> None:
    card = ready(peer=7)
    card.request(4, 0, 1)
    card.taken()
    card.introduce(8)
    assert card.told == [(4, layout.ARRIVED_REPLIES), (1, layout.RESTARTED)]
    assert card.counted("restarts") == 1
    card.request(4, 1, 1)
    assert receiver_of(card.sent.pop()) == 8
    card.introduce(7)
    assert card.counted("restarts") == 1
    assert card.arrive(4, 1, sender=7) == []
    assert card.arrive(4, 1, sender=8)[0][0] == KIND_ACK


def test_parts_of_a_bulk_message_from_an_incarnation_that_is_gone_are_forgotten() -> None:
    card = ready()
    layout.set_segment(card.page(4), 100)
    card.memory.reachable[4 << layout.SUBJECTS | layout.SEGMENT] = memoryview(bytearray(100))
    card.arrive(4, form=2, data=b"abc", total=6)
    card.arrive(4, form=2, data=b"def", total=6, offset=3, sender=2)
    assert card.told == [(1, layout.RESTARTED)]
    card.arrive(4, form=2, data=b"abc", total=6, sender=2, channel=1)
    assert card.told[-1] == (4, layout.ARRIVED_REQUESTS)


# Routes.


def routed(own: Settings | None = None) -> SingleNic:
    card = SingleNic()
    card.firmware = Firmware(Adapter(0, ADDRESSES, routed=True), card, card.memory, own or Settings())
    card.create(4)
    return card


def test_messages_wait_for_the_first_map_and_go_by_its_routes() -> None:
    card = routed()
    card.request(4, 0, 1)
    assert card.sent == []
    card.firmware.install(0, Table(1, 1, {1: Path(b"\x81\x82", ADDRESSES[1])}))
    assert card.sent[0][14:18] == b"\x81\x82\x00\x04"
    assert card.sent[0][:6] == ADDRESSES[1]


def test_without_acknowledgements_what_has_waited_for_a_map_is_sent_once() -> None:
    card = routed(Settings(reliable=False))
    card.request(4, 0, 1)
    card.firmware.install(0, Table(1, 1, {1: Path(b"\x81\x82", ADDRESSES[1])}))
    assert (len(card.sent), card.owner(4, 0), card.firmware.deadline) == (1, layout.FREE, None)
    card.introduce(1)
    assert len(card.sent) == 1


def test_without_a_route_messages_wait_for_another_one_for_a_time_and_are_unreachable_then() -> None:
    card = routed()
    card.firmware.install(0, Table(1, 1, {1: Path(b"\x81", ADDRESSES[1])}))
    card.request(4, 0, 1)
    card.firmware.install(0, Table(2, 1, {}))
    card.request(4, 1, 1)
    card.elapse(2 * SECOND - 10 * MILLISECOND)
    assert card.told == []
    card.elapse(20 * MILLISECOND)
    assert sorted(card.told) == [(4, layout.ARRIVED_REPLIES), (4, layout.ARRIVED_REPLIES + 1)]
    card.request(4, 2, 1)
    assert card.told[-1] == (4, layout.ARRIVED_REPLIES + 2)


def test_messages_that_have_waited_for_a_route_go_by_it() -> None:
    card = routed()
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
    assert card.told == []


def test_what_is_under_way_waits_for_a_route_also_when_its_peer_has_said_who_it_is() -> None:
    card = routed()
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
    card = routed()
    frame = codec.pack_answer(ADDRESSES[0], ADDRESSES[1], KIND_ACK, 0, 1, 0, 1, 1, 0, 0, 0, 1)
    card.firmware.receive(0, sealed(frame, b"\x81"))
    assert card.counted("malformed") == 1


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
def test_a_frame_whose_check_fits_and_that_says_anything_harms_nothing(
    kind: int,
    reason: int,
    numbers: tuple[int, int, int, int],
    sending: tuple[int, int, int, int],
    about: tuple[int, int, int, int, int, int, int, int, int, int],
    payload: bytes,
    again: bool,
    peer: int,
) -> None:
    card = ready(peer=peer)
    layout.set_segment(card.page(4), 100)
    card.request(4, 0, 1)
    if kind == KIND_MESSAGE:
        form = (about[0] % 3 if again else about[0], *about[1:])
        frame = codec.pack_message(ADDRESSES[0], ADDRESSES[1], reason, *numbers, *sending, *form, payload)
    else:
        frame = codec.pack_answer(ADDRESSES[0], ADDRESSES[1], kind, reason, *numbers, *sending, payload)
    for _ in range(2):
        card.firmware.receive(0, sealed(frame, b""))
    card.elapse(20 * MILLISECOND)
    assert card.page(4)[layout.PLACES[0]] in (layout.UNDER_WAY, layout.FREE, layout.RETURNED)


@given(st.lists(st.tuples(st.binary(min_size=112, max_size=112), st.integers(0, 31)), max_size=6))
def test_whatever_a_host_writes_into_its_page_harms_nothing(entries: list[tuple[bytes, int]]) -> None:
    card = ready()
    for entry, slot in entries:
        at = layout.PLACES[slot]
        card.page(4)[at : at + layout.ENTRY] = entry
        card.page(4)[at] = layout.READY
        card.ring(4, slot)
        card.ring(4, slot)
    card.elapse(20 * MILLISECOND)
    for subject in (layout.UNLOAD, layout.RELEASED, layout.DESTROY):
        card.ring(4, subject)


@given(st.binary(max_size=120), st.booleans())
def test_garbage_is_dropped_and_counted(raw: bytes, is_addressed: bool) -> None:
    card = ready(peer=0)
    begin = ADDRESSES[0] + ADDRESSES[1] + b"\x88\xb6\x00\x04" if is_addressed else b""
    card.firmware.receive(0, begin + raw)
    assert card.sent == []
    assert sum(card.counted(name) for name in ("malformed", "corrupt", "strangers", "stale")) == 1
