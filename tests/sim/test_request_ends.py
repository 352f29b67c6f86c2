"""Every request of AM-II has an end: its reply, its return, or its program, which abandons it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols.active_messages.am_errors import Status
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.settings import MILLISECOND, SECOND
from tests.sim.test_am2_errors import QUICK, SECOND_NODE, TAG, Pair

TIMEOUT = 100 * MILLISECOND
"""Longer than a NIC with these settings sends a packet again."""


@pytest.fixture
def pair() -> Pair:
    """Two endpoints that have heard of each other."""
    pair = Pair(QUICK)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.exchange()
    return pair


def handle_all(pair: Pair, endpoint: Endpoint) -> None:
    pair.elapse()
    while endpoint.handle():
        pair.elapse()


def returned_statuses(pair: Pair) -> list[Status]:
    return [returned.status for returned in pair.returned]


def lose_the_reply(pair: Pair) -> None:
    """Let a request be handled, and its reply be given up, since the link is cut."""
    statuses: list[Status] = []
    pair.replier.error_handler = lambda message: statuses.append(message.status)
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    pair.simulation.cut(pair.link)
    assert pair.replier.handle()
    pair.elapse(TIMEOUT)
    handle_all(pair, pair.replier)
    assert statuses == [Status.UNREACHABLE]


def test_a_request_whose_reply_was_given_up_is_returned_once_its_peer_is_reachable_again(pair: Pair) -> None:
    lose_the_reply(pair)
    pair.elapse(TIMEOUT)
    assert pair.requester.is_empty
    pair.simulation.restore(pair.link)
    pair.elapse(3 * SECOND)  # the replier's NIC tries a second after it has given up, and then after two more
    handle_all(pair, pair.requester)
    assert [(returned.status, returned.arguments) for returned in pair.returned] == [(Status.UNREACHABLE, (41,))]
    assert pair.requester.credits(0) == 4
    assert not pair.requester.unanswered(0)


def test_a_request_whose_reply_was_given_up_is_returned_when_the_peer_is_heard_of(pair: Pair) -> None:
    lose_the_reply(pair)
    pair.simulation.restore(pair.link)
    assert pair.requester.try_request(0, 1, 42)  # its frame is the first that the replier's NIC receives
    pair.elapse()
    handle_all(pair, pair.requester)
    assert [returned.arguments for returned in pair.returned] == [(41,)]
    handle_all(pair, pair.replier)
    handle_all(pair, pair.requester)
    assert pair.replies == [43]
    assert pair.requester.credits(0) == 4


def test_a_lost_reply_ends_no_request_of_the_requesters_next_incarnation(pair: Pair) -> None:
    lose_the_reply(pair)
    pair.simulation.restart("n1")
    pair.requester = pair.endpoint("n1")
    pair.requester.error_handler = pair.on_returned
    pair.requester.set_handler(2, lambda _, word: pair.replies.append(word))
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.load_endpoints()
    pair.simulation.restore(pair.link)
    assert pair.requester.try_request(0, 1, 42)
    pair.elapse(5 * SECOND)
    assert pair.returned == []
    handle_all(pair, pair.replier)
    handle_all(pair, pair.requester)
    assert pair.replies == [43]


def test_a_refused_reply_ends_its_request(pair: Pair) -> None:
    statuses: list[Status] = []
    pair.replier.error_handler = lambda message: statuses.append(message.status)
    pair.requester.segment = bytearray(10)
    pair.replier.set_handler(1, lambda token, word: token.reply_bulk(2, bytes(100), 0, word))
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    handle_all(pair, pair.replier)
    pair.elapse(2 * SECOND)  # the replier's NIC tells after a second
    handle_all(pair, pair.replier)
    handle_all(pair, pair.requester)
    assert statuses == [Status.REPLY_REJECTED]
    assert [(returned.status, returned.arguments) for returned in pair.returned] == [(Status.UNREACHABLE, (41,))]
    assert pair.requester.credits(0) == 4


def test_requests_to_a_nic_that_never_comes_back_are_returned(pair: Pair) -> None:
    for word in range(4):
        assert pair.requester.try_request(0, 1, word)
    pair.elapse()
    pair.simulation.cut(pair.link)
    pair.elapse(SECOND)
    handle_all(pair, pair.requester)
    assert pair.returned == [], "it is too early to know"
    # The NIC looks each interval whether replies have come since; the first time they have, before the cut.
    pair.elapse(2 * pair.requester.library.settings.keepalive)
    handle_all(pair, pair.requester)
    assert returned_statuses(pair) == [Status.UNREACHABLE] * 4
    assert pair.requester.credits(0) == 4


def test_requests_to_a_lost_nic_are_returned_though_the_program_sends_it_others(pair: Pair) -> None:
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    pair.simulation.cut(pair.link)
    end = pair.simulation.now() + 3 * pair.requester.library.settings.keepalive
    others = 0
    while pair.simulation.now() < end:
        others += pair.requester.try_request(0, 1, 50)
        pair.elapse(10 * MILLISECOND)  # shorter than the NIC resends: a packet is always unacknowledged
        handle_all(pair, pair.requester)
    assert others > 100
    assert [message.arguments for message in pair.returned if message.arguments != (50,)] == [(41,)]
    assert set(returned_statuses(pair)) == {Status.UNREACHABLE}


def test_a_late_reply_to_a_returned_request_does_not_hide_that_a_later_one_has_none(pair: Pair) -> None:
    pair.cut_replies = True
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse(TIMEOUT)
    handle_all(pair, pair.requester)
    assert [returned.arguments for returned in pair.returned] == [(41,)], "no acknowledgement has arrived"
    pair.cut_replies = pair.reverse.is_cut = False
    handle_all(pair, pair.replier)
    handle_all(pair, pair.requester)
    assert pair.requester.inbox.stray_replies == 1
    assert pair.requester.try_request(0, 1, 42)
    pair.elapse()
    pair.simulation.cut(pair.link)
    pair.elapse(3 * pair.requester.library.settings.keepalive)
    handle_all(pair, pair.requester)
    assert [returned.arguments for returned in pair.returned] == [(41,), (42,)]


def test_a_slow_program_is_waited_for_with_few_keepalives(pair: Pair) -> None:
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    before = pair.counter("n1", "packets_sent")
    pair.elapse(1_000 * SECOND)
    assert pair.counter("n1", "packets_sent") - before == 7, "after 5, 15, 35, ... s"
    assert pair.returned == []
    handle_all(pair, pair.replier)
    handle_all(pair, pair.requester)
    assert pair.replies == [42]


def test_without_keepalives_requests_to_a_nic_that_never_comes_back_end_when_the_program_abandons_them() -> None:
    pair = Pair(replace(QUICK, keepalive=0))
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.exchange()
    for word in range(4):
        assert pair.requester.try_request(0, 1, word)
    pair.elapse()
    pair.simulation.cut(pair.link)
    pair.elapse(1_000 * SECOND)
    assert not pair.requester.try_request(0, 1, 4), "no credit is left"
    assert pair.requester.abandon(0) == 4
    handle_all(pair, pair.requester)
    assert returned_statuses(pair) == [Status.ABANDONED] * 4
    assert pair.requester.try_request(0, 1, 4)
    assert pair.requester.abandon(0) == 0, "its NIC is still sending it"
    pair.elapse(TIMEOUT)
    handle_all(pair, pair.requester)
    assert pair.returned[-1].status is Status.UNREACHABLE
    assert pair.requester.credits(0) == 4


def test_no_keepalive_is_sent_for_an_abandoned_request(pair: Pair) -> None:
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    assert pair.requester.abandon(0) == 1
    handle_all(pair, pair.requester)
    before = pair.counter("n1", "packets_sent")
    pair.elapse(1_000 * SECOND)
    assert pair.counter("n1", "packets_sent") == before
    assert pair.simulation.nodes["n1"].agent.firmware.deadline is None


def test_a_reply_to_an_abandoned_request_is_a_stray(pair: Pair) -> None:
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    assert pair.requester.abandon(0) == 1
    handle_all(pair, pair.replier)
    handle_all(pair, pair.requester)
    assert pair.replies == []
    assert [returned.status for returned in pair.returned] == [Status.ABANDONED]
    assert pair.requester.inbox.stray_replies == 1
    assert pair.requester.credits(0) == 4


def reallocate(endpoint: Endpoint) -> Endpoint:
    """Free an endpoint, and allocate others until one has its number."""
    bundle, name = endpoint.bundle, endpoint.name
    endpoint.free()
    while (next_endpoint := bundle.allocate_endpoint()).name != name:
        next_endpoint.free()
    return next_endpoint


def test_a_request_to_a_freed_endpoint_is_returned_if_its_number_is_in_use_again(pair: Pair) -> None:
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    words_handled: list[int] = []
    following = reallocate(pair.replier)
    following.tag = TAG
    following.set_handler(1, lambda _, word: words_handled.append(word))
    following.library.driver.fault(following)
    pair.elapse(TIMEOUT)
    handle_all(pair, following)
    handle_all(pair, pair.requester)
    assert words_handled == []
    assert [(returned.status, returned.arguments) for returned in pair.returned] == [(Status.UNREACHABLE, (41,))]
    assert pair.requester.try_request(0, 1, 42)
    pair.elapse()
    handle_all(pair, following)
    assert words_handled == [42]


def test_a_new_endpoint_does_not_handle_replies_for_its_predecessor(pair: Pair) -> None:
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    following = reallocate(pair.requester)
    following.set_handler(2, lambda _, word: pair.replies.append(word))
    following.map(0, SECOND_NODE, TAG)
    following.library.driver.fault(following)
    pair.elapse()
    assert following.try_request(0, 1, 50)
    pair.elapse()
    handle_all(pair, pair.replier)
    handle_all(pair, following)
    assert pair.replies == [51]
    assert following.inbox.stray_replies == 1
