"""An endpoint's receive side: the two rings of messages that have arrived, and calls of their handlers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import Returned, ReturnedError, Status
from protocols.active_messages.endpoint_names import EndpointName, MessageContent, RequestName
from protocols.am2 import page as layout
from protocols.am2.codec import FORM_BULK, FORM_SHORT
from protocols.am2.host.token import IS_REPLY, MAY_REPLY, OVER, Token

if TYPE_CHECKING:
    from protocols.am2.host.endpoint import Endpoint

Handler = Callable[..., object]
"""``handler(token, *arguments)`` for short messages, ``handler(token, data, *arguments)`` for others; data is a view of
the staging area, or of the endpoint's segment."""
ErrorHandler = Callable[[Returned], object]

_PLACES: Final = layout.PLACES
_READ: Final = layout.READ
_READ_ARGUMENTS: Final = layout.READ_ARGUMENTS
_ARGUMENTS: Final = layout.ARGUMENTS
_AFTER: Final = tuple((slot & ~15) | (slot + 1 & 15) for slot in range(layout.SLOTS))
_REPLY: Final = 1
_EMPTY: Final = 0
"""Handler of the library's own replies: without arguments, such a reply only returns a credit; otherwise its arguments
are a Status, the request's handler, and the request's arguments."""
_NOTHING: Final = memoryview(b"")
_MAX_RETURNED_ARGUMENTS: Final = layout.MAX_ARGUMENTS - 2
"""Arguments of a request that fit into the library's reply that returns it, after the Status and the handler."""


