"""Undeliverable messages of AM-II are returned to their sender's error handler, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from protocols.active_messages.am_errors import Returned, ReturnedError, RuleError, Status
from protocols.active_messages.endpoint_names import ANY, EndpointName
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Origin, Token
from protocols.am2.plug import plug
from protocols.am2.receiver import Delivery
from protocols.am2.settings import MILLISECOND, SECOND, Settings
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description

QUICK = Settings(timeout=1 * MILLISECOND, longest_timeout=4 * MILLISECOND, retries=5)
TAG = 5
HOME, AWAY = EndpointName(0, 0), EndpointName(1, 0)


class Pair:
    """An endpoint on each of two nodes; the first sends requests and records their outcomes.

    deafens: from the next delivery on it receives nothing, not even the acknowledgement.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.delivered: list[Delivery] = []
        self.deafens = False
        cluster = Description.back_to_back(delay="5us", rate="1gbit")
        self.simulation = Simulation(cluster, plug(settings, on_delivery=self.on_delivery))
        self.asker, self.asked = (self.endpoint(name) for name in ("n1", "n2"))
        self.asked.tag = TAG
        self.returned: list[Returned] = []
        self.data: list[bytes] = []
        self.answers: list[int] = []
        self.asker.error_handler = self.on_returned
        self.asker.set_handler(2, lambda _, word: self.answers.append(word))
        self.asked.set_handler(1, lambda token, word: token.reply(2, word + 1))
        self.link = self.simulation.layout.links[0].name
        self.back = self.simulation.network.link_directions[self.link, "backward"]

    def endpoint(self, name: str) -> Endpoint:
        return cast(ActiveMessages, self.simulation.nodes[name].agent.host).allocate_bundle().allocate_endpoint()

    def on_delivery(self, delivery: Delivery) -> None:
        self.delivered.append(delivery)
        self.back.is_cut |= self.deafens

    def on_returned(self, returned: Returned) -> None:
        self.returned.append(returned)
        self.data.append(bytes(returned.data))

    def run(self, ask: Callable[[Endpoint], object] | None = None, until: Callable[[], object] | None = None) -> None:
        """Ask, and let both poll until that is so."""
        is_done = until or (lambda: self.returned or self.answers)

        async def poll(am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG001
            endpoint = self.asker if node.number == 0 else self.asked
            if ask is not None and node.number == 0:
                while not ask(endpoint):
                    await endpoint.wait_for_room(0)
            while not is_done():
                await endpoint.poll()
                await node.sleep(100_000)

        self.simulation.spawn("n1", poll)
        self.simulation.spawn("n2", poll)
        self.simulation.run(timeout=5 * SECOND)

    def by_hand(self) -> None:
        """Load both endpoints into their NICs; only the test polls."""
        for endpoint in (self.asker, self.asked):
            endpoint.library.driver.fault(endpoint)
        self.elapse()

    def meet(self) -> None:
        """Let each node learn of the other by a request with its reply."""
        self.by_hand()
        assert self.asker.try_request(0, 1, 0)
        for endpoint in (self.asked, self.asker):
            self.elapse()
            assert endpoint.handle()
        self.elapse()
        self.answers.clear()
        self.delivered.clear()

    def elapse(self, span: int = MILLISECOND) -> None:
        self.simulation.run_until(self.simulation.now() + span)

    def counter(self, node: str, name: str) -> int:
        return self.simulation.nodes[node].agent.firmware.counter_values()[name]


def test_a_request_with_a_wrong_tag_is_returned_and_never_delivered() -> None:
    pair = Pair()
    pair.asker.map(0, AWAY, TAG + 1)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert pair.returned[0].status is Status.BAD_TAG
    assert (pair.returned[0].destination, pair.returned[0].handler, pair.returned[0].arguments) == (AWAY, 1, (41,))
    assert pair.delivered == []
    assert pair.asker.credits(0) == 4


def test_tag_none_accepts_no_requests_and_tag_any_all() -> None:
    pair = Pair()
    pair.asked.tag = 0
    pair.asker.map(0, AWAY, 0)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert pair.returned[0].status is Status.BAD_TAG
    pair.returned.clear()
    pair.asked.tag = ANY
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert pair.answers == [42]


def test_a_request_to_an_endpoint_that_does_not_exist_is_returned() -> None:
    pair = Pair()
    pair.asker.map(0, EndpointName(1, 9), TAG)
    pair.run(lambda endpoint: endpoint.try_request_medium(0, 1, b"with data", 41))
    assert pair.returned[0].status is Status.BAD_ENDPOINT
    assert pair.data == [b"with data"]


def test_a_bulk_message_beyond_the_segment_is_returned_once_with_all_its_data() -> None:
    pair = Pair()
    pair.asked.segment = bytearray(10_000)
    pair.asker.map(0, AWAY, TAG)
    pair.run(lambda endpoint: endpoint.try_request_bulk(0, 1, bytes(9_000), 2_000, 41))
    pair.run(until=lambda: pair.simulation.now() > 50 * MILLISECOND)
    assert [returned_message.status for returned_message in pair.returned] == [Status.BAD_SEGMENT]
    assert pair.data == [bytes(9_000)]
    assert pair.asker.outbox.bulk_data == {}


def test_a_bulk_message_to_an_endpoint_without_a_segment_is_returned() -> None:
    pair = Pair()
    pair.asker.map(0, AWAY, TAG)
    pair.run(lambda endpoint: endpoint.try_request_bulk(0, 1, b"x", 0, 41))
    assert pair.returned[0].status is Status.BAD_SEGMENT


def test_a_request_for_a_handler_that_is_not_set_is_returned_by_the_library() -> None:
    pair = Pair()
    pair.asker.map(0, AWAY, TAG)
    pair.run(lambda endpoint: endpoint.try_request(0, 99, 41, 42))
    message = pair.returned[0]
    assert (message.status, message.handler, message.arguments) == (Status.BAD_HANDLER, 99, (41, 42))
    assert pair.asker.credits(0) == 4


def test_an_unanswered_request_is_returned_as_unreachable() -> None:
    pair = Pair(QUICK)
    pair.simulation.cut(pair.link)
    pair.asker.map(0, AWAY, TAG)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert pair.returned[0].status is Status.UNREACHABLE
    assert pair.delivered == []
    pair.simulation.restore(pair.link)
    pair.returned.clear()
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 50))
    assert pair.answers == [51]


