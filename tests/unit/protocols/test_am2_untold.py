"""AM-II announces that an endpoint is gone to peers with pending requests, and repeats lost announcements."""

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
THERE = {1: Path(b"", ADDRESSES[1])}


def words(card: SingleNic) -> list[SentMessage]:
    """Return the messages sent to the peer, without answers."""
    return [packet for packet in card.taken() if isinstance(packet, SentMessage)]


def endpoints(card: SingleNic) -> list[int]:
    """Return the endpoints whose end was announced."""
    return [word.origin for word in words(card)]


def freed(card: SingleNic | None = None) -> SingleNic:
    """Endpoints have been asked something, and are freed."""
    card = card or SingleNic(QUICK)
    for channel, endpoint in enumerate((*FREED, OTHER)):
        card.create(endpoint)
        if endpoint != OTHER:
            assert card.arrive(endpoint, 1, channel=channel)[0][0] == KIND_ACK
    for endpoint in FREED:
        card.ring(endpoint, layout.DESTROY)
    return card


def unheard() -> SingleNic:
    """Return a NIC whose announcements were never answered and have been given up."""
    card = freed()
    card.elapse(GIVEN_UP)
    assert endpoints(card) == [*FREED] * 4
    assert card.firmware.waiting() == [f"node 1 does not answer, and has not heard that of ours are gone: {[*FREED]}"]
    return card


def tried(card: SingleNic) -> SentMessage:
    """The one word that is sent when it is time."""
    deadline = card.firmware.deadline
    assert deadline is not None
    card.elapse(deadline - card.now)
    (word,) = words(card)
    return word


def is_over(card: SingleNic) -> bool:
    card.elapse(DAY)
    return (card.sent, card.firmware.deadline, card.firmware.waiting()) == ([], None, [])


@pytest.mark.parametrize("frame", ["message", "answer"])
def test_a_frame_of_who_has_not_heard_it_is_a_reason_to_tell_it_all_again(frame: str) -> None:
    card = unheard()
    if frame == "message":
        told = [packet for packet in card.arrive(OTHER, 1, channel=5) if isinstance(packet, SentMessage)]
    else:
        card.request(OTHER, 0, 1)
        (sent,) = words(card)
        card.answer(sent)
        told = words(card)
    assert [word.origin for word in told] == [*FREED]
    for word in told:
        card.answer(word)
    card.arrive(OTHER, 2, channel=6)
    assert is_over(card)


def test_what_is_given_up_again_is_told_at_the_next_frame() -> None:
    card = unheard()
    for channel in (5, 6):
        card.arrive(OTHER, 1, channel=channel)
        card.elapse(GIVEN_UP)
        card.taken()
    card.arrive(OTHER, 1, channel=7)  # the words went out before the answer, and `arrive` has taken both
    card.elapse(MILLISECOND + MILLISECOND // 2)
    assert endpoints(card) == [*FREED]


def test_a_silent_peer_is_sent_one_frame_ever_more_seldom_and_in_the_end_none() -> None:
    card = unheard()
    times: list[int] = []
    while (deadline := card.firmware.deadline) is not None:
        card.elapse(deadline - card.now)
        times += [card.now // SECOND] * len(card.sent)
        card.sent.clear()
    assert times[:5] == [1, 3, 7, 15, 31]
    assert (len(times), times[-1] // 3600) == (17, 36)
    assert len(card.firmware.waiting()) == 1
    card.arrive(OTHER, 1, channel=5)
    card.elapse(MILLISECOND + MILLISECOND // 2)
    assert sorted(endpoints(card)) == [*FREED]


def test_who_answers_the_one_frame_is_told_the_rest() -> None:
    card = unheard()
    word = tried(card)
    card.answer(word)
    rest = words(card)
    assert [word.origin, *(later.origin for later in rest)] == [*FREED]
    for one in rest:
        card.answer(one)
    assert is_over(card)


def test_a_frame_that_names_no_incarnation_is_no_reason_to_tell_it_again() -> None:
    card = unheard()
    assert card.arrive(OTHER, 1, channel=5, sender=0) == []
    card.elapse(SECOND // 2)
    assert card.taken() == []


@pytest.mark.parametrize("when", ["under way", "given up", "tried"])
def test_another_incarnation_is_told_nothing(when: str) -> None:
    card = freed() if when == "under way" else unheard()
    if when == "tried":
        tried(card)
    card.taken()
    card.introduce(2)
    assert is_over(card)


def test_who_says_at_the_one_frame_that_it_has_started_again_is_told_nothing_more() -> None:
    card = unheard()
    word = tried(card)
    card.introduce(2)
    card.answer(word, REASON_RESTARTED)
    assert is_over(card)


def test_a_word_that_is_given_up_for_want_of_a_route_is_sent_when_there_is_one() -> None:
    card = SingleNic()
    card.firmware = Firmware(Adapter(0, ADDRESSES, routed=True), card, card.memory, QUICK)
    card.introduce(1)
    card.firmware.install(0, Table(1, 1, THERE))
    freed(card)
    card.firmware.install(card.now, Table(2, 1, {}))
    assert endpoints(card) == [*FREED]
    card.elapse(10 * SECOND)
    assert card.sent == []
    assert len(card.firmware.waiting()) == 1
    card.arrive(OTHER, 1, channel=5)
    assert len(card.firmware.waiting()) == 1  # it is there, but no way leads to it
    card.firmware.install(card.now, Table(3, 1, THERE))
    assert sorted(endpoints(card)) == [*FREED]
