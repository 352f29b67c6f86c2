"""Every request of AM-II completes: with a reply, with a return, or as its program abandons it."""

from __future__ import annotations

import pytest

from protocols.active_messages.am_errors import Status
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.settings import MILLISECOND
from tests.sim.test_am2_errors import QUICK, SECOND_NODE, TAG, Pair

TIMEOUT = 100 * MILLISECOND
"""Longer than a NIC with these settings resends a packet."""


@pytest.fixture
def pair() -> Pair:
    """Return two endpoints that have exchanged messages."""
    pair = Pair(QUICK)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.exchange()
    return pair


def handle_all(pair: Pair, endpoint: Endpoint) -> None:
    pair.elapse()
    while endpoint.handle():
        pair.elapse()


def test_a_request_whose_reply_was_given_up_can_be_abandoned(pair: Pair) -> None:
    statuses: list[Status] = []
    pair.replier.error_handler = lambda message: statuses.append(message.status)
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    pair.simulation.cut(pair.link)
    assert pair.replier.handle()
    pair.elapse(TIMEOUT)
    handle_all(pair, pair.replier)
    assert statuses == [Status.UNREACHABLE]
    pair.simulation.restore(pair.link)
    pair.elapse(TIMEOUT)
    assert pair.requester.is_empty, "the request has completed without being abandoned"
    assert pair.requester.abandon(0) == 1
    handle_all(pair, pair.requester)
    assert [(returned.status, returned.arguments) for returned in pair.returned] == [(Status.ABANDONED, (41,))]
    assert pair.requester.credits(0) == 4
    assert not pair.requester.unanswered(0)


def test_delivered_requests_to_an_unreachable_nic_can_be_abandoned(pair: Pair) -> None:
    for word in range(4):
        assert pair.requester.try_request(0, 1, word)
    pair.elapse()
    pair.simulation.cut(pair.link)
    pair.elapse(TIMEOUT)
    assert not pair.requester.try_request(0, 1, 4), "there are credits left"
    assert pair.requester.abandon(0) == 4
    handle_all(pair, pair.requester)
    assert [returned.status for returned in pair.returned] == [Status.ABANDONED] * 4
    assert pair.requester.try_request(0, 1, 4)
    assert pair.requester.abandon(0) == 0, "a request that the NIC still sends was abandoned"
    pair.elapse(TIMEOUT)
    handle_all(pair, pair.requester)
    assert pair.returned[-1].status is Status.UNREACHABLE
    assert pair.requester.credits(0) == 4


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
    """Free an endpoint; return a new endpoint with its number."""
    bundle, name = endpoint.bundle, endpoint.name
    endpoint.free()
    while (next_endpoint := bundle.allocate_endpoint()).name != name:
        next_endpoint.free()
    return next_endpoint


def test_a_request_to_a_freed_endpoint_is_returned_if_its_number_is_in_use_again(pair: Pair) -> None:
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    handled: list[int] = []
    successor = reallocate(pair.replier)
    successor.tag = TAG
    successor.set_handler(1, lambda _, word: handled.append(word))
    successor.library.driver.fault(successor)
    pair.elapse(TIMEOUT)
    handle_all(pair, successor)
    handle_all(pair, pair.requester)
    assert handled == []
    assert [(returned.status, returned.arguments) for returned in pair.returned] == [(Status.UNREACHABLE, (41,))]
    assert pair.requester.try_request(0, 1, 42)
    pair.elapse()
    handle_all(pair, successor)
    assert handled == [42]


def test_a_new_endpoint_does_not_handle_replies_for_its_predecessor(pair: Pair) -> None:
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    successor = reallocate(pair.requester)
    successor.set_handler(2, lambda _, word: pair.replies.append(word))
    successor.map(0, SECOND_NODE, TAG)
    successor.library.driver.fault(successor)
    pair.elapse()
    assert successor.try_request(0, 1, 50)
    pair.elapse()
    handle_all(pair, pair.replier)
    handle_all(pair, successor)
    assert pair.replies == [51]
    assert successor.inbox.stray_replies == 1
