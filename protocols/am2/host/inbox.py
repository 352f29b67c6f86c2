"""An endpoint's receive side: the two rings of arrived messages, and the calls of their handlers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import Returned, ReturnedError, Status
from protocols.active_messages.endpoint_names import EndpointName, MessageContent, RequestName
from protocols.am2 import page as layout
from protocols.am2.codec import FORM_BULK, FORM_SHORT
from protocols.am2.host.token import IS_REPLY, LIBRARY_HANDLER, MAY_REPLY, OVER, Token

if TYPE_CHECKING:
    from protocols.am2.host.endpoint import Endpoint

Handler = Callable[..., object]
"""``handler(token, *arguments)`` for short messages, ``handler(token, data, *arguments)`` for others; data is a view of
the staging area (medium) or of the endpoint's segment (bulk)."""
ErrorHandler = Callable[[Returned], object]

_SLOT_OFFSETS: Final = layout.SLOT_OFFSETS
_READ_ENTRY: Final = layout.READ_ENTRY
_READ_ARGUMENTS: Final = layout.READ_ARGUMENTS
_ARGUMENTS_OFFSET: Final = layout.ARGUMENTS_OFFSET
_NEXT_SLOT: Final = tuple((slot & ~15) | (slot + 1 & 15) for slot in range(layout.SLOTS))
_REPLY: Final = 1
_NO_DATA: Final = memoryview(b"")
_MAX_RETURNED_ARGUMENTS: Final = layout.MAX_ARGUMENTS - 2
"""Maximum arguments of a request in the library's reply that returns the request."""


