"""Observation of active messages: a host library's reports of the requests and replies of its program.

The terms are those of active messages in general (von Eicken, Culler, Goldstein, Schauser, "Active Messages", 1992): a
request names a handler of an endpoint; that handler may reply, to a handler of the requesting endpoint; an
undeliverable message is returned to its sender. Workloads on an `Observable` host library record a history of its
messages, which checkers verify.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from protocols.active_messages.endpoint_names import MessageContent, RequestName, Unhandled


class Observer(Protocol):
    """Receiver of reports. endpoint: in every method, number of the endpoint of the reporting node."""

    def request_sent(self, endpoint: int, number: int, to: tuple[int, int], content: MessageContent) -> None:
        """Observe a request that is about to be passed to the NIC. number: the request's. to: node and endpoint."""
        ...

    def request_handled(self, endpoint: int, request: RequestName, content: MessageContent) -> None:
        """Observe a request whose handler is about to be called."""
        ...

    def reply_sent(self, endpoint: int, request: RequestName, content: MessageContent) -> None:
        """Observe a reply that is about to be passed to the NIC. Handler NO_HANDLER: the library's reply."""
        ...

    def reply_handled(self, endpoint: int, number: int, source: tuple[int, int], content: MessageContent) -> None:
        """Observe a reply whose handler, if any, is about to be called. number: number of this endpoint's request.
        source: node and endpoint of the replier."""
        ...

    def request_returned(self, endpoint: int, number: int, to: tuple[int, int], status: str) -> None:
        """Observe a request that is returned to its sender. status: the protocol's name of the reason, in lower
        case."""
        ...

    def reply_returned(self, endpoint: int, request: RequestName, status: str) -> None:
        """Observe a reply that is returned to the endpoint that replied."""
        ...

    def endpoint_freed(self, endpoint: int) -> None:
        """Observe that an endpoint has been freed; its number may be used again."""
        ...


@runtime_checkable
class Observable(Protocol):
    """A host library that reports to an observer. observer: set before the program's first endpoint is allocated; None:
    no observer. life: see `RequestName`."""

    observer: Observer | None

    @property
    def life(self) -> int: ...

    def unhandled(self) -> Sequence[Unhandled]:
        """Return the numbers of arrived and unhandled messages of each endpoint that has any."""
        ...
