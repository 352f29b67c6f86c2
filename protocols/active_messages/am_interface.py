"""Active messages as a program sees them, whatever protocol carries them.

The terms are those of AM-2 (A. Mainwaring, D. Culler, "Active Message Applications Programming Interface and Communication
Subsystem Organization", UCB//CSD-96-918, 1996): a node has endpoints; a request names a handler of its destination
endpoint, which may reply once, to a handler of the requesting endpoint; a reply's handler may send nothing. Each message
is handled once, or returned to its sender's error handler. A protocol whose host library is an `ActiveMessages` says so by
`protocols.core.protocol.Protocol.active_messages`. What a protocol has beyond this interface is its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from protocols.active_messages.am_errors import Returned
from protocols.active_messages.endpoint_names import EndpointName
from protocols.active_messages.observer import Observable
from protocols.core.firmware import Buffer

Handler = Callable[..., object]
"""``handler(token, *words)`` for short messages, ``handler(token, data, *words)`` for medium and bulk ones; data is valid
while it runs. Handlers are called one after the other, when the program polls, waits to send, or is interrupted."""
ErrorHandler = Callable[[Returned], object]


class Token(Protocol):
    """One message, while its handler runs. The two replies raise RuleError if the handler may not reply, or has
    replied; they never wait."""

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
    """One endpoint. tag: what requests must carry to be accepted; `endpoint_names.NONE`, its initial value, accepts none,
    `endpoint_names.ANY` all. segment: writable memory that receives bulk messages; None: they are returned.
    error_handler: is called with each message that is returned; without one a poll raises ReturnedError."""

    tag: int
    error_handler: ErrorHandler | None

    @property
    def name(self) -> EndpointName: ...

    @property
    def segment(self) -> memoryview | None: ...

    @segment.setter
    def segment(self, memory: bytearray | memoryview | None) -> None: ...

    def set_handler(self, number: int, handler: Handler | None) -> None:
        """Set the handler of messages with a number, 1 to 255; None removes it."""
        ...

    def map(self, index: int, name: EndpointName, tag: int) -> None:
        """Map an index of the translation table to an endpoint and its tag. Raises ValueError."""
        ...

    def map_any(self, name: EndpointName, tag: int) -> int:
        """Map the first free index and return it."""
        ...

    def credits(self, index: int) -> int:
        """Return how many requests can be sent there before one must have its answer."""
        ...

    async def request(self, index: int, handler: int, *words: int) -> None:
        """Send a short request; wait until there is room for it, and handle messages meanwhile. Raises RuleError within
        a handler, ValueError, LookupError for an empty index."""
        ...

    async def request_medium(self, index: int, handler: int, data: Buffer, *words: int) -> None:
        """Send as `request`, with at most `ActiveMessages.medium_room` bytes of data for the handler."""
        ...

    async def request_bulk(self, index: int, handler: int, data: Buffer, offset: int, *words: int) -> None:
        """Send as `request`, with data of any length, and at most four words. The data is written into the destination's
        segment, from `offset` on; then the handler is called. When the call returns, the buffer may be reused."""
        ...

    def abandon(self, index: int) -> int:
        """End the requests sent there that have no answer, as Status.ABANDONED; return how many."""
        ...

    def poll(self) -> Awaitable[int]:
        """Handle what has arrived, at this endpoint at least; return the number of messages."""
        ...

    async def wait(self) -> None:
        """Wait until a poll may have something to handle, or another task's poll may have handled it."""
        ...

    def free(self) -> None:
        """Free the endpoint. Its unanswered messages are given up; messages to it are returned to their senders."""
        ...


class Bundle(Protocol):
    """Endpoints that are polled and waited for together."""

    def allocate_endpoint(self) -> Endpoint: ...

    def poll(self) -> Awaitable[int]: ...

    async def wait(self) -> None: ...


class ActiveMessages(Observable, Protocol):
    """A node's host library."""

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
        """Number of requests that an endpoint can send to another one without an answer."""
        ...

    @property
    def max_short(self) -> int:
        """Number of words of a short message."""
        ...

    def medium_room(self, words: int) -> int:
        """Return how many bytes of data a medium message carries beside so many words."""
        ...

    def allocate_bundle(self) -> Bundle: ...

    def program_ended(self) -> None:
        """Go on without the program, which has ended: send again what has no answer, answer again what has been handled,
        and handle nothing new."""
        ...
