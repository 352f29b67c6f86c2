"""SSAM's endpoints and bundles, by AM-2's names: a program sends active messages from them, and has handlers called."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import Returned, Status
from protocols.active_messages.am_interface import ErrorHandler, Handler
from protocols.active_messages.endpoint_names import ANY, NONE, EndpointName
from protocols.core.completion import Completion
from protocols.core.firmware import Buffer
from protocols.ssam.cells import DATA, Message
from protocols.ssam.handler_addresses import (
    MAX_ENDPOINTS,
    MEDIUM,
    SHORT,
    WORD,
    Address,
    checked_handler,
    mark,
    pack_words,
)

if TYPE_CHECKING:
    from protocols.ssam.am_library import ActiveMessages

MAX_WORDS: Final = DATA // WORD - 1
"""Words of a request: one more is its number. A reply has ten."""


class Asked:
    """A request without an end. Implements `protocols.ssam.connection.Pending`, for the last cell of a message."""

    __slots__ = ("endpoint", "handler", "has_ended", "number", "to", "words")

    def __init__(self, endpoint: Endpoint, to: EndpointName, handler: int, words: tuple[int, ...]) -> None:
        self.endpoint: Final = endpoint
        self.number: Final = endpoint.messages.next_number()
        self.to: Final = to
        self.handler: Final = checked_handler(handler)
        self.words: Final = words
        self.has_ended = False

    def answered(self, message: Message) -> None:
        """End with an answer."""
        if self.end():
            self.endpoint.messages.end_request(self, message)

    def returned(self, reason: str) -> None:  # noqa: ARG002
        """End without one: whether the request was handled is not known."""
        self.fail(Status.UNREACHABLE)

    def fail(self, status: Status) -> None:
        """End as returned; the next poll tells the endpoint."""
        if self.end():
            nothing = memoryview(b"")
            returned = Returned(status, False, self.to, self.handler, self.words, self.number, nothing)
            self.endpoint.messages.lost.append((self.endpoint, returned))

    def end(self) -> bool:
        """End. False: it has ended before."""
        if self.has_ended:
            return False
        self.has_ended = True
        self.endpoint.asked.pop(self.number, None)
        return True


class Endpoint:
    """One endpoint (ep_t), allocated by its bundle. Implements `protocols.active_messages.am_interface.Endpoint`.

    Each message is handled once, or returned to its sender's error handler; only one that is returned as unreachable or
    abandoned may have been handled as well. Requests to one node share its window, and are handled in the order in which
    they were sent, but for bulk messages, whose handlers are called with their last cells.
    """

    def __init__(self, messages: ActiveMessages, number: int) -> None:
        """For the bundle only."""
        self.messages: Final = messages
        self.name: Final = EndpointName(messages.node, number)
        """AM_GetEndpointName: the name by which others map it."""
        self.error_handler: ErrorHandler | None = None
        """AM-2's handler 0: called with each undeliverable message; without one `poll` raises ReturnedError."""
        self.handlers: Final[dict[int, Handler]] = {}
        self.asked: Final[dict[int, Asked]] = {}
        self._tag = NONE
        self._segment: memoryview | None = None
        self._places: dict[int, tuple[EndpointName, int]] = {}

    @property
    def tag(self) -> int:
        """AM_GetTag, AM_SetTag: the tag that requests must carry to be accepted, 64 bits. Cells carry its remainder: it
        guards against mistakes. Processes are protected from each other by the kernel's check of connections."""
        return self._tag

    @tag.setter
    def tag(self, tag: int) -> None:
        _check_tag(tag)
        self._tag = tag

    @property
    def segment(self) -> memoryview | None:
        """AM_GetSeg, AM_SetSeg: writable memory that receives bulk messages; None: they are returned."""
        return self._segment

    @segment.setter
    def segment(self, memory: bytearray | memoryview | None) -> None:
        view = None if memory is None else memoryview(memory).cast("B")
        if view is not None and view.readonly:
            raise ValueError("a segment is written: its memory must not be read-only")
        self._segment = view

    def set_handler(self, number: int, handler: Handler | None) -> None:
        """AM_SetHandler: set the handler of messages with a number, 1 to 255; None removes it."""
        if handler is None:
            self.handlers.pop(checked_handler(number), None)
        else:
            self.handlers[checked_handler(number)] = handler

    def map(self, place: int, name: EndpointName, tag: int) -> None:
        """AM_Map: direct requests by a place of the table to an endpoint, with a tag. Raises ValueError."""
        if place < 0 or place in self._places:
            raise ValueError(f"place {place} is taken: unmap it first" if place >= 0 else f"place {place}: 0 or more")
        node, endpoint = name
        if not 0 <= node < self.messages.size or not 0 <= endpoint < MAX_ENDPOINTS:
            raise ValueError(
                f"endpoint {endpoint} of node {node}: there are {self.messages.size} nodes, with {MAX_ENDPOINTS} each"
            )
        _check_tag(tag)
        self._places[place] = EndpointName(node, endpoint), tag

    def map_any(self, name: EndpointName, tag: int) -> int:
        """AM_MapAny: map the first free place and return it."""
        place = next(place for place in range(len(self._places) + 1) if place not in self._places)
        self.map(place, name, tag)
        return place

    def unmap(self, place: int) -> None:
        """AM_UnMap: clear a place of the table. Requests in flight continue to their ends."""
        self._to(place)
        del self._places[place]

    def credits(self, place: int) -> int:
        """Number of cells that the window to that node permits before one must have its answer."""
        return self.messages.credits(self._to(place)[0].node)

    async def request(self, place: int, handler: int, *words: int) -> None:
        """AM_RequestM: send a request of at most 9 words, after a poll; wait while the window is full, and handle messages
        meanwhile. Raises RuleError within a handler, ValueError, LookupError for an empty place, TrapError for too many
        connections."""
        await self._send(SHORT, place, handler, words, b"")

    async def request_medium(self, place: int, handler: int, data: Buffer, *words: int) -> None:
        """AM_RequestIM: as `request`, with data for the handler; words and data take 36 bytes at most."""
        await self._send(MEDIUM, place, handler, words, data)

    async def request_bulk(self, place: int, handler: int, data: Buffer, offset: int, *words: int) -> None:
        """AM_RequestXferM: as `request`, with at most 4 words, and data for the destination's segment, from `offset` on.
        It goes a cell at a time (section 3.4.3), one bulk message after the other to each node; the handler is called
        with the last cell."""
        to, tag = self._to(place)
        await self.messages.stream(to.node).send(Asked(self, to, handler, words), mark(tag), data, offset)

    def abandon(self, place: int) -> int:
        """End the requests sent there that have no answer, as Status.ABANDONED; return how many. Answers that come later
        are dropped; the window keeps the slots until then."""
        to, _ = self._to(place)
        abandoned = [asked for asked in self.asked.values() if asked.to == to]
        for asked in abandoned:
            asked.fail(Status.ABANDONED)
        self.messages.wake()
        return len(abandoned)

    def poll(self) -> Coroutine[Completion[None], None, int]:
        """AM_Poll, awaited: handle what has arrived at the node; return the number of cells."""
        return self.messages.poll()

    async def wait(self) -> None:
        """AM_WaitSema: wait until a cell has come, a message is returned, or a time-out has passed."""
        await self.messages.wait()

    def free(self) -> None:
        """AM_FreeEndpoint: free the endpoint. Its unanswered messages are given up; messages to it are returned."""
        self.messages.free(self)

    async def _send(self, form: int, place: int, handler: int, words: tuple[int, ...], data: Buffer) -> None:
        to, tag = self._to(place)
        body = pack_words(words, data, WORD * MAX_WORDS)
        address = Address(form, len(words), to.endpoint, self.name.endpoint, mark(tag), handler)
        asked = Asked(self, to, handler, words)
        await self.messages.wait_for_room(to.node)
        self.messages.begin(asked, data)
        self.messages.try_request(to.node, address.pack(), asked.number.to_bytes(WORD, "big") + body, asked)
        await self.messages.handle_read()

    def _to(self, place: int) -> tuple[EndpointName, int]:
        if place not in self._places:
            raise LookupError(f"place {place} of the translation table is empty")
        return self._places[place]


class Bundle:
    """Endpoints of a node (eb_t). Implements `protocols.active_messages.am_interface.Bundle`. There is one input FIFO: a
    poll handles the cells of all endpoints, whatever bundle they are of."""

    def __init__(self, messages: ActiveMessages) -> None:
        """For the library only."""
        self._messages = messages

    def allocate_endpoint(self) -> Endpoint:
        """AM_AllocateEndpoint. Raises LookupError (AM_ERR_RESOURCE) if there are MAX_ENDPOINTS."""
        return self._messages.allocate_endpoint()

    def poll(self) -> Coroutine[Completion[None], None, int]:
        """AM_Poll, awaited."""
        return self._messages.poll()

    async def wait(self) -> None:
        """AM_WaitSema."""
        await self._messages.wait()


def _check_tag(tag: int) -> None:
    if not NONE <= tag <= ANY:
        raise ValueError(f"a tag of {tag}: 0 to {ANY}")
