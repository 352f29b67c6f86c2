"""What can go wrong with active messages, and what becomes of one that could not be delivered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from protocols.am2.host.names import EndpointName


class Status(IntEnum):
    """Why a message has come back: AM-2's error codes (AM_... in its header files)."""

    BAD_ARGUMENTS = 1
    """EBADARGS: the NIC cannot make sense of it."""
    BAD_ENTRY = 2
    """EBADENTRY: no endpoint stands in that place of the translation table any more."""
    BAD_TAG = 3
    """EBADTAG: the destination has another tag."""
    BAD_HANDLER = 4
    """EBADHANDLER: the destination has no such handler."""
    BAD_SEGMENT = 5
    """EBADSEGOFF: the data does not lie within the destination's segment."""
    BAD_LENGTH = 6
    """EBADLENGTH: there is more data than a message may have."""
    BAD_ENDPOINT = 7
    """EBADENDPOINT: there is no such endpoint on that node."""
    CONGESTION = 8
    """ECONGESTION: the destination was there, but had no room for as long as was waited for."""
    UNREACHABLE = 9
    """EUNREACHABLE: no answer has come, there is no way there, or the node has started again. Only of this one it is not
    known whether the message was delivered after all: the answer may be what was lost."""
    REPLY_REJECTED = 10
    """EREPLYREJECTED: it was a reply, and the endpoint that had asked did not take it."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A message that could not be delivered, as its sender's error handler gets it. handler, arguments: as it was sent.
    message: its number, as the endpoint counts its requests; a reply's is its request's. data: bytes that it had, valid only
    while the handler runs; of a message that the destination's library has sent back (BAD_HANDLER) there are none, and of
    its arguments the first 14. A reply to handler 0 is the library's own, to a request for a handler that there is not:
    BAD_HANDLER, that handler, the request's arguments."""

    status: Status
    is_reply: bool
    destination: EndpointName
    handler: int
    arguments: tuple[int, ...]
    message: int
    data: memoryview


class ActiveMessageError(Exception):
    """Something about active messages has failed."""


class RuleError(ActiveMessageError):
    """A handler has done what handlers may not: a request's may reply once, and nothing else; a reply's may send
    nothing."""


class ReturnedError(ActiveMessageError):
    """A message has come back to an endpoint that has no error handler. returned: the message."""

    def __init__(self, returned: Returned) -> None:
        kind = "reply" if returned.is_reply else "request"
        node, endpoint = returned.destination
        super().__init__(
            f"a {kind} to endpoint {endpoint} of node {node}, handler {returned.handler}, has come back: "
            f"{returned.status.name.lower().replace('_', ' ')}"
        )
        self.returned = returned
