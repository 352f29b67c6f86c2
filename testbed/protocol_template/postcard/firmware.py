"""The NIC's firmware: frames, doorbells and the time go in; frames and completions come out.

A card goes to a peer only when the one before it has its receipt, and is sent again while there is none. So a receiver
expects one number; a card with the number before that has lost its receipt. A card for which the host has given no memory
gets no receipt, and so is resent. Frames name the incarnations of both NICs: with `protocols.core.peers`, a NIC that has
restarted is noticed, and nothing of its former life is taken for the new one's.
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
"""Bytes of Ethernet's header, which an MTU does not count."""
MASK: Final = 0xFFFF_FFFF
"""Numbers of cards have 32 bits, and wrap around."""


def room_of(adapter: Adapter) -> int:
    """Return the bytes of a message that a card has room for."""
    return adapter.mtu + ETHERNET - FRAME_SIZE


@dataclass(slots=True)
class Letter:
    """A message that the host wants sent. index: index of its descriptor. arrived: bytes that have their receipts."""

    index: int
    context: int
    tag: int
    data: memoryview
    arrived: int = 0


class Peer(peers.Peer):
    """A peer. letters: to it, the first of them in flight. sending: number of the card in flight. expected: number of the
    next card from it."""

    __slots__ = ("expected", "letters", "sending")

    def __init__(self, number: int, address: bytes, incarnation: int, send: Send, send_later: SendLater) -> None:
        super().__init__(number, address, incarnation, send, send_later)
        self.letters: Final[deque[Letter]] = deque()
        self.sending = self.expected = 0


