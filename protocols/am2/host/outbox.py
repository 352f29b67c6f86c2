"""An endpoint's send side: the two rings of its messages, and the copies of their data, kept until they are
answered."""

from __future__ import annotations

import struct
from typing import Final

from protocols.active_messages.endpoint_names import EndpointName, MessageContent, RequestName
from protocols.active_messages.observer import Observer
from protocols.am2 import page as layout
from protocols.am2.codec import FORM_BULK, FORM_MEDIUM, FORM_SHORT
from protocols.am2.host.token import Origin
from protocols.am2.nic_memory import Backing
from protocols.core.firmware import Buffer, HostActions
from protocols.core.memory import PAGE

_REQUEST: Final = 0
_REPLY: Final = 1
"""The two rings."""
_MASK: Final = 0xFFFF_FFFF
_PLACES: Final = layout.PLACES
_WRITE: Final = layout.WRITE
_FREE: Final = layout.FREE
_READY: Final = layout.READY
_AFTER: Final = tuple((slot & ~15) | (slot + 1 & 15) for slot in range(layout.SLOTS))
_MAX: Final = layout.MAX_ARGUMENTS
_UNDER_WAY: Final = (layout.READY, layout.UNDER_WAY, layout.RETURNED)
_NO_DATA: Final = b""


class Correspondent:
    """State of an endpoint for a destination under one tag. credits: requests that it may still send before a reply is
    required. most: initial credits. key: name and tag. mapped: number of its places in the translation table."""

    __slots__ = ("credits", "endpoint", "key", "mapped", "most", "node", "tag")

    def __init__(self, node: int, endpoint: int, tag: int, most: int) -> None:
        self.node = node
        self.endpoint = endpoint
        self.tag = tag
        self.key = (node, endpoint, tag)
        self.credits = self.most = most
        self.mapped = 0

    @property
    def name(self) -> EndpointName:
        return EndpointName(self.node, self.endpoint)


PendingRequest = tuple[Correspondent, int, tuple[int, ...]]
"""A request that has not ended: destination, handler and arguments."""


