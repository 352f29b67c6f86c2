"""Endpoints: what a program sends active messages from, and has handlers called at.

Active messages of AM-2: a request names a handler of the endpoint that it goes to; that may send one reply, which names a
handler of the endpoint that has asked. Handlers are plain functions, called when the program polls, one after the other.
"""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.am2 import page as layout
from protocols.am2.host.errors import RuleError
from protocols.am2.host.inbox import ErrorHandler, Handler, Inbox
from protocols.am2.host.names import ANY, NONE, Correspondent, EndpointName
from protocols.am2.host.outbox import Outbox
from protocols.core.completion import Completion
from protocols.core.firmware import Buffer

if TYPE_CHECKING:
    from protocols.am2.host.bundle import Bundle
    from protocols.am2.host.library import ActiveMessages

_REQUEST: Final = 0
_RULE: Final = "a request's handler may only reply, by its token, and a reply's handler may send nothing"


class Events(IntFlag):
    """What `wait` waits for."""

    NONE = 0
    """AM_NOEVENTS."""
    NOT_EMPTY = 1
    """AM_NOTEMPTY: there is a message that no handler has been called for, or one has come back."""


class Translation(NamedTuple):
    """AM_GetTranslationName, AM_GetTranslationTag: whom requests to that place of the table go to, and under which
    tag."""

    name: EndpointName
    tag: int


