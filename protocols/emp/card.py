"""What the two halves of the firmware share: the card itself, and how its frames are made."""

from __future__ import annotations

import struct
from collections import deque
from typing import Final
from zlib import crc32

from protocols.core.firmware import Adapter, Nic
from protocols.core.memory import HostMemory
from protocols.emp import descriptors as stat
from protocols.emp.counters import Counters
from protocols.emp.descriptors import Descriptors
from protocols.emp.settings import Settings
from protocols.emp.transfers import Peer, Sending

ETHERNET: Final = 14
FRAME: Final = struct.Struct("!6s6sHBBBBIIIIHHI")
MESSAGE: Final = struct.Struct("!6s6sHBBBBIIIIHHIHHIII")
CHECK: Final = 38
ETHERTYPE: Final = 0x88B5
VERSION: Final = 1
FIRST: Final = 1
DATA: Final = 2
ACK: Final = 3
LAST: Final = 1

RESTARTED: Final = 1
"""Status of an acknowledgement that is none: the frame was meant for an earlier incarnation of the receiver."""


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
        self.full = adapter.mtu - (FRAME.size - ETHERNET)
        if self.full <= MESSAGE.size - FRAME.size:
            raise ValueError(f"an MTU of {adapter.mtu} bytes has no room for EMP's headers")
        self.peers = [Peer(number, address) for number, address in enumerate(adapter.addresses)]
        self.peers[adapter.number].incarnation = adapter.incarnation
        self.taken = bytearray(descriptors.count)
        """Which descriptors the NIC has in use: what a host writes into one meanwhile is not looked at."""
        self.looped: deque[bytes] = deque()
        """Frames to this NIC itself, which no wire brings back."""

    def send_data(self, peer: Peer, sending: Sending, number: int) -> None:
        """One frame of a message, from host memory to the wire."""
        framing = sending.framing
        begin, end = framing.span(number)
        payload = self.nic.fetch(sending.scatter.pieces(begin, end))
        flags = LAST if number == framing.frames - 1 else 0
        if number:
            header = FRAME.pack(
                peer.address, self.address, ETHERTYPE, VERSION, DATA, flags, framing.unit, self.adapter.incarnation,
                peer.incarnation, sending.id, number, end - begin, 0, 0,
            )  # fmt: skip
        else:
            header = MESSAGE.pack(
                peer.address, self.address, ETHERTYPE, VERSION, FIRST, flags, framing.unit, self.adapter.incarnation,
                peer.incarnation, sending.id, 0, end, 0, 0,
                self.adapter.number, peer.number, sending.tag, framing.total, peer.oldest(),
            )  # fmt: skip
        self._send(peer, header, payload)

    def acknowledge(self, peer: Peer, frame: bytes, status: int = 0) -> None:
        """Section 4.1: "the acknowledgement consists of the frame header of one of the frames for that collection.
        Essentially it is the header of the last received frame." """
        _, _, _, _, _, flags, unit, sender, _, message, number, _, _, _ = FRAME.unpack_from(frame)
        header = FRAME.pack(
            peer.address, self.address, ETHERTYPE, VERSION, ACK, flags, unit, sender,
            self.adapter.incarnation, message, number, 0, status, 0,
        )  # fmt: skip
        self._send(peer, header, b"")

    def give_back(self, index: int, status: int, length: int, peer: int, tag: int) -> None:
        """A descriptor to the host."""
        self.taken[index] = 0
        self.descriptors.give_back(index, status, length, peer, tag)
        if status == stat.INVALID:
            self.counters.invalid += 1
        self.nic.show(index)

    def _send(self, peer: Peer, header: bytes, payload: bytes) -> None:
        check = crc32(payload, crc32(header))
        frame = b"".join((header[:CHECK], check.to_bytes(4, "big"), header[CHECK + 4 :], payload))
        if peer.number == self.adapter.number:
            self.looped.append(frame)
        else:
            self.nic.send(frame)
