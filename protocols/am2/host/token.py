"""Tokens: a handler's access to the message that it handles, through which a request's handler may reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import RuleError
from protocols.active_messages.endpoint_names import EndpointName
from protocols.core.firmware import Buffer

if TYPE_CHECKING:
    from protocols.am2.host.endpoint import Endpoint

MAY_REPLY: Final = 0
HAS_REPLIED: Final = 1
IS_REPLY: Final = 2
OVER: Final = 3
LIBRARY_HANDLER: Final = 0
"""Handler of the library's own replies. Without arguments, such a reply only returns a credit. With arguments, it
returns the request: the arguments are a Status, the request's handler, and the request's arguments."""
_REASONS: Final = {
    HAS_REPLIED: "this request has been replied to: a handler may reply only once",
    IS_REPLY: "a reply's handler may send nothing",
    OVER: "the handler has ended: a token is valid only while its handler runs",
}


class Origin:
    """Sender of the message that is being handled, to which a reply is sent. incarnation: of the sender's NIC. message:
    number of the request, which its reply repeats."""

    __slots__ = ("endpoint", "incarnation", "message", "node", "tag")

    def __init__(self) -> None:
        self.node = self.endpoint = self.tag = self.incarnation = self.message = 0


class Token:
    """Access to one message while its handler runs; the object is reused for the next message.

    A request's handler may call one of `reply`, `reply_medium` and `reply_bulk`, once. They never wait and never fail
    for lack of room: a request is handled only if there is room for its reply. If the handler does not reply, the
    library sends an empty reply, which calls no handler and returns the credit.
    """

    __slots__ = ("_send_reply", "endpoint", "origin", "state")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint: Final = endpoint
        """AM_GetDestEndpoint: the endpoint that has received the message."""
        self.origin: Final = Origin()
        """For the library only: `origin` and `state` are set before a handler is called."""
        self._send_reply = endpoint.outbox.send_reply
        self.state = OVER

    @property
    def source(self) -> EndpointName:
        """AM_GetSourceEndpoint: the sender."""
        return EndpointName(self.origin.node, self.origin.endpoint)

    @property
    def tag(self) -> int:
        """AM_GetMsgTag: the tag of the message."""
        return self.origin.tag

    @property
    def is_reply(self) -> bool:
        """Whether the message is a reply."""
        return self.state == IS_REPLY

    def reply(self, handler: int, *arguments: int) -> None:
        """AM_ReplyM: send a short reply. handler: handler of the requesting endpoint, 1 to 255. arguments: at most 16,
        of 32 bits.

        Raises RuleError if no reply may be sent, and ValueError for an invalid handler or argument.
        """
        if self.state:
            raise RuleError(_REASONS[self.state])
        if not handler:  # LIBRARY_HANDLER
            raise ValueError("handler must be 1 to 255, got 0")
        self._send_reply(self.origin, handler, arguments)
        self.state = HAS_REPLIED

    def reply_by_library(self, *arguments: int) -> None:
        """Send the library's own reply. arguments: see `LIBRARY_HANDLER`."""
        self._send_reply(self.origin, LIBRARY_HANDLER, arguments)
        self.state = HAS_REPLIED

    def reply_medium(self, handler: int, data: Buffer, *arguments: int) -> None:
        """AM_ReplyIM: reply with at most `ActiveMessages.max_medium` bytes of data, which are copied. Otherwise as
        `reply`."""
        if self.state:
            raise RuleError(_REASONS[self.state])
        self.endpoint.outbox.send_medium(self.origin, handler, arguments, data)
        self.state = HAS_REPLIED

    def reply_bulk(self, handler: int, data: Buffer, offset: int, *arguments: int) -> None:
        """AM_ReplyXferM: reply with data for the segment of the requesting endpoint, from `offset` on; the data is
        copied. Otherwise as `reply`."""
        if self.state:
            raise RuleError(_REASONS[self.state])
        self.endpoint.outbox.send_bulk(self.origin, handler, arguments, data, offset)
        self.state = HAS_REPLIED