class Endpoint:
    """One endpoint (ep_t) of a bundle, which allocates it.

    What is promised of messages: each is handed to its handler once, or comes back to its sender's error handler; only
    of one that comes back as `Status.UNREACHABLE` it is not known whether it has been handled. A request has one end: its
    reply, or that it comes back, never both; what was taken where nobody is any more comes back when that is heard of: the
    endpoint is gone, or its NIC has started again. One has none whose reply is lost for good, of which only who has replied
    is told, or whose taker's NIC is gone and does not come back. There is no order among messages, not even from one
    endpoint to one other.

    Of requests without a reply there are at most `credits` (4) under way to one other endpoint; `request` waits for a reply
    then, and handles what has arrived. Data that is given to be sent is copied, and its buffer may be used again when the
    call returns.

    An endpoint begins without a tag that anybody could know (`names.NONE`): set one before others shall send requests
    to it. Replies need none, they come under the tag of their request. What a handler raises goes through `poll` to its
    caller; the message counts as handled."""

    def __init__(self, library: ActiveMessages, bundle: Bundle, number: int, message: int) -> None:
        """For the bundle only. message: the number of the last request of whoever has had that number before."""
        settings = library.settings
        self.library: Final = library
        self.bundle = bundle
        self.name: Final = EndpointName(library.node, number)
        """AM_GetEndpointName: by which others map it."""
        self.outbox: Final = Outbox(number, library.bell, library.memory, library.most_medium, message)
        self.inbox: Final = Inbox(self, settings.handlers, library.most_medium)
        self.backing: Final = memoryview(bytearray(layout.SIZE))
        """Its page while it is not resident."""
        self.used = 0
        """When it was used last, as the library counts."""
        self._correspondents: dict[tuple[int, int, int], Correspondent] = {}  # by name and tag
        self._translations: list[Correspondent | None] = [None] * settings.translations
        self._credits = settings.credits
        self._tag = NONE
        self._mask = Events.NOT_EMPTY
        self.waits = True
        """Whether the event mask asks for anything, without a look at flags, which take long."""
        self._segment: memoryview | None = None
        self._reached: memoryview | None = None  # where bulk messages come for it
        self._forsaken: list[int] = []  # requests of which it is not known yet whether they were taken
        self._changed: Completion[None] | None = None

    # Who it is.

    @property
    def tag(self) -> int:
        """AM_GetTag, AM_SetTag: what requests must carry to be taken, 64 bits; `names.ANY` takes all, `names.NONE`
        none. What has arrived before is handled."""
        return self._tag

    @tag.setter
    def tag(self, tag: int) -> None:
        if not NONE <= tag <= ANY:
            raise ValueError(f"a tag of {tag}: 0 to {ANY}")
        self._tag = tag
        self._note()

    @property
    def segment(self) -> memoryview | None:
        """AM_GetSeg, AM_SetSeg: the memory into which bulk messages go, bytes that can be written; None: there is none,
        and bulk messages go back to their senders. A bulk message is written piece by piece before its handler is
        called, and some of it may be there though it came back to its sender."""
        return self._segment

    @segment.setter
    def segment(self, memory: bytearray | memoryview | None) -> None:
        view = None if memory is None else memoryview(memory).cast("B")
        if view is not None and view.readonly:
            raise ValueError("a segment is written: its memory must not be read-only")
        self._segment = view
        self._reached = None if view is None else self.library.memory.own(self.name.endpoint, view)
        self.library.driver.remap(self, layout.SEGMENT)
        self._note()

    # Handlers.

    def set_handler(self, number: int, handler: Handler | None) -> None:
        """AM_SetHandler: have messages with that number, 1 to 255, handled so; None: no more. ``handler(token,
        *arguments)`` for short messages, ``handler(token, data, *arguments)`` for medium and bulk ones, data good while
        it runs (a bulk message's lies in the segment)."""
        if not 1 <= number < len(self.inbox.handlers):
            raise ValueError(f"handler {number}: 1 to {len(self.inbox.handlers) - 1}")
        self.inbox.handlers[number] = handler

    def set_handler_any(self, handler: Handler) -> int:
        """AM_SetHandlerAny: the same under the first number that is free. Raises LookupError if none is."""
        for number in range(1, len(self.inbox.handlers)):
            if self.inbox.handlers[number] is None:
                self.inbox.handlers[number] = handler
                return number
        raise LookupError(f"all {len(self.inbox.handlers) - 1} handlers are set")

    @property
    def error_handler(self) -> ErrorHandler | None:
        """AM-2's handler 0: called with each message (`errors.Returned`) that could not be delivered. It may send
        nothing. Without one, `poll` raises ReturnedError."""
        return self.inbox.error_handler

    @error_handler.setter
    def error_handler(self, handler: ErrorHandler | None) -> None:
        self.inbox.error_handler = handler

    # Translations.

    def map(self, place: int, name: EndpointName, tag: int) -> None:
        """AM_Map: requests to that place of the table go there, under that tag. Raises ValueError for a place that
        there is not, or that is taken (AM_ERR_IN_USE), and for a name or tag that cannot be."""
        if not 0 <= place < len(self._translations):
            raise ValueError(f"place {place}: 0 to {len(self._translations) - 1}")
        if self._translations[place] is not None:
            raise ValueError(f"place {place} is taken: unmap it first")
        node, endpoint = name
        if not 0 <= node < self.library.size or not 0 <= endpoint <= 0xFFFF or not NONE <= tag <= ANY:
            raise ValueError(f"endpoint {endpoint} of node {node}, tag {tag}: there are {self.library.size} nodes")
        known = self._correspondents
        correspondent = known.get((node, endpoint, tag))
        if correspondent is None:
            correspondent = known[node, endpoint, tag] = Correspondent(node, endpoint, tag, self._credits)
        correspondent.mapped += 1
        self._translations[place] = correspondent

    def map_any(self, name: EndpointName, tag: int) -> int:
        """AM_MapAny: the same in the first place that is free. Raises LookupError if none is."""
        for place, correspondent in enumerate(self._translations):
            if correspondent is None:
                self.map(place, name, tag)
                return place
        raise LookupError(f"all {len(self._translations)} places of the translation table are taken")

    def unmap(self, place: int) -> None:
        """AM_UnMap: nothing goes there any more. Requests that are under way are, and come to their ends. Mapped anew when
        no other place leads there, it has all its credits."""
        correspondent = self._correspondent(place)
        self._translations[place] = None
        correspondent.mapped -= 1
        if not correspondent.mapped:
            del self._correspondents[correspondent.key]

    def translation(self, place: int) -> Translation | None:
        """AM_GetTranslationName, AM_GetTranslationTag, AM_GetTranslationInuse."""
        correspondent = self._translations[place]
        return None if correspondent is None else Translation(correspondent.name, correspondent.tag)

    @property
    def translations(self) -> int:
        """AM_GetNumTranslations: places of the table."""
        return len(self._translations)

    def credits(self, place: int) -> int:
        """Requests that can be sent there before a reply must come."""
        return self._correspondent(place).credits

    # Requests.

    def try_request(self, place: int, handler: int, *arguments: int) -> bool:
        """AM_RequestM, without waiting: send a short request; False, and nothing is done, where there is no credit, no
        room, or the endpoint is not resident (then it will be: `wait_for_room`). place: in the translation table.
        handler: the destination's, 1 to 255. arguments: at most 16, of 32 bits, not negative.

        Raises ValueError, LookupError for a place that leads nowhere, and RuleError within a handler.
        """
        correspondent = self._translations[place]
        if correspondent is None:
            raise self._nowhere(place)
        if self.library.handling is not None:
            raise RuleError(_RULE)
        return correspondent.credits > 0 and self.outbox.request(correspondent, handler, arguments)

    def try_request_medium(self, place: int, handler: int, data: Buffer, *arguments: int) -> bool:
        """AM_RequestIM, without waiting: the same with data, at most `ActiveMessages.most_medium` bytes, for the
        handler."""
        correspondent = self._may_send(place)
        return correspondent.credits > 0 and self.outbox.medium(correspondent, handler, arguments, data)

    def try_request_bulk(self, place: int, handler: int, data: Buffer, offset: int, *arguments: int) -> bool:
        """AM_RequestXferAsyncM: the same with data for the destination's segment, from offset (bytes) on; its handler is
        called when all of it is there. Any length that the segment has."""
        correspondent = self._may_send(place)
        return correspondent.credits > 0 and self.outbox.bulk(correspondent, handler, arguments, data, offset)

    async def request(self, place: int, handler: int, *arguments: int) -> None:
        """AM_RequestM: send a short request, when there is a credit and room for it; what arrives meanwhile is handled.
        As `try_request`."""
        while not self.try_request(place, handler, *arguments):
            await self.wait_for_room(place)

    async def request_medium(self, place: int, handler: int, data: Buffer, *arguments: int) -> None:
        """AM_RequestIM: as `request`, with data; see `try_request_medium`."""
        while not self.try_request_medium(place, handler, data, *arguments):
            await self.wait_for_room(place)

    async def request_bulk(self, place: int, handler: int, data: Buffer, offset: int, *arguments: int) -> None:
        """AM_RequestXferM: as `request`, with data for the destination's segment; see `try_request_bulk`."""
        while not self.try_request_bulk(place, handler, data, offset, *arguments):
            await self.wait_for_room(place)

    async def wait_for_room(self, place: int) -> None:
        """Handle what has arrived, or wait until something has changed, so that a request could have a credit and
        room."""
        if self.poll():
            return
        if self.outbox.page is None:
            self.library.driver.fault(self)
        elif self._correspondent(place).credits:
            if self.outbox.has_room(_REQUEST):
                return
            self.outbox.want()
        if self.is_ready:
            return  # it has got its frame at once, when it was asked for
        if self.outbox.page is None or not (self._correspondent(place).credits and self.outbox.has_room(_REQUEST)):
            if self._changed is None:
                name = self._correspondent(place).name
                self._changed = Completion(
                    "a credit, or room, to send to endpoint %s of node %s", name.endpoint, name.node
                )
            await self._changed

    # What has arrived.

    def poll(self, most: int | None = None) -> int:
        """AM_Poll: call the handlers of what has arrived, of at most so many messages, replies first, and give back how
        many that were. It never waits: an endpoint that is not resident is asked for, and handles nothing until it is.
        Raises RuleError within a handler, ReturnedError, and what handlers raise."""
        inbox = self.inbox
        if not (inbox.replies or inbox.requests or inbox.lost):
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
        """Nothing has arrived that was not handled."""
        return not (self.inbox.requests or self.inbox.replies or self.inbox.lost)

    @property
    def event_mask(self) -> Events:
        """AM_GetEventMask, AM_SetEventMask: what `wait` waits for."""
        return self._mask

    @event_mask.setter
    def event_mask(self, mask: Events) -> None:
        self._mask = Events(mask)
        self.waits = bool(mask & Events.NOT_EMPTY)
        self._note()

    async def wait(self) -> None:
        """AM_WaitSema: wait until there is something that `poll` would handle. Raises ValueError if the event mask asks
        for nothing. Several tasks may wait; all are woken."""
        if not self.waits:
            raise ValueError("the event mask asks for nothing: this would wait for ever")
        while not self.is_ready:
            changed = self._changed
            if changed is None:
                changed = self._changed = Completion("a message")
            await changed

    @property
    def is_ready(self) -> bool:
        """Whether `poll` would handle something now. Where it needs its page or room, that is asked for."""
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
        """AM_FreeEndpoint: nobody gets at it any more. What it has sent and is not answered is given up; messages to it
        go back to their senders."""
        self.library.free(self)

    # For the library.

    def moved(self, page: memoryview | None) -> None:
        """Its page is there now; None: the host may not touch it."""
        self.inbox.page = page
        self.outbox.moved(page)
        if page is not None:
            self._note()
            if self._forsaken:
                self._forsake()
        self.changed()

    def changed(self) -> None:
        """Something that tasks may wait for."""
        waiter = self._changed
        if waiter is not None:
            self._changed = None
            waiter.complete(None)
        if self.bundle.changed is not None:
            self.bundle.wake()

    def region(self, subject: int) -> memoryview | None:
        """Its memory that the NIC asks for."""
        if subject == layout.SEGMENT:
            return self._reached
        if subject == layout.STAGED:
            return self.outbox.staged
        if subject == layout.STAGING:
            if self.inbox.staging is None:
                size = 2 * layout.ENTRIES * self.library.most_medium
                self.inbox.staging = self.library.memory.allocate(self.name.endpoint, size)
                self._note()
            return self.inbox.staging
        return self.outbox.sources.get(subject)

    def arrived(self, offset: int, length: int) -> memoryview:
        """Of the segment, what a bulk message has brought."""
        segment, reached = self._segment, self._reached
        if segment is None or reached is None:
            return memoryview(b"")
        if reached is not segment:
            segment[offset : offset + length] = reached[offset : offset + length]
        return segment[offset : offset + length]

    def forsaken(self, node: int, endpoint: int | None = None) -> None:
        """That NIC has started again, or that endpoint of it is gone: what was taken there will not be replied to. What was
        not, the NIC gives back."""
        numbers = [
            number
            for number, (to, _, _) in self.outbox.asked.items()
            if to.node == node and endpoint in (None, to.endpoint) and number not in self._forsaken
        ]
        if not numbers:
            return
        self._forsaken += numbers
        if self.outbox.page is None:
            self.library.driver.fault(self)  # which of them were taken, its page says
        else:
            self._forsake()

    def _forsake(self) -> None:
        numbers, self._forsaken = self._forsaken, []
        ours = self.outbox.under_way()
        for number in numbers:
            if number in self.outbox.asked and number not in ours:
                self.inbox.forsake(number)
        self.changed()

    def waiting(self) -> list[str]:
        out = []
        if self._changed is not None:
            out.append(f"endpoint {self.name.endpoint}: {self._changed.what}")
        for node, endpoint, _ in (one.key for one in self._correspondents.values() if one.credits < one.most):
            out.append(f"endpoint {self.name.endpoint}: replies from endpoint {endpoint} of node {node}")
        return out

    def _note(self) -> None:
        """Write down in the page what the NIC must know, wherever that is now, or will be when it is paged."""
        memory, pages = self.library.memory, [self.backing]
        if self.name.endpoint in memory.bound:
            pages.append(memory.frames[memory.bound.index(self.name.endpoint)])
        for page in pages:
            layout.set_tag(page, self._tag)
            page[layout.MASK] = self._mask
            layout.set_address(page, layout.STAGED, memory.address(self.outbox.staged))
            layout.set_address(page, layout.STAGING, memory.address(self.inbox.staging))
            length = len(self._segment) if self._segment is not None else 0
            layout.set_segment(page, min(length, layout.segment_of(page)))  # a NIC may look meanwhile
            layout.set_address(page, layout.SEGMENT, memory.address(self._reached))
            layout.set_segment(page, length)

    def _correspondent(self, place: int) -> Correspondent:
        correspondent = self._translations[place] if 0 <= place < len(self._translations) else None
        if correspondent is None:
            raise self._nowhere(place)
        return correspondent

    def _may_send(self, place: int) -> Correspondent:
        if self.library.handling is not None:
            raise RuleError(_RULE)
        return self._correspondent(place)

    def _nowhere(self, place: int) -> LookupError:
        return LookupError(
            f"place {place} of endpoint {self.name.endpoint}'s translation table leads nowhere: map it first"
        )
