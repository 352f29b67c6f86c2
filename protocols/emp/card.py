"""State that both halves of the firmware share: the card itself, its peers, and its answers.

Section 4.1: per host a NIC keeps the remote MAC address and send and receive sequence numbers, no connection; per
message a structure that describes just that transfer (`sender.Sending`, `receiver.Receiving`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from protocols.core import peers
from protocols.core.firmware import Adapter, Buffer, FirmwareActions
from protocols.core.memory import Reachable
from protocols.emp import descriptors as stat
from protocols.emp.codec import FRAME_SIZE, STATUS_OK, STATUS_RESTARTED, TYPE_ACK
from protocols.emp.counters import Counters
from protocols.emp.descriptors import SIZE, Descriptors, pack_head
from protocols.emp.settings import Settings

if TYPE_CHECKING:
    from protocols.emp.receiver import Receiving
    from protocols.emp.sender import Sending

_ETHERNET: Final = 14
MESSAGE_HEADER: Final = 16
"""Bytes of the second header, which only a message's first frame has."""


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

    def unpack_frame(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, memoryview]: ...

    def unpack_message(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, memoryview]: ...

    def unpack_frame_behind(self, raw: Buffer) -> tuple[int, int, int, Buffer]: ...

    def unpack_message_behind(self, raw: Buffer) -> tuple[int, int, int, int, int, int, int, int, Buffer]: ...


NO_QUEUE: Final[list[Sending]] = []
NO_RECEIVING: Final[dict[int, Receiving]] = {}
"""Shared empty initial value, never written to: most of thousands of peers never need a dict of their own."""


class Peer(peers.Peer):
    """Another host's NIC.

    expected: the next message id to be admitted; None until the first header of this incarnation. unit: frames per
    collection of the messages whose frames begin as follows; 0: not known. single: first bytes of a frame that is a
    whole message. middle: first bytes of a frame that is neither the first nor the last of its message.
    """

    __slots__ = (
        "expected", "held", "middle", "next_id", "queue", "receiving", "sending", "single", "unacknowledged", "unit",
    )  # fmt: skip

    def __init__(
        self, number: int, address: bytes, incarnation: int, send: peers.Send, send_later: peers.SendLater
    ) -> None:
        peers.Peer.__init__(self, number, address, incarnation, send, send_later)
        self.unit = 0
        self.single = self.middle = b""
        self.next_id = 0
        self.sending: dict[int, Sending] = {}  # by id, in order, including those not begun
        self.queue = NO_QUEUE  # messages with unsent collections, except parked ones
        self.unacknowledged = 0  # collections, except those of parked messages
        self.expected: int | None = None
        self.receiving = NO_RECEIVING  # by id
        self.held = 0  # messages in `receiving` that have no receive yet


class CachedHeader:
    """Frames of one kind (`codec.TYPE_*`) from one peer that begin with the same bytes, are for this NIC, and belong to
    the last incarnations of both. answer: the first bytes of their acknowledgements."""

    __slots__ = ("answer", "flags", "kind", "peer", "unit")

    def __init__(self, peer: Peer, kind: int, flags: int, unit: int, answer: bytes) -> None:
        self.peer = peer
        self.kind = kind
        self.flags = flags
        self.unit = unit
        self.answer = answer


class Card:
    """One NIC's memory, counters and peers, and its actions."""

    __slots__ = (
        "_pack_frame", "_pack_frame_behind", "adapter", "address", "codec", "counters", "descriptors", "full", "incarnation",
        "memory", "nic", "number", "peers", "prefix_size", "settings", "single", "taken",
    )  # fmt: skip

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        memory: Reachable,
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
        if self.full <= MESSAGE_HEADER:
            raise ValueError(f"an MTU of {adapter.mtu} bytes has no room for EMP's headers")
        self.single = self.full - MESSAGE_HEADER
        """Maximum size of a message that fits in one frame, in bytes."""
        self.prefix_size = codec.PREFIX_SIZE
        self.taken = bytearray(descriptors.count)
        """Flags of the descriptors that the NIC is using: what a host writes into these is ignored."""
        self.peers: peers.Peers[Peer, CachedHeader] = peers.Peers(
            adapter, nic, partial(_make_peer, adapter.addresses), presumes_first=True
        )
        self.codec: Final = codec
        self._pack_frame = codec.pack_frame
        self._pack_frame_behind = codec.pack_frame_behind

    def acknowledge(self, cached: CachedHeader, message: int, frame: int) -> None:
        """Acknowledge a collection. Section 4.1: "the acknowledgement consists of the frame header of one of the frames
        for that collection. Essentially it is the header of the last received frame." """
        cached.peer.send_later(partial(self._pack_frame_behind, cached.answer, message, frame, STATUS_OK))

    def refuse_frame(self, peer: Peer, flags: int, unit: int, message: int, frame: int) -> None:
        """Tell a frame's sender that the frame was meant for an earlier incarnation."""
        peer.send_later(partial(self._answer, peer, flags, unit, message, frame, STATUS_RESTARTED))

    def announce(self, number: int, incarnation: int) -> None:
        """Tell a peer about this incarnation, unasked. number, incarnation: the peer's."""
        peer = self.peers.peer(number)
        to, own, unit = peer.address, self.address, self.settings.unit
        peer.send_later(
            partial(self._pack_frame, to, own, TYPE_ACK, 0, unit, incarnation, self.incarnation, 0, 0, STATUS_RESTARTED)
        )

    def cached(self, peer: Peer, kind: int, flags: int, unit: int) -> CachedHeader:
        """Make the cached header of frames of that kind from a peer."""
        answer = b"" if kind == TYPE_ACK else self._answer(peer, flags, unit, 0, 0, STATUS_OK)[: self.prefix_size]
        return CachedHeader(peer, kind, flags, unit, answer)

    def _answer(self, peer: Peer, flags: int, unit: int, message: int, frame: int, status: int) -> bytes:
        to, own = peer.address, self.address
        sender, receiver = peer.incarnation, self.incarnation
        return self._pack_frame(to, own, TYPE_ACK, flags, unit, sender, receiver, message, frame, status)

    def give_back(self, index: int, status: int, length: int, peer: int, tag: int) -> None:
        """Return a descriptor to the host."""
        self.taken[index] = 0
        pack_head(self.descriptors.memory, index * SIZE, status, 0, 0, length, peer, tag, 0)
        self.nic.post_completion(index)

    def refuse(self, index: int, peer: int, tag: int) -> None:
        """Return an invalid descriptor to the host."""
        self.counters.invalid += 1
        self.give_back(index, stat.INVALID, 0, peer, tag)


def _make_peer(
    addresses: Sequence[bytes], number: int, incarnation: int, send: peers.Send, send_later: peers.SendLater
) -> Peer:
    """Make a peer. A function without the card, so that peers do not keep it alive: see `Peers.admit`."""
    return Peer(number, addresses[number], incarnation, send, send_later)
