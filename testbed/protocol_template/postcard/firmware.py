"""The NIC's firmware: frames, doorbells and the time go in; frames and completions come out.

A card is sent to a peer once the previous card has its receipt, and is resent until its own receipt arrives. So a receiver
expects one number; a card with the preceding number is a copy, whose receipt was lost or is late, and gets another receipt.
A card for which the host has provided no receive buffer gets no receipt, and is resent later. Frames have the incarnations
of both NICs: by these, `protocols.core.peers` detects restarts, and frames of an earlier incarnation are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocols.core import peers
from protocols.core.announcements import Announcements
from protocols.core.firmware import Adapter, Buffer, FirmwareActions
from protocols.core.malformed import MalformedError
from protocols.core.memory import DmaMemory, UnpinnedError
from protocols.core.peers import Peers, Send, SendLater, Standing
from protocols.core.timers import Timers

from .codec import FLAGS_LAST, FRAME_SIZE, KIND_CARD, KIND_NOTICE, KIND_RECEIPT, pack_frame, unpack_frame
from .descriptors import COUNT, SENDS, Descriptor, Descriptors, Outcome
from .settings import Settings

ETHERNET: Final = 14
"""Bytes of the Ethernet header, which an MTU does not include."""
MASK: Final = 0xFFFF_FFFF
"""Numbers of cards have 32 bits, and wrap around."""


def max_payload(adapter: Adapter) -> int:
    """Return the maximum number of a message's bytes in a card."""
    return adapter.mtu + ETHERNET - FRAME_SIZE


@dataclass(slots=True)
class OutgoingMessage:
    """A message to send. index: index of its descriptor. acknowledged: bytes whose cards have their receipts."""

    index: int
    context: int
    tag: int
    data: memoryview
    acknowledged: int = 0


class Peer(peers.Peer):
    """A peer. outgoing: messages to it, the first of them in flight. sending: number of the card in flight. expected: number
    of the next card from it."""

    __slots__ = ("expected", "outgoing", "sending")

    def __init__(self, number: int, address: bytes, incarnation: int, send: Send, send_later: SendLater) -> None:
        super().__init__(number, address, incarnation, send, send_later)
        self.outgoing: Final[deque[OutgoingMessage]] = deque()
        self.sending = self.expected = 0


