"""Descriptors of 24 bytes in the NIC's memory, by which the host gives work to the NIC.

The first SENDS descriptors are messages to send, the others receive buffers for cards. The host fills in a descriptor and
rings the doorbell with its index; the NIC owns it until a completion with that index returns it with its outcome. The host
of a shared NIC is another process, which may write anything: so the NIC reads a descriptor only once, and accepts only
addresses of that host's memory.
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
    """All cards of the message have their receipts; of a receive buffer: it holds a card."""
    LOST = 1
    """The peer has restarted; of a receive buffer: it holds no card."""
    INVALID = 2
    """The peer does not exist, or the memory is not the host's or too small for a card."""


class Descriptor(NamedTuple):
    """A descriptor. peer: number of the node to which a message goes, or from which a card has come. length, address: of
    the bytes in the host's memory. context, tag: of the message. outcome, flags: set by the NIC; flags are the card's."""

    peer: int
    length: int
    address: int = 0
    context: int = 0
    tag: int = 0
    flags: int = 0
    outcome: int = Outcome.DONE


class Descriptors:
    """All descriptors of one host. memory: where they are, on a shared NIC; None: in this process."""

    def __init__(self, memory: memoryview | None = None) -> None:
        self._memory = memoryview(bytearray(COUNT * SIZE)) if memory is None else memory

    def write(self, index: int, descriptor: Descriptor) -> None:
        peer, length, address, context, tag, flags, outcome = descriptor
        _LAYOUT.pack_into(self._memory, index * SIZE, outcome, flags, peer, context, tag, length, address)

    def read(self, index: int) -> Descriptor:
        outcome, flags, peer, context, tag, length, address = _LAYOUT.unpack_from(self._memory, index * SIZE)
        return Descriptor(peer, length, address, context, tag, flags, outcome)