class Outbox:
    """Send side of one endpoint. page: the present location of the rings; None: the host may not write there. number:
    of the last request. pending: destinations and contents of requests that have not ended, by number. observer: it is
    notified of each message before the NIC is.

    `request`, `reply`, `medium` and `bulk` return whether a slot was free; a request then takes a credit, which must be
    available. handler, arguments: as in frames.
    """

    __slots__ = (
        "_base",
        "_medium",
        "_memory",
        "_next",
        "_nic",
        "_own",
        "_unseen",
        "number",
        "observer",
        "page",
        "pending",
        "sources",
        "staged",
    )

    def __init__(
        self,
        own: int,
        nic: HostActions,
        memory: Backing,
        medium: int,
        number: int = 0,
        observer: Observer | None = None,
    ) -> None:
        """own: the endpoint's number. medium: maximum bytes of a medium message's data. number: of the last request of
        the endpoint that had this number before."""
        self.observer = observer
        self._own = own
        self._base = own << layout.SUBJECTS
        self._nic = nic
        self._memory = memory
        self._medium = medium
        self._next = [layout.REQUESTS, layout.REPLIES]
        self.number = number
        self.pending: Final[dict[int, PendingRequest]] = {}
        self.page: memoryview | None = None
        self._unseen: list[int] = []  # slots that the NIC has reported while the page was not accessible
        self.staged: memoryview | None = None
        """Medium data, by slot; allocated at the first medium message."""
        self.sources: dict[int, memoryview] = {}
        """Bulk data, by slot."""

    def request(self, to: Correspondent, handler: int, arguments: tuple[int, ...]) -> bool:
        """Send a short request."""
        page = self.page
        if page is None:
            return False
        slot = self._next[_REQUEST]
        at = _PLACES[slot]
        if page[at]:
            if not (at := self._search(page, _REQUEST)):
                return False
            slot = self._next[_REQUEST]
        number, count = self.number + 1 & _MASK, len(arguments)
        try:
            _WRITE[count](
                page, at, _FREE, 0, to.node, 0, 0, 0, FORM_SHORT, _REQUEST, handler, count, self._own, to.endpoint, to.tag,
                number, 0, 0, *arguments,
            )  # fmt: skip
        except (struct.error, IndexError):
            page[at] = layout.FREE
            raise ValueError(_wrong(arguments)) from None
        page[at] = _READY  # written last, so that the NIC finds a complete entry or none
        self.number = number
        self.pending[number] = to, handler, arguments
        to.credits -= 1
        self._next[_REQUEST] = _AFTER[slot]
        if self.observer is not None:
            self._report(to, handler, arguments, _NO_DATA)
        self._nic.ring_doorbell(self._base | slot, layout.ARGUMENTS + 4 * count, 0)
        return True

    def reply(self, to: Origin, handler: int, arguments: tuple[int, ...]) -> bool:
        """Send a short reply."""
        page = self.page
        if page is None:
            return False
        slot = self._next[_REPLY]
        at = _PLACES[slot]
        if page[at]:
            if not (at := self._search(page, _REPLY)):
                return False
            slot = self._next[_REPLY]
        count = len(arguments)
        try:
            _WRITE[count](
                page, at, _FREE, 0, to.node, 0, 0, to.incarnation, FORM_SHORT, _REPLY, handler, count, self._own,
                to.endpoint, to.tag, to.message, 0, 0, *arguments,
            )  # fmt: skip
        except (struct.error, IndexError):
            page[at] = layout.FREE
            raise ValueError(_wrong(arguments)) from None
        page[at] = _READY
        self._next[_REPLY] = _AFTER[slot]
        if self.observer is not None:
            self._report(to, handler, arguments, _NO_DATA)
        self._nic.ring_doorbell(self._base | slot, layout.ARGUMENTS + 4 * count, 0)
        return True

    def medium(self, to: Correspondent | Origin, handler: int, arguments: tuple[int, ...], data: Buffer) -> bool:
        """Send a medium request or reply. Raises ValueError for more data than a medium message permits."""
        size = len(data)
        if size > self._medium:
            raise ValueError(f"{size} bytes of data: a medium message has at most {self._medium}")
        ring = _ring(to)
        page = self._room(ring)
        if page is None:
            return False
        slot = self._next[ring]
        begin = self._stage(page, slot, data)
        self._write(page, FORM_MEDIUM, to, handler, arguments, size, begin, 0)
        if self.observer is not None:
            self._report(to, handler, arguments, data)
        self._nic.ring_doorbell(self._base | slot, layout.ARGUMENTS + 4 * len(arguments), 0)
        return True

    def control(self, form: int, data: Buffer, epoch: int, author: int, part: int, parts: int) -> bool:
        """Pass the NIC a probe packet, or a part of a route table, by a privileged endpoint. Returns whether a slot was
        free. Raises ValueError for more data than a medium message permits."""
        size, own = len(data), self._own
        if size > self._medium:
            raise ValueError(f"{size} bytes: a privileged endpoint passes at most {self._medium}")
        page = self._room(_REQUEST)
        if page is None:
            return False
        slot = self._next[_REQUEST]
        begin = self._stage(page, slot, data) if size else 0
        at = _PLACES[slot]
        _WRITE[0](page, at, _FREE, 0, 0, size, begin, 0, form, _REQUEST, 0, 0, own, own, author, epoch, part, parts)
        page[at] = _READY
        self._next[_REQUEST] = _AFTER[slot]
        self._nic.ring_doorbell(self._base | slot, layout.ARGUMENTS, 0)
        return True

    def _stage(self, page: memoryview, slot: int, data: Buffer) -> int:
        """Copy data to where the NIC fetches a slot's, and return its offset there."""
        if self.staged is None:
            self.staged = self._memory.allocate(self._own, 2 * layout.ENTRIES * self._medium)
            layout.set_address(page, layout.STAGED, self._memory.address(self.staged))
        begin = slot * self._medium
        self.staged[begin : begin + len(data)] = data
        return begin

    def bulk(
        self, to: Correspondent | Origin, handler: int, arguments: tuple[int, ...], data: Buffer, offset: int
    ) -> bool:
        """Send a bulk request or reply; otherwise as `medium`. offset: in the destination's segment."""
        size = len(data)
        if offset < 0 or offset + size > _MASK:
            raise ValueError(f"{size} bytes from {offset} on: a segment has at most {_MASK}")
        ring = _ring(to)
        page = self._room(ring)
        if page is None:
            return False
        slot, memory = self._next[ring], self._memory
        source = memory.copy(self._own, data) if size else None
        address = memory.address(source)
        try:
            self._write(page, FORM_BULK, to, handler, arguments, size, address, offset)
        except ValueError:
            if source is not None:
                memory.forget(self._own, source)
            raise
        if source is not None:
            self.sources[slot] = memory.reachable[self._base | slot] = source
        if self.observer is not None:
            self._report(to, handler, arguments, data)
        self._nic.ring_doorbell(self._base | slot, layout.ARGUMENTS + 4 * len(arguments), -(-size // PAGE))
        return True

    def _report(self, to: Correspondent | Origin, handler: int, arguments: tuple[int, ...], data: Buffer) -> None:
        """Tell the observer of a message that is about to be passed to the NIC."""
        assert self.observer is not None
        content = MessageContent(handler, arguments, data)
        if isinstance(to, Origin):
            request = RequestName(to.node, to.incarnation, to.endpoint, to.message)
            self.observer.reply_sent(self._own, request, content)
        else:
            self.observer.request_sent(self._own, self.number, (to.node, to.endpoint), content)

    def has_room(self, ring: int) -> bool:
        """Whether the host may write a message into that ring now."""
        page = self.page
        return page is not None and (not page[_PLACES[self._next[ring]]] or self._search(page, ring) > 0)

    def under_way(self) -> set[int]:
        """Return the numbers of requests that the NIC still has, and will report the ends of. Requires the page."""
        page = self.page
        assert page is not None
        slots = [_PLACES[slot] for slot in range(layout.REPLIES)]
        return {layout.READ(page, at)[13] for at in slots if page[at] in _UNDER_WAY}

    def want(self) -> None:
        """Ask the NIC to report the next free slot."""
        if self.page is not None:
            self.page[layout.WANTS] = 1
            self._memory.fence()

    def answered(self, slot: int) -> None:
        """Handle the NIC's report that a slot is free, or that a bulk message is answered."""
        if self.page is None:
            self._unseen.append(slot)
        elif self.page[_PLACES[slot]] == layout.ANSWERED:
            self.over(slot)
            self.page[_PLACES[slot]] = layout.FREE

    def moved(self, page: memoryview | None) -> None:
        """Change the location of the rings."""
        self.page = page
        if page is not None and self._unseen:
            unseen, self._unseen = self._unseen, []
            for slot in unseen:
                self.answered(slot)

    def over(self, slot: int) -> None:
        """Free the data of a message that has ended."""
        source = self.sources.pop(slot, None)
        if source is not None:
            self._memory.reachable.pop(self._base | slot, None)
            self._memory.forget(self._own, source)

    def data_of(self, slot: int, form: int, length: int) -> memoryview:
        """Return the data of a message in a slot."""
        if form == FORM_BULK:
            return self.sources.get(slot, memoryview(b""))
        if form == FORM_MEDIUM and self.staged is not None:
            return self.staged[slot * self._medium :][:length]
        return memoryview(b"")

    @property
    def is_idle(self) -> bool:
        """Whether no message waits to be sent or answered; False without a page."""
        page = self.page
        return page is not None and not any(page[_PLACES[slot]] for slot in range(2 * layout.ENTRIES))

    def _room(self, ring: int) -> memoryview | None:
        return self.page if self.has_room(ring) else None

    def _search(self, page: memoryview, ring: int) -> int:
        """Find the next free slot, since messages are answered in any order; 0: none."""
        slot = self._next[ring]
        for _ in range(layout.ENTRIES):
            if not page[_PLACES[slot]]:
                self._next[ring] = slot
                return _PLACES[slot]
            slot = _AFTER[slot]
        return 0

    def _write(
        self,
        page: memoryview,
        form: int,
        to: Correspondent | Origin,
        handler: int,
        arguments: tuple[int, ...],
        length: int,
        address: int,
        offset: int,
    ) -> None:
        if isinstance(to, Origin):
            ring, number, incarnation = _REPLY, to.message, to.incarnation
        else:
            ring, number, incarnation = _REQUEST, self.number + 1 & _MASK, 0
        count, total, slot = len(arguments), length if form == FORM_BULK else 0, self._next[ring]
        at = _PLACES[slot]
        try:
            _WRITE[count](
                page, at, _FREE, 0, to.node, length, address, incarnation, form, ring, handler, count, self._own,
                to.endpoint, to.tag, number, offset, total, *arguments,
            )  # fmt: skip
        except (struct.error, IndexError):
            page[at] = layout.FREE
            raise ValueError(_wrong(arguments)) from None
        page[at] = _READY
        if isinstance(to, Correspondent):
            self.number = number
            self.pending[number] = to, handler, arguments
            to.credits -= 1
        self._next[ring] = _AFTER[slot]


def _ring(to: Correspondent | Origin) -> int:
    return _REPLY if isinstance(to, Origin) else _REQUEST


def _wrong(arguments: tuple[int, ...]) -> str:
    return f"arguments {arguments}: at most {_MAX} integers from 0 to {_MASK}; a handler's number is from 1 to 255"
