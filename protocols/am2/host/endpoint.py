"""Endpoints: a program sends active messages from them, and has handlers called for messages to them.

In AM-2, a request names a handler of its destination endpoint. That handler may send one reply, which names a handler
of the requesting endpoint. Handlers are plain functions, called one after the other when the program polls.
"""

from __future__ import annotations

from collections.abc import Coroutine
from enum import IntFlag
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.active_messages.am_errors import RuleError, Status
from protocols.active_messages.endpoint_names import ANY, NONE, EndpointName
from protocols.am2 import page as layout
from protocols.am2.host.inbox import ErrorHandler, Handler, Inbox
from protocols.am2.host.outbox import Correspondent, Outbox
from protocols.core.completion import Completion
from protocols.core.firmware import Buffer

if TYPE_CHECKING:
    from protocols.am2.host.bundle import Bundle
    from protocols.am2.host.library import ActiveMessages

_REQUEST: Final = 0
_RULE: Final = "a request's handler may only reply, by its token, and a reply's handler may send nothing"


class Events(IntFlag):
    """Events that `wait` waits for."""

    NONE = 0
    """AM_NOEVENTS."""
    NOT_EMPTY = 1
    """AM_NOTEMPTY: a message has arrived and is not handled yet, or one was returned."""


class Translation(NamedTuple):
    """AM_GetTranslationName, AM_GetTranslationTag: destination and tag of an index of the translation
    table."""

    name: EndpointName
    tag: int


