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
FIRST_NODE, SECOND_NODE = EndpointName(0, 0), EndpointName(1, 0)


class Pair:
    """An endpoint on each of two nodes; the first one sends requests and records their outcomes.

    cut_replies: cut the link to the first node at the next delivery, before its acknowledgement.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.delivered: list[Delivery] = []
        self.cut_replies = False
        cluster = Description.back_to_back(delay="5us", rate="1gbit")
        self.simulation = Simulation(cluster, plug(settings, on_delivery=self.on_delivery))
        self.requester, self.replier = (self.endpoint(name) for name in ("n1", "n2"))
        self.replier.tag = TAG
        self.returned: list[Returned] = []
        self.data: list[bytes] = []
        self.replies: list[int] = []
        self.requester.error_handler = self.on_returned
        self.requester.set_handler(2, lambda _, word: self.replies.append(word))
        self.replier.set_handler(1, lambda token, word: token.reply(2, word + 1))
        self.link = self.simulation.layout.links[0].name
        self.reverse = self.simulation.network.link_directions[self.link, "backward"]

    def endpoint(self, name: str) -> Endpoint:
        return cast(ActiveMessages, self.simulation.nodes[name].agent.host).allocate_bundle().allocate_endpoint()

    def on_delivery(self, delivery: Delivery) -> None:
        self.delivered.append(delivery)
        self.reverse.is_cut |= self.cut_replies

    def on_returned(self, returned: Returned) -> None:
        self.returned.append(returned)
        self.data.append(bytes(returned.data))

    def run(
        self, request: Callable[[Endpoint], object] | None = None, until: Callable[[], object] | None = None
    ) -> None:
        """Send a request, and let both nodes poll until the condition holds; by default a return or a reply."""
        is_done = until or (lambda: self.returned or self.replies)

        async def poll(am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG001
            endpoint = self.requester if node.number == 0 else self.replier
            if request is not None and node.number == 0:
                while not request(endpoint):
                    await endpoint.wait_for_room(0)
            while not is_done():
                await endpoint.poll()
                await node.sleep(100_000)

        self.simulation.spawn("n1", poll)
        self.simulation.spawn("n2", poll)
        self.simulation.run(timeout=5 * SECOND)

    def load_endpoints(self) -> None:
        """Load both endpoints into their NICs; only the test polls."""
        for endpoint in (self.requester, self.replier):
            endpoint.library.driver.fault(endpoint)
        self.elapse()

    def exchange(self) -> None:
        """Make the nodes known to each other with a request and its reply."""
        self.load_endpoints()
        assert self.requester.try_request(0, 1, 0)
        for endpoint in (self.replier, self.requester):
            self.elapse()
            assert endpoint.handle()
        self.elapse()
        self.replies.clear()
        self.delivered.clear()

    def elapse(self, duration: int = MILLISECOND) -> None:
        self.simulation.run_until(self.simulation.now() + duration)

    def counter(self, node: str, name: str) -> int:
        return self.simulation.nodes[node].agent.firmware.counter_values()[name]


def test_a_request_with_a_wrong_tag_is_returned_and_never_delivered() -> None:
    pair = Pair()
    pair.requester.map(0, SECOND_NODE, TAG + 1)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert pair.returned[0].status is Status.BAD_TAG
    assert (pair.returned[0].destination, pair.returned[0].handler, pair.returned[0].arguments) == (
        SECOND_NODE,
        1,
        (41,),
    )
    assert pair.delivered == []
    assert pair.requester.credits(0) == 4


def test_tag_none_rejects_all_requests_and_tag_any_accepts_them() -> None:
    pair = Pair()
    pair.replier.tag = 0
    pair.requester.map(0, SECOND_NODE, 0)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert pair.returned[0].status is Status.BAD_TAG
    pair.returned.clear()
    pair.replier.tag = ANY
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert pair.replies == [42]


def test_a_request_to_an_endpoint_that_does_not_exist_is_returned() -> None:
    pair = Pair()
    pair.requester.map(0, EndpointName(1, 9), TAG)
    pair.run(lambda endpoint: endpoint.try_request_medium(0, 1, b"with data", 41))
    assert pair.returned[0].status is Status.BAD_ENDPOINT
    assert pair.data == [b"with data"]


def test_a_bulk_message_beyond_the_segment_is_returned_once_with_all_its_data() -> None:
    pair = Pair()
    pair.replier.segment = bytearray(10_000)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.run(lambda endpoint: endpoint.try_request_bulk(0, 1, bytes(9_000), 2_000, 41))
    pair.run(until=lambda: pair.simulation.now() > 50 * MILLISECOND)
    assert [returned.status for returned in pair.returned] == [Status.BAD_SEGMENT]
    assert pair.data == [bytes(9_000)]
    assert pair.requester.outbox.bulk_data == {}


def test_a_bulk_message_to_an_endpoint_without_a_segment_is_returned() -> None:
    pair = Pair()
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.run(lambda endpoint: endpoint.try_request_bulk(0, 1, b"x", 0, 41))
    assert pair.returned[0].status is Status.BAD_SEGMENT


def test_a_request_for_a_handler_that_is_not_set_is_returned_by_the_library() -> None:
    pair = Pair()
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.run(lambda endpoint: endpoint.try_request(0, 99, 41, 42))
    message = pair.returned[0]
    assert (message.status, message.handler, message.arguments) == (Status.BAD_HANDLER, 99, (41, 42))
    assert pair.requester.credits(0) == 4


def test_a_request_over_a_cut_link_is_returned_as_unreachable() -> None:
    pair = Pair(QUICK)
    pair.simulation.cut(pair.link)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert pair.returned[0].status is Status.UNREACHABLE
    assert pair.delivered == []
    pair.simulation.restore(pair.link)
    pair.returned.clear()
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 50))
    assert pair.replies == [51]


def test_a_delivered_request_without_acknowledgements_is_returned() -> None:
    pair = Pair(QUICK)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.exchange()
    pair.reverse.is_cut = True
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41), until=lambda: pair.returned)
    message = pair.returned[0]
    assert message.status is Status.UNREACHABLE
    assert Delivery(0, 1, 0, message.message) in pair.delivered


def test_requests_accepted_by_a_restarted_peer_are_returned_with_their_credits() -> None:
    pair = Pair(QUICK)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.replier.set_handler(1, lambda _, __: pair.simulation.cut(pair.link))
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41), until=lambda: pair.replier.is_empty and pair.delivered)
    pair.simulation.restore(pair.link)
    pair.simulation.restart("n2")
    pair.replier = pair.endpoint("n2")
    pair.replier.tag = TAG
    pair.replier.set_handler(1, lambda token, word: token.reply(2, word + 1))
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 50), until=lambda: pair.returned)
    assert pair.returned[0].status is Status.UNREACHABLE  # it named the former incarnation's endpoint
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 60), until=lambda: pair.replies)
    assert pair.replies == [61]
    assert pair.requester.credits(0) == 4
    assert pair.counter("n1", "restarts") == 1


@pytest.mark.parametrize("next_sender", ["requester", "replier", "none"])
def test_requests_accepted_by_an_endpoint_freed_during_an_outage_are_returned_after_it(
    next_sender: str,
) -> None:
    pair = Pair(QUICK)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.requester.map(1, EndpointName(1, 9), TAG)
    pair.exchange()
    other_endpoint = pair.replier.bundle.allocate_endpoint()
    other_endpoint.map(0, FIRST_NODE, TAG)
    other_endpoint.library.driver.fault(other_endpoint)
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    assert len(pair.delivered) == 1
    pair.simulation.cut(pair.link)
    pair.replier.free()
    pair.elapse(50 * MILLISECOND)
    pair.simulation.restore(pair.link)
    pair.elapse(50 * MILLISECOND)
    assert not pair.requester.handle()
    assert (pair.returned, pair.requester.credits(0)) == ([], 3)
    if next_sender == "requester":
        assert pair.requester.try_request(1, 1, 50)
    elif next_sender == "replier":
        assert other_endpoint.try_request(0, 99, 50)
    pair.elapse(SECOND if next_sender == "none" else MILLISECOND)
    assert pair.requester.handle()
    assert [returned.status for returned in pair.returned if returned.destination == SECOND_NODE] == [
        Status.UNREACHABLE
    ]
    assert (pair.replies, pair.requester.credits(0)) == ([], 4)
    assert not any(node.agent.firmware.pending_work() for node in pair.simulation.nodes.values())


@pytest.mark.parametrize("replier_state", ["another tag", "no endpoint", "the same endpoint"])
@pytest.mark.parametrize("form", ["short", "medium", "bulk"])
def test_requests_accepted_by_a_nic_that_restarts_before_its_acknowledgement_are_returned_and_handled_once(
    form: str, replier_state: str
) -> None:
    handled: list[int] = []

    def handler(token: Token, *arguments: object) -> None:
        handled.append(len(arguments))
        token.reply(2, 1)

    pair = Pair(QUICK)
    pair.replier.set_handler(1, handler)
    pair.replier.segment = bytearray(10_000)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.load_endpoints()
    pair.cut_replies = True
    if form == "short":
        assert pair.requester.try_request(0, 1, 41)
    elif form == "medium":
        assert pair.requester.try_request_medium(0, 1, b"with data", 41)
    else:
        assert pair.requester.try_request_bulk(0, 1, bytes(4_000), 0, 41)
    pair.elapse(5 * MILLISECOND)  # a request with data is refused until the peers are introduced
    assert pair.replier.handle()
    assert (len(pair.delivered), len(handled)) == (1, 1)
    pair.simulation.restart("n2")
    pair.cut_replies = pair.reverse.is_cut = False
    if replier_state != "no endpoint":
        pair.replier = pair.endpoint("n2")
        pair.replier.tag = TAG if replier_state == "the same endpoint" else TAG + 1
        pair.replier.set_handler(1, handler)
        pair.replier.segment = bytearray(10_000)
        pair.load_endpoints()
    pair.elapse(20 * MILLISECOND)
    if replier_state != "no endpoint":
        assert not pair.replier.handle()
    assert pair.requester.handle()
    assert [returned.status for returned in pair.returned] == [Status.UNREACHABLE]
    assert (len(pair.delivered), len(handled), pair.replies, pair.requester.credits(0)) == (1, 1, [], 4)


def test_a_rejected_reply_is_returned_to_the_replier() -> None:
    pair = Pair()
    pair.requester.map(0, SECOND_NODE, TAG)
    returned_replies: list[Returned] = []
    pair.replier.error_handler = returned_replies.append

    def reply_late(token: Token, word: int) -> None:
        pair.requester.free()
        token.reply(2, word)

    pair.replier.set_handler(1, reply_late)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41), until=lambda: returned_replies)
    assert (returned_replies[0].status, returned_replies[0].is_reply, returned_replies[0].destination) == (
        Status.REPLY_REJECTED,
        True,
        FIRST_NODE,
    )


def forge_reply(endpoint: Endpoint, *, message: int, tag: int = TAG) -> None:
    """Send a reply with a chosen message number and tag."""
    forged = Origin()
    forged.tag, forged.message = tag, message
    assert endpoint.outbox.send_reply(forged, 2, (99,))


def test_a_reply_without_a_request_is_dropped() -> None:
    pair = Pair()
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    for message in (0, 1, 2):  # message 1 has been replied to already
        forge_reply(pair.replier, message=message)
    pair.run(until=lambda: pair.requester.inbox.stray_replies == 3)
    assert pair.replies == [42]
    assert pair.requester.credits(0) == 4


def test_a_reply_from_another_endpoint_or_with_another_tag_than_its_request_is_a_stray() -> None:
    pair = Pair()
    pair.load_endpoints()
    other_endpoint = pair.replier.bundle.allocate_endpoint()
    other_endpoint.library.driver.fault(other_endpoint)
    pair.elapse()
    pair.requester.map(0, SECOND_NODE, TAG)
    assert pair.requester.try_request(0, 1, 41)
    forge_reply(other_endpoint, message=1)
    forge_reply(pair.replier, message=1, tag=TAG + 1)
    pair.elapse()
    pair.requester.handle()
    assert (pair.replies, pair.requester.inbox.stray_replies, pair.requester.credits(0)) == ([], 2, 3)
    pair.replier.handle()
    pair.elapse()
    pair.requester.handle()
    assert (pair.replies, pair.requester.credits(0)) == ([42], 4)


def test_a_reply_after_a_remapping_is_handled_and_returns_no_credit_of_the_new_mapping() -> None:
    pair = Pair()
    pair.load_endpoints()
    pair.requester.map(0, SECOND_NODE, TAG)
    assert pair.requester.try_request(0, 1, 0)
    pair.requester.unmap(0)
    pair.requester.map(0, SECOND_NODE, TAG)
    for word in range(1, 5):
        assert pair.requester.try_request(0, 1, word)
    pair.elapse()
    assert pair.replier.handle(1)
    pair.elapse()
    assert pair.requester.handle()
    assert (pair.replies, pair.requester.credits(0)) == ([1], 0)
    pair.replier.handle()
    pair.elapse()
    pair.requester.handle()
    assert (sorted(pair.replies), pair.requester.credits(0)) == ([1, 2, 3, 4, 5], 4)


def test_a_late_reply_to_a_returned_request_is_dropped() -> None:
    pair = Pair(QUICK)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.exchange()
    pair.reverse.is_cut = True
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse(50 * MILLISECOND)
    pair.requester.handle()
    assert [returned.status for returned in pair.returned] == [Status.UNREACHABLE]
    pair.reverse.is_cut = False
    assert pair.replier.handle()
    pair.elapse()
    pair.requester.handle()
    assert (pair.replies, pair.requester.inbox.stray_replies, pair.requester.credits(0)) == ([], 1, 4)


def test_a_request_with_a_reply_is_not_returned_if_its_acknowledgements_are_lost() -> None:
    pair = Pair(QUICK)
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.exchange()
    before = pair.counter("n1", "acknowledgements_received")
    pair.reverse.is_cut = True
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse(MILLISECOND // 10)
    pair.reverse.is_cut = False
    assert pair.replier.handle()
    pair.elapse(MILLISECOND // 10)
    assert pair.requester.handle()
    assert pair.replies == [42]
    assert pair.counter("n1", "acknowledgements_received") == before
    pair.reverse.is_cut = True
    pair.elapse(50 * MILLISECOND)
    assert pair.requester.handle()
    assert (pair.returned, pair.requester.credits(0), pair.requester.outbox.is_idle) == ([], 4, True)


def test_a_credit_lost_with_the_librarys_reply_is_restored_when_the_peer_restarts() -> None:
    pair = Pair(QUICK)
    pair.load_endpoints()
    pair.requester.map(0, SECOND_NODE, TAG)
    returned_replies: list[Returned] = []
    pair.replier.error_handler = returned_replies.append
    assert pair.requester.try_request(0, 99, 41, 42)
    pair.elapse()
    pair.simulation.cut(pair.link)
    assert pair.replier.handle()
    pair.elapse(50 * MILLISECOND)
    assert pair.replier.handle()
    assert [
        (returned.status, returned.is_reply, returned.handler, returned.arguments, returned.message)
        for returned in returned_replies
    ] == [(Status.UNREACHABLE, True, 0, (Status.BAD_HANDLER, 99, 41, 42), 1)]
    assert (pair.requester.is_empty, pair.requester.credits(0)) == (True, 3)
    pair.simulation.restore(pair.link)
    pair.simulation.restart("n2")
    pair.replier = pair.endpoint("n2")
    pair.replier.tag = TAG
    pair.replier.map(0, FIRST_NODE, TAG)
    pair.load_endpoints()
    assert pair.replier.try_request(0, 1, 1)
    pair.elapse()
    assert pair.requester.credits(0) == 4


def test_a_reply_to_a_freed_endpoint_is_a_stray_if_its_number_is_in_use_again() -> None:
    pair = Pair(Settings(endpoints=1))
    pair.load_endpoints()
    pair.requester.map(0, SECOND_NODE, TAG)
    assert pair.requester.try_request(0, 1, 41)
    pair.elapse()
    pair.requester.free()
    pair.elapse()
    while (next_endpoint := pair.endpoint("n1")).name != FIRST_NODE:
        next_endpoint.free()
        pair.elapse()
    next_endpoint.set_handler(2, lambda _, word: pair.replies.append(word))
    next_endpoint.map(0, SECOND_NODE, TAG)
    pair.requester = next_endpoint
    pair.load_endpoints()
    assert next_endpoint.try_request(0, 1, 50)
    pair.elapse()
    assert pair.replier.handle(1)
    pair.elapse()
    next_endpoint.handle()
    assert (pair.replies, next_endpoint.inbox.stray_replies, next_endpoint.credits(0)) == ([], 1, 3)
    pair.replier.handle()
    pair.elapse()
    next_endpoint.handle()
    assert (pair.replies, next_endpoint.credits(0)) == ([51], 4)


def test_a_message_refused_more_often_than_configured_is_returned() -> None:
    pair = Pair(Settings(congestion=3, credits=16))
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.requester.map(1, SECOND_NODE, ANY - 1)
    pair.replier.tag = ANY

    async def send_requests(am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG001
        for serial in range(16):
            await pair.requester.request(0, 1, serial)
        await node.sleep(10 * MILLISECOND)
        await pair.requester.request(1, 1, 16)
        while not pair.returned:
            await pair.requester.wait()
            await pair.requester.poll()

    pair.simulation.spawn("n1", send_requests)
    pair.simulation.run(timeout=SECOND)
    assert [returned.status for returned in pair.returned] == [Status.CONGESTION]
    assert pair.counter("n2", "overruns") == 3


def test_without_an_error_handler_poll_raises_returned_error() -> None:
    pair = Pair()
    pair.requester.error_handler = None
    pair.requester.map(0, EndpointName(1, 9), TAG)
    with pytest.raises(ReturnedError, match="endpoint 9 of node 1, handler 1, was returned: bad endpoint"):
        pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))


@pytest.mark.parametrize("call", ["request", "poll", "second reply"])
def test_a_request_handler_may_only_send_one_reply(call: str) -> None:
    pair = Pair()
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.replier.map(0, FIRST_NODE, TAG)
    raised_errors: list[RuleError] = []

    def handler(token: Token, word: int) -> None:
        token.reply(2, word)
        try:
            if call == "request":
                pair.replier.try_request(0, 1, 1)
            elif call == "poll":
                pair.replier.poll()
            else:
                token.reply(2, word)
        except RuleError as error:
            raised_errors.append(error)

    pair.replier.set_handler(1, handler)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41), until=lambda: pair.replies)
    assert len(raised_errors) == 1


def test_a_reply_handler_may_not_send() -> None:
    pair = Pair()
    pair.requester.map(0, SECOND_NODE, TAG)
    sentences: list[str] = []

    def handler(token: Token, word: int) -> None:
        pair.replies.append(word)
        for send in (lambda: token.reply(1, 1), lambda: pair.requester.try_request(0, 1, 1)):
            try:
                send()
            except RuleError as error:
                sentences.append(str(error))

    pair.requester.set_handler(2, handler)
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert sentences[0] == "a reply's handler may send nothing"
    assert len(sentences) == 2


def test_poll_raises_a_handlers_exception_and_the_credit_is_returned() -> None:
    pair = Pair()
    pair.requester.map(0, SECOND_NODE, TAG)

    def handler(_: Token, __: int) -> None:
        raise ZeroDivisionError

    pair.replier.set_handler(1, handler)
    with pytest.raises(ZeroDivisionError):
        pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    pair.simulation.programs("n1")[0].cancel()
    pair.run(until=lambda: pair.requester.credits(0) == 4)
    assert pair.counter("n2", "messages_delivered") == 1
