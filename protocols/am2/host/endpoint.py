"""Endpoints, from which a program sends active messages, and for which it sets message handlers.

In AM-2, a request names a handler of its destination endpoint. That handler may send one reply, which names a handler
of the requesting endpoint. Handlers are plain functions, called in sequence when the program polls.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from enum import IntFlag
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import RuleError, Status
from protocols.active_messages.endpoint_names import ANY, NONE
from protocols.am2 import page as layout
from protocols.am2.host.inbox import ErrorHandler, Handler, Inbox
from protocols.am2.host.outbox import SendSide
from protocols.core.completion import Completion
from protocols.core.firmware import Buffer

if TYPE_CHECKING:
    from protocols.am2.host.bundle import Bundle
    from protocols.am2.host.library import ActiveMessages

_REQUEST: Final = 0


class Events(IntFlag):
    """Events for an endpoint's event mask."""

    NONE = 0
    """AM_NOEVENTS."""
    NOT_EMPTY = 1
    """AM_NOTEMPTY: a message has arrived, or was returned, and is not handled yet."""


class Endpoint(SendSide):
    """One endpoint (ep_t), allocated by its bundle.

    Delivery guarantees: each message is handled once, or returned to its sender's error handler; only a message
    returned as `Status.UNREACHABLE` or `Status.ABANDONED` may have been handled as well. A request ends once: by its
    reply, or by its return. An accepted request is returned when the sender is notified that the destination endpoint
    no longer exists, that its NIC has restarted, or that the reply was given up; and when that NIC acknowledges no
    keepalive. A program that is merely slow to reply is none of these: call `abandon` to end requests to it. Messages
    are not ordered, not even from one endpoint to another.

    At most `Settings.credits` (4) requests to one other endpoint can be unanswered. A further `request` waits for a
    reply, and meanwhile handles messages that arrive at any endpoint of the bundle. Data to be sent is copied; the
    program may reuse its buffer when the call returns.

    The initial tag accepts no requests (`endpoint_names.NONE`): set a tag before other endpoints send requests. Replies
    are accepted whatever this endpoint's tag is, since they carry the tag of their request. `poll` passes an exception
    of a handler to its caller; the message counts as handled.
    """

    def __init__(self, library: ActiveMessages, bundle: Bundle, number: int, last_request: int) -> None:
        """For the bundle only. last_request: number of the last request of the former endpoint with this number."""
        super().__init__(library, number, last_request)
        self.bundle = bundle
        self.inbox: Final = Inbox(self, library.settings.handlers, library.max_medium)
        self.backing: Final = memoryview(bytearray(layout.SIZE))
        """Page of the endpoint while it is not resident."""
        self.last_use = 0
        """Value of the library's `use_count` at the endpoint's last use."""
        self.is_freed = False
        """Whether the library has freed it (`free`)."""
        self._tag = NONE
        self._mask = Events.NOT_EMPTY
        self.has_events = True
        """Whether the event mask selects an event; cached, since tests of flags are slow."""
        self._segment: memoryview | None = None
        self._mapped_segment: memoryview | None = None  # the NIC writes bulk messages there
        self._doubtful_requests: list[int] = []  # requests to be ended if the page shows that they were accepted
        self._change: Completion[None] | None = None

    # Identity.

    @property
    def tag(self) -> int:
        """AM_GetTag, AM_SetTag: the tag that requests must carry to be accepted, 64 bits; `endpoint_names.ANY` accepts
        all, `endpoint_names.NONE` none. A change does not affect messages that have arrived. Raises ValueError for an
        invalid tag."""
        return self._tag

    @tag.setter
    def tag(self, tag: int) -> None:
        if not NONE <= tag <= ANY:
            raise ValueError(f"tag must be 0 to {ANY}, got {tag}")
        self._tag = tag
        self._write_page_header()

    @property
    def segment(self) -> memoryview | None:
        """AM_GetSeg, AM_SetSeg: writable memory that receives bulk messages; None: bulk messages are returned to their
        senders. A bulk message is written packet by packet before its handler is called; a part of a returned one may
        have been written. Raises ValueError for read-only memory, and MemoryError."""
        return self._segment

    @segment.setter
    def segment(self, memory: bytearray | memoryview | None) -> None:
        view = None if memory is None else memoryview(memory).cast("B")
        if view is not None and view.readonly:
            raise ValueError("the memory of a segment must be writable, got read-only memory")
        self._segment = view
        self._mapped_segment = None if view is None else self.library.memory.make_mappable(self.name.endpoint, view)
        self.library.driver.remap(self, layout.SEGMENT)
        self._write_page_header()

    # Handlers.

    def set_handler(self, number: int, handler: Handler | None) -> None:
        """AM_SetHandler: set the handler of messages that name this number, 1 to 255; None removes the handler. It is
        called as ``handler(token, *arguments)`` for short messages, and as ``handler(token, data, *arguments)`` for
        medium and bulk ones. The data of a medium message is valid while the handler runs; that of a bulk message is in
        the segment. Raises ValueError for an invalid number."""
        if not 1 <= number < len(self.inbox.handlers):
            raise ValueError(f"handler must be 1 to {len(self.inbox.handlers) - 1}, got {number}")
        self.inbox.handlers[number] = handler

    def set_handler_any(self, handler: Handler) -> int:
        """AM_SetHandlerAny: set a handler under the first free number, and return the number. Raises LookupError if no
        number is free."""
        for number in range(1, len(self.inbox.handlers)):
            if self.inbox.handlers[number] is None:
                self.inbox.handlers[number] = handler
                return number
        raise LookupError(f"all {len(self.inbox.handlers) - 1} handlers are set")

    @property
    def error_handler(self) -> ErrorHandler | None:
        """AM-2's handler 0: called with each returned message (`am_errors.Returned`). It may not send. If it is None,
        `poll` raises ReturnedError."""
        return self.inbox.error_handler

    @error_handler.setter
    def error_handler(self, handler: ErrorHandler | None) -> None:
        self.inbox.error_handler = handler

    def unanswered(self, index: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return the handlers and arguments of the requests to this destination whose reply or return has not been
        handled."""
        destination = self._destination(index)
        pending = [
            (handler, arguments)
            for request_destination, handler, arguments in self.outbox.pending.values()
            if request_destination is destination
        ]
        ended = [
            (request.handler, request.arguments)
            for request in self.inbox.unanswered
            if request.destination == destination.name
        ]
        return ended + pending

    # Requests.

    async def request(self, index: int, handler: int, *arguments: int) -> None:
        """AM_RequestM: wait for a credit and room, and send a short request. Handles messages that arrive at the bundle
        meanwhile, and raises their handlers' exceptions. Arguments and other errors: see `try_request`."""
        while not self.try_request(index, handler, *arguments):
            await self.wait_for_room(index)

    async def request_medium(self, index: int, handler: int, data: Buffer, *arguments: int) -> None:
        """AM_RequestIM: send as `request`, with data for the handler. Errors: see `try_request_medium`."""
        while not self.try_request_medium(index, handler, data, *arguments):
            await self.wait_for_room(index)

    async def request_bulk(self, index: int, handler: int, data: Buffer, offset: int, *arguments: int) -> None:
        """AM_RequestXferM: send as `request`, with data for the destination's segment. Errors: see
        `try_request_bulk`."""
        while not self.try_request_bulk(index, handler, data, offset, *arguments):
            await self.wait_for_room(index)

    def abandon(self, index: int) -> int:
        """End the requests to this destination that were accepted and have no reply; return their number. The next poll
        passes them to the error handler as `Status.ABANDONED`. Their credits are available at once, and later replies
        are dropped. Requests that the NIC is still sending end as usual. If the endpoint is not resident, returns 0,
        and loads it."""
        destination = self._destination(index)
        if self.outbox.page is None:
            self.library.driver.fault(self)  # the page shows which requests were accepted
            return 0
        in_flight = self.outbox.in_flight()
        numbers = [
            number
            for number, (request_destination, _, _) in self.outbox.pending.items()
            if request_destination is destination and number not in in_flight
        ]
        for number in numbers:
            self.inbox.give_up(number, Status.ABANDONED)
        if numbers:
            self.wake()
        return len(numbers)

    async def wait_for_room(self, index: int) -> None:
        """Handle messages that have arrived at the bundle. If there are none, wait for a change, such as a credit,
        room, or an arrived message. Raises RuleError for a freed endpoint."""
        self._check_not_freed()
        if self.bundle.handle():
            return
        destination = self._destination(index)
        if self.outbox.page is None:
            self.library.driver.fault(self)
        elif destination.credits:
            if self.outbox.has_room(_REQUEST):
                return
            self.outbox.request_notification()
        ready = [endpoint.is_ready for endpoint in self.bundle.endpoints]  # no early exit: `is_ready` loads endpoints
        if any(ready):
            return
        if self.outbox.page is None or not (destination.credits and self.outbox.has_room(_REQUEST)):
            await self.bundle.next_change(
                "a credit, or room, to send to endpoint %s of node %s", destination.endpoint, destination.node
            )

    # Received messages.

    def poll(self, limit: int | None = None) -> Coroutine[Completion[None], None, int]:
        """AM_Poll, awaited: call the handlers of at most `limit` messages that have arrived, replies first, and return
        the number of messages. If there are none, lets the NIC and other tasks run first, which takes simulated time in
        a simulation. A non-resident endpoint is loaded, and handles nothing until it is resident.

        Raises RuleError within a handler, and if the previous poll was not awaited; ReturnedError; and the exceptions
        of handlers.
        """
        return self.library.poll(self.handle, limit)

    def handle(self, limit: int | None = None) -> int:
        """Poll without letting the NIC and other tasks run, for callers with a loop of their own, such as MPI's device.
        Returns the number of messages handled; errors as for `poll`."""
        inbox = self.inbox
        if not (inbox.reply_count or inbox.request_count or inbox.unanswered):
            if self._must_load:
                self.library.driver.fault(self)
            return 0
        library = self.library
        if library.handling_endpoint is not None:
            raise RuleError("a handler may not poll")
        if inbox.page is None:
            library.driver.fault(self)
            return 0
        handled = 0
        while (
            handled != limit and (inbox.reply_count or inbox.request_count or inbox.unanswered) and inbox.handle_next()
        ):
            handled += 1
        return handled

    @property
    def is_empty(self) -> bool:
        """Whether all messages that have arrived are handled."""
        return not (self.inbox.request_count or self.inbox.reply_count or self.inbox.unanswered)

    @property
    def event_mask(self) -> Events:
        """AM_GetEventMask, AM_SetEventMask: the events for which `wait` waits."""
        return self._mask

    @event_mask.setter
    def event_mask(self, mask: Events) -> None:
        self._mask = Events(mask)
        self.has_events = bool(mask & Events.NOT_EMPTY)

    async def wait(self) -> None:
        """AM_WaitSema: wait until `poll` would handle a message. Raises ValueError if the event mask selects nothing,
        and RuleError for a freed endpoint. Several tasks may wait, and all are woken. A task continues to wait if
        another task handles the message first; requests that wait for room handle messages of the whole bundle."""
        if not self.has_events:
            raise ValueError("the event mask selects nothing: this would wait forever")
        while not self.is_ready:
            self._check_not_freed()
            change = self._change
            if change is None:
                change = self._change = Completion("a message")
            await change

    @property
    def is_ready(self) -> bool:
        """Whether `poll` would handle a message now. Loads the endpoint, or requests a notification of room, if that is
        required."""
        inbox = self.inbox
        if not (inbox.reply_count or inbox.request_count or inbox.unanswered):
            return False
        if inbox.page is None:
            self.library.driver.fault(self)
            return inbox.has_page
        if inbox.reply_count or inbox.unanswered or self.outbox.has_room(1):
            return True
        self.outbox.request_notification()
        return self.outbox.has_room(1)

    def free(self) -> None:
        """AM_FreeEndpoint: free the endpoint. Its unanswered messages are given up; messages to it are returned to
        their senders. Calls that wait for it raise RuleError. Raises ValueError within a handler of the endpoint."""
        self.library.free(self)

    def _check_not_freed(self) -> None:
        if self.is_freed:
            raise RuleError(f"endpoint {self.name.endpoint} has been freed: this would wait forever")

    # For the library.

    def set_page(self, page: memoryview | None) -> None:
        """Set the page's location; None: the host may not access it."""
        self.inbox.page = page
        self.outbox.set_page(page)
        if page is not None:
            self._must_load = False
            self._write_page_header()
            if self._doubtful_requests:
                self._end_doubtful_requests()
        self.wake()

    def wake(self) -> None:
        """Wake tasks that wait for a change."""
        change = self._change
        if change is not None:
            self._change = None
            change.complete(None)
        if self.bundle.change is not None:
            self.bundle.wake()

    def region(self, subject: int) -> memoryview | None:
        """Return a region that the NIC has requested; None: it does not exist."""
        if subject == layout.SEGMENT:
            return self._mapped_segment
        if subject == layout.SEND_STAGING:
            return self.outbox.staging
        if subject == layout.RECEIVE_STAGING:
            if self.inbox.staging is None:
                size = 2 * layout.RING_SIZE * self.library.max_medium
                self.inbox.staging = self.library.memory.allocate(self.name.endpoint, size)
                self._write_page_header()
            return self.inbox.staging
        return self.outbox.bulk_data.get(subject)

    def bulk_data(self, offset: int, length: int) -> memoryview:
        """Return the bytes of the segment that a bulk message has filled. If the NIC has written them to other memory,
        they are copied first."""
        segment, mapped_segment = self._segment, self._mapped_segment
        if segment is None or mapped_segment is None:
            return memoryview(b"")
        if mapped_segment is not segment:
            segment[offset : offset + length] = mapped_segment[offset : offset + length]
        return segment[offset : offset + length]

    @property
    def has_doubtful_requests(self) -> bool:
        """Whether requests must be ended as soon as the page is accessible and shows which of them are in flight."""
        return bool(self._doubtful_requests)

    def awaits(self, node: int) -> bool:
        """Whether a request to a node has not ended."""
        return any(destination.node == node for destination, _, _ in self.outbox.pending.values())

    def abandon_unreachable(self, node: int, endpoint: int | None = None) -> None:
        """End the accepted requests to a NIC that has restarted or is unreachable, or to its destroyed endpoint: they
        will get no reply. This node's NIC returns the requests that were not accepted."""
        self._abandon(
            number
            for number, (destination, _, _) in self.outbox.pending.items()
            if destination.node == node and endpoint in (None, destination.endpoint)
        )

    def abandon_replied(self, request: int, node: int) -> None:
        """End an accepted request whose reply was given up. request: low bits of the request's number
        (`page.REQUEST_MASK`). node: the destination's."""
        self._abandon(
            number
            for number, (destination, _, _) in self.outbox.pending.items()
            if number & layout.REQUEST_MASK == request and destination.node == node
        )

    def _abandon(self, requests: Iterable[int]) -> None:
        numbers = [number for number in requests if number not in self._doubtful_requests]
        if not numbers:
            return
        self._doubtful_requests += numbers
        if self.outbox.page is None:
            self.library.driver.fault(self)  # the page shows which requests were accepted
        else:
            self._end_doubtful_requests()

    def _end_doubtful_requests(self) -> None:
        numbers, self._doubtful_requests = self._doubtful_requests, []
        in_flight = self.outbox.in_flight()
        for number in numbers:
            if number in self.outbox.pending and number not in in_flight:
                self.inbox.give_up(number)
        self.wake()

    def pending_work(self) -> list[str]:
        sentences = []
        if self._change is not None:
            sentences.append(f"endpoint {self.name.endpoint}: {self._change.what}")
        for destination in self._destinations.values():
            if destination.credits < destination.max_credits:
                sentences.append(
                    f"endpoint {self.name.endpoint}: replies from endpoint {destination.endpoint} of node {destination.node}"
                )
        return sentences

    def _write_page_header(self) -> None:
        """Write the state that the NIC needs into the headers of the backing page and, if the endpoint has one, its
        frame."""
        memory, pages = self.library.memory, [self.backing]
        if self.name.endpoint in memory.bound_endpoints:
            pages.append(memory.frames[memory.bound_endpoints.index(self.name.endpoint)])
        for page in pages:
            layout.set_tag(page, self._tag)
            layout.set_address(page, layout.SEND_STAGING, memory.address_of(self.outbox.staging))
            layout.set_address(page, layout.RECEIVE_STAGING, memory.address_of(self.inbox.staging))
            length = len(self._segment) if self._segment is not None else 0
            # The NIC may read while the address changes: meanwhile the length is that of the shorter segment.
            layout.set_segment_length(page, min(length, layout.segment_length(page)))
            layout.set_address(page, layout.SEGMENT, memory.address_of(self._mapped_segment))
            layout.set_segment_length(page, length)
