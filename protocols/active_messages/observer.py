"""Observation of active messages: a host library's reports of the requests and replies of its program.

The terms are those of active messages in general (von Eicken, Culler, Goldstein, Schauser, "Active Messages", 1992): a
request names a handler of an endpoint; that handler may reply, to a handler of the requesting endpoint; an undeliverable
message is returned to its sender. Workloads on a host library that is `Observable` have histories, and checkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from protocols.active_messages.endpoint_names import MessageContent, RequestName, Unhandled


class Observer(Protocol):
    """Receiver of reports. endpoint: number of the reporting node's endpoint, in every call."""

    def request_sent(self, endpoint: int, number: int, to: tuple[int, int], content: MessageContent) -> None:
        """A request is about to be passed to the NIC. to: node and endpoint."""
        ...

    def request_handled(self, endpoint: int, request: RequestName, content: MessageContent) -> None:
        """The handler of a request is about to be called."""
        ...

    def reply_sent(self, endpoint: int, request: RequestName, content: MessageContent) -> None:
        """A reply is about to be passed to the NIC; handler NO_HANDLER: the library's reply."""
        ...

    def reply_handled(self, endpoint: int, number: int, source: tuple[int, int], content: MessageContent) -> None:
        """A reply to a request of this endpoint has arrived, and its handler, if any, is about to be called. source: node
        and endpoint of the replier."""
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
    no observer. life: life of the NIC, see `RequestName`."""

    observer: Observer | None

    @property
    def life(self) -> int: ...

    def unhandled(self) -> Sequence[Unhandled]:
        """Return the numbers of arrived and unhandled messages, of the endpoints that have any."""
        ...
