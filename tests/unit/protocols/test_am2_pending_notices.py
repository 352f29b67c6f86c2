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

FEW_RETRIES = Settings(timeout=MILLISECOND, longest_timeout=4 * MILLISECOND, retries=3, detour=10 * MILLISECOND)
GIVE_UP_TIME = 20 * MILLISECOND
"""Time after which an unanswered message is given up."""
DAY = 24 * 3600 * SECOND
DESTROYED = (4, 5, 6)
LIVE_ENDPOINT = 7
ROUTES_TO_PEER = {1: Path(b"", ADDRESSES[1])}


def take_messages(nic: SingleNic) -> list[SentMessage]:
    """Return the messages sent to the peer, without answers."""
    return [packet for packet in nic.take_packets() if isinstance(packet, SentMessage)]


def announced_endpoints(nic: SingleNic) -> list[int]:
    """Return the endpoints that were announced as gone."""
    return [notice.origin for notice in take_messages(nic)]


def nic_with_destroyed_endpoints(nic: SingleNic | None = None) -> SingleNic:
    """Return a NIC that has destroyed endpoints that received requests of the peer."""
    nic = nic or SingleNic(FEW_RETRIES)
    for channel, endpoint in enumerate((*DESTROYED, LIVE_ENDPOINT)):
        nic.create(endpoint)
        if endpoint != LIVE_ENDPOINT:
            assert nic.receive_message(endpoint, 1, channel=channel)[0].kind == KIND_ACK
    for endpoint in DESTROYED:
        nic.ring_doorbell(endpoint, layout.DESTROY)
    return nic


def nic_with_pending_notices() -> SingleNic:
    """Return a NIC whose announcements were never answered and have been given up."""
    nic = nic_with_destroyed_endpoints()
    nic.elapse(GIVE_UP_TIME)
    assert announced_endpoints(nic) == [*DESTROYED] * 4
    assert nic.firmware.pending_work() == ["node 1 does not acknowledge that these endpoints no longer exist: 4, 5, 6"]
    return nic


def next_notice(nic: SingleNic) -> SentMessage:
    """Return the one notice that is sent at the next deadline."""
    deadline = nic.firmware.deadline
    assert deadline is not None
    nic.elapse(deadline - nic.now)
    (notice,) = take_messages(nic)
    return notice


def is_idle_for_a_day(nic: SingleNic) -> bool:
    nic.elapse(DAY)
    return (nic.sent, nic.firmware.deadline, nic.firmware.pending_work()) == ([], None, [])


@pytest.mark.parametrize("frame", ["message", "answer"])
def test_a_frame_of_the_peer_triggers_all_pending_notices(frame: str) -> None:
    nic = nic_with_pending_notices()
    if frame == "message":
        notices = [
            packet for packet in nic.receive_message(LIVE_ENDPOINT, 1, channel=5) if isinstance(packet, SentMessage)
        ]
    else:
        nic.request(LIVE_ENDPOINT, 0, 1)
        (sent,) = take_messages(nic)
        nic.answer(sent)
        notices = take_messages(nic)
    assert [notice.origin for notice in notices] == [*DESTROYED]
    for notice in notices:
        nic.answer(notice)
    nic.receive_message(LIVE_ENDPOINT, 2, channel=6)
    assert is_idle_for_a_day(nic)


def test_notices_that_are_given_up_again_are_sent_after_the_next_frame() -> None:
    nic = nic_with_pending_notices()
    for channel in (5, 6):
        nic.receive_message(LIVE_ENDPOINT, 1, channel=channel)
        nic.elapse(GIVE_UP_TIME)
        nic.take_packets()
    nic.receive_message(LIVE_ENDPOINT, 1, channel=7)  # also takes the notices, which precede the answer
    nic.elapse(MILLISECOND + MILLISECOND // 2)
    assert announced_endpoints(nic) == [*DESTROYED]


def test_a_silent_peer_gets_single_notices_with_growing_intervals_and_then_none() -> None:
    nic = nic_with_pending_notices()
    notice_times: list[int] = []
    while (deadline := nic.firmware.deadline) is not None:
        nic.elapse(deadline - nic.now)
        notice_times += [nic.now // SECOND] * len(nic.sent)
        nic.sent.clear()
    assert notice_times[:5] == [1, 3, 7, 15, 31]
    assert (len(notice_times), notice_times[-1] // 3600) == (17, 36)
    assert len(nic.firmware.pending_work()) == 1
    nic.receive_message(LIVE_ENDPOINT, 1, channel=5)
    nic.elapse(MILLISECOND + MILLISECOND // 2)
    assert sorted(announced_endpoints(nic)) == [*DESTROYED]


def test_an_answer_to_a_single_notice_triggers_the_others() -> None:
    nic = nic_with_pending_notices()
    notice = next_notice(nic)
    nic.answer(notice)
    notices = take_messages(nic)
    assert [notice.origin, *(follower.origin for follower in notices)] == [*DESTROYED]
    for follower in notices:
        nic.answer(follower)
    assert is_idle_for_a_day(nic)


def test_a_frame_without_an_incarnation_triggers_no_notices() -> None:
    nic = nic_with_pending_notices()
    assert nic.receive_message(LIVE_ENDPOINT, 1, channel=5, sender=0) == []
    nic.elapse(SECOND // 2)
    assert nic.take_packets() == []


@pytest.mark.parametrize("when", ["in flight", "given up", "sent singly"])
def test_a_restarted_peer_gets_no_notices(when: str) -> None:
    nic = nic_with_destroyed_endpoints() if when == "in flight" else nic_with_pending_notices()
    if when == "sent singly":
        next_notice(nic)
    nic.take_packets()
    nic.introduce(2)
    assert is_idle_for_a_day(nic)


def test_a_peer_that_answers_a_notice_with_a_restart_gets_no_more() -> None:
    nic = nic_with_pending_notices()
    notice = next_notice(nic)
    nic.introduce(2)
    nic.answer(notice, REASON_RESTARTED)
    assert is_idle_for_a_day(nic)


def test_a_notice_given_up_for_lack_of_a_route_is_sent_when_a_route_is_known() -> None:
    nic = SingleNic()
    nic.firmware = Firmware(Adapter(0, ADDRESSES, routed=True), nic, nic.memory, FEW_RETRIES)
    nic.introduce(1)
    nic.firmware.install(0, Table(1, 1, ROUTES_TO_PEER))
    nic_with_destroyed_endpoints(nic)
    nic.firmware.install(nic.now, Table(2, 1, {}))
    assert announced_endpoints(nic) == [*DESTROYED]
    nic.elapse(10 * SECOND)
    assert nic.sent == []
    assert len(nic.firmware.pending_work()) == 1
    nic.receive_message(LIVE_ENDPOINT, 1, channel=5)
    assert len(nic.firmware.pending_work()) == 1  # the peer is alive, but has no route
    nic.firmware.install(nic.now, Table(3, 1, ROUTES_TO_PEER))
    assert sorted(announced_endpoints(nic)) == [*DESTROYED]
