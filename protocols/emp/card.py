"""What the two halves of the firmware share: the card itself, and how its frames are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final, Protocol

from protocols.core.firmware import FIRST, Actions, Adapter, Buffer
from protocols.core.memory import Reachable, Span
from protocols.emp import descriptors as stat
from protocols.emp.codec import FLAGS_LAST, FRAME_SIZE, STATUS_OK, STATUS_RESTARTED, TYPE_ACK, TYPE_DATA
from protocols.emp.counters import Counters
from protocols.emp.descriptors import SIZE, Descriptors, pack_head
from protocols.emp.settings import Settings
from protocols.emp.transfers import MESSAGE_HEADER, Lane, Peer, Sending

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

    @property
    def pack_frame_behind(self) -> Callable[..., bytes]: ...

    @property
    def pack_message_behind(self) -> Callable[..., bytes]: ...

    @property
    def PREFIX_SIZE(self) -> int: ...  # noqa: N802  a codec is a module, this its constant

    def type_of(self, raw: Buffer) -> int: ...

    def unpack_frame(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, memoryview]: ...

    def unpack_message(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, memoryview]: ...

    def unpack_frame_behind(self, raw: Buffer) -> tuple[int, int, int, Buffer]: ...

    def unpack_message_behind(self, raw: Buffer) -> tuple[int, int, int, int, int, int, int, int, Buffer]: ...


class Card:
    """One NIC's memory, counters and peers, and the actions it can take."""

    __slots__ = (
        "_numbers", "_pack_frame", "_pack_frame_behind", "_pack_message", "_pack_message_behind", "_send", "_send_later",
        "adapter", "address", "counters", "descriptors", "full", "handed", "incarnation", "looped", "memory", "nic",
        "number", "peers", "peers_by_address", "prefix_size", "presumed", "settings", "single", "taken",
    )  # fmt: skip

    def __init__(
        self,
        adapter: Adapter,
        nic: Actions,
        memory: Reachable,
        descriptors: Descriptors,
        settings: Settings,
        codec: Codec,
    ) -> None:
        self.adapter = adapter
        self.number = adapter.number
        self.address = adapter.address
        self.incarnation = adapter.incarnation
        self.presumed = FIRST if adapter.incarnation == FIRST else 0
        """Incarnation of peers that have not been heard of; 0: not known."""
        self.nic = nic
        self.memory = memory
        self.descriptors = descriptors
        self.settings = settings
        self.counters = Counters()
        self.full = adapter.mtu - (FRAME_SIZE - _ETHERNET)
        if self.full <= MESSAGE_HEADER:
            raise ValueError(f"an MTU of {adapter.mtu} bytes has no room for EMP's headers")
        self.single = self.full - MESSAGE_HEADER
        """The longest message that is one frame."""
        self.prefix_size = codec.PREFIX_SIZE
        self.taken = bytearray(descriptors.count)
        """Which descriptors the NIC has in use: what a host writes into one meanwhile is not looked at."""
        self.handed = {} if descriptors.handed is None else descriptors.handed
        self.looped: deque[bytes] = deque()
        """Frames to this NIC itself, which no wire brings back."""
        self.peers: dict[int, Peer] = {}
        """Those that there has been anything to do with, by node number."""
        self.peers_by_address: dict[bytes, Peer] = {}
        self._numbers = _numbers(tuple(adapter.addresses))
        # Bound once: a NIC may have thousands of peers.
        self._send, self._send_later = nic.send, nic.send_later
        self.peer(self.number).incarnation = adapter.incarnation
        self._pack_frame = codec.pack_frame
        self._pack_message = codec.pack_message
        self._pack_frame_behind = codec.pack_frame_behind
        self._pack_message_behind = codec.pack_message_behind

    def send_single(self, peer: Peer, unit: int, message: int, tag: int, span: Span) -> None:
        """The only frame of a message, from host memory to the wire."""
        if peer.unit != unit:
            self._look_up(peer, unit)
        size, oldest = len(span), next(iter(peer.sending)) if peer.sending else message
        payload: Buffer = b""
        if size:
            payload = self.nic.fetch((span,)) if type(span) is memoryview else self._gather(span, 0, size)
        peer.send(
            self._pack_message_behind(
                peer.single, message, 0, STATUS_OK, self.number, peer.number, tag, size, oldest, payload
            )
        )

    def send_collection(self, peer: Peer, sending: Sending, number: int) -> int:
        """The frames of a collection, from host memory to the wire; how many they are."""
        if sending.frames == 1:
            self.send_single(peer, sending.unit, sending.id, sending.tag, sending.span)
            return 1
        send, unit, full, message, span = peer.send, sending.unit, sending.full, sending.id, sending.span
        fetch = self.nic.fetch
        first = frame = number * unit
        behind, last = min(first + unit, sending.frames), sending.frames - 1
        if not frame:
            send(
                self._pack_message(
                    peer.address, self.address, 0, unit, self.incarnation, peer.incarnation, message, 0, STATUS_OK,
                    self.number, peer.number, sending.tag, sending.total, next(iter(peer.sending)),
                    self._gather(span, 0, full - MESSAGE_HEADER),
                )
            )  # fmt: skip
            frame = 1
        if peer.unit != unit:
            self._look_up(peer, unit)
        pack, prefix = self._pack_frame_behind, peer.middle or self._look_up_middle(peer)
        end = frame * full - MESSAGE_HEADER
        while frame < behind and frame < last:
            begin, end = end, end + full
            payload = fetch((span[begin:end],)) if type(span) is memoryview else self._gather(span, begin, end)
            send(pack(prefix, message, frame, STATUS_OK, payload))
            frame += 1
        if behind > last:
            send(
                self._pack_frame(
                    peer.address, self.address, TYPE_DATA, FLAGS_LAST, unit, self.incarnation, peer.incarnation, message,
                    last, STATUS_OK, self._gather(span, end, sending.total),
                )
            )  # fmt: skip
        return behind - first

    def acknowledge(self, lane: Lane, message: int, frame: int) -> None:
        """Section 4.1: "the acknowledgement consists of the frame header of one of the frames for that collection.
        Essentially it is the header of the last received frame." """
        lane.peer.send_later(partial(self._pack_frame_behind, lane.answer, message, frame, STATUS_OK))

    def refuse_frame(self, peer: Peer, flags: int, unit: int, message: int, frame: int) -> None:
        """Tell its sender that it was meant for an earlier incarnation."""
        peer.send_later(partial(self._answer, peer, flags, unit, message, frame, STATUS_RESTARTED))

    def announce(self, peer: Peer, incarnation: int) -> None:
        """The same without having been asked. incarnation: the peer's."""
        to, own, unit = peer.address, self.address, self.settings.unit
        peer.send_later(
            partial(self._pack_frame, to, own, TYPE_ACK, 0, unit, incarnation, self.incarnation, 0, 0, STATUS_RESTARTED)
        )

    def lane(self, peer: Peer, kind: int, flags: int, unit: int) -> Lane:
        """Of frames of that kind from a peer."""
        answer = b"" if kind == TYPE_ACK else self._answer(peer, flags, unit, 0, 0, STATUS_OK)[: self.prefix_size]
        return Lane(peer, kind, flags, unit, answer)

    def _answer(self, peer: Peer, flags: int, unit: int, message: int, frame: int, status: int) -> bytes:
        to, own = peer.address, self.address
        sender, receiver = peer.incarnation, self.incarnation
        return self._pack_frame(to, own, TYPE_ACK, flags, unit, sender, receiver, message, frame, status)

    def _loop_later(self, make: Callable[[], bytes]) -> None:
        self.looped.append(make())

    def _gather(self, span: Span, begin: int, end: int) -> Buffer:
        """A message's bytes from begin to end, where there are any, out of host memory."""
        fetch = self.nic.fetch
        return fetch((span[begin:end],) if type(span) is memoryview else span.pieces(begin, end))

    def _look_up(self, peer: Peer, unit: int) -> None:
        """How frames to a peer begin that are whole messages."""
        to, own, sender, receiver = peer.address, self.address, self.incarnation, peer.incarnation
        single = self._pack_message(to, own, FLAGS_LAST, unit, sender, receiver, 0, 0, STATUS_OK, 0, 0, 0, 0, 0)
        peer.unit, peer.single, peer.middle = unit, single[: self.prefix_size], b""

    def _look_up_middle(self, peer: Peer) -> bytes:
        """How frames to a peer begin that are neither their message's first nor its last."""
        to, own, sender, receiver = peer.address, self.address, self.incarnation, peer.incarnation
        middle = self._pack_frame(to, own, TYPE_DATA, 0, peer.unit, sender, receiver, 0, 0, STATUS_OK)
        peer.middle = prefix = middle[: self.prefix_size]
        return prefix

    def give_back(self, index: int, status: int, length: int, peer: int, tag: int) -> None:
        """A descriptor to the host."""
        handed = self.handed.get(index)
        if handed is not None:
            handed.status, handed.length, handed.peer, handed.tag = status, length, peer, tag
        else:
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
            own = number == self.number
            send, later = (self.looped.append, self._loop_later) if own else (self._send, self._send_later)
            found = Peer(number, address, self.presumed, send, later)
            self.peers[number] = self.peers_by_address[address] = found
        return found

    def peer_at(self, address: bytes) -> Peer | None:
        """The node's whose NIC has that address; None where there is none."""
        number = self._numbers.get(address)
        return None if number is None else self.peer(number)
