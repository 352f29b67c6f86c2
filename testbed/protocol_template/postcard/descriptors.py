"""Descriptors: 24 bytes each in the NIC's memory, through which the host gives work to the NIC and gets it back.

The first SENDS of them are messages to send, the others memory for cards. The host fills one and rings the doorbell with its
number; it is the NIC's until a completion with that number returns it, with its outcome. A host of a shared NIC is another
process, which may write anything: the NIC reads a descriptor once, and memory is the host's own or none.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

SENDS: Final = 64
COUNT: Final = 2 * SENDS
_LAYOUT: Final = Struct("!BBHHxxIIQ")
SIZE: Final = _LAYOUT.size


class Outcome(IntEnum):
    """Outcome of a descriptor that the NIC has returned."""

    DONE = 0
    """The message has its receipts, or a card has come."""
    LOST = 1
    """The peer has restarted. Of memory for cards: no card has come."""
    INVALID = 2
    """The descriptor names a peer or memory that it must not name."""


class Descriptor(NamedTuple):
    """A descriptor. peer: number of the node to which a message goes, or from which a card has come. length, address: of
    the bytes in the host's memory. outcome, flags: set by the NIC; flags are a card's."""

    peer: int
    length: int
    address: int = 0
    context: int = 0
    tag: int = 0
    flags: int = 0
    outcome: int = Outcome.DONE


class Descriptors:
    """All descriptors of one host. memory: that of a shared NIC; None: of this process."""

    def __init__(self, memory: memoryview | None = None) -> None:
        self._memory = memoryview(bytearray(COUNT * SIZE)) if memory is None else memory

    def write(self, index: int, descriptor: Descriptor) -> None:
        peer, length, address, context, tag, flags, outcome = descriptor
        _LAYOUT.pack_into(self._memory, index * SIZE, outcome, flags, peer, context, tag, length, address)

    def read(self, index: int) -> Descriptor:
        outcome, flags, peer, context, tag, length, address = _LAYOUT.unpack_from(self._memory, index * SIZE)
        return Descriptor(peer, length, address, context, tag, flags, outcome)
