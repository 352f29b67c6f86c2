"""Bulk messages, a cell at a time (section 3.4.3): the sender's side to one node, and the receiver's of one message.

Requests between two nodes are handled in the order in which they were sent, so that a message's cells need no numbers of
their own. One message at a time goes to a node. Each cell is a request, answered and sent again as any other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import Status
from protocols.core.completion import Completion
from protocols.core.firmware import Buffer
from protocols.ssam import cells
from protocols.ssam.cells import DATA, LONG, Message
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
    from protocols.ssam.am_endpoints import Asked, Endpoint
    from protocols.ssam.am_library import ActiveMessages


class Part:
    """A cell before the last one of a message. Implements `protocols.ssam.connection.Pending`."""

    __slots__ = ("_asked", "_messages")

    def __init__(self, asked: Asked, messages: ActiveMessages) -> None:
        self._asked = asked
        self._messages = messages

    def answered(self, message: Message) -> None:
        """Handle the library's own reply: a refusal, or a larger window."""
        said = unpack_words(message.data, 2) if message.kind == cells.REPLY else None
        if said is None or self._asked.has_ended:
            return
        (status, value), _ = said
        if status == GRANTED:
            self._messages.set_window(self._asked.to.node, min(value, MAX_WINDOW))
        else:
            self._asked.fail(Status(status))

    def returned(self, reason: str) -> None:
        self._asked.returned(reason)


class Stream:
    """The bulk messages to one node. Tasks that want to send wait for their turn."""

    def __init__(self, messages: ActiveMessages, node: int) -> None:
        self._messages = messages
        self._node = node
        self._is_busy = False
        self._turns: deque[Completion[None]] = deque()

    async def send(self, asked: Asked, marked: int, data: Buffer, offset: int) -> None:
        """Send a message. Returns when its last cell is in the window's buffers, or it has ended before. Raises
        ValueError, RuleError within a handler."""
        head = pack_head(offset, len(data), asked.words)
        self._messages.has_room(self._node)  # refuses handlers
        while self._is_busy:
            turn: Completion[None] = Completion("the bulk message before to node %d", self._node)
            self._turns.append(turn)
            await turn
        self._is_busy = True
        try:
            await self._send(asked, marked, memoryview(data).cast("B"), head)
        finally:
            self._is_busy = False
            self._messages.set_window(self._node, self._messages.window)
            if self._turns:
                self._turns.popleft().complete(None)

    async def _send(self, asked: Asked, marked: int, data: memoryview, head: bytes) -> None:
        messages, node = self._messages, self._node
        step = LONG if messages.settings.long_payload else DATA
        sent = min(DATA - WORD - len(head), len(data))
        is_long = len(data) - sent > step * messages.window and messages.settings.long_window
        words, own = len(asked.words) | (WANTS_WINDOW if is_long else 0), asked.endpoint.name.endpoint
        more = Address(MORE, 0, asked.to.endpoint, own, marked, 0).pack()
        await messages.wait_for_room(node)
        messages.begin(asked, data)
        messages.try_request(
            node,
            Address(BULK, words, asked.to.endpoint, own, marked, asked.handler).pack(),
            asked.number.to_bytes(WORD, "big") + head + data[:sent],
            self._pending(asked, sent, data),
        )
        await messages.handle_read()
        while sent < len(data):
            await messages.wait_for_room(node, asked)
            if asked.has_ended:
                return
            cell = data[sent : sent + step]
            sent += len(cell)
            pending = self._pending(asked, sent, data)
            if messages.settings.long_payload:
                messages.try_bytes(node, cell, pending)
            else:
                messages.try_request(node, more, cell, pending)
            await messages.handle_read()

    def _pending(self, asked: Asked, sent: int, data: memoryview) -> Asked | Part:
        return asked if sent >= len(data) else Part(asked, self._messages)


class Incoming:
    """A bulk message whose cells are arriving. place: of the segment. refusal: why it will be returned; None: it will be
    handled."""

    __slots__ = ("address", "endpoint", "place", "received", "refusal", "request", "words")

    def __init__(
        self,
        address: Address,
        request: RequestName,
        endpoint: Endpoint | None,
        place: memoryview,
        words: tuple[int, ...],
        refusal: Status | None,
    ) -> None:
        self.address: Final = address
        self.request: Final = request
        self.endpoint: Final = endpoint
        self.place: Final = place
        self.words: Final = words
        self.refusal = refusal
        self.received = 0

    def take(self, data: Buffer) -> bool:
        """Store the next bytes; return whether these were the last."""
        begin = self.received
        self.received = min(begin + len(data), len(self.place))
        self.place[begin : self.received] = data[: self.received - begin]
        return self.received >= len(self.place)
