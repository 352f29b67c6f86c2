"""An endpoint's send side: the translation table, the two send rings, and the copies of messages' data, which are kept
until the messages are answered."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.active_messages.am_errors import RuleError
from protocols.active_messages.endpoint_names import ANY, NONE, EndpointName, MessageContent, RequestName
from protocols.active_messages.observer import Observer
from protocols.am2 import page as layout
from protocols.am2.codec import FORM_BULK, FORM_MEDIUM, FORM_SHORT
from protocols.am2.host.token import Origin
from protocols.am2.nic_memory import HostEndpointFrames
from protocols.core.firmware import Buffer, HostActions
from protocols.core.memory import PAGE

if TYPE_CHECKING:
    from protocols.am2.host.library import ActiveMessages

_REQUEST: Final = 0
_REPLY: Final = 1
"""Numbers of the two rings."""
_MASK: Final = 0xFFFF_FFFF
_SLOT_OFFSETS: Final = layout.SLOT_OFFSETS
_WRITE_ENTRY: Final = layout.WRITE_ENTRY
_FREE: Final = layout.FREE
_READY: Final = layout.READY
_NEXT_SLOT: Final = tuple((slot & ~15) | (slot + 1 & 15) for slot in range(layout.SLOTS))
_MAX_ARGUMENTS: Final = layout.MAX_ARGUMENTS
_ARGUMENT: Final = struct.Struct("!I")
_MAX_HANDLER: Final = 255
_UNFINISHED_STATES: Final = (layout.READY, layout.IN_FLIGHT, layout.RETURNED)
_NO_DATA: Final = b""
_RULE: Final = "a request's handler may only reply, by its token, and a reply's handler may send nothing"


class Destination:
    """A destination: an endpoint and the tag of requests to it. credits: number of requests that may be sent before a
    reply is required. max_credits: initial credits. key: node, endpoint and tag. mapping_count: number of its indexes
    in the translation table."""

    __slots__ = ("credits", "endpoint", "key", "mapping_count", "max_credits", "node", "tag")

    def __init__(self, node: int, endpoint: int, tag: int, max_credits: int) -> None:
        self.node = node
        self.endpoint = endpoint
        self.tag = tag
        self.key = (node, endpoint, tag)
        self.credits = self.max_credits = max_credits
        self.mapping_count = 0

    @property
    def name(self) -> EndpointName:
        return EndpointName(self.node, self.endpoint)


class Translation(NamedTuple):
    """AM_GetTranslationName, AM_GetTranslationTag: name and tag of a destination in the translation table."""

    name: EndpointName
    tag: int


PendingRequest = tuple[Destination, int, tuple[int, ...]]
"""A request that has not ended: destination, handler and arguments."""


class Outbox:
    """The two send rings of one endpoint. page: their present location; None: the host may not access them.
    last_request: number of the last request. pending: requests that have not ended, by number. observer: notified of
    each message before the NIC is.

    `send_request`, `send_reply`, `send_medium` and `send_bulk` send a message. They return False if no slot is free, or
    if the endpoint is not resident, and raise ValueError for an invalid handler or argument. A request takes a credit,
    which must be available. handler, arguments: as in frames.
    """

    __slots__ = (
        "_deferred_slots",
        "_doorbell_base",
        "_endpoint_number",
        "_max_medium",
        "_memory",
        "_next_slots",
        "_nic",
        "bulk_data",
        "last_request",
        "observer",
        "page",
        "pending",
        "staging",
    )

    def __init__(
        self,
        endpoint: int,
        nic: HostActions,
        memory: HostEndpointFrames,
        max_medium: int,
        last_request: int = 0,
        observer: Observer | None = None,
    ) -> None:
        """endpoint: the endpoint's number. max_medium: maximum bytes of a medium message's data. last_request: number
        of the last request of the former endpoint with this number."""
        self.observer = observer
        self._endpoint_number = endpoint
        self._doorbell_base = endpoint << layout.SUBJECT_BITS
        self._nic = nic
        self._memory = memory
        self._max_medium = max_medium
        self._next_slots = [layout.REQUESTS, layout.REPLIES]
        self.last_request = last_request
        self.pending: Final[dict[int, PendingRequest]] = {}
        self.page: memoryview | None = None
        self._deferred_slots: list[int] = []  # slots that the NIC has reported while the page was not accessible
        self.staging: memoryview | None = None
        """Data of medium messages, by slot; allocated for the first one."""
        self.bulk_data: dict[int, memoryview] = {}
        """Data of bulk messages, by slot."""

    def send_request(self, destination: Destination, handler: int, arguments: tuple[int, ...]) -> bool:
        """Send a short request."""
        if not handler:  # LIBRARY_HANDLER: the entry could be packed, and the destination would return the request
            raise ValueError(_values_error(handler, arguments))
        page = self.page
        if page is None:
            return False
        slot = self._next_slots[_REQUEST]
        entry_offset = _SLOT_OFFSETS[slot]
        if page[entry_offset]:
            if not (entry_offset := self._find_free_slot(page, _REQUEST)):
                return False
            slot = self._next_slots[_REQUEST]
        number, count = self.last_request + 1 & _MASK, len(arguments)
        try:
            _WRITE_ENTRY[count](
                page, entry_offset, _FREE, 0, destination.node, 0, 0, 0, FORM_SHORT, _REQUEST, handler, count,
                self._endpoint_number, destination.endpoint, destination.tag, number, 0, 0, *arguments,
            )  # fmt: skip
        except (struct.error, IndexError):
            page[entry_offset] = layout.FREE
            raise ValueError(_values_error(handler, arguments)) from None
        page[entry_offset] = _READY  # written last, so that the NIC finds a complete entry or none
        self.last_request = number
        self.pending[number] = destination, handler, arguments
        destination.credits -= 1
        self._next_slots[_REQUEST] = _NEXT_SLOT[slot]
        if self.observer is not None:
            self._report(destination, handler, arguments, _NO_DATA)
        self._nic.ring_doorbell(self._doorbell_base | slot, layout.ARGUMENTS_OFFSET + 4 * count, 0)
        return True

    def send_reply(self, destination: Origin, handler: int, arguments: tuple[int, ...]) -> bool:
        """Send a short reply. handler: LIBRARY_HANDLER for the library's own reply, which calls no handler."""
        page = self.page
        if page is None:
            return False
        slot = self._next_slots[_REPLY]
        entry_offset = _SLOT_OFFSETS[slot]
        if page[entry_offset]:
            if not (entry_offset := self._find_free_slot(page, _REPLY)):
                return False
            slot = self._next_slots[_REPLY]
        count = len(arguments)
        try:
            _WRITE_ENTRY[count](
                page, entry_offset, _FREE, 0, destination.node, 0, 0, destination.incarnation, FORM_SHORT, _REPLY, handler,
                count, self._endpoint_number, destination.endpoint, destination.tag, destination.message, 0, 0, *arguments,
            )  # fmt: skip
        except (struct.error, IndexError):
            page[entry_offset] = layout.FREE
            raise ValueError(_values_error(handler, arguments)) from None
        page[entry_offset] = _READY
        self._next_slots[_REPLY] = _NEXT_SLOT[slot]
        if self.observer is not None:
            self._report(destination, handler, arguments, _NO_DATA)
        self._nic.ring_doorbell(self._doorbell_base | slot, layout.ARGUMENTS_OFFSET + 4 * count, 0)
        return True

    def send_medium(
        self, destination: Destination | Origin, handler: int, arguments: tuple[int, ...], data: Buffer
    ) -> bool:
        """Send a medium request or reply. Raises ValueError also for more data than a medium message permits, and
        MemoryError if the staging area cannot be allocated."""
        data = _as_bytes(data)
        size = len(data)
        if size > self._max_medium:
            raise ValueError(f"{size} bytes of data: a medium message has at most {self._max_medium}")
        ring = _ring_of(destination)
        page = self._page_with_room(ring)
        if page is None:
            return False
        slot = self._next_slots[ring]
        begin = self._stage(page, slot, data)
        self._write(page, FORM_MEDIUM, destination, handler, arguments, size, begin, 0)
        if self.observer is not None:
            self._report(destination, handler, arguments, data)
        self._nic.ring_doorbell(self._doorbell_base | slot, layout.ARGUMENTS_OFFSET + 4 * len(arguments), 0)
        return True

    def pass_entry(self, form: int, data: Buffer, epoch: int, author: int, part: int, part_count: int) -> bool:
        """Pass the NIC a probe packet, a part of a route table, or a request for the table, by a privileged endpoint.
        Returns False if no slot is free, or if the endpoint is not resident. Raises ValueError for more data than a
        medium message permits, and MemoryError."""
        size, endpoint = len(data), self._endpoint_number
        if size > self._max_medium:
            raise ValueError(f"{size} bytes: a privileged endpoint passes at most {self._max_medium} bytes")
        page = self._page_with_room(_REQUEST)
        if page is None:
            return False
        slot = self._next_slots[_REQUEST]
        begin = self._stage(page, slot, data) if size else 0
        entry_offset = _SLOT_OFFSETS[slot]
        _WRITE_ENTRY[0](
            page, entry_offset, _FREE, 0, 0, size, begin, 0, form, _REQUEST, 0, 0, endpoint, endpoint, author, epoch, part,
            part_count,
        )  # fmt: skip
        page[entry_offset] = _READY
        self._next_slots[_REQUEST] = _NEXT_SLOT[slot]
        self._nic.ring_doorbell(self._doorbell_base | slot, layout.ARGUMENTS_OFFSET, 0)
        return True

    def _stage(self, page: memoryview, slot: int, data: Buffer) -> int:
        """Copy data to a slot's place in the staging area, and return its offset."""
        if self.staging is None:
            self.staging = self._memory.allocate(self._endpoint_number, 2 * layout.RING_SIZE * self._max_medium)
            layout.set_address(page, layout.SEND_STAGING, self._memory.address_of(self.staging))
        begin = slot * self._max_medium
        self.staging[begin : begin + len(data)] = data
        return begin

    def send_bulk(
        self, destination: Destination | Origin, handler: int, arguments: tuple[int, ...], data: Buffer, offset: int
    ) -> bool:
        """Send a bulk request or reply. offset: in the destination's segment. Raises ValueError also for data that
        exceeds the largest segment, and MemoryError."""
        data = _as_bytes(data)
        size = len(data)
        if offset < 0:
            raise ValueError(f"offset must be 0 or more, got {offset}")
        if offset + size > _MASK:
            raise ValueError(f"{size} bytes at offset {offset}: a segment has at most {_MASK} bytes")
        ring = _ring_of(destination)
        page = self._page_with_room(ring)
        if page is None:
            return False
        slot, memory = self._next_slots[ring], self._memory
        source = memory.copy_data(self._endpoint_number, data) if size else None
        address = memory.address_of(source)
        try:
            self._write(page, FORM_BULK, destination, handler, arguments, size, address, offset)
        except ValueError:
            if source is not None:
                memory.free_copy(self._endpoint_number, source)
            raise
        if source is not None:
            self.bulk_data[slot] = memory.mapped_regions[self._doorbell_base | slot] = source
        if self.observer is not None:
            self._report(destination, handler, arguments, data)
        self._nic.ring_doorbell(
            self._doorbell_base | slot, layout.ARGUMENTS_OFFSET + 4 * len(arguments), -(-size // PAGE)
        )
        return True

    def _report(
        self, destination: Destination | Origin, handler: int, arguments: tuple[int, ...], data: Buffer
    ) -> None:
        """Notify the observer of a message that is about to be passed to the NIC."""
        assert self.observer is not None
        content = MessageContent(handler, arguments, data)
        if isinstance(destination, Origin):
            request = RequestName(destination.node, destination.incarnation, destination.endpoint, destination.message)
            self.observer.reply_sent(self._endpoint_number, request, content)
        else:
            self.observer.request_sent(
                self._endpoint_number, self.last_request, (destination.node, destination.endpoint), content
            )

    def has_room(self, ring: int) -> bool:
        """Whether the host may write a message into that ring now."""
        page = self.page
        return page is not None and (
            not page[_SLOT_OFFSETS[self._next_slots[ring]]] or self._find_free_slot(page, ring) > 0
        )

    def in_flight(self) -> set[int]:
        """Return the numbers of the requests that the NIC is still sending, or will return. The page must be
        accessible."""
        page = self.page
        assert page is not None
        entry_offsets = [_SLOT_OFFSETS[slot] for slot in range(layout.REPLIES)]
        return {
            layout.READ_ENTRY(page, entry_offset)[13]
            for entry_offset in entry_offsets
            if page[entry_offset] in _UNFINISHED_STATES
        }

    def request_notification(self) -> None:
        """Ask the NIC to report the next free slot."""
        if self.page is not None:
            self.page[layout.NOTIFY_OFFSET] = 1
            self._memory.fence()

    def on_slot_free(self, slot: int) -> None:
        """Handle the NIC's notification that a slot is free, or that a bulk message is answered."""
        if self.page is None:
            self._deferred_slots.append(slot)
        elif self.page[_SLOT_OFFSETS[slot]] == layout.ANSWERED:
            self.free_data(slot)
            self.page[_SLOT_OFFSETS[slot]] = layout.FREE

    def set_page(self, page: memoryview | None) -> None:
        """Set the location of the rings; None: the host may not access them."""
        self.page = page
        if page is not None and self._deferred_slots:
            slots, self._deferred_slots = self._deferred_slots, []
            for slot in slots:
                self.on_slot_free(slot)

    def free_data(self, slot: int) -> None:
        """Free the data of a message that has ended."""
        source = self.bulk_data.pop(slot, None)
        if source is not None:
            self._memory.mapped_regions.pop(self._doorbell_base | slot, None)
            self._memory.free_copy(self._endpoint_number, source)

    def data_of(self, slot: int, form: int, length: int) -> memoryview:
        """Return the data of the message in a slot."""
        if form == FORM_BULK:
            return self.bulk_data.get(slot, memoryview(b""))
        if form == FORM_MEDIUM and self.staging is not None:
            return self.staging[slot * self._max_medium :][:length]
        return memoryview(b"")

    @property
    def is_idle(self) -> bool:
        """Whether no message waits to be sent or answered; False if the page is not accessible."""
        page = self.page
        return page is not None and not any(page[_SLOT_OFFSETS[slot]] for slot in range(2 * layout.RING_SIZE))

    def _page_with_room(self, ring: int) -> memoryview | None:
        return self.page if self.has_room(ring) else None

    def _find_free_slot(self, page: memoryview, ring: int) -> int:
        """Find the next free slot of a ring; messages are answered in any order. Returns the offset of the slot's
        entry; 0 if the ring is full."""
        slot = self._next_slots[ring]
        for _ in range(layout.RING_SIZE):
            if not page[_SLOT_OFFSETS[slot]]:
                self._next_slots[ring] = slot
                return _SLOT_OFFSETS[slot]
            slot = _NEXT_SLOT[slot]
        return 0

    def _write(
        self,
        page: memoryview,
        form: int,
        destination: Destination | Origin,
        handler: int,
        arguments: tuple[int, ...],
        length: int,
        address: int,
        offset: int,
    ) -> None:
        """Write a message with data into the next slot of its ring, and mark the slot as ready."""
        if not handler:
            raise ValueError(_values_error(handler, arguments))
        if isinstance(destination, Origin):
            ring, number, incarnation = _REPLY, destination.message, destination.incarnation
        else:
            ring, number, incarnation = _REQUEST, self.last_request + 1 & _MASK, 0
        count, total, slot = len(arguments), length if form == FORM_BULK else 0, self._next_slots[ring]
        entry_offset = _SLOT_OFFSETS[slot]
        try:
            _WRITE_ENTRY[count](
                page, entry_offset, _FREE, 0, destination.node, length, address, incarnation, form, ring, handler, count,
                self._endpoint_number, destination.endpoint, destination.tag, number, offset, total, *arguments,
            )  # fmt: skip
        except (struct.error, IndexError):
            page[entry_offset] = layout.FREE
            raise ValueError(_values_error(handler, arguments)) from None
        page[entry_offset] = _READY
        if isinstance(destination, Destination):
            self.last_request = number
            self.pending[number] = destination, handler, arguments
            destination.credits -= 1
        self._next_slots[ring] = _NEXT_SLOT[slot]


class SendSide:
    """Send side of one endpoint: the translation table, and requests that are sent without waiting. Base class of
    `Endpoint`."""

    def __init__(self, library: ActiveMessages, number: int, last_request: int) -> None:
        """last_request: see `Outbox`."""
        settings = library.settings
        self.library: Final = library
        self.name: Final = EndpointName(library.node, number)
        """AM_GetEndpointName: the name by which other endpoints map it."""
        self.outbox: Final = Outbox(
            number, library.nic, library.memory, library.max_medium, last_request, library.observer
        )
        self._destinations: dict[tuple[int, int, int], Destination] = {}  # by node, endpoint and tag
        self._translations: list[Destination | None] = [None] * settings.translations
        self._credits = settings.credits
        self._must_load = False  # a request could not be sent because the endpoint is not resident

    def map(self, index: int, name: EndpointName, tag: int) -> None:
        """AM_Map: map an index of the translation table to an endpoint and the tag of requests to it. Raises ValueError
        for an index that does not exist or is in use (AM_ERR_IN_USE), and for an invalid name or tag."""
        if not 0 <= index < len(self._translations):
            raise ValueError(f"index must be 0 to {len(self._translations) - 1}, got {index}")
        if self._translations[index] is not None:
            raise ValueError(f"index {index} is in use: unmap it first")
        node, endpoint = name
        if not 0 <= node < self.library.size or not 0 <= endpoint <= 0xFFFF or not NONE <= tag <= ANY:
            raise ValueError(
                f"node must be 0 to {self.library.size - 1}, endpoint 0 to {0xFFFF}, and tag 0 to {ANY}, got node {node}, "
                f"endpoint {endpoint}, tag {tag}"
            )
        destinations = self._destinations
        destination = destinations.get((node, endpoint, tag))
        if destination is None:
            destination = destinations[node, endpoint, tag] = Destination(node, endpoint, tag, self._credits)
        destination.mapping_count += 1
        self._translations[index] = destination

    def map_any(self, name: EndpointName, tag: int) -> int:
        """AM_MapAny: map the first free index and return it. Raises LookupError if none is free."""
        for index, destination in enumerate(self._translations):
            if destination is None:
                self.map(index, name, tag)
                return index
        raise LookupError(f"all {len(self._translations)} indexes of the translation table are in use: unmap one first")

    def unmap(self, index: int) -> None:
        """AM_UnMap: clear an index of the table. Requests in flight end as usual. A destination that is mapped again
        after its last index was cleared begins with all credits. Raises LookupError for an index that is empty or does
        not exist."""
        destination = self._destination(index)
        self._translations[index] = None
        destination.mapping_count -= 1
        if not destination.mapping_count:
            del self._destinations[destination.key]

    def translation(self, index: int) -> Translation | None:
        """AM_GetTranslationName, AM_GetTranslationTag, AM_GetTranslationInuse: return the translation of an index;
        None: it is not in use. Raises LookupError for an index that does not exist."""
        if not 0 <= index < len(self._translations):
            raise self._unmapped(index)
        destination = self._translations[index]
        return None if destination is None else Translation(destination.name, destination.tag)

    @property
    def translations(self) -> int:
        """AM_GetNumTranslations: number of indexes of the table."""
        return len(self._translations)

    def credits(self, index: int) -> int:
        """Return the number of requests that can be sent to this destination before a reply is required."""
        return self._destination(index).credits

    def try_request(self, index: int, handler: int, *arguments: int) -> bool:
        """AM_RequestM, without waiting: send a short request. Returns False if there is no credit or no room, or if the
        endpoint is not resident: then call `wait_for_room`, or poll, which loads the endpoint. index: in the
        translation table. handler: handler of the destination, 1 to 255. arguments: at most 16, each 0 to 2^32 - 1.

        Raises ValueError for an invalid handler or argument, LookupError for an index that is empty or does not exist,
        and RuleError within a handler.
        """
        destination = self._translations[index] if 0 <= index < len(self._translations) else None
        if destination is None:
            raise self._unmapped(index)
        if self.library.handling_endpoint is not None:
            raise RuleError(_RULE)
        if self.outbox.page is None:
            self._must_load = True
        return destination.credits > 0 and self.outbox.send_request(destination, handler, arguments)

    def try_request_medium(self, index: int, handler: int, data: Buffer, *arguments: int) -> bool:
        """AM_RequestIM, without waiting: send a request with at most `ActiveMessages.max_medium` bytes of data for the
        handler. Raises MemoryError if there is no memory for a copy; otherwise as `try_request`."""
        destination = self._may_send(index)
        return destination.credits > 0 and self.outbox.send_medium(destination, handler, arguments, data)

    def try_request_bulk(self, index: int, handler: int, data: Buffer, offset: int, *arguments: int) -> bool:
        """AM_RequestXferAsyncM: send a request with data of any length for the destination's segment, from byte
        `offset` on. The handler is called when all data has arrived. Raises MemoryError if there is no memory for a
        copy; otherwise as `try_request`."""
        destination = self._may_send(index)
        return destination.credits > 0 and self.outbox.send_bulk(destination, handler, arguments, data, offset)

    def _destination(self, index: int) -> Destination:
        destination = self._translations[index] if 0 <= index < len(self._translations) else None
        if destination is None:
            raise self._unmapped(index)
        return destination

    def _may_send(self, index: int) -> Destination:
        if self.library.handling_endpoint is not None:
            raise RuleError(_RULE)
        destination = self._destination(index)
        if self.outbox.page is None:
            self._must_load = True
        return destination

    def _unmapped(self, index: int) -> LookupError:
        if not 0 <= index < len(self._translations):
            return LookupError(f"index must be 0 to {len(self._translations) - 1}, got {index}")
        return LookupError(f"index {index} of endpoint {self.name.endpoint}'s translation table is empty: map it first")


def _ring_of(destination: Destination | Origin) -> int:
    return _REPLY if isinstance(destination, Origin) else _REQUEST


def _as_bytes(data: Buffer) -> Buffer:
    """Return the data with a length in bytes: a view with other items, or more dimensions, is cast."""
    if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
        return data.cast("B")
    return data


def _values_error(handler: int, arguments: tuple[object, ...]) -> str:
    """Return the error message for the handler or argument that an entry cannot contain."""
    if not 1 <= handler <= _MAX_HANDLER:
        return f"handler must be 1 to {_MAX_HANDLER}, got {handler}"
    for position, argument in enumerate(arguments):
        try:
            _ARGUMENT.pack(argument)
        except struct.error:
            return f"argument {position} must be an integer from 0 to {_MASK}, got {argument!r}"
    return f"a message has at most {_MAX_ARGUMENTS} arguments, got {len(arguments)}"
