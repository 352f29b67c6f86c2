"""Bulk messages, a cell at a time (section 3.4.3): the sender of messages to one node, and the receiver's state of one
message.

Requests between two nodes are handled in order, so a message's cells need no offsets. Bulk messages to a node are sent
one at a time. Each cell is a request, acknowledged and retransmitted like any other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import Status
from protocols.core.completion import Completion
from protocols.core.firmware import Buffer
from protocols.ssam import cells
from protocols.ssam.cells import DATA, LONG, Message
from protocols.ssam.connection import Pending
from protocols.ssam.handler_addresses import (
    BULK,
    GRANTED,
    MORE,
    WANTS_WINDOW,
    WORD,
    Address,
    pack_head,
    unpack_words,
)
from protocols.ssam.settings import MAX_WINDOW

if TYPE_CHECKING:
    from protocols.active_messages.endpoint_names import RequestName
    from protocols.ssam.am_endpoints import Endpoint, PendingRequest
    from protocols.ssam.am_library import ActiveMessages


class LeadingCell(Pending):
    """Callbacks for a cell of a bulk message, except the last cell."""

    __slots__ = ("_messages", "_request")

    def __init__(self, request: PendingRequest, messages: ActiveMessages) -> None:
        self._request = request
        self._messages = messages

    def on_answer(self, message: Message) -> None:
        """Handle the answer. A reply comes from the peer's library: a refusal, or the grant of a larger window."""
        reply = unpack_words(message.data, 2) if message.kind == cells.REPLY else None
        if reply is None or self._request.is_completed:
            return
        (status, value), _ = reply
        if status == GRANTED:
            self._messages.set_window(self._request.to.node, min(value, MAX_WINDOW))
        else:
            self._request.fail(Status(status))

    def on_return(self, reason: str) -> None:
        self._request.on_return(reason)


class BulkSender:
    """Sender of bulk messages to one node, one at a time; concurrent callers wait in a queue."""

    def __init__(self, messages: ActiveMessages, node: int) -> None:
        self._messages = messages
        self._node = node
        self._is_busy = False
        self._waiters: deque[Completion[None]] = deque()

    async def send(self, request: PendingRequest, remainder: int, data: Buffer, offset: int) -> None:
        """Send a message. Returns when the last cell is in the send buffers, or when the request has ended
        earlier. remainder: of the tag. Raises ValueError for invalid arguments, and RuleError within a handler."""
        view = memoryview(data).cast("B")
        head = pack_head(offset, len(view), request.words)
        self._messages.has_room(self._node)  # raises RuleError within a handler
        while self._is_busy:
            waiter: Completion[None] = Completion("earlier bulk messages to node %d", self._node)
            self._waiters.append(waiter)
            await waiter
        self._is_busy = True
        try:
            await self._send(request, remainder, view, head)
        finally:
            self._is_busy = False
            self._messages.set_window(self._node, self._messages.window)
            if self._waiters:
                self._waiters.popleft().complete(None)

    async def _send(self, request: PendingRequest, remainder: int, data: memoryview, head: bytes) -> None:
        messages, node = self._messages, self._node
        step = LONG if messages.settings.long_payload else DATA
        sent_size = min(DATA - WORD - len(head), len(data))
        is_long = len(data) - sent_size > step * messages.window and messages.settings.long_window
        words, local = len(request.words) | (WANTS_WINDOW if is_long else 0), request.endpoint.name.endpoint
        more = Address(MORE, 0, request.to.endpoint, local, remainder, 0).pack()
        await messages.wait_for_room(node)
        messages.record_request(request, data)
        messages.try_request(
            node,
            Address(BULK, words, request.to.endpoint, local, remainder, request.handler).pack(),
            request.number.to_bytes(WORD, "big") + head + data[:sent_size],
            self._callbacks(request, sent_size, data),
        )
        await messages.handle_read()
        while sent_size < len(data):
            await messages.wait_for_room(node, request)
            if request.is_completed:
                return
            cell = data[sent_size : sent_size + step]
            sent_size += len(cell)
            pending = self._callbacks(request, sent_size, data)
            if messages.settings.long_payload:
                messages.try_bytes(node, cell, pending)
            else:
                messages.try_request(node, more, cell, pending)
            await messages.handle_read()

    def _callbacks(self, request: PendingRequest, sent_size: int, data: memoryview) -> PendingRequest | LeadingCell:
        """Return the callbacks for a cell. sent_size: bytes of data sent with this cell and before."""
        return request if sent_size >= len(data) else LeadingCell(request, self._messages)


class IncomingBulk:
    """A bulk message whose cells are arriving. buffer: the part of the segment for its data. refusal: status with which
    the message is returned; None: its handler is called. received_size: number of bytes received."""

    __slots__ = ("address", "buffer", "endpoint", "received_size", "refusal", "request", "words")

    def __init__(
        self,
        address: Address,
        request: RequestName,
        endpoint: Endpoint | None,
        buffer: memoryview,
        words: tuple[int, ...],
        refusal: Status | None,
    ) -> None:
        self.address: Final = address
        self.request: Final = request
        self.endpoint: Final = endpoint
        self.buffer: Final = buffer
        self.words: Final = words
        self.refusal = refusal
        self.received_size = 0

    def take(self, data: Buffer) -> bool:
        """Store the next bytes. Returns whether the message is complete."""
        begin = self.received_size
        self.received_size = min(begin + len(data), len(self.buffer))
        self.buffer[begin : self.received_size] = data[: self.received_size - begin]
        return self.received_size >= len(self.buffer)
