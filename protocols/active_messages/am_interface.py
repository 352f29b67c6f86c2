"""The interface of active messages for programs, independent of the protocol.

The terms are those of AM-2 (A. Mainwaring, D. Culler, "Active Message Applications Programming Interface and
Communication Subsystem Organization", UCB//CSD-96-918, 1996): a node has endpoints; a request names a handler of the
destination endpoint; this handler may reply once, to a handler of the requesting endpoint; a reply's handler may send
nothing. Each message is handled once, or returned to its sender's error handler. A protocol whose host library is an
`ActiveMessages` declares this by `protocols.core.protocol.Protocol.active_messages`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from protocols.active_messages.am_errors import Returned
from protocols.active_messages.endpoint_names import EndpointName
from protocols.active_messages.observer import Observable
from protocols.core.firmware import Buffer

Handler = Callable[..., object]
"""``handler(token, *words)`` for short messages, ``handler(token, data, *words)`` for medium and bulk ones; data is
valid while the handler runs. Handlers are called in sequence, when the program polls, waits to send, or is
interrupted."""
ErrorHandler = Callable[[Returned], object]


class Token(Protocol):
    """One message, while its handler runs. `reply` and `reply_medium` raise RuleError if the handler may not reply, or
    has replied; they never wait."""

    @property
    def source(self) -> EndpointName:
        """The sender."""
        ...

    def reply(self, handler: int, *words: int) -> None:
        """Send a short reply. words: at most `ActiveMessages.max_short`, each of 32 bits."""
        ...

    def reply_medium(self, handler: int, data: Buffer, *words: int) -> None:
        """Reply with data, at most `ActiveMessages.medium_room` bytes, which is copied."""
        ...


class Endpoint(Protocol):
    """One endpoint. tag: the tag that requests must carry to be accepted; `endpoint_names.NONE`, its initial value,
    accepts none, `endpoint_names.ANY` all. segment: writable memory that receives bulk messages; None: bulk messages
    are returned. error_handler: called with each returned message; None: a poll raises ReturnedError."""

    tag: int
    error_handler: ErrorHandler | None

    @property
    def name(self) -> EndpointName: ...

    @property
    def segment(self) -> memoryview | None: ...

    @segment.setter
    def segment(self, memory: bytearray | memoryview | None) -> None: ...

    def set_handler(self, number: int, handler: Handler | None) -> None:
        """Set the handler of messages that name this number, 1 to 255; None removes the handler."""
        ...

    def map(self, index: int, name: EndpointName, tag: int) -> None:
        """Map an index of the translation table to an endpoint and the tag of requests to it. Raises ValueError for an
        index that does not exist or is in use, and for an invalid name or tag."""
        ...

    def map_any(self, name: EndpointName, tag: int) -> int:
        """Map the first free index and return it. Raises LookupError if none is free."""
        ...

    def credits(self, index: int) -> int:
        """Return the number of requests that can be sent to this destination without an answer."""
        ...

    async def request(self, index: int, handler: int, *words: int) -> None:
        """Send a short request; while the window is full, wait and handle messages. Raises RuleError within a handler,
        ValueError, LookupError for an empty index."""
        ...

    async def request_medium(self, index: int, handler: int, data: Buffer, *words: int) -> None:
        """Send as `request`, with at most `ActiveMessages.medium_room` bytes of data for the handler."""
        ...

    async def request_bulk(self, index: int, handler: int, data: Buffer, offset: int, *words: int) -> None:
        """Send as `request`, with data of any length, and at most four words. The data is written into the
        destination's segment, from `offset` on; then the handler is called. When the call returns, the buffer may be
        reused."""
        ...

    def abandon(self, index: int) -> int:
        """End the unanswered requests to this destination as Status.ABANDONED; return their number."""
        ...

    def poll(self) -> Awaitable[int]:
        """Handle the messages that have arrived, at least of this endpoint; return their number."""
        ...

    async def wait(self) -> None:
        """Wait until messages have arrived; another task's poll may have handled them already."""
        ...

    def free(self) -> None:
        """Free the endpoint. Its unanswered messages are given up; messages to it are returned to their senders."""
        ...


class Bundle(Protocol):
    """A group of endpoints that are polled together."""

    def allocate_endpoint(self) -> Endpoint: ...

    def poll(self) -> Awaitable[int]: ...

    async def wait(self) -> None: ...


class ActiveMessages(Observable, Protocol):
    """A node's host library for active messages."""

    @property
    def node(self) -> int:
        """This node's number."""
        ...

    @property
    def size(self) -> int:
        """Number of nodes."""
        ...

    @property
    def window(self) -> int:
        """Maximum number of unanswered requests from an endpoint to another endpoint."""
        ...

    @property
    def max_short(self) -> int:
        """Maximum number of words of a short message."""
        ...

    def medium_room(self, words: int) -> int:
        """Return the maximum bytes of data of a medium message with `words` words."""
        ...

    def allocate_bundle(self) -> Bundle: ...

    def program_ended(self) -> None:
        """Continue after the program has ended: resend unanswered requests and answers, but handle no new requests."""
        ...
