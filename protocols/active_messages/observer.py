"""Observation of active messages: what a host library reports of the requests and replies of its program.

The terms are those of active messages in general (von Eicken, Culler, Goldstein, Schauser, "Active Messages", 1992): a
request names a handler of an endpoint; that handler may reply, to a handler of the requesting endpoint; an undeliverable
message is returned to its sender. A protocol whose host library is `Observable` says so by
`protocols.core.protocol.Protocol.observable`; its native workloads then have histories, and checkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from protocols.core.firmware import Buffer

NO_HANDLER: Final = 0
"""Handler of a reply that the library has made, since the request's handler made none: it calls nobody."""


class RequestName(NamedTuple):
    """Name of a request, by which its handler's node and its sender mean the same one.

    node, endpoint: of the sender. life: of the sender's NIC, which has another one after each restart. number: of the
    request, unique within endpoint and life, also if the endpoint's number is used again.
    """

    node: int
    life: int
    endpoint: int
    number: int


class MessageContent(NamedTuple):
    """Content of a message. handler: the number by which it names its handler. arguments: its words. data: the bytes
    beside them, valid only during the call that passes them."""

    handler: int
    arguments: Sequence[int]
    data: Buffer


class Unhandled(NamedTuple):
    """Numbers of an endpoint's messages that have arrived and are not handled. answers: replies and returned messages."""

    endpoint: int
    requests: int
    answers: int


class Observer(Protocol):
    """Receiver of reports. endpoint: the number of the reporting node's own endpoint, in every call."""

    def request_sent(self, endpoint: int, number: int, to: tuple[int, int], content: MessageContent) -> None:
        """A request is about to be passed to the NIC. to: node and endpoint."""
        ...

    def request_handled(self, endpoint: int, request: RequestName, content: MessageContent) -> None:
        """The handler of a request is about to be called."""
        ...

    def reply_sent(self, endpoint: int, request: RequestName, content: MessageContent) -> None:
        """A reply is about to be passed to the NIC; handler NO_HANDLER: the library's own."""
        ...

    def reply_handled(self, endpoint: int, number: int, source: tuple[int, int], content: MessageContent) -> None:
        """A reply to a request of this endpoint has come, and its handler, if any, is about to be called. source: node
        and endpoint that it came from."""
        ...

    def request_returned(self, endpoint: int, number: int, to: tuple[int, int], status: str) -> None:
        """A request is returned to its sender. status: the protocol's name of the reason, in lower case."""
        ...

    def reply_returned(self, endpoint: int, request: RequestName, status: str) -> None:
        """A reply is returned to the endpoint that replied."""
        ...

    def endpoint_freed(self, endpoint: int) -> None:
        """An endpoint of the program has been freed; its number may be used again."""
        ...


@runtime_checkable
class Observable(Protocol):
    """A host library that reports to an observer. observer: set before the program's first endpoint is allocated; None:
    nobody observes, at no cost. life: of the NIC, see `RequestName`."""

    observer: Observer | None

    @property
    def life(self) -> int: ...

    def unhandled(self) -> Sequence[Unhandled]:
        """Return what has arrived for the program's endpoints and is not handled, of endpoints where there is any."""
        ...
