"""Requests of a program, and the library's state of messages in progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.core.completion import Completion
from protocols.openmx.endpoint_memory import Op
from protocols.openmx.mx_names import SUCCESS, Status

if TYPE_CHECKING:
    from protocols.openmx.partners import Partner


class Result:
    """Result of a request (mx_status_t). source: the sender of a received message, the receiver of a sent one. length:
    bytes of the message. transferred: bytes that were sent, or stored in the receive's buffer. context: the value that
    the program passed with the request."""

    __slots__ = ("context", "length", "match_info", "source", "status", "transferred")

    def __init__(
        self, status: Status, source: Partner | None, match_info: int, length: int, transferred: int, context: object
    ) -> None:
        self.status: Final = status
        self.source: Final = source
        self.match_info: Final = match_info
        self.length: Final = length
        self.transferred: Final = transferred
        self.context: Final = context


class Request(Completion[Result]):
    """A send or receive in progress; done when the program may reuse the buffer. It never fails: see `Result.status`.

    is_buffered: the bytes of a send have been copied, so that the program may reuse the buffer before the request is done.
    on_arrival: callback of a send, called once with the final status when the message is acknowledged or lost, which may
    be after the request is done.
    """

    __slots__ = (
        "buffer", "context", "is_buffered", "is_receive", "is_settled", "mask", "match_info", "on_arrival", "peer", "pull",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        buffer: memoryview,
        match_info: int,
        mask: int,
        context: object,
        peer: Partner | None,
        receive: bool,
    ) -> None:
        super().__init__("%s of %s bytes, match 0x%x", kind, len(buffer), match_info)
        self.buffer: Final = buffer
        self.match_info: Final = match_info
        self.mask: Final = mask
        self.context: Final = context
        self.peer = peer
        self.is_receive: Final = receive
        self.is_buffered = False
        self.is_settled = False
        self.on_arrival: Callable[[Status], object] | None = None
        self.pull = -1

    def finish(self, status: Status, length: int = 0, transferred: int = 0, match_info: int | None = None) -> None:
        """Complete the request."""
        matched = self.match_info if match_info is None else match_info
        self.complete(Result(status, self.peer, matched, length, transferred, self.context))

    def settle(self, status: Status) -> None:
        """Set the final status of a send's message; complete the request if it is not done yet."""
        if self.is_settled:
            return
        self.is_settled = True
        if not self.done:
            size = len(self.buffer)
            self.finish(status, size, size if status is SUCCESS else 0)
        if self.on_arrival is not None:
            self.on_arrival(status)


class Outgoing:
    """A numbered message to a partner: eager data, a rendezvous, or a notice.

    has_data: whether it is eager data. address: address of the pinned memory with the bytes of a medium message, or 0. data:
    bytes of a tiny or small message. frames: number of its frames. number, turn: number and generation of the region of a
    rendezvous or notice; number is also the first fragment to send. sent_tick: tick of the last transmission. is_zombie:
    the send was completed before the acknowledgement.
    """

    __slots__ = (
        "address", "data", "frames", "has_data", "is_zombie", "length", "match_info", "number", "op", "request", "sent_tick",
        "seqnum", "turn",
    )  # fmt: skip

    def __init__(self, op: int, request: Request | None, match_info: int, length: int, frames: int = 1) -> None:
        self.op: Final = op
        self.has_data: Final = op == Op.SEND or op == Op.SEND_MEDIUM
        self.request: Final = request
        self.match_info: Final = match_info
        self.length: Final = length
        self.frames: Final = frames
        self.data = b""
        self.address = 0
        self.number = 0
        self.turn = 0
        self.seqnum = 0
        self.sent_tick = 0
        self.is_zombie = False


class Incoming:
    """A received message, complete or not, matched or unexpected.

    buffer: destination of its bytes. missing: a bit for each missing fragment. region, turn: number and generation of the
    sender's region, if the message must be pulled; region is -1 otherwise. receive: the matching receive. error: status for
    a later receive if the message is lost.
    """

    __slots__ = (
        "buffer", "error", "length", "match_info", "missing", "receive", "region", "seqnum", "source", "turn",
    )  # fmt: skip

    def __init__(self, source: Partner, match_info: int, length: int) -> None:
        self.source: Final = source
        self.match_info: Final = match_info
        self.length: Final = length
        self.buffer: memoryview
        self.missing = 0
        self.region = -1
        self.turn = 0
        self.seqnum = 0
        self.receive: Request | None = None
        self.error = SUCCESS


class LargeSend(NamedTuple):
    """A sent message that its receiver pulls. address: address of its pinned bytes. turn: generation of its region."""

    request: Request
    partner: "Partner"  # noqa: UP037  mypyc reads the class before its definition
    address: int
    turn: int
