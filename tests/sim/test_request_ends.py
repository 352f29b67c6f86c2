"""Every request of AM-II has an end: by an event, or by its program, which abandons it."""

from __future__ import annotations

import pytest

from protocols.active_messages.am_errors import Status
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.settings import MILLISECOND
from tests.sim.test_am2_errors import AWAY, QUICK, TAG, Pair

TIMEOUT = 100 * MILLISECOND
"""Longer than a NIC with these settings sends a packet again."""


@pytest.fixture
def pair() -> Pair:
    """Two endpoints that have heard of each other."""
    pair = Pair(QUICK)
    pair.asker.map(0, AWAY, TAG)
    pair.meet()
    return pair


def handle_all(pair: Pair, endpoint: Endpoint) -> None:
    pair.elapse()
    while endpoint.handle():
        pair.elapse()


def test_a_request_whose_reply_is_lost_for_good_ends_when_its_program_abandons_it(pair: Pair) -> None:
    statuses: list[Status] = []
    pair.asked.error_handler = lambda message: statuses.append(message.status)
    assert pair.asker.try_request(0, 1, 41)
    pair.elapse()
    pair.simulation.cut(pair.link)
    assert pair.asked.handle()
    pair.elapse(TIMEOUT)
    handle_all(pair, pair.asked)
    assert statuses == [Status.UNREACHABLE]
    pair.simulation.restore(pair.link)
    pair.elapse(TIMEOUT)
    assert pair.asker.is_empty, "nothing tells it"
    assert pair.asker.abandon(0) == 1
    handle_all(pair, pair.asker)
    assert [(returned_message.status, returned_message.arguments) for returned_message in pair.returned] == [
        (Status.ABANDONED, (41,))
    ]
    assert pair.asker.credits(0) == 4
    assert not pair.asker.unanswered(0)


def test_a_request_to_a_nic_that_never_comes_back_ends_when_its_program_abandons_it(pair: Pair) -> None:
    for word in range(4):
        assert pair.asker.try_request(0, 1, word)
    pair.elapse()
    pair.simulation.cut(pair.link)
    pair.elapse(TIMEOUT)
    assert not pair.asker.try_request(0, 1, 4), "all credits are there"
    assert pair.asker.abandon(0) == 4
    handle_all(pair, pair.asker)
    assert [returned_message.status for returned_message in pair.returned] == [Status.ABANDONED] * 4
    assert pair.asker.try_request(0, 1, 4)
    assert pair.asker.abandon(0) == 0, "the NIC has it, and will tell its end"
    pair.elapse(TIMEOUT)
    handle_all(pair, pair.asker)
    assert pair.returned[-1].status is Status.UNREACHABLE
    assert pair.asker.credits(0) == 4


def test_a_reply_that_comes_after_its_request_was_abandoned_calls_no_handler(pair: Pair) -> None:
    assert pair.asker.try_request(0, 1, 41)
    pair.elapse()
    assert pair.asker.abandon(0) == 1
    handle_all(pair, pair.asked)
    handle_all(pair, pair.asker)
    assert pair.answers == []
    assert [returned_message.status for returned_message in pair.returned] == [Status.ABANDONED]
    assert pair.asker.inbox.stray_replies == 1
    assert pair.asker.credits(0) == 4


def allocate_again(endpoint: Endpoint) -> Endpoint:
    """Free an endpoint, and allocate others until one has its number."""
    bundle, name = endpoint.bundle, endpoint.name
    endpoint.free()
    while (next_endpoint := bundle.allocate_endpoint()).name != name:
        next_endpoint.free()
    return next_endpoint


def test_a_request_to_an_endpoint_whose_number_is_used_again_is_returned_and_not_the_next_ones(pair: Pair) -> None:
    assert pair.asker.try_request(0, 1, 41)
    pair.elapse()
    words_handled: list[int] = []
    following = allocate_again(pair.asked)
    following.tag = TAG
    following.set_handler(1, lambda _, word: words_handled.append(word))
    following.library.driver.fault(following)
    pair.elapse(TIMEOUT)
    handle_all(pair, following)
    handle_all(pair, pair.asker)
    assert words_handled == []
    assert [(returned_message.status, returned_message.arguments) for returned_message in pair.returned] == [
        (Status.UNREACHABLE, (41,))
    ]
    assert pair.asker.try_request(0, 1, 42)
    pair.elapse()
    handle_all(pair, following)
    assert words_handled == [42]


def test_a_reply_for_an_endpoint_whose_number_is_used_again_is_not_the_next_ones(pair: Pair) -> None:
    assert pair.asker.try_request(0, 1, 41)
    pair.elapse()
    following = allocate_again(pair.asker)
    following.set_handler(2, lambda _, word: pair.answers.append(word))
    following.map(0, AWAY, TAG)
    following.library.driver.fault(following)
    pair.elapse()
    assert following.try_request(0, 1, 50)
    pair.elapse()
    handle_all(pair, pair.asked)
    handle_all(pair, following)
    assert pair.answers == [51]
    assert following.inbox.stray_replies == 1
