"""Incoming messages of an endpoint: matched with receives, queued while unexpected, and copied into buffers.

`receive_queues` has the receives and the unexpected messages; `large_messages` pulls the data of rendezvous messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocols.core.host_work import COPY
from protocols.openmx.codec import TYPE_NOTIFY, TYPE_RNDV
from protocols.openmx.endpoint_memory import Event
from protocols.openmx.large_messages import LargeMessages
from protocols.openmx.mx_names import SUCCESS, Status
from protocols.openmx.mx_requests import Incoming, Request
from protocols.openmx.partners import Partner
from protocols.openmx.receive_queues import ReceiveQueues

if TYPE_CHECKING:
    from protocols.openmx.endpoint import Endpoint


class IncomingMessages:
    """The incoming messages of one endpoint. queues: its receives and unexpected messages."""

    def __init__(self, endpoint: Endpoint, queues: ReceiveQueues, fragment_size: int) -> None:
        """fragment_size: bytes."""
        self.queues: Final = queues
        self.large: Final = LargeMessages(endpoint, self)
        self._endpoint: Final = endpoint
        self._work: Final = endpoint.work
        self._fragment_size: Final = fragment_size
        self._claimed: set[Incoming] = set()
        self._self_sends: dict[Incoming, Request] = {}  # unmatched synchronous sends to this endpoint itself

    # From programs.

    def post(self, receive: Request) -> None:
        """Post a receive."""
        incoming = self.queues.post(receive)
        if incoming is not None:
            self._match(incoming, receive)

    def claim(self, incoming: Incoming) -> None:
        """Take an unexpected message out of the queue."""
        self.queues.claim(incoming)
        self._claimed.add(incoming)

    def receive_claimed(self, incoming: Incoming, receive: Request) -> None:
        """Match a claimed message."""
        self._claimed.discard(incoming)
        self._match(incoming, receive)

    def send_to_itself(self, request: Request, synchronous: bool) -> None:
        """Send a message from the endpoint to itself."""
        assert request.peer is not None
        incoming = Incoming(request.peer, request.match_info, len(request.buffer))
        receive = self.queues.match(request.match_info)
        if receive is not None:
            incoming.buffer = request.buffer
            self._match(incoming, receive)
            request.settle(SUCCESS)
            return
        incoming.buffer = memoryview(bytes(request.buffer))
        if self._is_discarded(incoming):
            request.settle(SUCCESS)
            return
        if synchronous:
            self._self_sends[incoming] = request
        else:
            request.settle(SUCCESS)
        self.queues.keep(incoming)

    def close(self) -> None:
        """Fail all receives and the endpoint's unmatched sends to itself, and discard the messages."""
        for request in self.queues.clear():
            request.finish(Status.ENDPOINT_CLOSED)
        for send in list(self._self_sends.values()):
            send.settle(Status.ENDPOINT_CLOSED)

    # From partners.

    def take(self, partner: Partner, event: Event, data: memoryview) -> None:
        """Handle an unfragmented message: eager data, a rendezvous, or a notice."""
        if event.kind == TYPE_NOTIFY:
            self.large.on_notify(partner, event)
            return
        receive = self.queues.match(event.match)
        if receive is not None and event.kind != TYPE_RNDV:
            self._receive(partner, event, data, receive)
            return
        incoming = Incoming(partner, event.match, event.total)
        if event.kind == TYPE_RNDV:
            incoming.region, incoming.turn = event.number, event.turn
        else:
            incoming.buffer = memoryview(bytes(data))
        if receive is not None:
            self._match(incoming, receive)
        elif not self._is_discarded(incoming):
            self.queues.keep(incoming)
        elif incoming.region >= 0 and partner.is_connected:
            self.large.notify(incoming)

    def begin_medium(self, partner: Partner, event: Event) -> Incoming:
        """Start a fragmented message at its first received fragment."""
        incoming = Incoming(partner, event.match, event.total)
        incoming.missing = (1 << -(-event.total // self._fragment_size)) - 1
        incoming.receive = self.queues.match(event.match)
        if incoming.receive is not None:
            incoming.receive.peer = partner
            incoming.buffer = incoming.receive.buffer
        else:
            incoming.buffer = memoryview(bytearray(event.total))
            if not self._is_discarded(incoming):
                self.queues.keep(incoming)
        return incoming

    def store_fragment(self, incoming: Incoming, event: Event, data: memoryview) -> None:
        """Store a fragment; the last one completes the message."""
        buffer = incoming.buffer[event.number * self._fragment_size :][: len(data)]
        buffer[:] = data[: len(buffer)]
        self._work.spend(COPY, len(buffer), self._work.writer)
        if not incoming.missing and incoming.receive is not None:
            self._deliver(incoming, incoming.receive)

    def fail_messages(self, partner: Partner, incomplete: list[Incoming], status: Status) -> None:
        """Discard a partner's incomplete messages, and fail their receives."""
        for incoming in [*incomplete, *self.queues.unpulled(partner)]:
            self.queues.forget(incoming)
            if incoming.receive is not None:
                self.finish(incoming, incoming.receive, status)
        for incoming in self._claimed:
            if incoming.source is partner and (incoming.missing or incoming.region >= 0):
                incoming.error = status
        self.large.fail_messages(partner, status)

    def finish(self, incoming: Incoming, receive: Request, status: Status) -> None:
        """Complete a receive with the status of its message."""
        transferred = min(len(receive.buffer), incoming.length) if status is SUCCESS else 0
        if status is SUCCESS and incoming.length > transferred:
            status = Status.TRUNCATED
        self._report_error(status)
        receive.finish(status, incoming.length, transferred, incoming.match_info)

    def _receive(self, partner: Partner, event: Event, data: memoryview, receive: Request) -> None:
        """Complete a receive with an unfragmented message."""
        size, length = len(receive.buffer), event.length
        receive.peer = partner
        if length:
            receive.buffer[:length] = data if length <= size else data[:size]
            self._work.spend(COPY, length, self._work.writer)
        if length <= size:
            receive.finish(SUCCESS, length, length, event.match)
        else:
            self._report_error(Status.TRUNCATED)
            receive.finish(Status.TRUNCATED, length, size, event.match)

    def _match(self, incoming: Incoming, receive: Request) -> None:
        """Match a message with a receive: complete the receive, pull the message, or wait for its missing fragments."""
        receive.peer = incoming.source
        if incoming.error is not SUCCESS:
            self.finish(incoming, receive, incoming.error)
        elif incoming.region >= 0:
            self.large.pull(incoming, receive)
        elif incoming.missing:
            incoming.receive = receive
        else:
            self._deliver(incoming, receive)

    def _deliver(self, incoming: Incoming, receive: Request) -> None:
        """Copy a complete message into its receive's buffer, and complete the receive."""
        self_send = self._self_sends.pop(incoming, None)
        if incoming.buffer is not receive.buffer:
            target = receive.buffer[: incoming.length]
            target[:] = incoming.buffer[: len(target)]
            self._work.spend(COPY, len(target), self._work.writer)
        self.finish(incoming, receive, SUCCESS)
        if self_send is not None:
            self_send.settle(SUCCESS)

    def _is_discarded(self, incoming: Incoming) -> bool:
        """Count an unexpected message; return whether to discard it: the program's handler has consumed it, or has
        ended the connection of an incomplete message."""
        endpoint, source = self._endpoint, incoming.source
        endpoint.counters.unexpected += 1
        if endpoint.on_unexpected is None:
            return False
        is_consumed = endpoint.on_unexpected(source, incoming.match_info, incoming.length)
        return is_consumed or (not source.is_connected and (bool(incoming.missing) or incoming.region >= 0))

    def _report_error(self, status: Status) -> None:
        if status is not SUCCESS and self._endpoint.on_error is not None:
            self._endpoint.on_error(status)
