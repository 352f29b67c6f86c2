"""The state of transfers: outgoing messages, incoming messages, and peers.

Section 4.1: per host a NIC keeps the remote MAC address and send and receive sequence numbers, no connection; per
message a structure that describes just that transfer.
"""

from __future__ import annotations

from typing import Final

from protocols.core import peers
from protocols.core.memory import Span
from protocols.emp.descriptors import ANY_SOURCE, CONTEXT

MESSAGE_HEADER: Final = 16
"""Bytes of the second header, which only a message's first frame has."""


class Framing:
    """Division of a message into frames, and of frames into collections.

    The first frame holds less data, since it has two headers: frame n of a message, unless it is the last, ends before
    byte (n + 1) * full - MESSAGE_HEADER.

    total: bytes of the message. full: bytes of payload of a full frame. unit: frames per collection; the last one may
    be short.
    """

    __slots__ = ("collections", "frames", "full", "total", "unit")

    def __init__(self, total: int, full: int, unit: int) -> None:
        self.total = total
        self.full = full
        self.unit = unit
        self.frames = frames = (total + MESSAGE_HEADER + full - 1) // full
        self.collections = (frames + unit - 1) // unit


class Sending(Framing):
    """An outgoing message. sent: collections sent at least once. open: collections sent and not acknowledged, with
    their number of resends. left: collections not acknowledged, sent or not. parked: nothing of it was acknowledged in
    time (see `sender`). progress: time of its last acknowledgement, or of its first sending."""

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
    """An incoming message, from its header on.

    posted: the receive that it matches, once there is one. below: all collections before this one are complete.
    missing: missing frames of the others that have begun, as bit masks. left: number of incomplete collections. Memory
    use grows with the frames that have arrived, whatever length a header claims.

    While frames arrive in order, `missing` stays empty: next is the number of the next frame, at and until are the
    bounds of its bytes in the message. After a frame out of order, next is -1. span: the destination of the data, if
    the receive has contiguous memory for the whole message; else None.
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
        """Match the message with a receive."""
        self.posted = posted
        if type(posted.span) is memoryview and 0 < self.total <= len(posted.span):
            self.span = posted.span

    def frames_of(self, collection: int) -> int:
        """Return the bit mask of a collection's frames."""
        return (1 << min(self.unit, self.frames - collection * self.unit)) - 1

    def lose_order(self) -> None:
        """Switch to `missing`, because a frame arrives out of order."""
        collection, come = divmod(self.next, self.unit)
        if come:
            self.missing[collection] = self.frames_of(collection) >> come << come
        self.next = -1


NO_QUEUE: Final[list[Sending]] = []
NO_RECEIVING: Final[dict[int, Receiving]] = {}
"""Shared empty initial value, never written to: most of thousands of peers never need a dict of their own."""


class Peer(peers.Peer):
    """Another host's NIC.

    expected: the next message id to be admitted; None until the first header of this incarnation. unit: frames per
    collection of the messages whose frames begin as follows; 0: not known. single: first bytes of a frame that is a
    whole message. middle: first bytes of a frame that is neither the first nor the last of its message.
    """

    __slots__ = (
        "expected", "held", "middle", "next_id", "queue", "receiving", "sending", "single", "unacknowledged", "unit",
    )  # fmt: skip

    def __init__(
        self, number: int, address: bytes, incarnation: int, send: peers.Send, send_later: peers.SendLater
    ) -> None:
        peers.Peer.__init__(self, number, address, incarnation, send, send_later)
        self.unit = 0
        self.single = self.middle = b""
        self.next_id = 0
        self.sending: dict[int, Sending] = {}  # by id, in order, including those not begun
        self.queue = NO_QUEUE  # messages with unsent collections, except parked ones
        self.unacknowledged = 0  # collections, except those of parked messages
        self.expected: int | None = None
        self.receiving = NO_RECEIVING  # by id
        self.held = 0  # messages in `receiving` that have no receive yet


class Lane:
    """Frames of one kind (`codec.TYPE_*`) from one peer that begin with the same bytes, are for this NIC, and belong to
    the last incarnations of both. answer: the first bytes of their acknowledgements."""

    __slots__ = ("answer", "flags", "kind", "peer", "unit")

    def __init__(self, peer: Peer, kind: int, flags: int, unit: int, answer: bytes) -> None:
        self.peer = peer
        self.kind = kind
        self.flags = flags
        self.unit = unit
        self.answer = answer
