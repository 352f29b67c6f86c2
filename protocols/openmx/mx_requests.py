"""Requests of a program, and what the library keeps of messages on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.core.completion import Completion
from protocols.openmx.endpoint_memory import Op
from protocols.openmx.mx_names import Status

if TYPE_CHECKING:
    from protocols.openmx.partners import Partner


class Result(NamedTuple):
    """Result of a request (mx_status_t). source: whom the message comes from, or goes to. length: bytes of the message.
    transferred: bytes of it that are in the buffer. context: the request's."""

    status: Status
    source: Partner | None = None
    match_info: int = 0
    length: int = 0
    transferred: int = 0
    context: object | None = None


class Request(Completion[Result]):
    """A send or receive in progress; done when the program may use the buffer again. It never fails: see `Result.status`.

    on_arrival: of a send, called once with its final status, when the message has been acknowledged or is known to be lost;
    that may be after the request is done.
    """

    __slots__ = ("buffer", "context", "is_receive", "is_settled", "mask", "match_info", "on_arrival", "peer", "pull")

    def __init__(
        self,
        what: str,
        buffer: memoryview,
        match_info: int,
        mask: int,
        context: object,
        peer: Partner | None,
        receive: bool,
    ) -> None:
        super().__init__("%s of %s bytes, match 0x%x", what, len(buffer), match_info)
        self.buffer: Final = buffer
        self.match_info: Final = match_info
        self.mask: Final = mask
        self.context: Final = context
        self.peer = peer
        self.is_receive: Final = receive
        self.is_settled = False
        self.on_arrival: Callable[[Status], object] | None = None
        self.pull = -1

    def finish(self, status: Status, length: int = 0, transferred: int = 0, match_info: int | None = None) -> None:
        """Complete it."""
        matched = self.match_info if match_info is None else match_info
        self.complete(Result(status, self.peer, matched, length, transferred, self.context))

    def settle(self, status: Status) -> None:
        """Tell what has become of the message that a send has begun; completes it if it is not done yet."""
        if self.is_settled:
            return
        self.is_settled = True
        if not self.done:
            size = len(self.buffer)
            self.finish(status, size, size if status is Status.SUCCESS else 0)
        if self.on_arrival is not None:
            self.on_arrival(status)


class Outgoing:
    """A numbered message to a partner. address: pinned memory with its bytes, or 0. data: its bytes, of a small one. frames:
    that it consists of. number, turn: of the region, of a rendezvous or notice. sent: the tick in which it was sent last.
    """

    __slots__ = (
        "address", "data", "frames", "is_zombie", "length", "match_info", "number", "op", "request", "sent", "seqnum",
        "turn",
    )  # fmt: skip

    def __init__(self, op: Op, request: Request | None, match_info: int, length: int, frames: int = 1) -> None:
        self.op: Final = op
        self.request: Final = request
        self.match_info: Final = match_info
        self.length: Final = length
        self.frames: Final = frames
        self.data = b""
        self.address = 0
        self.number = 0
        self.turn = 0
        self.seqnum = 0
        self.sent = 0
        self.is_zombie = False


class Incoming:
    """A message that has come, or whose fragments are coming, and has been matched or is unexpected.

    place: where its bytes go. missing: a bit for each fragment that has not come. region, turn: of the sender, if it must be
    pulled; region is -1 otherwise. receive: what it has been matched with.
    """

    __slots__ = (
        "error", "length", "match_info", "missing", "place", "receive", "region", "seqnum", "source", "turn",
    )  # fmt: skip

    def __init__(self, source: Partner, match_info: int, length: int) -> None:
        self.source: Final = source
        self.match_info: Final = match_info
        self.length: Final = length
        self.place: memoryview
        self.missing = 0
        self.region = -1
        self.turn = 0
        self.seqnum = 0
        self.receive: Request | None = None
        self.error = Status.SUCCESS


class Sending(NamedTuple):
    """A message above the eager limit that is to be pulled. address: of its pinned bytes."""

    request: Request
    partner: "Partner"  # noqa: UP037  mypyc looks for the class before it is there
    address: int
    turn: int
