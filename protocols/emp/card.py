"""State that both halves of the firmware share: the NIC's memory and counters, its peers, and its acknowledgements.

Section 4.1: for each host a NIC keeps the remote MAC address, and send and receive sequence numbers. There are no
connections. For each message it keeps a structure with the state of that transfer (`sender.OutgoingMessage`,
`receiver.IncomingMessage`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from protocols.core import peers
from protocols.core.firmware import Adapter, Buffer, FirmwareActions
from protocols.core.memory import DmaMemory
from protocols.emp import descriptors as stat
from protocols.emp.codec import FRAME_SIZE, STATUS_OK, STATUS_RESTARTED, TYPE_ACK
from protocols.emp.counters import Counters
from protocols.emp.descriptors import SIZE, Descriptors, pack_result
from protocols.emp.settings import Settings

if TYPE_CHECKING:
    from protocols.emp.receiver import IncomingMessage
    from protocols.emp.sender import OutgoingMessage

_ETHERNET_HEADER_SIZE: Final = 14
MESSAGE_HEADER_SIZE: Final = 16
"""Bytes of the message header, which only a message's first frame has."""


class Codec(Protocol):
    """Converter between fields and frames: `protocols.emp.codec`, or Scapy on `protocols.emp.frames`."""

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

    def unpack_frame(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_message(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_frame_behind(self, raw: Buffer) -> tuple[int, int, int, Buffer]: ...

    def unpack_message_behind(self, raw: Buffer) -> tuple[int, int, int, int, int, int, int, int, Buffer]: ...


# Shared empty initial values, never modified: among thousands of peers, most never need a list or a dict of their own.
EMPTY_QUEUE: Final[list[OutgoingMessage]] = []
NO_INCOMING_MESSAGES: Final[dict[int, IncomingMessage]] = {}


class Peer(peers.Peer):
    """Another host's NIC.

    expected_id: the next message id to be admitted; None until the peer's present incarnation sends its first header.
    single_prefix: cached first bytes of a message's only frame. middle_prefix: cached first bytes of a frame that is
    neither the first nor the last of its message. unit: frames per collection in the cached bytes; 0: nothing is cached.
    """

    __slots__ = (
        "expected_id", "held_count", "incoming_messages", "middle_prefix", "next_id", "outgoing_messages", "send_queue",
        "single_prefix", "unacknowledged_collection_count", "unit",
    )  # fmt: skip

    def __init__(
        self, number: int, address: bytes, incarnation: int, send: peers.Send, send_later: peers.SendLater
    ) -> None:
        peers.Peer.__init__(self, number, address, incarnation, send, send_later)
        self.unit = 0
        self.single_prefix = self.middle_prefix = b""
        self.next_id = 0
        self.outgoing_messages: dict[int, OutgoingMessage] = {}  # by id, in order, including those not begun
        self.send_queue = EMPTY_QUEUE  # messages with unsent collections, except parked ones
        self.unacknowledged_collection_count = 0  # except those of parked messages
        self.expected_id: int | None = None
        self.incoming_messages = NO_INCOMING_MESSAGES  # by id
        self.held_count = 0  # incoming messages that have no receive yet


class CachedHeader:
    """Decoded first bytes of frames of one kind (`codec.TYPE_*`) from one peer to this NIC, in the last incarnations of
    both. acknowledgement_prefix: first bytes of the acknowledgements of these frames."""

    __slots__ = ("acknowledgement_prefix", "flags", "kind", "peer", "unit")

    def __init__(self, peer: Peer, kind: int, flags: int, unit: int, acknowledgement_prefix: bytes) -> None:
        self.peer = peer
        self.kind = kind
        self.flags = flags
        self.unit = unit
        self.acknowledgement_prefix = acknowledgement_prefix


class Card:
    """One NIC's memory, counters and peers, and its actions."""

    __slots__ = (
        "_pack_frame", "_pack_frame_behind", "adapter", "address", "codec", "counters", "descriptors", "full_payload",
        "in_use", "incarnation", "max_single_frame_size", "memory", "nic", "number", "peers", "prefix_size", "settings",
    )  # fmt: skip

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        memory: DmaMemory,
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
        self.full_payload = adapter.mtu - (FRAME_SIZE - _ETHERNET_HEADER_SIZE)
        """Bytes of payload of a full frame without a message header."""
        if self.full_payload <= MESSAGE_HEADER_SIZE:
            raise ValueError(f"an MTU of {adapter.mtu} bytes has no room for EMP's headers")
        self.max_single_frame_size = self.full_payload - MESSAGE_HEADER_SIZE
        """Maximum size of a message that fits in one frame, in bytes."""
        self.prefix_size = codec.PREFIX_SIZE
        self.in_use = bytearray(descriptors.count)
        """By descriptor: 1 while the NIC uses it, when changes and doorbells of the host are ignored; 0 otherwise."""
        self.peers: peers.Peers[Peer, CachedHeader] = peers.Peers(
            adapter, nic, partial(_make_peer, adapter.addresses), presumes_first=True
        )
        self.codec: Final = codec
        self._pack_frame = codec.pack_frame
        self._pack_frame_behind = codec.pack_frame_behind

    def acknowledge(self, cached: CachedHeader, message_id: int, frame_number: int) -> None:
        """Acknowledge a collection. Section 4.1: "the acknowledgement consists of the frame header of one of the frames
        for that collection. Essentially it is the header of the last received frame." """
        prefix = cached.acknowledgement_prefix
        cached.peer.send_later(partial(self._pack_frame_behind, prefix, message_id, frame_number, STATUS_OK))

    def reject_frame(self, peer: Peer, flags: int, unit: int, message_id: int, frame_number: int) -> None:
        """Notify a frame's sender that the frame was meant for an earlier incarnation of this NIC."""
        pack = self._pack_acknowledgement
        peer.send_later(partial(pack, peer, flags, unit, message_id, frame_number, STATUS_RESTARTED))

    def announce(self, number: int, incarnation: int) -> None:
        """Notify a peer of this NIC's incarnation. number: the peer's node number. incarnation: the peer's, as last
        known."""
        peer, pack = self.peers.peer(number), self._pack_frame
        destination, source, unit = peer.address, self.address, self.settings.unit
        sender, receiver = incarnation, self.incarnation
        peer.send_later(partial(pack, destination, source, TYPE_ACK, 0, unit, sender, receiver, 0, 0, STATUS_RESTARTED))

    def make_cached_header(self, peer: Peer, kind: int, flags: int, unit: int) -> CachedHeader:
        """Make the cached header of a peer's frames of one kind."""
        prefix = b""
        if kind != TYPE_ACK:
            prefix = self._pack_acknowledgement(peer, flags, unit, 0, 0, STATUS_OK)[: self.prefix_size]
        return CachedHeader(peer, kind, flags, unit, prefix)

    def _pack_acknowledgement(
        self, peer: Peer, flags: int, unit: int, message_id: int, frame_number: int, status: int
    ) -> bytes:
        destination, source = peer.address, self.address
        sender, receiver = peer.incarnation, self.incarnation
        return self._pack_frame(
            destination, source, TYPE_ACK, flags, unit, sender, receiver, message_id, frame_number, status
        )

    def return_descriptor(self, index: int, status: int, length: int, peer: int, tag: int) -> None:
        """Return a descriptor to the host. length: bytes of the message."""
        self.in_use[index] = 0
        pack_result(self.descriptors.memory, index * SIZE, status, length, peer, tag)
        self.nic.post_completion(index)

    def reject_descriptor(self, index: int, peer: int, tag: int) -> None:
        """Return an invalid descriptor to the host."""
        self.counters.invalid += 1
        self.return_descriptor(index, stat.INVALID, 0, peer, tag)


def _make_peer(
    addresses: Sequence[bytes], number: int, incarnation: int, send: peers.Send, send_later: peers.SendLater
) -> Peer:
    """Make a peer. A function, not a method: a bound method would keep the card alive (see `Peers.admit`)."""
    return Peer(number, addresses[number], incarnation, send, send_later)
