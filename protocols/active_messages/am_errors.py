"""Errors of active messages, and messages returned as undeliverable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from protocols.active_messages.endpoint_names import EndpointName


class Status(IntEnum):
    """Reason why a message was returned: AM-2's error codes. The docstrings have their names in AM-2's header files."""

    BAD_ARGUMENTS = 1
    """EBADARGS: the NIC rejects the message as invalid."""
    BAD_ENTRY = 2
    """EBADENTRY: the index of the translation table is empty."""
    BAD_TAG = 3
    """EBADTAG: the destination has another tag."""
    BAD_HANDLER = 4
    """EBADHANDLER: the destination has no such handler."""
    BAD_SEGMENT = 5
    """EBADSEGOFF: the data does not lie within the destination's segment."""
    BAD_LENGTH = 6
    """EBADLENGTH: the data is longer than a message permits."""
    BAD_ENDPOINT = 7
    """EBADENDPOINT: the node has no such endpoint."""
    CONGESTION = 8
    """ECONGESTION: the destination had no room within the time allowed."""
    UNREACHABLE = 9
    """EUNREACHABLE: no answer or no route, the node has restarted, or its endpoint was freed meanwhile. Only a message
    with this status or ABANDONED may have been delivered: its answer may have been lost."""
    REPLY_REJECTED = 10
    """EREPLYREJECTED: a reply was not accepted by the endpoint that had sent the request."""
    ABANDONED = 11
    """Ours: the program has abandoned the request (`Endpoint.abandon`), which may have been handled."""

    @property
    def words(self) -> str:
        """The name in lower case, with spaces, for messages to users."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Returned:
    """An undeliverable message, as passed to its sender's error handler.

    handler, arguments: as sent. message: number of the request in its endpoint; of a reply: the request's. data: the
    bytes sent with it, valid only while the handler runs. In AM-II, a request returned by the destination's library
    (BAD_HANDLER) has no data, and only the first 14 arguments. If the library's reply for such a request is itself
    returned, its handler is 0 and its arguments are BAD_HANDLER, the request's handler, and the request's arguments.
    """

    status: Status
    is_reply: bool
    destination: EndpointName
    handler: int
    arguments: tuple[int, ...]
    message: int
    data: memoryview


class ActiveMessageError(Exception):
    """Base class of the errors of active messages."""


class RuleError(ActiveMessageError):
    """A program has broken a rule: a request's handler may send one reply and nothing else; a reply's handler may send
    nothing; no handler may poll; a poll must be awaited; nothing may wait for a freed endpoint."""


class ReturnedError(ActiveMessageError):
    """A message was returned to an endpoint without an error handler. returned: the message."""

    def __init__(self, returned: Returned) -> None:
        kind = "reply" if returned.is_reply else "request"
        node, endpoint = returned.destination
        super().__init__(
            f"a {kind} to endpoint {endpoint} of node {node}, handler {returned.handler}, was returned: "
            f"{returned.status.words}"
        )
        self.returned = returned