class Firmware:
    """The firmware of one NIC."""

    def __init__(
        self, adapter: Adapter, nic: FirmwareActions, memory: DmaMemory, descriptors: Descriptors, settings: Settings
    ) -> None:
        """memory, descriptors: those of the host."""
        self._adapter = adapter
        self._nic = nic
        self._settings = settings
        self._max_payload = max_payload(adapter)
        self._timers: Timers[int] = Timers()
        self._counts = {"sent": 0, "resent": 0, "received": 0, "malformed": 0, "stale": 0, "restarts": 0}
        self._peers: Peers[Peer, None] = Peers(adapter, nic, self._make_peer, presumes_first=True)
        self._announcements: Announcements[int] = Announcements(self._announce)
        self.attach(memory, descriptors)

    def attach(self, memory: DmaMemory, descriptors: Descriptors) -> None:
        """Serve a host, which has given no descriptor to the NIC yet."""
        self._memory = memory
        self._descriptors = descriptors
        self._owned: set[int] = set()  # indices of the descriptors that the NIC owns
        self._receive_buffers: deque[tuple[int, memoryview]] = deque()  # index of the descriptor, memory
        self._unreported_restarts: set[int] = set()  # restarted peers that have not been reported to the host

    def take_over(self, former: Firmware) -> None:
        """Replace firmware whose host has ended: announce the new incarnation to the peers that the former one knew."""
        known = {number: peer.incarnation for number, peer in former._peers.known.items() if peer.incarnation}
        for number, incarnation in (former._announcements.pending() | known).items():
            if number != self._adapter.number:
                self._announcements.begin(number, incarnation)

    @property
    def deadline(self) -> int | None:
        deadlines = [self._timers.deadline, self._announcements.timers.deadline]
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def on_doorbell(self, now: int, index: int) -> None:
        if not 0 <= index < COUNT or index in self._owned:
            return
        self._owned.add(index)
        descriptor = self._descriptors.read(index)
        try:
            data = self._memory.view(descriptor.address, descriptor.length)
        except UnpinnedError:
            self._return(index, descriptor._replace(outcome=Outcome.INVALID))
            return
        if index < SENDS:
            self._queue_message(now, OutgoingMessage(index, descriptor.context, descriptor.tag, data), descriptor)
        elif len(data) < self._max_payload:
            self._return(index, descriptor._replace(outcome=Outcome.INVALID))
        else:
            self._receive_buffers.append((index, data))
            self._report_restarts()

    def on_timer(self, now: int) -> None:
        for number in self._timers.expired(now):
            self._counts["resent"] += 1
            self._send_card(now, self._peers.peer(number))
        self._announcements.on_timer(now, self._settings.resend, 16 * self._settings.resend)

    def receive(self, now: int, frame: bytes) -> None:
        try:
            destination, source, kind, flags, context, sender, receiver, number, tag, payload = unpack_frame(frame)
        except MalformedError:
            self._counts["malformed"] += 1
            return
        peer = self._peers.by_address(source)
        if destination != self._adapter.address or peer is None:  # a switch floods frames to addresses not yet learnt
            return
        standing = self._peers.classify(now, peer, sender, receiver, self)
        if standing is not Standing.CURRENT:
            self._counts["stale"] += 1
            if standing is Standing.MISDIRECTED and kind != KIND_NOTICE:
                self._send(peer, KIND_NOTICE)
            return
        self._announcements.stop(peer.number)
        if kind == KIND_CARD:
            self._take_card(peer, number, flags, context, tag, payload)
        elif kind == KIND_RECEIPT and peer.outgoing and number == peer.sending:
            self._take_receipt(now, peer)

    def counter_values(self) -> Mapping[str, int]:
        return self._counts

    def pending_work(self) -> list[str]:
        return [f"a receipt from node {number}" for number, _ in self._timers]

    # Callbacks of `protocols.core.peers`.

    def on_peer_introduced(self, now: int, peer: Peer) -> None:
        if peer.outgoing:
            self._send_card(now, peer)

    def on_peer_restarting(self, peer: Peer) -> None:
        self._counts["restarts"] += 1
        self._unreported_restarts.add(peer.number)

    def on_peer_restarted(self, now: int, peer: Peer) -> None:  # noqa: ARG002
        peer.sending = peer.expected = 0
        for message in peer.outgoing:
            self._return(message.index, Descriptor(peer.number, message.acknowledged, outcome=Outcome.LOST))
        peer.outgoing.clear()
        self._timers.cancel(peer.number)
        self._report_restarts()

    def _queue_message(self, now: int, message: OutgoingMessage, descriptor: Descriptor) -> None:
        if descriptor.peer >= len(self._adapter.addresses) or descriptor.peer == self._adapter.number:
            self._return(message.index, descriptor._replace(outcome=Outcome.INVALID))
            return
        peer = self._peers.peer(descriptor.peer)
        peer.outgoing.append(message)
        if len(peer.outgoing) == 1:
            self._send_card(now, peer)

    def _take_card(self, peer: Peer, number: int, flags: int, context: int, tag: int, payload: Buffer) -> None:
        if number == peer.expected:
            if not self._receive_buffers or len(payload) > self._max_payload:
                return
            peer.expected = number + 1 & MASK
            index, buffer = self._receive_buffers.popleft()
            if payload:
                self._nic.dma_write(buffer[: len(payload)], payload)
            self._return(index, Descriptor(peer.number, len(payload), 0, context, tag, flags))
            self._counts["received"] += flags & FLAGS_LAST
        elif number != peer.expected - 1 & MASK:
            return  # an older copy
        self._send(peer, KIND_RECEIPT, number)

    def _take_receipt(self, now: int, peer: Peer) -> None:
        message = peer.outgoing[0]
        message.acknowledged = min(message.acknowledged + self._max_payload, len(message.data))
        peer.sending = peer.sending + 1 & MASK
        self._timers.cancel(peer.number)
        if message.acknowledged == len(message.data):
            peer.outgoing.popleft()
            self._return(message.index, Descriptor(peer.number, message.acknowledged))
        if peer.outgoing:
            self._send_card(now, peer)

    def _send_card(self, now: int, peer: Peer) -> None:
        message = peer.outgoing[0]
        part = message.data[message.acknowledged : message.acknowledged + self._max_payload]
        flags = FLAGS_LAST if message.acknowledged + len(part) == len(message.data) else 0
        self._counts["sent"] += 1
        self._timers.set(peer.number, now + self._settings.resend)
        data = self._nic.dma_read([part]) if part else b""
        self._send(peer, KIND_CARD, peer.sending, flags, message.context, message.tag, data)

    def _send(
        self, peer: Peer, kind: int, number: int = 0, flags: int = 0, context: int = 0, tag: int = 0, data: bytes = b""
    ) -> None:
        own, incarnation = self._adapter.address, self._peers.incarnation
        peer.send(pack_frame(peer.address, own, kind, flags, context, incarnation, peer.incarnation, number, tag, data))

    def _announce(self, number: int, incarnation: int) -> None:
        """Announce this NIC's new incarnation to a peer. incarnation: the peer's last known one."""
        peer, own = self._peers.peer(number), self._adapter.address
        peer.send(pack_frame(peer.address, own, KIND_NOTICE, 0, 0, self._peers.incarnation, incarnation, 0, 0))

    def _report_restarts(self) -> None:
        """Report restarted peers to the host, one by each receive buffer: before any card of their new incarnations."""
        while self._unreported_restarts and self._receive_buffers:
            number = self._unreported_restarts.pop()
            self._return(self._receive_buffers.popleft()[0], Descriptor(number, 0, outcome=Outcome.LOST))

    def _return(self, index: int, descriptor: Descriptor) -> None:
        """Return a descriptor to the host."""
        self._owned.remove(index)
        self._descriptors.write(index, descriptor)
        self._nic.post_completion(index)

    def _make_peer(self, number: int, incarnation: int, send: Send, send_later: SendLater) -> Peer:
        return Peer(number, self._adapter.addresses[number], incarnation, send, send_later)