def test_a_request_whose_answers_were_lost_is_returned_though_it_was_delivered() -> None:
    pair = Pair(QUICK)
    pair.asker.map(0, AWAY, TAG)
    pair.meet()
    pair.back.is_cut = True
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41), until=lambda: pair.returned)
    message = pair.returned[0]
    assert message.status is Status.UNREACHABLE
    assert Delivery(0, 1, 0, message.message) in pair.delivered


def test_requests_accepted_by_a_restarted_peer_are_returned_with_their_credits() -> None:
    pair = Pair(QUICK)
    pair.asker.map(0, AWAY, TAG)
    pair.asked.set_handler(1, lambda _, __: pair.simulation.cut(pair.link))
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41), until=lambda: pair.asked.is_empty and pair.delivered)
    pair.simulation.restore(pair.link)
    pair.simulation.restart("n2")
    pair.asked = pair.endpoint("n2")
    pair.asked.tag = TAG
    pair.asked.set_handler(1, lambda token, word: token.reply(2, word + 1))
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 50), until=lambda: pair.returned)
    assert pair.returned[0].status is Status.UNREACHABLE  # it was for the destroyed endpoint
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 60), until=lambda: pair.answers)
    assert pair.answers == [61]
    assert pair.asker.credits(0) == 4
    assert pair.counter("n1", "restarts") == 1


