"""SSAM's endpoints and bundles, with AM-2's names."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import Returned, Status
from protocols.active_messages.am_interface import ErrorHandler, Handler
from protocols.active_messages.endpoint_names import ANY, NONE, EndpointName
from protocols.core.completion import Completion
from protocols.core.firmware import Buffer
from protocols.ssam.cells import DATA, Message
from protocols.ssam.connection import Pending
from protocols.ssam.handler_addresses import (
    MAX_ENDPOINTS,
    MEDIUM,
    SHORT,
    WORD,
    Address,
    checked_handler,
    pack_words,
    tag_remainder,
)

if TYPE_CHECKING:
    from protocols.ssam.am_library import ActiveMessages

MAX_WORDS: Final = DATA // WORD - 1
"""Maximum words of a request; the request's number takes one more word. A reply has at most ten words."""


class PendingRequest(Pending):
    """A request that has not ended, and the callbacks for the last cell of its message. to: the destination.
    is_completed: whether it has ended."""

    __slots__ = ("endpoint", "handler", "is_completed", "number", "to", "words")

    def __init__(self, endpoint: Endpoint, to: EndpointName, handler: int, words: tuple[int, ...]) -> None:
        self.endpoint: Final = endpoint
        self.number: Final = endpoint.messages.next_number()
        self.to: Final = to
        self.handler: Final = checked_handler(handler)
        self.words: Final = words
        self.is_completed = False

    def on_answer(self, message: Message) -> None:
        """End the request by its reply or acknowledgement."""
        if self.complete():
            self.endpoint.messages.handle_answer(self, message)

    def on_return(self, reason: str) -> None:  # noqa: ARG002
        """End the request as unreachable, since it is unknown whether it was handled."""
        self.fail(Status.UNREACHABLE)

    def fail(self, status: Status) -> None:
        """End the request as returned; the next poll calls the endpoint's error handler."""
        if self.complete():
            no_data = memoryview(b"")
            returned = Returned(status, False, self.to, self.handler, self.words, self.number, no_data)
            self.endpoint.messages.pending_returns.append((self.endpoint, returned))

    def complete(self) -> bool:
        """Mark the request as ended. Returns False if it had ended already."""
        if self.is_completed:
            return False
        self.is_completed = True
        self.endpoint.pending.pop(self.number, None)
        return True