class Firmware:
    """The firmware of one NIC."""

    def __init__(
        self, adapter: Adapter, nic: FirmwareActions, memory: DmaMemory, descriptors: Descriptors, settings: Settings
    ) -> None:
        """memory, descriptors: the host's."""
        self._adapter = adapter
        self._nic = nic
        self._settings = settings
        self._room = room_of(adapter)
        self._timers: Timers[int] = Timers()
        self._counts = {"sent": 0, "resent": 0, "received": 0, "malformed": 0, "stale": 0, "restarts": 0}
        self._peers: Peers[Peer, None] = Peers(adapter, nic, self._make_peer, presumes_first=True)
        self._announcements: Announcements[int] = Announcements(self._announce)
        self.attach(memory, descriptors)

    def attach(self, memory: DmaMemory, descriptors: Descriptors) -> None:
        """Serve a host, which has given no descriptor to the NIC yet."""
        self._memory = memory
        self._descriptors = descriptors
        self._owned: set[int] = set()  # descriptors that are the NIC's
        self._for_cards: deque[tuple[int, memoryview]] = deque()  # of them those for cards, with their memory
        self._unreported_restarts: set[int] = set()  # restarted peers that have not been reported to the host

    def take_over(self, former: Firmware) -> None:
        """Take the place of firmware whose host has ended: tell the peers that it knew of the new incarnation."""
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
            self._take_letter(now, Letter(index, descriptor.context, descriptor.tag, data), descriptor)
        elif len(data) < self._room:
            self._return(index, descriptor._replace(outcome=Outcome.INVALID))
        else:
            self._for_cards.append((index, data))
            self._tell_restarts()

    def on_timer(self, now: int) -> None:
        for number in self._timers.expired(now):
            self._counts["resent"] += 1
            self._send_card(now, self._peers.peer(number))
        self._announcements.on_timer(now, self._settings.resend, 16 * self._settings.resend)

    def receive(self, now: int, frame: bytes) -> None:
        try:
            to, by, kind, flags, context, sender, receiver, number, tag, payload = unpack_frame(frame)
        except MalformedError:
            self._counts["malformed"] += 1
            return
        peer = self._peers.by_address(by)
        if to != self._adapter.address or peer is None:  # a switch floods what it has not learnt
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
        elif kind == KIND_RECEIPT and peer.letters and number == peer.sending:
            self._take_receipt(now, peer)

    def counter_values(self) -> Mapping[str, int]:
        return self._counts

    def pending_work(self) -> list[str]:
        return [f"a receipt from node {number}" for number, _ in self._timers]

    # What `protocols.core.peers` tells of a peer's incarnation.

    def on_peer_introduced(self, now: int, peer: Peer) -> None:
        if peer.letters:
            self._send_card(now, peer)

    def on_peer_restarting(self, peer: Peer) -> None:
        self._counts["restarts"] += 1
        self._unreported_restarts.add(peer.number)

    def on_peer_restarted(self, now: int, peer: Peer) -> None:  # noqa: ARG002
        peer.sending = peer.expected = 0
        for letter in peer.letters:
            self._return(letter.index, Descriptor(peer.number, letter.arrived, outcome=Outcome.LOST))
        peer.letters.clear()
        self._timers.cancel(peer.number)
        self._tell_restarts()

    def _take_letter(self, now: int, letter: Letter, descriptor: Descriptor) -> None:
        if descriptor.peer >= len(self._adapter.addresses) or descriptor.peer == self._adapter.number:
            self._return(letter.index, descriptor._replace(outcome=Outcome.INVALID))
            return
        peer = self._peers.peer(descriptor.peer)
        peer.letters.append(letter)
        if len(peer.letters) == 1:
            self._send_card(now, peer)

    def _take_card(self, peer: Peer, number: int, flags: int, context: int, tag: int, payload: Buffer) -> None:
        if number == peer.expected:
            if not self._for_cards or len(payload) > self._room:
                return
            peer.expected = number + 1 & MASK
            index, place = self._for_cards.popleft()
            if payload:
                self._nic.dma_write(place[: len(payload)], payload)
            self._return(index, Descriptor(peer.number, len(payload), 0, context, tag, flags))
            self._counts["received"] += flags & FLAGS_LAST
        elif number != peer.expected - 1 & MASK:
            return  # an older copy
        self._send(peer, KIND_RECEIPT, number)

    def _take_receipt(self, now: int, peer: Peer) -> None:
        letter = peer.letters[0]
        letter.arrived = min(letter.arrived + self._room, len(letter.data))
        peer.sending = peer.sending + 1 & MASK
        self._timers.cancel(peer.number)
        if letter.arrived == len(letter.data):
            peer.letters.popleft()
            self._return(letter.index, Descriptor(peer.number, letter.arrived))
        if peer.letters:
            self._send_card(now, peer)

    def _send_card(self, now: int, peer: Peer) -> None:
        letter = peer.letters[0]
        part = letter.data[letter.arrived : letter.arrived + self._room]
        flags = FLAGS_LAST if letter.arrived + len(part) == len(letter.data) else 0
        self._counts["sent"] += 1
        self._timers.set(peer.number, now + self._settings.resend)
        data = self._nic.dma_read([part]) if part else b""
        self._send(peer, KIND_CARD, peer.sending, flags, letter.context, letter.tag, data)

    def _send(
        self, peer: Peer, kind: int, number: int = 0, flags: int = 0, context: int = 0, tag: int = 0, data: bytes = b""
    ) -> None:
        own, incarnation = self._adapter.address, self._peers.incarnation
        peer.send(pack_frame(peer.address, own, kind, flags, context, incarnation, peer.incarnation, number, tag, data))

    def _announce(self, number: int, incarnation: int) -> None:
        """Tell a peer, which has been in that incarnation, that this NIC begins a new one."""
        peer, own = self._peers.peer(number), self._adapter.address
        peer.send(pack_frame(peer.address, own, KIND_NOTICE, 0, 0, self._peers.incarnation, incarnation, 0, 0))

    def _tell_restarts(self) -> None:
        """Tell the host which peers have restarted, as far as it has given memory: before any card of their new lives."""
        while self._unreported_restarts and self._for_cards:
            number = self._unreported_restarts.pop()
            self._return(self._for_cards.popleft()[0], Descriptor(number, 0, outcome=Outcome.LOST))

    def _return(self, index: int, descriptor: Descriptor) -> None:
        """Return a descriptor to the host."""
        self._owned.remove(index)
        self._descriptors.write(index, descriptor)
        self._nic.post_completion(index)

    def _make_peer(self, number: int, incarnation: int, send: Send, send_later: SendLater) -> Peer:
        return Peer(number, self._adapter.addresses[number], incarnation, send, send_later)
