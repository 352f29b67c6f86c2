"""The state of what is under way: messages being sent, messages being received, and peers.

Section 4.1: per host a NIC keeps the remote MAC address and send and receive sequence numbers, no connection; per message
a structure that describes just that transfer.
"""

from __future__ import annotations

from typing import Final

from protocols.core.memory import Scatter
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

    __slots__ = ("id", "index", "left", "open", "parked", "progress", "scatter", "sent", "tag")

    def __init__(self, identity: int, index: int, tag: int, scatter: Scatter, full: int, unit: int) -> None:
        Framing.__init__(self, scatter.size, full, unit)
        self.id = identity
        self.index = index
        self.tag = tag
        self.scatter = scatter
        self.sent = 0
        self.left = self.collections
        self.open: dict[int, int] = {}
        self.parked = False
        self.progress = 0


class Posted:
    """A receive, or a probe, that waits for its message."""

    __slots__ = ("_mask", "index", "scatter", "source", "tag")

    def __init__(self, index: int, source: int, tag: int, any_tag: bool, scatter: Scatter) -> None:
        self.index = index
        self.source = source
        self.tag = tag & CONTEXT if any_tag else tag
        self._mask = CONTEXT if any_tag else 0xFFFF_FFFF
        self.scatter = scatter

    def takes(self, source: int, tag: int) -> bool:
        return self.source in (source, ANY_SOURCE) and tag & self._mask == self.tag


class Receiving(Framing):
    """A message on its way in, from its header on. posted: the receive it goes to, once there is one. below: collections
    before this one are complete. missing: of others that have begun, the frames that are missing, as bits. left:
    collections that are not complete. What it takes of the NIC's memory grows with the frames that have come, whatever
    length a header claims."""

    __slots__ = ("below", "id", "left", "missing", "posted", "source", "tag")

    def __init__(self, identity: int, source: int, tag: int, total: int, full: int, unit: int) -> None:
        Framing.__init__(self, total, full, unit)
        self.id = identity
        self.source = source
        self.tag = tag
        self.left = self.collections
        self.below = 0
        self.missing: dict[int, int] = {}
        self.posted: Posted | None = None


class Peer:
    """Another host's NIC. incarnation: the last one heard of; 0: none. expected: the next message id to be admitted; None
    until the first header of this incarnation."""

    __slots__ = (
        "address", "expected", "held", "incarnation", "next_id", "number", "queue", "receiving", "sending", "unacknowledged",
    )  # fmt: skip

    def __init__(self, number: int, address: bytes) -> None:
        self.number = number
        self.address = address
        self.incarnation = 0
        self.next_id = 0
        self.sending: dict[int, Sending] = {}  # by id, in order; also what has not been begun
        self.queue: list[Sending] = []  # of which collections have not been sent yet, except parked ones
        self.unacknowledged = 0  # collections, except those of parked messages
        self.expected: int | None = None
        self.receiving: dict[int, Receiving] = {}
        self.held = 0  # of those, how many have no receive yet

    def oldest(self) -> int:
        """The oldest message id that is not acknowledged."""
        return next(iter(self.sending), self.next_id)
