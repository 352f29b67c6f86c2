"""What the two halves of the firmware share: the card itself, and how its frames are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Protocol

from protocols.core.firmware import Adapter, Buffer, Nic
from protocols.core.memory import HostMemory
from protocols.emp import descriptors as stat
from protocols.emp.codec import FLAGS_LAST, FRAME_SIZE, MESSAGE_SIZE, STATUS_OK, TYPE_ACK, TYPE_DATA
from protocols.emp.counters import Counters
from protocols.emp.descriptors import SIZE, Descriptors, pack_head
from protocols.emp.settings import Settings
from protocols.emp.transfers import MESSAGE_HEADER, Peer, Sending

_ETHERNET: Final = 14


@lru_cache(maxsize=16)
def _numbers(addresses: tuple[bytes, ...]) -> Mapping[bytes, int]:
    """Node numbers by MAC address: one for all NICs of a cluster in one process."""
    return {address: number for number, address in enumerate(addresses)}


class Codec(Protocol):
    """What turns fields into frames and back: `protocols.emp.codec`, or what Scapy makes of `protocols.emp.frames`."""

    @property
    def pack_frame(self) -> Callable[..., bytes]: ...

    @property
    def pack_message(self) -> Callable[..., bytes]: ...

    def type_of(self, raw: Buffer) -> int: ...

    def unpack_frame(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, memoryview]: ...

    def unpack_message(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, memoryview]: ...


class Card:
    """One NIC's memory, counters and peers, and the actions it can take."""

    __slots__ = (
        "_loop_back", "_pack_frame", "_pack_message", "adapter", "address", "counters", "descriptors", "full",
        "incarnation", "looped", "memory", "nic", "number", "peers", "peers_by_address", "settings", "taken",
    )  # fmt: skip

    def __init__(
        self,
        adapter: Adapter,
        nic: Nic,
        memory: HostMemory,
        descriptors: Descriptors,
        settings: Settings,
        codec: Codec,
    ) -> None:
        self.adapter = adapter
        self.number = adapter.number
        self.address = adapter.address
        self.incarnation = adapter.incarnation
        self.nic = nic
        self.memory = memory
        self.descriptors = descriptors
        self.settings = settings
        self.counters = Counters()
        self.full = adapter.mtu - (FRAME_SIZE - _ETHERNET)
        if self.full <= MESSAGE_SIZE - FRAME_SIZE:
            raise ValueError(f"an MTU of {adapter.mtu} bytes has no room for EMP's headers")
        self.peers: dict[int, Peer] = {}
        """Those that there has been anything to do with, by node number."""
        self.peers_by_address: dict[bytes, Peer] = {}
        self.peer(self.number).incarnation = adapter.incarnation
        self.taken = bytearray(descriptors.count)
        """Which descriptors the NIC has in use: what a host writes into one meanwhile is not looked at."""
        self.looped: deque[bytes] = deque()
        """Frames to this NIC itself, which no wire brings back."""
        self._loop_back = self.looped.append
        self._pack_frame = codec.pack_frame
        self._pack_message = codec.pack_message

    def send_collection(self, peer: Peer, sending: Sending, number: int) -> int:
        """The frames of a collection, from host memory to the wire; how many they are."""
        fetch, send = self.nic.fetch, self._loop_back if peer.number == self.number else self.nic.send
        scatter, last = sending.scatter, sending.frames - 1
        first = frame = number * sending.unit
        if not frame:
            pieces = scatter.pieces(0, sending.full - MESSAGE_HEADER) if last else scatter.whole
            send(
                self._pack_message(
                    peer.address, self.address, 0 if last else FLAGS_LAST, sending.unit, self.incarnation,
                    peer.incarnation, sending.id, 0, STATUS_OK, self.number, peer.number, sending.tag, sending.total,
                    next(iter(peer.sending)), fetch(pieces),
                )
            )  # fmt: skip
            if not last:
                return 1
            frame = 1
        behind = first + sending.unit
        if behind > sending.frames:
            behind = sending.frames
        pack, address, own, full = self._pack_frame, peer.address, self.address, sending.full
        unit, sender, receiver, message = sending.unit, self.incarnation, peer.incarnation, sending.id
        end = frame * full - MESSAGE_HEADER
        while frame < behind:
            begin, end = end, end + full
            payload = fetch(scatter.pieces(begin, end if frame < last else sending.total))
            flags = 0 if frame < last else FLAGS_LAST
            send(pack(address, own, TYPE_DATA, flags, unit, sender, receiver, message, frame, STATUS_OK, payload))
            frame += 1
        return behind - first

    def acknowledge(
        self, peer: Peer, flags: int, unit: int, message: int, number: int, status: int = STATUS_OK
    ) -> None:
        """Section 4.1: "the acknowledgement consists of the frame header of one of the frames for that collection.
        Essentially it is the header of the last received frame." """
        frame = self._pack_frame(
            peer.address, self.address, TYPE_ACK, flags, unit, peer.incarnation, self.incarnation, message, number, status
        )  # fmt: skip
        if peer.number == self.number:
            self.looped.append(frame)
        else:
            self.nic.send_later(frame)

    def give_back(self, index: int, status: int, length: int, peer: int, tag: int) -> None:
        """A descriptor to the host."""
        self.taken[index] = 0
        pack_head(self.descriptors.memory, index * SIZE, status, 0, 0, length, peer, tag, 0)
        self.nic.show(index)

    def refuse(self, index: int, peer: int, tag: int) -> None:
        """A descriptor that makes no sense, to the host."""
        self.counters.invalid += 1
        self.give_back(index, stat.INVALID, 0, peer, tag)

    def peer(self, number: int) -> Peer:
        """A node's, which there is."""
        found = self.peers.get(number)
        if found is None:
            address = self.adapter.addresses[number]
            found = self.peers[number] = self.peers_by_address[address] = Peer(number, address)
        return found

    def peer_at(self, address: bytes) -> Peer | None:
        """The node's whose NIC has that address; None where there is none."""
        number = _numbers(tuple(self.adapter.addresses)).get(address)
        return None if number is None else self.peer(number)