class Inbox:
    """Receive side of one endpoint. page: the present location of the rings; None: the host may not access them.
    request_count, reply_count: numbers of arrived and unhandled messages. unanswered: requests that have ended without
    a reply, and must be passed to the error handler. stray_replies: number of replies to requests that were not sent or
    have ended. offset, total: fields of the last request with data. staging: data of medium messages, by slot."""

    __slots__ = (
        "_endpoint",
        "_max_medium",
        "_next_reply",
        "_next_request",
        "_observer",
        "_origin",
        "_pending",
        "_token",
        "error_handler",
        "handlers",
        "offset",
        "page",
        "reply_count",
        "request_count",
        "staging",
        "stray_replies",
        "total",
        "unanswered",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, handler_count: int, max_medium: int) -> None:
        """max_medium: maximum bytes of a medium message's data."""
        self._endpoint = endpoint
        self._max_medium = max_medium
        self._pending = endpoint.outbox.pending
        self._observer = endpoint.outbox.observer
        self._token = Token(endpoint)
        self._origin = self._token.origin
        self._next_request = layout.ARRIVED_REQUESTS
        self._next_reply = layout.ARRIVED_REPLIES
        self.handlers: Final[list[Handler | None]] = [None] * handler_count
        self.error_handler: ErrorHandler | None = None
        self.page: memoryview | None = None
        self.request_count = 0
        self.reply_count = 0
        self.unanswered: Final[deque[Returned]] = deque()
        self.stray_replies = 0
        self.offset = self.total = 0
        self.staging: memoryview | None = None

    @property
    def has_page(self) -> bool:
        """Whether the host may access the endpoint's page."""
        return self.page is not None

    def handle_next(self) -> bool:
        """Handle one message. Returns False if there is none, if the page is not accessible, or if a request must wait
        for room for its reply."""
        page = self.page
        if page is None:
            return False
        if self.reply_count:
            self._handle_reply(page)
            return True
        if self.unanswered:
            self._report_return(self.unanswered.popleft())
            return True
        if not self.request_count:
            return False
        outbox = self._endpoint.outbox
        if not outbox.has_room(_REPLY):
            outbox.request_notification()
            if not outbox.has_room(_REPLY):
                return False
        self._handle_request(page)
        return True

    def _handle_reply(self, page: memoryview) -> None:
        """Handle the oldest entry of the reply ring: a reply, or a message that the NIC has returned."""
        slot = self._next_reply
        entry_offset = _SLOT_OFFSETS[slot]
        (
            _, status, node, length, _, _, form, _, number, count, endpoint, _, tag, message, offset, total,
        ) = _READ_ENTRY(page, entry_offset)  # fmt: skip
        self._next_reply = _NEXT_SLOT[slot]
        self.reply_count -= 1
        if status:
            page[entry_offset] = layout.FREE
            self._handle_nic_return(page, status, length)
            return
        pending = self._pending.get(message)
        destination = None if pending is None else pending[0]
        if destination is None or destination.key != (node, endpoint, tag):
            page[entry_offset] = layout.FREE
            self.stray_replies += 1
            return
        del self._pending[message]
        destination.credits += 1
        arguments = _READ_ARGUMENTS[count](page, entry_offset + _ARGUMENTS_OFFSET)
        if number == LIBRARY_HANDLER:
            page[entry_offset] = layout.FREE
            if arguments:
                self._handle_library_return(EndpointName(node, endpoint), message, arguments)
            elif self._observer is not None:
                content = MessageContent(LIBRARY_HANDLER, (), _NO_DATA)
                self._observer.reply_handled(self._endpoint.name.endpoint, message, (node, endpoint), content)
            return
        origin = self._origin
        origin.node, origin.endpoint, origin.tag, origin.message = node, endpoint, tag, message
        is_plain = form == FORM_SHORT and self._observer is None
        if is_plain and number < len(self.handlers) and (handler := self.handlers[number]) is not None:
            page[entry_offset] = layout.FREE
            self._call_short_handler(IS_REPLY, handler, arguments)
            return
        self._call_handler(IS_REPLY, page, slot, number, form, length, offset, total, arguments)

    def _handle_request(self, page: memoryview) -> None:
        """Handle the oldest request."""
        slot = self._next_request
        entry_offset = _SLOT_OFFSETS[slot]
        origin = self._origin
        (
            _, _, origin.node, length, _, origin.incarnation, form, _, number, count, origin.endpoint, _, origin.tag,
            origin.message, offset, total,
        ) = _READ_ENTRY(page, entry_offset)  # fmt: skip
        self._next_request = _NEXT_SLOT[slot]
        self.request_count -= 1
        arguments = _READ_ARGUMENTS[count](page, entry_offset + _ARGUMENTS_OFFSET)
        is_plain = form == FORM_SHORT and self._observer is None
        if is_plain and number < len(self.handlers) and (handler := self.handlers[number]) is not None:
            page[entry_offset] = layout.FREE
            self._call_short_handler(MAY_REPLY, handler, arguments)
            return
        # An entry of a privileged endpoint is not a message, and has no reply.
        state = MAY_REPLY if form <= FORM_BULK else OVER
        self.offset, self.total = offset, total
        self._call_handler(state, page, slot, number, form, length, offset, total, arguments)

    def _call_short_handler(self, state: int, handler: Handler, arguments: tuple[int, ...]) -> None:
        """Call the handler of a short message; a fast path of `_call_handler`."""
        token, library = self._token, self._endpoint.library
        token.state = state
        library.handling_endpoint = self._endpoint
        try:
            handler(token, *arguments)
        finally:
            library.handling_endpoint = None
            if token.state == MAY_REPLY:
                token.reply_by_library()
            token.state = OVER
            if library.driver.has_deferred:
                library.driver.run_deferred()

    def _call_handler(
        self, state: int, page: memoryview, slot: int, number: int, form: int, length: int, offset: int, total: int,
        arguments: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Call a message's handler, and free the message's entry. state: of the token. number: the handler's."""
        token, endpoint, entry_offset = self._token, self._endpoint, _SLOT_OFFSETS[slot]
        library = endpoint.library
        handler = self.handlers[number] if number < len(self.handlers) else None
        token.state = state
        library.handling_endpoint = endpoint
        try:
            if handler is None:
                page[entry_offset] = layout.FREE
                if state == IS_REPLY:
                    self._report(state, number, arguments, _NO_DATA)
                self._handle_missing_handler(token, number, arguments)
            elif form == FORM_SHORT:
                page[entry_offset] = layout.FREE
                self._report(state, number, arguments, _NO_DATA)
                handler(token, *arguments)
            elif form == FORM_BULK:
                page[entry_offset] = layout.FREE
                data = endpoint.bulk_data(offset, total)
                self._report(state, number, arguments, data)
                handler(token, data, *arguments)
            else:
                staging, begin = self.staging, (slot - layout.ARRIVED_REQUESTS) * self._max_medium
                data = _NO_DATA if staging is None else staging[begin : begin + length]
                self._report(state, number, arguments, data)
                handler(token, data, *arguments)
                page[entry_offset] = layout.FREE
        finally:
            library.handling_endpoint = None
            if form not in (FORM_SHORT, FORM_BULK):
                page[entry_offset] = layout.FREE
            if token.state == MAY_REPLY:
                token.reply_by_library()
            token.state = OVER
            if library.driver.has_deferred:
                library.driver.run_deferred()

    def _report(self, state: int, handler: int, arguments: tuple[int, ...], data: memoryview) -> None:
        """Notify the observer of a message whose handler is about to be called."""
        if self._observer is None or state == OVER:
            return
        own, origin, content = self._endpoint.name.endpoint, self._origin, MessageContent(handler, arguments, data)
        if state == IS_REPLY:
            self._observer.reply_handled(own, origin.message, (origin.node, origin.endpoint), content)
        else:
            request = RequestName(origin.node, origin.incarnation, origin.endpoint, origin.message)
            self._observer.request_handled(own, request, content)

    def _handle_missing_handler(self, token: Token, number: int, arguments: tuple[int, ...]) -> None:
        """Return a message for which no handler is set: a request to its sender, a reply to this endpoint's error
        handler."""
        if token.state == MAY_REPLY:
            token.reply_by_library(Status.BAD_HANDLER, number, *arguments[:_MAX_RETURNED_ARGUMENTS])
        else:  # the sender of the reply keeps no state of the request
            self._report_return(
                Returned(Status.BAD_HANDLER, True, token.source, number, arguments, token.origin.message, _NO_DATA)
            )

    def _handle_library_return(self, name: EndpointName, message: int, reply_arguments: tuple[int, ...]) -> None:
        """Handle a request that the destination's library has returned."""
        status, number, *arguments = reply_arguments
        self._report_return(Returned(Status(status), False, name, number, tuple(arguments), message, _NO_DATA))

    def _handle_nic_return(self, page: memoryview, status: int, slot: int) -> None:
        """Handle a message that the NIC has returned. slot: the message's slot in a send ring."""
        entry_offset, outbox = _SLOT_OFFSETS[slot], self._endpoint.outbox
        (
            _, _, node, length, _, incarnation, form, flags, number, count, _, endpoint, _, message, _, _,
        ) = _READ_ENTRY(page, entry_offset)  # fmt: skip
        arguments = _READ_ARGUMENTS[count](page, entry_offset + _ARGUMENTS_OFFSET)
        is_reply = bool(flags & _REPLY)
        if is_reply:
            if self._observer is not None:
                request = RequestName(node, incarnation, endpoint, message)
                self._observer.reply_returned(self._endpoint.name.endpoint, request, Status(status).words)
            must_report = number != LIBRARY_HANDLER or count > 0  # otherwise the reply only returned a credit
        elif (pending := self._pending.pop(message, None)) is None:
            must_report = False  # the request has ended already: its reply has arrived, only acknowledgements were lost
        else:
            pending[0].credits += 1
            must_report = True
        try:
            if must_report:
                data = outbox.data_of(slot, form, length)
                name = EndpointName(node, endpoint)
                self._report_return(Returned(Status(status), is_reply, name, number, arguments, message, data))
        finally:
            outbox.free_data(slot)
            page[entry_offset] = layout.FREE

    def give_up(self, number: int, status: Status = Status.UNREACHABLE) -> None:
        """End a request without a reply; the next `handle_next` reports it. number: the request's."""
        destination, handler, arguments = self._pending.pop(number)
        destination.credits += 1
        self.unanswered.append(Returned(status, False, destination.name, handler, arguments, number, _NO_DATA))

    def _report_return(self, returned: Returned) -> None:
        """Pass a returned message to the observer and to the error handler. Raises ReturnedError if no error handler is
        set."""
        if self._observer is not None and not returned.is_reply:
            own, status = self._endpoint.name.endpoint, returned.status.words
            self._observer.request_returned(own, returned.message, returned.destination, status)
        if self.error_handler is None:
            raise ReturnedError(returned)
        library = self._endpoint.library
        library.handling_endpoint = self._endpoint
        try:
            self.error_handler(returned)
        finally:
            library.handling_endpoint = None
