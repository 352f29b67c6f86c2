"""AM-II announces a destroyed endpoint to peers with pending requests, and repeats lost announcements."""

from __future__ import annotations

import pytest

from protocols.am2 import page as layout
from protocols.am2.codec import KIND_ACK, REASON_RESTARTED
from protocols.am2.firmware import Firmware
from protocols.am2.settings import MILLISECOND, SECOND, Settings
from protocols.core.firmware import Adapter
from protocols.myrinet.mapper.route_tables import Path, Table
from tests.unit.protocols.am2_single_nic import ADDRESSES, SentMessage, SingleNic

QUICK = Settings(timeout=MILLISECOND, longest_timeout=4 * MILLISECOND, retries=3, detour=10 * MILLISECOND)
GIVEN_UP = 20 * MILLISECOND
"""After which a message is, if nothing is answered."""
DAY = 24 * 3600 * SECOND
FREED = (4, 5, 6)
OTHER = 7
ROUTES_TO_PEER = {1: Path(b"", ADDRESSES[1])}


def take_messages(card: SingleNic) -> list[SentMessage]:
    """Return the messages sent to the peer, without answers."""
    return [packet for packet in card.take_packets() if isinstance(packet, SentMessage)]


def announced_endpoints(card: SingleNic) -> list[int]:
    """Return the endpoints whose end was announced."""
    return [notice.origin for notice in take_messages(card)]


def nic_with_freed_endpoints(card: SingleNic | None = None) -> SingleNic:
    """Free endpoints that have received requests."""
    card = card or SingleNic(QUICK)
    for channel, endpoint in enumerate((*FREED, OTHER)):
        card.create(endpoint)
        if endpoint != OTHER:
            assert card.arrive(endpoint, 1, channel=channel)[0][0] == KIND_ACK
    for endpoint in FREED:
        card.ring(endpoint, layout.DESTROY)
    return card


def nic_with_pending_notices() -> SingleNic:
    """Return a NIC whose announcements were never answered and have been given up."""
    card = nic_with_freed_endpoints()
    card.elapse(GIVEN_UP)
    assert announced_endpoints(card) == [*FREED] * 4
    assert card.firmware.pending_work() == ["node 1 does not acknowledge that these endpoints are gone: 4, 5, 6"]
    return card


def next_notice(card: SingleNic) -> SentMessage:
    """The one notice that is sent when it is time."""
    deadline = card.firmware.deadline
    assert deadline is not None
    card.elapse(deadline - card.now)
    (notice,) = take_messages(card)
    return notice


def is_idle_for_a_day(card: SingleNic) -> bool:
    card.elapse(DAY)
    return (card.sent, card.firmware.deadline, card.firmware.pending_work()) == ([], None, [])


@pytest.mark.parametrize("frame", ["message", "answer"])
def test_a_frame_of_the_peer_triggers_all_pending_notices(frame: str) -> None:
    card = nic_with_pending_notices()
    if frame == "message":
        notices = [packet for packet in card.arrive(OTHER, 1, channel=5) if isinstance(packet, SentMessage)]
    else:
        card.request(OTHER, 0, 1)
        (sent,) = take_messages(card)
        card.answer(sent)
        notices = take_messages(card)
    assert [notice.origin for notice in notices] == [*FREED]
    for notice in notices:
        card.answer(notice)
    card.arrive(OTHER, 2, channel=6)
    assert is_idle_for_a_day(card)


def test_notices_that_are_given_up_again_are_sent_after_the_next_frame() -> None:
    card = nic_with_pending_notices()
    for channel in (5, 6):
        card.arrive(OTHER, 1, channel=channel)
        card.elapse(GIVEN_UP)
        card.take_packets()
    card.arrive(OTHER, 1, channel=7)  # the words went out before the answer, and `arrive` has taken both
    card.elapse(MILLISECOND + MILLISECOND // 2)
    assert announced_endpoints(card) == [*FREED]


def test_a_silent_peer_gets_single_notices_with_growing_intervals_and_then_none() -> None:
    card = nic_with_pending_notices()
    notice_times: list[int] = []
    while (deadline := card.firmware.deadline) is not None:
        card.elapse(deadline - card.now)
        notice_times += [card.now // SECOND] * len(card.sent)
        card.sent.clear()
    assert notice_times[:5] == [1, 3, 7, 15, 31]
    assert (len(notice_times), notice_times[-1] // 3600) == (17, 36)
    assert len(card.firmware.pending_work()) == 1
    card.arrive(OTHER, 1, channel=5)
    card.elapse(MILLISECOND + MILLISECOND // 2)
    assert sorted(announced_endpoints(card)) == [*FREED]


def test_an_answer_to_a_single_notice_triggers_the_others() -> None:
    card = nic_with_pending_notices()
    notice = next_notice(card)
    card.answer(notice)
    notices = take_messages(card)
    assert [notice.origin, *(follower.origin for follower in notices)] == [*FREED]
    for follower in notices:
        card.answer(follower)
    assert is_idle_for_a_day(card)


def test_a_frame_without_an_incarnation_triggers_no_notices() -> None:
    card = nic_with_pending_notices()
    assert card.arrive(OTHER, 1, channel=5, sender=0) == []
    card.elapse(SECOND // 2)
    assert card.take_packets() == []


@pytest.mark.parametrize("when", ["in flight", "given up", "tried"])
def test_a_restarted_peer_gets_no_notices(when: str) -> None:
    card = nic_with_freed_endpoints() if when == "in flight" else nic_with_pending_notices()
    if when == "tried":
        next_notice(card)
    card.take_packets()
    card.introduce(2)
    assert is_idle_for_a_day(card)


def test_a_peer_that_answers_a_notice_with_a_restart_gets_no_more() -> None:
    card = nic_with_pending_notices()
    notice = next_notice(card)
    card.introduce(2)
    card.answer(notice, REASON_RESTARTED)
    assert is_idle_for_a_day(card)


def test_a_notice_given_up_for_lack_of_a_route_is_sent_when_a_route_is_known() -> None:
    card = SingleNic()
    card.firmware = Firmware(Adapter(0, ADDRESSES, routed=True), card, card.memory, QUICK)
    card.introduce(1)
    card.firmware.install(0, Table(1, 1, ROUTES_TO_PEER))
    nic_with_freed_endpoints(card)
    card.firmware.install(card.now, Table(2, 1, {}))
    assert announced_endpoints(card) == [*FREED]
    card.elapse(10 * SECOND)
    assert card.sent == []
    assert len(card.firmware.pending_work()) == 1
    card.arrive(OTHER, 1, channel=5)
    assert len(card.firmware.pending_work()) == 1  # it is there, but no way leads to it
    card.firmware.install(card.now, Table(3, 1, ROUTES_TO_PEER))
    assert sorted(announced_endpoints(card)) == [*FREED]