@pytest.mark.parametrize("first", ["who has asked", "who was asked", "nobody"])
def test_requests_accepted_by_an_endpoint_freed_during_an_outage_are_returned_after_it(
    first: str,
) -> None:
    pair = Pair(QUICK)
    pair.asker.map(0, AWAY, TAG)
    pair.asker.map(1, EndpointName(1, 9), TAG)
    pair.meet()
    other_endpoint = pair.asked.bundle.allocate_endpoint()
    other_endpoint.map(0, HOME, TAG)
    other_endpoint.library.driver.fault(other_endpoint)
    assert pair.asker.try_request(0, 1, 41)
    pair.elapse()
    assert len(pair.delivered) == 1
    pair.simulation.cut(pair.link)
    pair.asked.free()
    pair.elapse(50 * MILLISECOND)
    pair.simulation.restore(pair.link)
    pair.elapse(50 * MILLISECOND)
    assert not pair.asker.handle()
    assert (pair.returned, pair.asker.credits(0)) == ([], 3)
    if first == "who has asked":
        assert pair.asker.try_request(1, 1, 50)
    elif first == "who was asked":
        assert other_endpoint.try_request(0, 99, 50)
    pair.elapse(SECOND if first == "nobody" else MILLISECOND)
    assert pair.asker.handle()
    assert [returned_message.status for returned_message in pair.returned if returned_message.destination == AWAY] == [
        Status.UNREACHABLE
    ]
    assert (pair.answers, pair.asker.credits(0)) == ([], 4)
    assert not any(node.agent.firmware.pending_work() for node in pair.simulation.nodes.values())


@pytest.mark.parametrize("answerer_state", ["another tag", "no endpoint", "the same endpoint"])
@pytest.mark.parametrize("form", ["short", "medium", "bulk"])
def test_requests_accepted_by_a_nic_that_restarts_silently_are_returned_and_handled_at_most_once(
    form: str, answerer_state: str
) -> None:
    words_handled: list[int] = []

    def handler(token: Token, *arguments: object) -> None:
        words_handled.append(len(arguments))
        token.reply(2, 1)

    pair = Pair(QUICK)
    pair.asked.set_handler(1, handler)
    pair.asked.segment = bytearray(10_000)
    pair.asker.map(0, AWAY, TAG)
    pair.by_hand()
    pair.deafens = True
    if form == "short":
        assert pair.asker.try_request(0, 1, 41)
    elif form == "medium":
        assert pair.asker.try_request_medium(0, 1, b"with data", 41)
    else:
        assert pair.asker.try_request_bulk(0, 1, bytes(4_000), 0, 41)
    pair.elapse(5 * MILLISECOND)  # with data, it is refused until there is a mapping
    assert pair.asked.handle()
    assert (len(pair.delivered), len(words_handled)) == (1, 1)
    pair.simulation.restart("n2")
    pair.deafens = pair.back.is_cut = False
    if answerer_state != "no endpoint":
        pair.asked = pair.endpoint("n2")
        pair.asked.tag = TAG if answerer_state == "the same endpoint" else TAG + 1
        pair.asked.set_handler(1, handler)
        pair.asked.segment = bytearray(10_000)
        pair.by_hand()
    pair.elapse(20 * MILLISECOND)
    if answerer_state != "no endpoint":
        assert not pair.asked.handle()
    assert pair.asker.handle()
    assert [returned_message.status for returned_message in pair.returned] == [Status.UNREACHABLE]
    assert (len(pair.delivered), len(words_handled), pair.answers, pair.asker.credits(0)) == (1, 1, [], 4)


def test_a_rejected_reply_is_returned_to_the_replier() -> None:
    pair = Pair()
    pair.asker.map(0, AWAY, TAG)
    returned_replies: list[Returned] = []
    pair.asked.error_handler = returned_replies.append

    def reply_late(token: Token, word: int) -> None:
        pair.asker.free()
        token.reply(2, word)

    pair.asked.set_handler(1, reply_late)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41), until=lambda: returned_replies)
    assert (returned_replies[0].status, returned_replies[0].is_reply, returned_replies[0].destination) == (
        Status.REPLY_REJECTED,
        True,
        HOME,
    )


def forge(endpoint: Endpoint, *, message: int, tag: int = TAG) -> None:
    """A reply of a program that does not keep to the rules."""
    forged = Origin()
    forged.tag, forged.message = tag, message
    assert endpoint.outbox.reply(forged, 2, (99,))


def test_a_reply_without_a_request_is_dropped() -> None:
    pair = Pair()
    pair.asker.map(0, AWAY, TAG)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    for message in (0, 1, 2):  # of which the second one has been replied to
        forge(pair.asked, message=message)
    pair.run(until=lambda: pair.asker.inbox.stray_replies == 3)
    assert pair.answers == [42]
    assert pair.asker.credits(0) == 4


