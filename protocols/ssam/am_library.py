"""SSAM's host library with endpoints: active messages with AM-2's names over one-cell messages.

    async def program(ssam, node):
        endpoint = ssam.allocate_bundle().allocate_endpoint()
        endpoint.tag = 7
        endpoint.set_handler(1, lambda token, word: token.reply(2, word + 1))
        endpoint.set_handler(2, lambda token, word: print(word))
        endpoint.map(0, EndpointName(1 - ssam.node, 0), 7)
        await endpoint.request(0, 1, 41)
        while not await endpoint.poll():
            await endpoint.wait()

A short or medium message is one cell; `handler_addresses` has its format.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from protocols.active_messages.am_errors import Returned, ReturnedError, Status
from protocols.active_messages.endpoint_names import NO_HANDLER, EndpointName, MessageContent, RequestName, Unhandled
from protocols.active_messages.observer import Observer
from protocols.core.completion import Completion
from protocols.core.firmware import Buffer, HostActions
from protocols.ssam import cells
from protocols.ssam.am_endpoints import MAX_WORDS, Bundle, Endpoint, PendingRequest
from protocols.ssam.bulk_cells import BulkSender, IncomingBulk
from protocols.ssam.cells import DATA, Message
from protocols.ssam.handler_addresses import (
    BULK,
    GRANTED,
    MAX_ENDPOINTS,
    MORE,
    SHORT,
    WANTS_WINDOW,
    WORD,
    Address,
    accepts,
    address_of,
    pack_words,
    unpack_head,
    unpack_words,
)
from protocols.ssam.host import Library, Reply
from protocols.ssam.reply_tokens import Token
from protocols.ssam.sba100 import Process

_MASK: Final = 0xFFFF_FFFF
_NO_DATA: Final = memoryview(b"")


class ActiveMessages(Library):
    """A process's library, with endpoints. Implements `protocols.active_messages.am_interface.ActiveMessages`. A
    program may use endpoints, or the calls of `Library` with handlers at arbitrary addresses.

    observer: notified of all messages. pending_returns: returned requests that the next poll reports to their
    endpoints.
    """

    def __init__(self, process: Process, nic: HostActions) -> None:
        super().__init__(process, nic)
        self.max_short: Final = MAX_WORDS
        """AM_MaxShort: maximum words of a request."""
        self.observer: Observer | None = None
        self.pending_returns: Final[deque[tuple[Endpoint, Returned]]] = deque()
        self.on_message = self._on_request
        self.on_renewed = self._drop_incoming
        self._endpoints: dict[int, Endpoint] = {}
        self._number = 0  # of the last request
        self._bulk_senders: dict[int, BulkSender] = {}
        self._incoming: dict[int, IncomingBulk] = {}
        self._granted: int | None = None  # the node to which the larger window is granted

    @property
    def window(self) -> int:
        """Maximum number of unanswered requests to a node."""
        return self.settings.window

    @property
    def life(self) -> int:
        """The NIC's incarnation; see `protocols.active_messages.observer.Observable`."""
        return self.incarnation

    def medium_room(self, words: int) -> int:
        """Return the maximum bytes of data in a request with `words` words."""
        return WORD * (MAX_WORDS - words)

    def allocate_bundle(self) -> Bundle:
        """AM_AllocateBundle."""
        return Bundle(self)

    def allocate_endpoint(self) -> Endpoint:
        """Allocate an endpoint; see `Bundle.allocate_endpoint`."""
        number = next((number for number in range(MAX_ENDPOINTS) if number not in self._endpoints), None)
        if number is None:
            raise LookupError(f"all {MAX_ENDPOINTS} endpoints are allocated: free one first")
        endpoint = self._endpoints[number] = Endpoint(self, number)
        return endpoint

    def free(self, endpoint: Endpoint) -> None:
        """Free an endpoint; see `Endpoint.free`."""
        if self._endpoints.get(endpoint.name.endpoint) is not endpoint:
            return
        del self._endpoints[endpoint.name.endpoint]
        for request in list(endpoint.pending.values()):
            request.complete()
        if self.observer is not None:
            self.observer.endpoint_freed(endpoint.name.endpoint)

    def wait(self) -> Completion[None]:
        completion = super().wait()
        if self.pending_returns:
            self.wake()
        return completion

    def unhandled(self) -> Sequence[Unhandled]:
        """Return the numbers of arrived and unhandled messages of each endpoint that has any."""
        requests, answers = Counter[int](), Counter(endpoint.name.endpoint for endpoint, _ in self.pending_returns)
        for node, message, pending in self.unread():
            if isinstance(pending, PendingRequest):
                answers[pending.endpoint.name.endpoint] += 1
            elif message.kind == cells.REQUEST and (address := address_of(message.handler)).form != MORE:
                requests[address.to] += 1
            elif message.kind in (cells.REQUEST, cells.BYTES) and node in self._incoming:
                requests[self._incoming[node].address.to] += 1
        numbers = [number for number in self._endpoints if requests[number] or answers[number]]
        return [Unhandled(number, requests[number], answers[number]) for number in numbers]

    # Requests.

    def next_number(self) -> int:
        """Return the number of a new request."""
        self._number = self._number + 1 & _MASK
        return self._number

    def credits(self, node: int) -> int:
        """Return the number of cells that the window to a node permits."""
        return max(0, self.window - self.unanswered_count(node))

    def bulk_sender(self, node: int) -> BulkSender:
        """Return the sender of bulk messages to a node."""
        bulk_sender = self._bulk_senders.get(node)
        if bulk_sender is None:
            bulk_sender = self._bulk_senders[node] = BulkSender(self, node)
        return bulk_sender

    async def wait_for_room(self, node: int, request: PendingRequest | None = None) -> None:
        """Poll until the window to a node permits a request, or `request` has ended. Raises as `Library.request`."""
        while not self.has_room(node) and not (request is not None and request.is_completed):
            await self.poll()

    def record_request(self, request: PendingRequest, data: Buffer) -> None:
        """Record a request whose first cell is about to be sent."""
        request.endpoint.pending[request.number] = request
        if self.observer is not None:
            content = MessageContent(request.handler, request.words, data)
            self.observer.request_sent(request.endpoint.name.endpoint, request.number, request.to, content)

    def handle_answer(self, request: PendingRequest, message: Message) -> None:
        """Handle a request's answer, and call the reply's handler. Like a handler, this may not send."""
        endpoint, local = request.endpoint, request.endpoint.name.endpoint
        if message.kind == cells.ACKNOWLEDGEMENT:
            if self.observer is not None:
                self.observer.reply_handled(local, request.number, request.to, MessageContent(NO_HANDLER, (), b""))
            return
        address = address_of(message.handler)
        contents = unpack_words(message.data, address.words)
        if contents is None:
            self._counters.no_handler += 1
            return
        words, data = contents
        if address.handler == NO_HANDLER:
            status = Status(words[0])
            self._report_returned(
                endpoint, Returned(status, False, request.to, request.handler, request.words, request.number, _NO_DATA)
            )
            return
        source = EndpointName(request.to.node, address.source)
        if self.observer is not None:
            self.observer.reply_handled(local, request.number, source, MessageContent(address.handler, words, data))
        handler = endpoint.handlers.get(address.handler)
        if handler is None:
            returned = Returned(Status.BAD_HANDLER, True, source, address.handler, words, request.number, _NO_DATA)
            self._report_returned(endpoint, returned)
            return
        token = Token(local, source)
        try:
            handler(token, *(words if address.form == SHORT else (memoryview(data), *words)))
        finally:
            token.end()

    def _handle_batch(self) -> int:
        handled = super()._handle_batch()
        while self.pending_returns and not self._has_ended:
            endpoint, returned = self.pending_returns.popleft()
            handled += 1
            if self._endpoints.get(endpoint.name.endpoint) is endpoint:
                with self.as_handler():
                    self._report_returned(endpoint, returned)
        return handled

    def _report_returned(self, endpoint: Endpoint, returned: Returned) -> None:
        if self.observer is not None and not returned.is_reply:
            words = returned.status.words
            self.observer.request_returned(endpoint.name.endpoint, returned.message, returned.destination, words)
        if endpoint.error_handler is None:
            raise ReturnedError(returned)
        endpoint.error_handler(returned)

    # Received requests.

    def _on_request(self, node: int, message: Message) -> Reply | None:
        """Handle a cell of an endpoint's request."""
        address = address_of(message.handler)
        if message.kind == cells.BYTES or address.form == MORE:
            return self._receive_more(node, message.data)
        if len(message.data) < WORD:
            self._counters.no_handler += 1
            return None
        number, body = int.from_bytes(message.data[:WORD], "big"), message.data[WORD:]
        request = RequestName(node, self.incarnation_of(node), address.source, number)
        endpoint = self._endpoints.get(address.to)
        if address.form == BULK:
            return self._receive_head(node, address, request, body)
        contents = unpack_words(body, address.words)
        if contents is None:
            self._counters.no_handler += 1
            return None
        refusal = _refusal(endpoint, address)
        if refusal is not None:
            return _refusal_reply(refusal, address)
        assert endpoint is not None
        words, data = contents
        return self._call(endpoint, address, request, words, memoryview(data))

    def _receive_head(self, node: int, address: Address, request: RequestName, body: bytes) -> Reply | None:
        """Handle the first cell of a bulk message."""
        head, count = unpack_head(body), address.words & ~WANTS_WINDOW
        contents = unpack_words(head[2], count) if head is not None else None
        if head is None or contents is None:
            self._counters.no_handler += 1
            return None
        (offset, length, _), (words, data) = head, contents
        endpoint = self._endpoints.get(address.to)
        refusal, buffer = _refusal(endpoint, address), _NO_DATA
        if refusal is None and endpoint is not None:
            segment = endpoint.segment
            if segment is None or offset + length > len(segment):
                refusal = Status.BAD_SEGMENT
            else:
                buffer = segment[offset : offset + length]
        self._drop_incoming(node)
        self._incoming[node] = IncomingBulk(address, request, endpoint, buffer, words, refusal)
        if refusal is not None:
            return _refusal_reply(refusal, address)
        if len(data) < length and address.words & WANTS_WINDOW and self._granted is None and self.settings.long_window:
            self._granted = node
            self._incoming[node].take(data)
            return _library_reply(address, GRANTED, self.settings.long_window)
        return self._receive_more(node, data)

    def _receive_more(self, node: int, data: bytes) -> Reply | None:
        """Handle the next bytes of a bulk message."""
        incoming = self._incoming.get(node)
        if incoming is None:  # the first cell was received before this node's restart
            return _library_reply(Address(MORE, 0, 0, 0, 0, 0), Status.UNREACHABLE, 0)
        endpoint = incoming.endpoint
        if incoming.refusal is None and self._endpoints.get(incoming.address.to) is not endpoint:
            incoming.refusal = Status.BAD_ENDPOINT
        if incoming.refusal is not None:
            return _refusal_reply(incoming.refusal, incoming.address)
        if not incoming.take(data):
            return None
        self._drop_incoming(node)
        assert endpoint is not None
        return self._call(endpoint, incoming.address, incoming.request, incoming.words, incoming.buffer)

    def _call(
        self, endpoint: Endpoint, address: Address, request: RequestName, words: tuple[int, ...], data: memoryview
    ) -> Reply | None:
        """Call a request's handler, and return the handler's reply."""
        local, handler = endpoint.name.endpoint, endpoint.handlers.get(address.handler)
        if handler is None:  # it was removed after the first cell had arrived
            return _refusal_reply(Status.BAD_HANDLER, address)
        token = Token(local, EndpointName(request.node, request.endpoint), request, self.observer)
        if self.observer is not None:
            self.observer.request_handled(local, request, MessageContent(address.handler, words, data))
        reply = None
        try:
            handler(token, *(words if address.form == SHORT else (data, *words)))
        finally:
            reply = token.end()
        return reply

    def _drop_incoming(self, node: int) -> None:
        """Drop the state of the bulk message from a node, which is complete or lost."""
        self._incoming.pop(node, None)
        if self._granted == node:
            self._granted = None


def _refusal(endpoint: Endpoint | None, address: Address) -> Status | None:
    """Return the status with which a request is returned; None if it is handled. endpoint: the destination; None: it
    does not exist."""
    if endpoint is None:
        return Status.BAD_ENDPOINT
    if not accepts(endpoint.tag, address.tag_remainder):
        return Status.BAD_TAG
    return None if address.handler in endpoint.handlers else Status.BAD_HANDLER


def _refusal_reply(status: Status, address: Address) -> Reply:
    """Return the library's reply that returns a request."""
    return _library_reply(address, status, address.handler)


def _library_reply(address: Address, status: int, value: int) -> Reply:
    """Return a reply of the library, of two words. address: of the request."""
    requester = Address(SHORT, 2, address.source, address.to, 0, NO_HANDLER)
    return Reply(requester.pack(), pack_words((status, value), b"", DATA))
