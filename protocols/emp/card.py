"""What the two halves of the firmware share: the card itself, and how its frames are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from protocols.core.firmware import Adapter, Nic
from protocols.core.memory import HostMemory
from protocols.emp import descriptors as stat
from protocols.emp.codec import (
    FLAGS_LAST,
    FRAME,
    FRAME_SIZE,
    MESSAGE_SIZE,
    STATUS_OK,
    TYPE_ACK,
    TYPE_DATA,
    pack_frame,
    pack_message,
)
from protocols.emp.counters import Counters
from protocols.emp.descriptors import Descriptors
from protocols.emp.settings import Settings
from protocols.emp.transfers import Peer, Sending

_ETHERNET: Final = 14


@lru_cache(maxsize=16)
def _numbers(addresses: tuple[bytes, ...]) -> Mapping[bytes, int]:
    """Node numbers by MAC address: one for all NICs of a cluster in one process."""
    return {address: number for number, address in enumerate(addresses)}


class Card:
    """One NIC's memory, counters and peers, and the actions it can take."""

    __slots__ = (
        "adapter",
        "address",
        "counters",
        "descriptors",
        "full",
        "looped",
        "memory",
        "nic",
        "numbers",
        "peers",
        "settings",
        "taken",
    )

    def __init__(
        self, adapter: Adapter, nic: Nic, memory: HostMemory, descriptors: Descriptors, settings: Settings
    ) -> None:
        self.adapter = adapter
        self.address = adapter.address
        self.nic = nic
        self.memory = memory
        self.descriptors = descriptors
        self.settings = settings
        self.counters = Counters()
        self.full = adapter.mtu - (FRAME_SIZE - _ETHERNET)
        if self.full <= MESSAGE_SIZE - FRAME_SIZE:
            raise ValueError(f"an MTU of {adapter.mtu} bytes has no room for EMP's headers")
        self.numbers = _numbers(tuple(adapter.addresses))
        self.peers: dict[int, Peer] = {}
        """Those that there has been anything to do with, by node number."""
        self.peer(adapter.number).incarnation = adapter.incarnation
        self.taken = bytearray(descriptors.count)
        """Which descriptors the NIC has in use: what a host writes into one meanwhile is not looked at."""
        self.looped: deque[bytes] = deque()
        """Frames to this NIC itself, which no wire brings back."""

    def send_data(self, peer: Peer, sending: Sending, number: int) -> None:
        """One frame of a message, from host memory to the wire."""
        framing = sending.framing
        begin, end = framing.span(number)
        payload = self.nic.fetch(sending.scatter.pieces(begin, end))
        flags = FLAGS_LAST if number == framing.frames - 1 else 0
        if number:
            frame = pack_frame(
                peer.address, self.address, TYPE_DATA, flags, framing.unit, self.adapter.incarnation, peer.incarnation,
                sending.id, number, STATUS_OK, payload,
            )  # fmt: skip
        else:
            frame = pack_message(
                peer.address, self.address, flags, framing.unit, self.adapter.incarnation, peer.incarnation, sending.id,
                number, STATUS_OK, self.adapter.number, peer.number, sending.tag, framing.total, peer.oldest(), payload,
            )  # fmt: skip
        self._send(peer, frame)

    def acknowledge(self, peer: Peer, frame: bytes, status: int = STATUS_OK) -> None:
        """Section 4.1: "the acknowledgement consists of the frame header of one of the frames for that collection.
        Essentially it is the header of the last received frame." """
        _, _, _, _, _, flags, unit, sender, _, message, number, _, _, _ = FRAME.unpack_from(frame)
        self._send(
            peer,
            pack_frame(
                peer.address, self.address, TYPE_ACK, flags, unit, sender, self.adapter.incarnation, message, number, status,
            ),
        )  # fmt: skip

    def give_back(self, index: int, status: int, length: int, peer: int, tag: int) -> None:
        """A descriptor to the host."""
        self.taken[index] = 0
        self.descriptors.give_back(index, status, length, peer, tag)
        if status == stat.INVALID:
            self.counters.invalid += 1
        self.nic.show(index)

    def peer(self, number: int) -> Peer:
        """A node's, which there is."""
        found = self.peers.get(number)
        if found is None:
            found = self.peers[number] = Peer(number, self.adapter.addresses[number])
        return found

    def _send(self, peer: Peer, frame: bytes) -> None:
        if peer.number == self.adapter.number:
            self.looped.append(frame)
        else:
            self.nic.send(frame)