class Endpoint:
    """One endpoint (ep_t), allocated by its bundle. Implements `protocols.active_messages.am_interface.Endpoint`.

    Each message is handled once, or returned to its sender's error handler; a message returned as unreachable or
    abandoned may have been handled as well. Requests to one node share its window, and are handled in sending order;
    the handler of a bulk message is called at its last cell.
    """

    def __init__(self, messages: ActiveMessages, number: int) -> None:
        """For the bundle only."""
        self.messages: Final = messages
        self.name: Final = EndpointName(messages.node, number)
        """AM_GetEndpointName: the name by which other endpoints map this endpoint."""
        self.error_handler: ErrorHandler | None = None
        """AM-2's handler 0: called with each returned message; None: `poll` raises ReturnedError."""
        self.handlers: Final[dict[int, Handler]] = {}
        self.pending: Final[dict[int, PendingRequest]] = {}
        self._tag = NONE
        self._segment: memoryview | None = None
        self._translations: dict[int, tuple[EndpointName, int]] = {}

    @property
    def tag(self) -> int:
        """AM_GetTag, AM_SetTag: the tag, 64 bits, that requests must carry to be accepted. A cell carries only a
        remainder of the tag, which detects most mistakes; the kernel's check of connections protects processes from
        each other. Raises ValueError for an invalid tag."""
        return self._tag

    @tag.setter
    def tag(self, tag: int) -> None:
        _check_tag(tag)
        self._tag = tag

    @property
    def segment(self) -> memoryview | None:
        """AM_GetSeg, AM_SetSeg: writable memory that receives bulk messages; None: bulk messages are returned.
        Raises ValueError for read-only memory."""
        return self._segment

    @segment.setter
    def segment(self, memory: bytearray | memoryview | None) -> None:
        view = None if memory is None else memoryview(memory).cast("B")
        if view is not None and view.readonly:
            raise ValueError("the memory of a segment must be writable, got read-only memory")
        self._segment = view

    def set_handler(self, number: int, handler: Handler | None) -> None:
        """AM_SetHandler: set the handler of messages that name this number, 1 to 255; None removes the handler. Raises
        ValueError for an invalid number."""
        if handler is None:
            self.handlers.pop(checked_handler(number), None)
        else:
            self.handlers[checked_handler(number)] = handler

    def map(self, index: int, name: EndpointName, tag: int) -> None:
        """AM_Map: map an index of the translation table to an endpoint and the tag of requests to it. Raises ValueError
        for an index below 0 or in use, and for an invalid name or tag."""
        if index < 0:
            raise ValueError(f"index must be 0 or more, got {index}")
        if index in self._translations:
            raise ValueError(f"index {index} is in use: unmap it first")
        node, endpoint = name
        if not 0 <= node < self.messages.size:
            raise ValueError(f"node must be 0 to {self.messages.size - 1}, got {node}")
        if not 0 <= endpoint < MAX_ENDPOINTS:
            raise ValueError(f"endpoint must be 0 to {MAX_ENDPOINTS - 1}, got {endpoint}")
        _check_tag(tag)
        self._translations[index] = EndpointName(node, endpoint), tag

    def map_any(self, name: EndpointName, tag: int) -> int:
        """AM_MapAny: map the first free index and return it."""
        index = next(index for index in range(len(self._translations) + 1) if index not in self._translations)
        self.map(index, name, tag)
        return index

    def unmap(self, index: int) -> None:
        """AM_UnMap: clear an index of the table. Requests in flight end as usual. Raises LookupError for an empty
        index."""
        self._translation(index)
        del self._translations[index]

    def credits(self, index: int) -> int:
        """Return the number of cells that can be sent to the destination's node before an answer is required."""
        return self.messages.credits(self._translation(index)[0].node)

    async def request(self, index: int, handler: int, *words: int) -> None:
        """AM_RequestM: send a request of at most 9 words, and handle messages that have arrived; wait while the window
        is full. Raises RuleError within a handler, ValueError for an invalid handler or word, LookupError for an empty
        index, TrapError for too many connections, ReturnedError, and the exceptions of handlers."""
        await self._send(SHORT, index, handler, words, b"")

    async def request_medium(self, index: int, handler: int, data: Buffer, *words: int) -> None:
        """AM_RequestIM: send as `request`, with data for the handler; words and data take 36 bytes at most."""
        await self._send(MEDIUM, index, handler, words, data)

    async def request_bulk(self, index: int, handler: int, data: Buffer, offset: int, *words: int) -> None:
        """AM_RequestXferM: send as `request`, with at most 4 words, and data for the destination's segment, from
        `offset` on. The data is sent a cell at a time (section 3.4.3); bulk messages to one node are sent in sequence.
        The handler is called at the last cell."""
        to, tag = self._translation(index)
        await self.messages.bulk_sender(to.node).send(
            PendingRequest(self, to, handler, words), tag_remainder(tag), data, offset
        )

    def abandon(self, index: int) -> int:
        """End the unanswered requests to this destination as Status.ABANDONED; return their number. Later answers are
        dropped; until they arrive, the requests occupy the window."""
        to, _ = self._translation(index)
        abandoned = [request for request in self.pending.values() if request.to == to]
        for request in abandoned:
            request.fail(Status.ABANDONED)
        self.messages.wake()
        return len(abandoned)

    def poll(self) -> Coroutine[Completion[None], None, int]:
        """AM_Poll, awaited: handle the messages that have arrived at the node; return the number of cells. Raises
        RuleError within a handler, ReturnedError, and the exceptions of handlers."""
        return self.messages.poll()

    async def wait(self) -> None:
        """AM_WaitSema: wait until a cell arrives, a message is returned, or a timeout expires."""
        await self.messages.wait()

    def free(self) -> None:
        """AM_FreeEndpoint: free the endpoint. Its unanswered messages are given up; messages to it are returned."""
        self.messages.free(self)

    async def _send(self, form: int, index: int, handler: int, words: tuple[int, ...], data: Buffer) -> None:
        to, tag = self._translation(index)
        body = pack_words(words, data, WORD * MAX_WORDS)
        address = Address(form, len(words), to.endpoint, self.name.endpoint, tag_remainder(tag), handler)
        request = PendingRequest(self, to, handler, words)
        await self.messages.wait_for_room(to.node)
        self.messages.record_request(request, data)
        self.messages.try_request(to.node, address.pack(), request.number.to_bytes(WORD, "big") + body, request)
        await self.messages.handle_read()

    def _translation(self, index: int) -> tuple[EndpointName, int]:
        """Return the name and the tag of a destination. Raises LookupError for an empty index."""
        if index not in self._translations:
            raise LookupError(f"index {index} of the translation table is empty: map it first")
        return self._translations[index]


class Bundle:
    """A group of a node's endpoints (eb_t). Implements `protocols.active_messages.am_interface.Bundle`. Since the node
    has one input FIFO, a poll handles the cells of all endpoints, in any bundle."""

    def __init__(self, messages: ActiveMessages) -> None:
        """For the library only."""
        self._messages = messages

    def allocate_endpoint(self) -> Endpoint:
        """AM_AllocateEndpoint. Raises LookupError (AM_ERR_RESOURCE) if MAX_ENDPOINTS are allocated."""
        return self._messages.allocate_endpoint()

    def poll(self) -> Coroutine[Completion[None], None, int]:
        """AM_Poll, awaited: see `Endpoint.poll`."""
        return self._messages.poll()

    async def wait(self) -> None:
        """AM_WaitSema: see `Endpoint.wait`."""
        await self._messages.wait()


def _check_tag(tag: int) -> None:
    if not NONE <= tag <= ANY:
        raise ValueError(f"tag must be {NONE} to {ANY}, got {tag}")