class Endpoint:
    """One endpoint (ep_t), allocated by its bundle.

    Delivery guarantees: each message is handled once, or returned to its sender's error handler; only a message
    returned as `Status.UNREACHABLE`, or `Status.ABANDONED`, may have been handled as well. A request ends once: by its
    reply, or by its return. A request accepted by an endpoint that is later gone, or whose NIC has restarted, is
    returned when that becomes known. If a reply is lost for good, or the receiving NIC does not come back, the sender is
    not notified: then the program, which has a clock, ends its requests by `abandon`. Messages are not
    ordered, not even from one endpoint to another.

    At most `credits` (4) requests to one other endpoint can be without a reply; `request` then waits for a reply, and
    meanwhile handles what arrives at any endpoint of the bundle. Data to be sent is copied; its buffer may be reused when
    the call returns.

    An endpoint begins with a tag that accepts no requests (`endpoint_names.NONE`): set one before others send requests
    to it. Replies need none, since they carry the tag of their request. An exception of a handler passes through `poll`
    to its caller; the message counts as handled.
    """

    def __init__(self, library: ActiveMessages, bundle: Bundle, number: int, message: int) -> None:
        """For the bundle only. message: number of the last request of the endpoint that had this number before."""
        settings = library.settings
        self.library: Final = library
        self.bundle = bundle
        self.name: Final = EndpointName(library.node, number)
        """AM_GetEndpointName: the name by which others map it."""
        self.outbox: Final = Outbox(number, library.bell, library.memory, library.max_medium, message, library.observer)
        self.inbox: Final = Inbox(self, settings.handlers, library.max_medium)
        self.backing: Final = memoryview(bytearray(layout.SIZE))
        """Page of the endpoint while it is not resident."""
        self.used = 0
        """Time of its last use, in the library's count."""
        self._correspondents: dict[tuple[int, int, int], Correspondent] = {}  # by name and tag
        self._translations: list[Correspondent | None] = [None] * settings.translations
        self._credits = settings.credits
        self._tag = NONE
        self._mask = Events.NOT_EMPTY
        self.waits = True
        """Whether the event mask selects anything; cached, since tests of flags are slow."""
        self._segment: memoryview | None = None
        self._reached: memoryview | None = None  # where bulk messages for it arrive
        self._is_wanted = False  # a request could not be sent because it is not resident
        self._in_doubt: list[int] = []  # requests that may or may not have been accepted
        self._changed: Completion[None] | None = None

    # Identity.

    @property
    def tag(self) -> int:
        """AM_GetTag, AM_SetTag: the tag that requests must carry to be accepted, 64 bits; `endpoint_names.ANY` accepts
        all, `endpoint_names.NONE` none. A change does not affect messages that have arrived."""
        return self._tag

    @tag.setter
    def tag(self, tag: int) -> None:
        if not NONE <= tag <= ANY:
            raise ValueError(f"a tag of {tag}: 0 to {ANY}")
        self._tag = tag
        self._note()

    @property
    def segment(self) -> memoryview | None:
        """AM_GetSeg, AM_SetSeg: writable memory that receives bulk messages; None: bulk messages are returned to their
        senders. A bulk message is written piece by piece before its handler is called; a returned one may have been
        written in part."""
        return self._segment

    @segment.setter
    def segment(self, memory: bytearray | memoryview | None) -> None:
        view = None if memory is None else memoryview(memory).cast("B")
        if view is not None and view.readonly:
            raise ValueError("the memory of a segment must be writable")
        self._segment = view
        self._reached = None if view is None else self.library.memory.make_mappable(self.name.endpoint, view)
        self.library.driver.remap(self, layout.SEGMENT)
        self._note()

    # Handlers.

    def set_handler(self, number: int, handler: Handler | None) -> None:
        """AM_SetHandler: set the handler of messages with a number, 1 to 255; None removes it. It is called as
        ``handler(token, *arguments)`` for short messages, and as ``handler(token, data, *arguments)`` for medium and
        bulk ones, with data valid while it runs (a bulk message's lies in the segment)."""
        if not 1 <= number < len(self.inbox.handlers):
            raise ValueError(f"handler {number}: 1 to {len(self.inbox.handlers) - 1}")
        self.inbox.handlers[number] = handler

    def set_handler_any(self, handler: Handler) -> int:
        """AM_SetHandlerAny: set a handler under the first free number. Raises LookupError if none is free."""
        for number in range(1, len(self.inbox.handlers)):
            if self.inbox.handlers[number] is None:
                self.inbox.handlers[number] = handler
                return number
        raise LookupError(f"all {len(self.inbox.handlers) - 1} handlers are set")

    @property
    def error_handler(self) -> ErrorHandler | None:
        """AM-2's handler 0: called with each undeliverable message (`am_errors.Returned`). It may not send. Without
        one, `poll` raises ReturnedError."""
        return self.inbox.error_handler

    @error_handler.setter
    def error_handler(self, handler: ErrorHandler | None) -> None:
        self.inbox.error_handler = handler

    # Translations.

    def map(self, index: int, name: EndpointName, tag: int) -> None:
        """AM_Map: map an index of the translation table to an endpoint and its tag. Raises ValueError for an index
        that does not exist or is taken (AM_ERR_IN_USE), and for an invalid name or tag."""
        if not 0 <= index < len(self._translations):
            raise ValueError(f"index must be 0 to {len(self._translations) - 1}, got {index}")
        if self._translations[index] is not None:
            raise ValueError(f"index {index} is in use: unmap it first")
        node, endpoint = name
        if not 0 <= node < self.library.size or not 0 <= endpoint <= 0xFFFF or not NONE <= tag <= ANY:
            raise ValueError(f"endpoint {endpoint} of node {node}, tag {tag}: there are {self.library.size} nodes")
        known = self._correspondents
        correspondent = known.get((node, endpoint, tag))
        if correspondent is None:
            correspondent = known[node, endpoint, tag] = Correspondent(node, endpoint, tag, self._credits)
        correspondent.mapped += 1
        self._translations[index] = correspondent

    def map_any(self, name: EndpointName, tag: int) -> int:
        """AM_MapAny: map the first free index and return it. Raises LookupError if none is free."""
        for index, correspondent in enumerate(self._translations):
            if correspondent is None:
                self.map(index, name, tag)
                return index
        raise LookupError(f"all {len(self._translations)} places of the translation table are taken")

    def unmap(self, index: int) -> None:
        """AM_UnMap: clear an index of the table. Requests in flight continue to their ends. When the last index of a
        destination is cleared, mapping it again restores all its credits."""
        correspondent = self._correspondent(index)
        self._translations[index] = None
        correspondent.mapped -= 1
        if not correspondent.mapped:
            del self._correspondents[correspondent.key]

    def translation(self, index: int) -> Translation | None:
        """AM_GetTranslationName, AM_GetTranslationTag, AM_GetTranslationInuse."""
        correspondent = self._translations[index]
        return None if correspondent is None else Translation(correspondent.name, correspondent.tag)

    @property
    def translations(self) -> int:
        """AM_GetNumTranslations: number of places in the table."""
        return len(self._translations)

    def credits(self, index: int) -> int:
        """Number of requests that can be sent there before a reply is required."""
        return self._correspondent(index).credits

    def unanswered(self, index: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return handlers and arguments of the requests sent there that have not ended for the program."""
        correspondent = self._correspondent(index)
        pending = [
            (handler, arguments) for to, handler, arguments in self.outbox.pending.values() if to is correspondent
        ]
        lost = [(lost.handler, lost.arguments) for lost in self.inbox.lost if lost.destination == correspondent.name]
        return lost + pending

    # Requests.

    def try_request(self, index: int, handler: int, *arguments: int) -> bool:
        """AM_RequestM, without waiting: send a short request. Returns False, with no effect, if there is no credit or
        no room, or the endpoint is not resident: then use `wait_for_room`, or poll. index: in the translation table.
        handler: the destination's, 1 to 255. arguments: at most 16, each 0 to 2^32 - 1.

        Raises ValueError, LookupError for an empty index, and RuleError within a handler.
        """
        correspondent = self._translations[index]
        if correspondent is None:
            raise self._unmapped(index)
        if self.library.handling is not None:
            raise RuleError(_RULE)
        if self.outbox.page is None:
            self._is_wanted = True
        return correspondent.credits > 0 and self.outbox.request(correspondent, handler, arguments)

    def try_request_medium(self, index: int, handler: int, data: Buffer, *arguments: int) -> bool:
        """AM_RequestIM, without waiting: send a request with at most `ActiveMessages.max_medium` bytes of data for the
        handler; otherwise as `try_request`."""
        correspondent = self._may_send(index)
        return correspondent.credits > 0 and self.outbox.medium(correspondent, handler, arguments, data)

    def try_request_bulk(self, index: int, handler: int, data: Buffer, offset: int, *arguments: int) -> bool:
        """AM_RequestXferAsyncM: send a request with data for the destination's segment, from byte `offset` on, of any
        length that fits; the handler is called when all data has arrived. Otherwise as `try_request`."""
        correspondent = self._may_send(index)
        return correspondent.credits > 0 and self.outbox.bulk(correspondent, handler, arguments, data, offset)

    async def request(self, index: int, handler: int, *arguments: int) -> None:
        """AM_RequestM: send a short request, when there is a credit and room for it; meanwhile handle messages that
        arrive at the bundle. Otherwise as `try_request`."""
        while not self.try_request(index, handler, *arguments):
            await self.wait_for_room(index)

    async def request_medium(self, index: int, handler: int, data: Buffer, *arguments: int) -> None:
        """AM_RequestIM: as `request`, with data; see `try_request_medium`."""
        while not self.try_request_medium(index, handler, data, *arguments):
            await self.wait_for_room(index)

    async def request_bulk(self, index: int, handler: int, data: Buffer, offset: int, *arguments: int) -> None:
        """AM_RequestXferM: as `request`, with data for the destination's segment; see `try_request_bulk`."""
        while not self.try_request_bulk(index, handler, data, offset, *arguments):
            await self.wait_for_room(index)

    def abandon(self, index: int) -> int:
        """End the accepted requests sent there that have no reply yet, and return how many: they are passed to the error
        handler as `Status.ABANDONED`, and bring their credits back. Replies that come later are dropped. Requests that
        the NIC is still sending end in the usual way. Returns 0 while the endpoint is not resident, and requests
        it."""
        correspondent = self._correspondent(index)
        if self.outbox.page is None:
            self.library.driver.fault(self)  # the page shows which requests were accepted
            return 0
        ours = self.outbox.under_way()
        numbers = [
            number for number, (to, _, _) in self.outbox.pending.items() if to is correspondent and number not in ours
        ]
        for number in numbers:
            self.inbox.give_up(number, Status.ABANDONED)
        if numbers:
            self.changed()
        return len(numbers)

    async def wait_for_room(self, index: int) -> None:
        """Handle what has arrived at the bundle, or wait until a change, such as a credit or room, may permit a request,
        or another message may be handled."""
        if self.bundle.handle():
            return
        if self.outbox.page is None:
            self.library.driver.fault(self)
        elif self._correspondent(index).credits:
            if self.outbox.has_room(_REQUEST):
                return
            self.outbox.want()
        ready = [endpoint.is_ready for endpoint in self.bundle.endpoints]
        if any(ready):
            return  # an endpoint got its frame at once
        if self.outbox.page is None or not (self._correspondent(index).credits and self.outbox.has_room(_REQUEST)):
            name = self._correspondent(index).name
            await self.bundle.change("a credit, or room, to send to endpoint %s of node %s", name.endpoint, name.node)

    # Received messages.

    def poll(self, most: int | None = None) -> Coroutine[Completion[None], None, int]:
        """AM_Poll, awaited: call the handlers of at most `most` messages that have arrived, replies first, and return
        the number of messages. If there are none, the NIC and other tasks run first, which takes model time in a
        simulation. A non-resident endpoint is requested, and handles nothing until it is resident.

        Raises RuleError within a handler, and if the previous poll was not awaited; ReturnedError; and the exceptions
        of handlers.
        """
        return self.library.poll(self.handle, most)

    def handle(self, most: int | None = None) -> int:
        """Poll without letting anything else run, for callers that wait in a loop of their own, such as MPI's
        device."""
        inbox = self.inbox
        if not (inbox.replies or inbox.requests or inbox.lost):
            if self._is_wanted:
                self.library.driver.fault(self)
            return 0
        library = self.library
        if library.handling is not None:
            raise RuleError("a handler may not poll")
        if inbox.page is None:
            library.driver.fault(self)
            return 0
        handled = 0
        while handled != most and (inbox.replies or inbox.requests or inbox.lost) and inbox.step():
            handled += 1
        return handled

    @property
    def is_empty(self) -> bool:
        """Whether everything that has arrived is handled."""
        return not (self.inbox.requests or self.inbox.replies or self.inbox.lost)

    @property
    def event_mask(self) -> Events:
        """AM_GetEventMask, AM_SetEventMask: the events that `wait` waits for."""
        return self._mask

    @event_mask.setter
    def event_mask(self, mask: Events) -> None:
        self._mask = Events(mask)
        self.waits = bool(mask & Events.NOT_EMPTY)
        self._note()

    async def wait(self) -> None:
        """AM_WaitSema: wait until `poll` would handle something. Raises ValueError if the event mask selects nothing.
        Several tasks may wait; all are woken. Goes on waiting if another task of the bundle handles the message first:
        `poll` and requests that wait for room handle whatever arrives at the bundle."""
        if not self.waits:
            raise ValueError("the event mask selects nothing: this would wait for ever")
        while not self.is_ready:
            changed = self._changed
            if changed is None:
                changed = self._changed = Completion("a message")
            await changed

    @property
    def is_ready(self) -> bool:
        """Whether `poll` would handle something now. If the endpoint needs its page or room, that is requested."""
        inbox = self.inbox
        if not (inbox.replies or inbox.requests or inbox.lost):
            return False
        if inbox.page is None:
            self.library.driver.fault(self)
            return inbox.page is not None
        if inbox.replies or inbox.lost or self.outbox.has_room(1):
            return True
        self.outbox.want()
        return self.outbox.has_room(1)

    def free(self) -> None:
        """AM_FreeEndpoint: free the endpoint. Its unanswered messages are given up; messages to it are returned to
        their senders."""
        self.library.free(self)

    # For the library.

    def moved(self, page: memoryview | None) -> None:
        """Change the page's location; None: the host may not access it."""
        self.inbox.page = page
        self.outbox.moved(page)
        if page is not None:
            self._is_wanted = False
            self._note()
            if self._in_doubt:
                self._settle_doubts()
        self.changed()

    def changed(self) -> None:
        """Wake tasks that wait for a change."""
        waiter = self._changed
        if waiter is not None:
            self._changed = None
            waiter.complete(None)
        if self.bundle.changed is not None:
            self.bundle.wake()

    def region(self, subject: int) -> memoryview | None:
        """Return memory that the NIC asks for, or None."""
        if subject == layout.SEGMENT:
            return self._reached
        if subject == layout.STAGED:
            return self.outbox.staged
        if subject == layout.STAGING:
            if self.inbox.staging is None:
                size = 2 * layout.ENTRIES * self.library.max_medium
                self.inbox.staging = self.library.memory.allocate(self.name.endpoint, size)
                self._note()
            return self.inbox.staging
        return self.outbox.sources.get(subject)

    def arrived(self, offset: int, length: int) -> memoryview:
        """Return the part of the segment that a bulk message has filled."""
        segment, reached = self._segment, self._reached
        if segment is None or reached is None:
            return memoryview(b"")
        if reached is not segment:
            segment[offset : offset + length] = reached[offset : offset + length]
        return segment[offset : offset + length]

    def abandon_unreachable(self, node: int, endpoint: int | None = None) -> None:
        """Handle the restart of a NIC, or the end of its endpoint: accepted requests will not be replied to. The NIC
        returns those that were not accepted."""
        numbers = [
            number
            for number, (to, _, _) in self.outbox.pending.items()
            if to.node == node and endpoint in (None, to.endpoint) and number not in self._in_doubt
        ]
        if not numbers:
            return
        self._in_doubt += numbers
        if self.outbox.page is None:
            self.library.driver.fault(self)  # the page shows which requests were accepted
        else:
            self._settle_doubts()

    def _settle_doubts(self) -> None:
        numbers, self._in_doubt = self._in_doubt, []
        ours = self.outbox.under_way()
        for number in numbers:
            if number in self.outbox.pending and number not in ours:
                self.inbox.give_up(number)
        self.changed()

    def waiting(self) -> list[str]:
        out = []
        if self._changed is not None:
            out.append(f"endpoint {self.name.endpoint}: {self._changed.what}")
        for node, endpoint, _ in (one.key for one in self._correspondents.values() if one.credits < one.most):
            out.append(f"endpoint {self.name.endpoint}: replies from endpoint {endpoint} of node {node}")
        return out

    def _note(self) -> None:
        """Write the state that the NIC needs into the page, wherever it is now; it moves with the page."""
        memory, pages = self.library.memory, [self.backing]
        if self.name.endpoint in memory.bound:
            pages.append(memory.frames[memory.bound.index(self.name.endpoint)])
        for page in pages:
            layout.set_tag(page, self._tag)
            page[layout.MASK] = self._mask
            layout.set_address(page, layout.STAGED, memory.address(self.outbox.staged))
            layout.set_address(page, layout.STAGING, memory.address(self.inbox.staging))
            length = len(self._segment) if self._segment is not None else 0
            # The NIC may read while the address changes: until then the length is the lesser of both segments'.
            layout.set_segment(page, min(length, layout.segment_of(page)))
            layout.set_address(page, layout.SEGMENT, memory.address(self._reached))
            layout.set_segment(page, length)

    def _correspondent(self, index: int) -> Correspondent:
        correspondent = self._translations[index] if 0 <= index < len(self._translations) else None
        if correspondent is None:
            raise self._unmapped(index)
        return correspondent

    def _may_send(self, index: int) -> Correspondent:
        if self.library.handling is not None:
            raise RuleError(_RULE)
        correspondent = self._correspondent(index)
        if self.outbox.page is None:
            self._is_wanted = True
        return correspondent

    def _unmapped(self, index: int) -> LookupError:
        return LookupError(f"index {index} of endpoint {self.name.endpoint}'s translation table is empty: map it first")
