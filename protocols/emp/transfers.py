"""The state of what is under way: messages being sent, messages being received, and peers.

Section 4.1: per host a NIC keeps the remote MAC address and send and receive sequence numbers, no connection; per message
a structure that describes just that transfer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.core.memory import Span
from protocols.emp.descriptors import ANY_SOURCE, CONTEXT

MESSAGE_HEADER: Final = 16
"""Bytes of the second header, which a message's first frame has."""


class Framing:
    """How a message is cut into frames, and those into collections. The first frame holds less: it has two headers. So
    frame n of a message, not the last one, ends before byte (n + 1) * full - MESSAGE_HEADER.

    total: bytes of the message. full: bytes of payload of a full frame. unit: frames per collection; the last one may be
    short.
    """

    __slots__ = ("collections", "frames", "full", "total", "unit")

    def __init__(self, total: int, full: int, unit: int) -> None:
        self.total = total
        self.full = full
        self.unit = unit
        self.frames = frames = (total + MESSAGE_HEADER + full - 1) // full
        self.collections = (frames + unit - 1) // unit


class Sending(Framing):
    """A message on its way out. sent: collections sent at least once. open: those not acknowledged yet, and how often each
    has been sent again. left: collections not acknowledged, sent or not. parked: nothing of it was acknowledged in time
    (see `sender`). progress: when something of it was last acknowledged, or sent for the first time."""

    __slots__ = ("id", "index", "left", "open", "parked", "progress", "sent", "span", "tag")

    def __init__(self, identity: int, index: int, tag: int, span: Span, full: int, unit: int) -> None:
        Framing.__init__(self, len(span), full, unit)
        self.id = identity
        self.index = index
        self.tag = tag
        self.span = span
        self.sent = 0
        self.left = self.collections
        self.open: dict[int, int] = {}
        self.parked = False
        self.progress = 0


class Posted:
    """A receive, or a probe, that waits for its message."""

    __slots__ = ("index", "mask", "source", "span", "tag")

    def __init__(self, index: int, source: int, tag: int, any_tag: int, span: Span) -> None:
        self.index = index
        self.source = source
        if any_tag:
            self.tag = tag & CONTEXT
            self.mask = CONTEXT
        else:
            self.tag = tag
            self.mask = 0xFFFF_FFFF
        self.span = span

    def takes(self, source: int, tag: int) -> bool:
        return tag & self.mask == self.tag and self.source in (source, ANY_SOURCE)


class Receiving(Framing):
    """A message on its way in, from its header on. posted: the receive it goes to, once there is one. below: collections
    before this one are complete. missing: of others that have begun, the frames that are missing, as bits. left:
    collections that are not complete. What it takes of the NIC's memory grows with the frames that have come, whatever
    length a header claims.

    As long as frames come in their order, `missing` stays empty: next is the one that comes next, at and until are the bytes
    of the message that it has. When one comes out of order, next is -1 from then on. span: where such frames go, if the
    receive has one piece of memory for all of it; else None.
    """

    __slots__ = ("at", "below", "id", "left", "missing", "next", "posted", "source", "span", "tag", "until")

    def __init__(self, identity: int, source: int, tag: int, total: int, full: int, unit: int) -> None:
        Framing.__init__(self, total, full, unit)
        self.id = identity
        self.source = source
        self.tag = tag
        self.left = self.collections
        self.below = 0
        self.missing: dict[int, int] = {}
        self.posted: Posted | None = None
        self.span: memoryview | None = None
        self.next = self.at = 0
        self.until = min(full - MESSAGE_HEADER, total)

    def goes_to(self, posted: Posted) -> None:
        """There is a receive for it."""
        self.posted = posted
        if type(posted.span) is memoryview and 0 < self.total <= len(posted.span):
            self.span = posted.span

    def frames_of(self, collection: int) -> int:
        """As bits."""
        return (1 << min(self.unit, self.frames - collection * self.unit)) - 1

    def lose_order(self) -> None:
        """A frame comes that is not the next one."""
        collection, come = divmod(self.next, self.unit)
        if come:
            self.missing[collection] = self.frames_of(collection) >> come << come
        self.next = -1


NO_QUEUE: Final[list[Sending]] = []
NO_RECEIVING: Final[dict[int, Receiving]] = {}
"""What a peer begins with, and nobody writes into: most of the thousands that there may be never need one of their own."""


class Peer:
    """Another host's NIC. incarnation: the last one heard of, or presumed; 0: not known. expected: the next message id to be
    admitted; None until the first header of this incarnation. send, send_later: `Nic`'s, or where frames to this NIC itself
    go.

    unit: of the collections of messages whose frames begin as follows; 0: not known. single: how a frame that is a whole
    message begins. middle: how one begins that is neither its message's first nor its last.
    """

    __slots__ = (
        "address", "expected", "held", "incarnation", "middle", "next_id", "number", "queue", "receiving", "send",
        "send_later", "sending", "single", "unacknowledged", "unit",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        address: bytes,
        incarnation: int,
        send: Callable[[bytes], object],
        send_later: Callable[[Callable[[], bytes]], object],
    ) -> None:
        self.number = number
        self.address = address
        self.send = send
        self.send_later = send_later
        self.unit = 0
        self.single = self.middle = b""
        self.incarnation = incarnation
        self.next_id = 0
        self.sending: dict[int, Sending] = {}  # by id, in order; also what has not been begun
        self.queue = NO_QUEUE  # messages of which collections have not been sent yet, except parked ones
        self.unacknowledged = 0  # collections, except those of parked messages
        self.expected: int | None = None
        self.receiving = NO_RECEIVING  # by id
        self.held = 0  # of those, how many have no receive yet


class Lane:
    """Frames of one kind (`codec.TYPE_*`) from one peer, which begin with the same bytes and are for this NIC, from and for
    the last incarnations of both. answer: how their acknowledgements begin."""

    __slots__ = ("answer", "flags", "kind", "peer", "unit")

    def __init__(self, peer: Peer, kind: int, flags: int, unit: int, answer: bytes) -> None:
        self.peer = peer
        self.kind = kind
        self.flags = flags
        self.unit = unit
        self.answer = answer