def test_a_reply_must_have_the_destination_and_tag_of_its_request() -> None:
    pair = Pair()
    pair.by_hand()
    other_endpoint = pair.asked.bundle.allocate_endpoint()
    other_endpoint.library.driver.fault(other_endpoint)
    pair.elapse()
    pair.asker.map(0, AWAY, TAG)
    assert pair.asker.try_request(0, 1, 41)
    forge(other_endpoint, message=1)
    forge(pair.asked, message=1, tag=TAG + 1)
    pair.elapse()
    pair.asker.handle()
    assert (pair.answers, pair.asker.inbox.stray_replies, pair.asker.credits(0)) == ([], 2, 3)
    pair.asked.handle()
    pair.elapse()
    pair.asker.handle()
    assert (pair.answers, pair.asker.credits(0)) == ([42], 4)


def test_a_reply_after_a_remapping_is_handled_and_returns_no_other_destinations_credit() -> None:
    pair = Pair()
    pair.by_hand()
    pair.asker.map(0, AWAY, TAG)
    assert pair.asker.try_request(0, 1, 0)
    pair.asker.unmap(0)
    pair.asker.map(0, AWAY, TAG)
    for word in range(1, 5):
        assert pair.asker.try_request(0, 1, word)
    pair.elapse()
    assert pair.asked.handle(1)
    pair.elapse()
    assert pair.asker.handle()
    assert (pair.answers, pair.asker.credits(0)) == ([1], 0)
    pair.asked.handle()
    pair.elapse()
    pair.asker.handle()
    assert (sorted(pair.answers), pair.asker.credits(0)) == ([1, 2, 3, 4, 5], 4)


def test_a_late_reply_to_a_returned_request_is_dropped() -> None:
    pair = Pair(QUICK)
    pair.asker.map(0, AWAY, TAG)
    pair.meet()
    pair.back.is_cut = True
    assert pair.asker.try_request(0, 1, 41)
    pair.elapse(50 * MILLISECOND)
    pair.asker.handle()
    assert [returned_message.status for returned_message in pair.returned] == [Status.UNREACHABLE]
    pair.back.is_cut = False
    assert pair.asked.handle()
    pair.elapse()
    pair.asker.handle()
    assert (pair.answers, pair.asker.inbox.stray_replies, pair.asker.credits(0)) == ([], 1, 4)


