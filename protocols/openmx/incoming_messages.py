"""Messages that come to an endpoint: matched with receives, kept while they are unexpected, and copied into buffers.

`receive_queues` has the receives and the unexpected messages; `large_messages` pulls what is only announced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocols.core.host_work import COPY
from protocols.openmx.codec import TYPE_NOTIFY, TYPE_RNDV
from protocols.openmx.endpoint_memory import Event
from protocols.openmx.large_messages import LargeMessages
from protocols.openmx.mx_names import Status
from protocols.openmx.mx_requests import Incoming, Request
from protocols.openmx.partners import Partner
from protocols.openmx.receive_queues import ReceiveQueues

if TYPE_CHECKING:
    from protocols.openmx.endpoint import Endpoint


class IncomingMessages:
    """The messages to one endpoint. queues: its receives, and its unexpected messages."""

    def __init__(self, endpoint: Endpoint, queues: ReceiveQueues, room: int) -> None:
        """room: bytes of a fragment."""
        self.queues: Final = queues
        self.large: Final = LargeMessages(endpoint, self)
        self._endpoint: Final = endpoint
        self._work: Final = endpoint.work
        self._room: Final = room
        self._claimed: set[Incoming] = set()
        self._own_sends: dict[Incoming, Request] = {}  # synchronous, to itself, unmatched

    # From programs.

    def post(self, receive: Request) -> None:
        """Post a receive."""
        found = self.queues.post(receive)
        if found is not None:
            self._match(found, receive)

    def claim(self, incoming: Incoming) -> None:
        """Take an unexpected message out of the queue."""
        self.queues.claim(incoming)
        self._claimed.add(incoming)

    def receive_claimed(self, incoming: Incoming, receive: Request) -> None:
        """Match a message that `claim` has taken."""
        self._claimed.discard(incoming)
        self._match(incoming, receive)

    def send_to_itself(self, request: Request, synchronous: bool) -> None:
        """Send a message from the endpoint to itself."""
        assert request.peer is not None
        incoming = Incoming(request.peer, request.match_info, len(request.buffer))
        receive = self.queues.match(request.match_info)
        if receive is not None:
            incoming.place = request.buffer
            self._match(incoming, receive)
            request.settle(Status.SUCCESS)
            return
        incoming.place = memoryview(bytes(request.buffer))
        if self._is_done_with(incoming):
            request.settle(Status.SUCCESS)
            return
        if synchronous:
            self._own_sends[incoming] = request
        else:
            request.settle(Status.SUCCESS)
        self.queues.keep(incoming)

    def close(self) -> None:
        """Fail all receives, and forget the messages."""
        for request in self.queues.clear():
            request.finish(Status.ENDPOINT_CLOSED)
        for own in list(self._own_sends.values()):
            own.settle(Status.ENDPOINT_CLOSED)

    # From partners.

    def take(self, partner: Partner, event: Event, data: memoryview) -> None:
        """Take a message that has come whole: its bytes, a rendezvous, or a notice."""
        if event.type == TYPE_NOTIFY:
            self.large.notified(partner, event)
            return
        receive = self.queues.match(event.match)
        if receive is not None and event.type != TYPE_RNDV:
            self._receive(partner, event, data, receive)
            return
        incoming = Incoming(partner, event.match, event.total)
        if event.type == TYPE_RNDV:
            incoming.region, incoming.turn = event.number, event.turn
        else:
            incoming.place = memoryview(bytes(data))
        if receive is not None:
            self._match(incoming, receive)
        elif not self._is_done_with(incoming):
            self.queues.keep(incoming)
        elif incoming.region >= 0 and partner.is_connected:
            self.large.notify(incoming)

    def begin_medium(self, partner: Partner, event: Event) -> Incoming:
        """Begin a message in fragments, at the first that has come."""
        incoming = Incoming(partner, event.match, event.total)
        incoming.missing = (1 << -(-event.total // self._room)) - 1
        incoming.receive = self.queues.match(event.match)
        if incoming.receive is not None:
            incoming.receive.peer = partner
            incoming.place = incoming.receive.buffer
        else:
            incoming.place = memoryview(bytearray(event.total))
            if not self._is_done_with(incoming):
                self.queues.keep(incoming)
        return incoming

    def store_fragment(self, incoming: Incoming, event: Event, data: memoryview) -> None:
        """Store a fragment; the last one completes the message."""
        place = incoming.place[event.number * self._room :][: len(data)]
        place[:] = data[: len(place)]
        self._work.spend(COPY, len(place), self._work.writer)
        if not incoming.missing and incoming.receive is not None:
            self._deliver(incoming, incoming.receive)

    def forget_partner(self, partner: Partner, partials: list[Incoming], status: Status) -> None:
        """Fail the receives of messages that will not be complete, and forget those messages."""
        for incoming in [*partials, *self.queues.unpulled(partner)]:
            self.queues.forget(incoming)
            if incoming.receive is not None:
                self.finish(incoming, incoming.receive, status)
        for incoming in self._claimed:
            if incoming.source is partner and (incoming.missing or incoming.region >= 0):
                incoming.error = status
        self.large.forget_partner(partner, status)

    def finish(self, incoming: Incoming, receive: Request, status: Status) -> None:
        """Complete a receive whose message has come, or will not."""
        transferred = min(len(receive.buffer), incoming.length) if status is Status.SUCCESS else 0
        if status is Status.SUCCESS and incoming.length > transferred:
            status = Status.TRUNCATED
        self._tell(status)
        receive.finish(status, incoming.length, transferred, incoming.match_info)

    def _receive(self, partner: Partner, event: Event, data: memoryview, receive: Request) -> None:
        """Complete a receive with a message that has come whole."""
        size, length = len(receive.buffer), event.length
        receive.peer = partner
        if length:
            receive.buffer[:length] = data if length <= size else data[:size]
            self._work.spend(COPY, length, self._work.writer)
        if length <= size:
            receive.finish(Status.SUCCESS, length, length, event.match)
        else:
            self._tell(Status.TRUNCATED)
            receive.finish(Status.TRUNCATED, length, size, event.match)

    def _match(self, incoming: Incoming, receive: Request) -> None:
        """Match a message with its receive."""
        receive.peer = incoming.source
        if incoming.error is not Status.SUCCESS:
            self.finish(incoming, receive, incoming.error)
        elif incoming.region >= 0:
            self.large.pull(incoming, receive)
        elif incoming.missing:
            incoming.receive = receive
        else:
            self._deliver(incoming, receive)

    def _deliver(self, incoming: Incoming, receive: Request) -> None:
        """Complete a receive whose message is here."""
        own = self._own_sends.pop(incoming, None)
        if incoming.place is not receive.buffer:
            place = receive.buffer[: incoming.length]
            place[:] = incoming.place[: len(place)]
            self._work.spend(COPY, len(place), self._work.writer)
        self.finish(incoming, receive, Status.SUCCESS)
        if own is not None:
            own.settle(Status.SUCCESS)

    def _is_done_with(self, incoming: Incoming) -> bool:
        """Count an unexpected message; return whether the program's handler is done with it, or has ended the connection
        before all of it has come."""
        endpoint, source = self._endpoint, incoming.source
        endpoint.counters.unexpected += 1
        if endpoint.on_unexpected is None:
            return False
        is_done = endpoint.on_unexpected(source, incoming.match_info, incoming.length)
        return is_done or (not source.is_connected and (bool(incoming.missing) or incoming.region >= 0))

    def _tell(self, status: Status) -> None:
        if status is not Status.SUCCESS and self._endpoint.on_error is not None:
            self._endpoint.on_error(status)