class Inbox:
    """Receive side of one endpoint. page: the present location of the rings; None: the host may not access them.
    requests, replies: numbers of messages that have arrived and are not handled yet. lost: requests without a reply
    that are still to be passed to the error handler. strays: replies to requests that were not sent, or have ended.
    offset, total: fields of the request, with data, that is being handled."""

    __slots__ = (
        "_endpoint",
        "_medium",
        "_next_reply",
        "_next_request",
        "_observer",
        "_origin",
        "_pending",
        "_token",
        "error_handler",
        "handlers",
        "lost",
        "offset",
        "page",
        "replies",
        "requests",
        "staging",
        "strays",
        "total",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, handlers: int, medium: int) -> None:
        self._endpoint = endpoint
        self._medium = medium
        self._pending = endpoint.outbox.pending
        self._observer = endpoint.outbox.observer
        self._token = Token(endpoint)
        self._origin = self._token.origin
        self._next_request = layout.ARRIVED_REQUESTS
        self._next_reply = layout.ARRIVED_REPLIES
        self.handlers: Final[list[Handler | None]] = [None] * handlers
        self.error_handler: ErrorHandler | None = None
        self.page: memoryview | None = None
        self.requests = 0
        self.replies = 0
        self.lost: Final[deque[Returned]] = deque()
        self.strays = 0
        self.offset = self.total = 0
        self.staging: memoryview | None = None
        """Where the NIC puts the data of medium messages, by slot."""

    def step(self) -> bool:
        """Handle one message, if possible: a request needs room for its reply."""
        page = self.page
        if page is None:
            return False
        if self.replies:
            self._reply(page)
            return True
        if self.lost:
            self._report_return(self.lost.popleft())
            return True
        if not self.requests:
            return False
        outbox = self._endpoint.outbox
        if not outbox.has_room(_REPLY):
            outbox.want()
            if not outbox.has_room(_REPLY):
                return False
        self._request(page)
        return True

    def _reply(self, page: memoryview) -> None:
        """Handle the oldest reply, or returned message."""
        slot = self._next_reply
        at = _PLACES[slot]
        (
            _, status, node, length, _, _, form, _, number, count, endpoint, _, tag, message, offset, total,
        ) = _READ(page, at)  # fmt: skip
        self._next_reply = _AFTER[slot]
        self.replies -= 1
        if status:
            page[at] = layout.FREE
            self._returned(page, status, length)
            return
        pending = self._pending.get(message)
        if pending is None or (to := pending[0]).endpoint != endpoint or to.node != node or to.tag != tag:
            page[at] = layout.FREE
            self.strays += 1
            return
        del self._pending[message]
        to.credits += 1
        arguments = _READ_ARGUMENTS[count](page, at + _ARGUMENTS)
        if number == _EMPTY:
            page[at] = layout.FREE
            if arguments:
                self._refused(EndpointName(node, endpoint), message, arguments)
            elif self._observer is not None:
                content = MessageContent(_EMPTY, (), _NOTHING)
                self._observer.reply_handled(self._endpoint.name.endpoint, message, (node, endpoint), content)
            return
        origin = self._origin
        origin.node, origin.endpoint, origin.tag, origin.message = node, endpoint, tag, message
        is_plain = form == FORM_SHORT and self._observer is None
        if is_plain and number < len(self.handlers) and (handler := self.handlers[number]) is not None:
            page[at] = layout.FREE
            self._call_short(IS_REPLY, handler, arguments)
            return
        self._call(IS_REPLY, page, slot, number, form, length, offset, total, arguments)

    def _request(self, page: memoryview) -> None:
        """Handle the oldest request."""
        slot = self._next_request
        at = _PLACES[slot]
        origin = self._origin
        (
            _, _, origin.node, length, _, origin.incarnation, form, _, number, count, origin.endpoint, _, origin.tag,
            origin.message, offset, total,
        ) = _READ(page, at)  # fmt: skip
        self._next_request = _AFTER[slot]
        self.requests -= 1
        arguments = _READ_ARGUMENTS[count](page, at + _ARGUMENTS)
        is_plain = form == FORM_SHORT and self._observer is None
        if is_plain and number < len(self.handlers) and (handler := self.handlers[number]) is not None:
            page[at] = layout.FREE
            self._call_short(MAY_REPLY, handler, arguments)
            return
        # A frame for a privileged endpoint is not a message: nobody waits for a reply.
        state = MAY_REPLY if form <= FORM_BULK else OVER
        self.offset, self.total = offset, total
        self._call(state, page, slot, number, form, length, offset, total, arguments)

    def _call_short(self, state: int, handler: Handler, arguments: tuple[int, ...]) -> None:
        """Call a handler as `_call` does, for the most frequent case: a short message with a known handler."""
        token, library = self._token, self._endpoint.library
        token.state = state
        library.handling = self._endpoint
        try:
            handler(token, *arguments)
        finally:
            library.handling = None
            if token.state == MAY_REPLY:
                token.reply(_EMPTY)
            token.state = OVER
            if library.driver.unsettled:
                library.driver.handled()

    def _call(
        self, state: int, page: memoryview, slot: int, number: int, form: int, length: int, offset: int, total: int,
        arguments: tuple[int, ...],
    ) -> None:  # fmt: skip
        token, endpoint, at = self._token, self._endpoint, _PLACES[slot]
        library = endpoint.library
        handler = self.handlers[number] if number < len(self.handlers) else None
        token.state = state
        library.handling = endpoint
        try:
            if handler is None:
                page[at] = layout.FREE
                if state == IS_REPLY:
                    self._report(state, number, arguments, _NOTHING)
                self._unknown(token, number, arguments)
            elif form == FORM_SHORT:
                page[at] = layout.FREE
                self._report(state, number, arguments, _NOTHING)
                handler(token, *arguments)
            elif form == FORM_BULK:
                page[at] = layout.FREE
                data = endpoint.arrived(offset, total)
                self._report(state, number, arguments, data)
                handler(token, data, *arguments)
            else:
                staging, begin = self.staging, (slot - layout.ARRIVED_REQUESTS) * self._medium
                data = _NOTHING if staging is None else staging[begin : begin + length]
                self._report(state, number, arguments, data)
                handler(token, data, *arguments)
                page[at] = layout.FREE
        finally:
            library.handling = None
            if form not in (FORM_SHORT, FORM_BULK):
                page[at] = layout.FREE
            if token.state == MAY_REPLY:
                token.reply(_EMPTY)
            token.state = OVER
            if library.driver.unsettled:
                library.driver.handled()

    def _report(self, state: int, handler: int, arguments: tuple[int, ...], data: memoryview) -> None:
        """Notify the observer, if there is one, of a message whose handler is about to be called."""
        if self._observer is None or state == OVER:
            return
        own, origin, content = self._endpoint.name.endpoint, self._origin, MessageContent(handler, arguments, data)
        if state == IS_REPLY:
            self._observer.reply_handled(own, origin.message, (origin.node, origin.endpoint), content)
        else:
            request = RequestName(origin.node, origin.incarnation, origin.endpoint, origin.message)
            self._observer.request_handled(own, request, content)

    def _unknown(self, token: Token, number: int, arguments: tuple[int, ...]) -> None:
        """Handle a message without a handler."""
        if token.state == MAY_REPLY:
            token.reply(_EMPTY, Status.BAD_HANDLER, number, *arguments[:_MAX_RETURNED_ARGUMENTS])
        else:  # the request of this reply is no longer known
            self._report_return(
                Returned(Status.BAD_HANDLER, True, token.source, number, arguments, token.origin.message, _NOTHING)
            )

    def _refused(self, name: EndpointName, message: int, said: tuple[int, ...]) -> None:
        """Handle a request that the destination's library has returned."""
        status, number, *arguments = said
        self._report_return(Returned(Status(status), False, name, number, tuple(arguments), message, _NOTHING))

    def _returned(self, page: memoryview, status: int, slot: int) -> None:
        """Handle a message in the outbox that the NIC has returned."""
        at, outbox = _PLACES[slot], self._endpoint.outbox
        _, _, node, length, _, life, form, flags, number, count, _, endpoint, _, message, _, _ = _READ(page, at)
        arguments = _READ_ARGUMENTS[count](page, at + _ARGUMENTS)
        is_reply = bool(flags & _REPLY)
        if is_reply:
            if self._observer is not None:
                request = RequestName(node, life, endpoint, message)
                self._observer.reply_returned(self._endpoint.name.endpoint, request, Status(status).words)
            has_news = number != _EMPTY or count > 0  # otherwise it has only returned a credit
        elif (pending := self._pending.pop(message, None)) is None:
            has_news = False  # the reply has arrived, and only acknowledgements were lost
        else:
            pending[0].credits += 1
            has_news = True
        try:
            if has_news:
                data = outbox.data_of(slot, form, length)
                name = EndpointName(node, endpoint)
                self._report_return(Returned(Status(status), is_reply, name, number, arguments, message, data))
        finally:
            outbox.over(slot)
            page[at] = layout.FREE

    def give_up(self, number: int, status: Status = Status.UNREACHABLE) -> None:
        """End a request without a reply or a return."""
        to, handler, arguments = self._pending.pop(number)
        to.credits += 1
        self.lost.append(Returned(status, False, to.name, handler, arguments, number, _NOTHING))

    def _report_return(self, returned: Returned) -> None:
        """Pass a returned message to the observer and to the error handler. Raises ReturnedError without one."""
        if self._observer is not None and not returned.is_reply:
            own, words = self._endpoint.name.endpoint, returned.status.words
            self._observer.request_returned(own, returned.message, returned.destination, words)
        if self.error_handler is None:
            raise ReturnedError(returned)
        library = self._endpoint.library
        library.handling = self._endpoint
        try:
            self.error_handler(returned)
        finally:
            library.handling = None
