"""Messages on their way out: one packet for each, or many for a bulk message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from protocols.am2.packets import PART, PART_AT

if TYPE_CHECKING:
    from protocols.am2.endpoint_frames import Resident
    from protocols.am2.peers import Peer

_NOTHING: Final = memoryview(b"")


class Message:
    """What the host has written into a slot of an endpoint. body: its header and arguments, with its data unless that goes
    in parts. data: of a bulk message. part: bytes of it in one packet. sent: bytes of which packets were made. open: packets
    that are not answered. again: packets that were taken back. status: why it comes back, 0 as long as it does not."""

    __slots__ = (
        "again",
        "body",
        "data",
        "endpoint",
        "is_begun",
        "offset",
        "open",
        "part",
        "peer",
        "refusals",
        "sent",
        "slot",
        "status",
    )

    def __init__(self, endpoint: Resident, slot: int, peer: Peer, body: bytes) -> None:
        self.endpoint: Final = endpoint
        self.slot: Final = slot
        self.peer: Final = peer
        self.body = body
        self.data = _NOTHING
        self.part = self.offset = self.sent = self.open = self.refusals = self.status = 0
        self.is_begun = False
        self.again: Sequence[bytes] = ()

    @property
    def is_sent(self) -> bool:
        """Whether there is a packet for everything."""
        return self.is_begun and not self.again and self.sent >= len(self.data)

    def anew(self) -> Message:
        """The same, nothing of which has been sent. Of one without data in parts."""
        return Message(self.endpoint, self.slot, self.peer, self.body)

    def next(self) -> tuple[bytes, memoryview]:
        """The next packet's body, and what data of the host's memory is to be behind it."""
        if self.again:
            *self.again, body = self.again
            return body, _NOTHING
        self.is_begun = True
        if not self.data:
            return self.body, _NOTHING
        begin = self.sent
        self.sent = end = min(begin + self.part, len(self.data))
        head = bytearray(self.body)
        PART(head, PART_AT, self.offset + begin, len(self.data))
        return bytes(head), self.data[begin:end]


Packet = tuple[Message, bytes]
"""A message, and what one packet has of it."""
