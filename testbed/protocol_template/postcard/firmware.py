"""The NIC's firmware: frames, doorbells and the time go in; frames and completions come out.

A card goes to a peer only when the one before it has its receipt, and is sent again while there is none. So a receiver
expects one number; a card with the number before that has lost its receipt. Frames name the incarnations of both NICs: with
`protocols.core.peers`, a NIC that has restarted is noticed, and nothing of its former life is taken for the new one's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocols.core import peers
from protocols.core.firmware import Adapter, FirmwareActions
from protocols.core.malformed import MalformedError
from protocols.core.peers import Peers, Send, SendLater, Standing
from protocols.core.timers import Timers

from .codec import FLAGS_LAST, FRAME_SIZE, KIND_CARD, KIND_NOTICE, KIND_RECEIPT, pack_frame, unpack_frame
from .settings import Settings

ETHERNET: Final = 14
"""Bytes of Ethernet's header, which an MTU does not count."""
NEWS: Final = -1
"""Descriptor that tells the host that something is in its inbox."""
MASK: Final = 0xFFFF_FFFF
"""Numbers of cards have 32 bits, and wrap around."""


@dataclass(slots=True)
class Letter:
    """A descriptor: a message that the host wants sent. arrived: bytes that have their receipts."""

    index: int
    destination: int
    context: int
    tag: int
    data: memoryview
    arrived: int = 0


class Message(NamedTuple):
    """A message for the host."""

    source: int
    context: int
    tag: int
    data: bytes


class Departure(NamedTuple):
    """A notice for the host: a peer has restarted, and the letters to it are lost."""

    peer: int


class Peer(peers.Peer):
    """A peer. letters: to it, the first of them under way. sending: number of the card under way. expected: number of the
    next card from it. parts: of the message that is arriving."""

    __slots__ = ("expected", "letters", "parts", "sending")

    def __init__(self, number: int, address: bytes, incarnation: int, send: Send, send_later: SendLater) -> None:
        super().__init__(number, address, incarnation, send, send_later)
        self.letters: Final[deque[Letter]] = deque()
        self.parts: Final[list[bytes]] = []
        self.sending = self.expected = 0


class Firmware:
    """The firmware of one NIC. letters: descriptors that the host has written. inbox: what the host is to read."""

    def __init__(self, adapter: Adapter, nic: FirmwareActions, settings: Settings) -> None:
        self.letters: Final[dict[int, Letter]] = {}
        self.inbox: Final[deque[Message | Departure]] = deque()
        self._adapter = adapter
        self._nic = nic
        self._settings = settings
        self._room = adapter.mtu + ETHERNET - FRAME_SIZE
        self._timers: Timers[int] = Timers()
        self._counts = {"sent": 0, "resent": 0, "received": 0, "malformed": 0, "stale": 0, "restarts": 0}
        self._peers: Peers[Peer, None] = Peers(adapter, nic, self._make_peer, presumes_first=True)

    @property
    def deadline(self) -> int | None:
        return self._timers.deadline

    def on_doorbell(self, now: int, index: int) -> None:
        letter = self.letters[index]
        peer = self._peers.peer(letter.destination)
        peer.letters.append(letter)
        if len(peer.letters) == 1:
            self._send_card(now, peer)
        self._peers.loopback.run(now, self.receive)

    def on_timer(self, now: int) -> None:
        for number in self._timers.expired(now):
            self._counts["resent"] += 1
            self._send_card(now, self._peers.peer(number))

    def receive(self, now: int, frame: bytes) -> None:
        try:
            to, by, kind, flags, context, sender, receiver, number, tag, payload = unpack_frame(frame)
        except MalformedError:
            self._counts["malformed"] += 1
            return
        peer = self._peers.at(by)
        if to != self._adapter.address or peer is None:  # a switch floods what it has not learnt
            return
        standing = self._peers.classify(now, peer, sender, receiver, self)
        if standing is not Standing.CURRENT:
            self._counts["stale"] += 1
            if standing is Standing.MISDIRECTED and kind != KIND_NOTICE:
                self._send(peer, KIND_NOTICE)
        elif kind == KIND_CARD:
            self._take_card(peer, number, flags, context, tag, payload)
        elif kind == KIND_RECEIPT and peer.letters and number == peer.sending:
            self._take_receipt(now, peer)

    def counted(self) -> Mapping[str, int]:
        return self._counts

    def waiting(self) -> list[str]:
        return [f"a receipt from node {number}" for number, _ in self._timers]

    # What `protocols.core.peers` tells of a peer's incarnation.

    def introduced(self, now: int, peer: Peer) -> None:
        if peer.letters:
            self._send_card(now, peer)

    def restarting(self, peer: Peer) -> None:
        self._counts["restarts"] += 1
        peer.parts.clear()

    def restarted(self, now: int, peer: Peer) -> None:  # noqa: ARG002
        peer.sending = peer.expected = 0
        for letter in peer.letters:
            del self.letters[letter.index]
        peer.letters.clear()
        self._timers.cancel(peer.number)
        self._tell(Departure(peer.number))

    def _take_card(self, peer: Peer, number: int, flags: int, context: int, tag: int, payload: memoryview) -> None:
        if number == peer.expected:
            peer.expected = number + 1 & MASK
            peer.parts.append(bytes(payload))
            if flags & FLAGS_LAST:
                self._counts["received"] += 1
                self._tell(Message(peer.number, context, tag, b"".join(peer.parts)))
                peer.parts.clear()
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
            del self.letters[letter.index]
            self._nic.post_completion(letter.index)
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

    def _tell(self, news: Message | Departure) -> None:
        self.inbox.append(news)
        self._nic.post_completion(NEWS)

    def _make_peer(self, number: int, incarnation: int, send: Send, send_later: SendLater) -> Peer:
        return Peer(number, self._adapter.addresses[number], incarnation, send, send_later)