def test_a_request_with_a_reply_is_not_returned_though_its_acknowledgements_are_lost() -> None:
    pair = Pair(QUICK)
    pair.asker.map(0, AWAY, TAG)
    pair.meet()
    before = pair.counter("n1", "acknowledgements_received")
    pair.back.is_cut = True
    assert pair.asker.try_request(0, 1, 41)
    pair.elapse(MILLISECOND // 10)
    pair.back.is_cut = False
    assert pair.asked.handle()
    pair.elapse(MILLISECOND // 10)
    assert pair.asker.handle()
    assert pair.answers == [42]
    assert pair.counter("n1", "acknowledgements_received") == before
    pair.back.is_cut = True
    pair.elapse(50 * MILLISECOND)
    assert pair.asker.handle()
    assert (pair.returned, pair.asker.credits(0), pair.asker.outbox.is_idle) == ([], 4, True)


def test_a_credit_lost_with_a_librarys_reply_returns_when_the_peer_restarts() -> None:
    pair = Pair(QUICK)
    pair.by_hand()
    pair.asker.map(0, AWAY, TAG)
    returned_replies: list[Returned] = []
    pair.asked.error_handler = returned_replies.append
    assert pair.asker.try_request(0, 99, 41, 42)
    pair.elapse()
    pair.simulation.cut(pair.link)
    assert pair.asked.handle()
    pair.elapse(50 * MILLISECOND)
    assert pair.asked.handle()
    assert [
        (returned.status, returned.is_reply, returned.handler, returned.arguments, returned.message)
        for returned in returned_replies
    ] == [(Status.UNREACHABLE, True, 0, (Status.BAD_HANDLER, 99, 41, 42), 1)]
    assert (pair.asker.is_empty, pair.asker.credits(0)) == (True, 3)
    pair.simulation.restore(pair.link)
    pair.simulation.restart("n2")
    pair.asked = pair.endpoint("n2")
    pair.asked.tag = TAG
    pair.asked.map(0, HOME, TAG)
    pair.by_hand()
    assert pair.asked.try_request(0, 1, 1)
    pair.elapse()
    assert pair.asker.credits(0) == 4


def test_a_reply_to_a_freed_endpoint_is_a_stray_though_another_has_its_number() -> None:
    pair = Pair(Settings(endpoints=1))
    pair.by_hand()
    pair.asker.map(0, AWAY, TAG)
    assert pair.asker.try_request(0, 1, 41)
    pair.elapse()
    pair.asker.free()
    pair.elapse()
    while (next_endpoint := pair.endpoint("n1")).name != HOME:
        next_endpoint.free()
        pair.elapse()
    next_endpoint.set_handler(2, lambda _, word: pair.answers.append(word))
    next_endpoint.map(0, AWAY, TAG)
    pair.asker = next_endpoint
    pair.by_hand()
    assert next_endpoint.try_request(0, 1, 50)
    pair.elapse()
    assert pair.asked.handle(1)
    pair.elapse()
    next_endpoint.handle()
    assert (pair.answers, next_endpoint.inbox.stray_replies, next_endpoint.credits(0)) == ([], 1, 3)
    pair.asked.handle()
    pair.elapse()
    next_endpoint.handle()
    assert (pair.answers, next_endpoint.credits(0)) == ([51], 4)


def test_a_message_refused_too_often_is_returned_if_configured() -> None:
    pair = Pair(Settings(congestion=3, credits=16))
    pair.asker.map(0, AWAY, TAG)
    pair.asker.map(1, AWAY, ANY - 1)
    pair.asked.tag = ANY

    async def ask(am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG001
        for serial in range(16):
            await pair.asker.request(0, 1, serial)
        await node.sleep(10 * MILLISECOND)
        await pair.asker.request(1, 1, 16)
        while not pair.returned:
            await pair.asker.wait()
            await pair.asker.poll()

    pair.simulation.spawn("n1", ask)
    pair.simulation.run(timeout=SECOND)
    assert [returned_message.status for returned_message in pair.returned] == [Status.CONGESTION]
    assert pair.counter("n2", "overruns") == 3


def test_without_an_error_handler_poll_raises_returned_error() -> None:
    pair = Pair()
    pair.asker.error_handler = None
    pair.asker.map(0, EndpointName(1, 9), TAG)
    with pytest.raises(ReturnedError, match="endpoint 9 of node 1, handler 1, was returned: bad endpoint"):
        pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))


@pytest.mark.parametrize("forbidden", ["request", "poll", "second reply"])
def test_a_handler_may_only_reply_once(forbidden: str) -> None:
    pair = Pair()
    pair.asker.map(0, AWAY, TAG)
    pair.asked.map(0, HOME, TAG)
    raised_errors: list[RuleError] = []

    def handler(token: Token, word: int) -> None:
        token.reply(2, word)
        try:
            if forbidden == "request":
                pair.asked.try_request(0, 1, 1)
            elif forbidden == "poll":
                pair.asked.poll()
            else:
                token.reply(2, word)
        except RuleError as error:
            raised_errors.append(error)

    pair.asked.set_handler(1, handler)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41), until=lambda: pair.answers)
    assert len(raised_errors) == 1


def test_a_reply_handler_may_send_nothing() -> None:
    pair = Pair()
    pair.asker.map(0, AWAY, TAG)
    sentences: list[str] = []

    def handler(token: Token, word: int) -> None:
        pair.answers.append(word)
        for send in (lambda: token.reply(1, 1), lambda: pair.asker.try_request(0, 1, 1)):
            try:
                send()
            except RuleError as error:
                sentences.append(str(error))

    pair.asker.set_handler(2, handler)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert sentences[0] == "a reply's handler may send nothing"
    assert len(sentences) == 2


def test_a_handlers_exception_passes_through_poll_and_the_credit_returns() -> None:
    pair = Pair()
    pair.asker.map(0, AWAY, TAG)

    def handler(_: Token, __: int) -> None:
        raise ZeroDivisionError

    pair.asked.set_handler(1, handler)
    with pytest.raises(ZeroDivisionError):
        pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    pair.simulation.programs("n1")[0].cancel()
    pair.run(until=lambda: pair.asker.credits(0) == 4)
    assert pair.counter("n2", "messages_delivered") == 1
