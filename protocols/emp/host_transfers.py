"""Transfers as the host library has them, and as a program awaits them.

Where host and NIC are in one process, the NIC is handed one as it is (`Descriptors.handed`): what a descriptor would say, to
the NIC and back, is in its fields, and nobody writes it down for the other to read. Elsewhere, and where it takes more than
a page, descriptors say it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from protocols.core.completion import Completion
from protocols.emp import descriptors as stat

IN_USE: Final = -1
"""status of a transfer that the NIC has begun: a doorbell for it that is rung again begins nothing."""


class Received(NamedTuple):
    """What a receive has got. length: bytes of the message."""

    source: int
    tag: int
    length: int


class Transfer(Completion[Received]):
    """One under way. kind, peer, tag: as a descriptor's; the NIC puts there whose message it was. size: of its buffer, in
    bytes. span: the buffer, where the NIC is handed it. status: a descriptor's stat, or IN_USE. length: the message's, in
    bytes, once it is done.
    """

    __slots__ = ("kind", "length", "peer", "size", "span", "status", "tag")
    span: memoryview
    length: int

    def __init__(self, kind: int, peer: int, tag: int, size: int) -> None:
        # What the base's does, but for what it is about: that is put together from these, for who asks.
        self.done = False
        self._error = None
        self._callbacks = None
        self.kind = kind
        self.peer = peer
        self.tag = tag
        self.size = size
        self.status = stat.NIC

    @property
    def what(self) -> str:
        verb = "a receive from" if self.kind & stat.RECEIVE else "the send to"
        node = "any node" if self.peer == stat.ANY_SOURCE else f"node {self.peer}"
        return f"{verb} {node}, tag {self.tag}, {self.size} bytes"


class Written(Transfer):
    """One that has descriptors. taken: how many. pinned: the addresses of its buffer's pieces, and which byte of the message
    comes there. listed: where the list of their pages is pinned, 0 if there is none."""

    __slots__ = ("listed", "pinned", "taken")

    def __init__(
        self, kind: int, peer: int, tag: int, size: int, taken: int, pinned: list[tuple[int, int]], listed: int
    ) -> None:
        super().__init__(kind, peer, tag, size)
        self.taken = taken
        self.pinned = pinned
        self.listed = listed
