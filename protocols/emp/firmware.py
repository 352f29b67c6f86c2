"""EMP's firmware: what happens to a frame, to a descriptor that the host hands over, and when a timer is over.

A frame is looked at in this order, and dropped (and counted) by the first that it fails: it is long enough and of this
version; its check fits; it is for this NIC, from a known peer; it belongs to this incarnation of both. What remains is
the sender's (`sender`) or the receiver's (`receiver`).

A NIC that starts again has a greater incarnation. It takes messages from the oldest that its peer still has, and a peer
that hears of it returns to its host what was under way: whether such a message had arrived before cannot be known.
A frame names the incarnation that it is meant for, 0 as long as its sender has heard of none. Only incarnation 1 takes a
frame with 0; any later one says first who it is, as the frame may be an old one that an earlier incarnation has had.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from protocols.core.firmware import Adapter, Nic
from protocols.core.memory import HostMemory
from protocols.emp import descriptors as stat
from protocols.emp.card import Card
from protocols.emp.codec import (
    ETHERTYPE,
    FRAME,
    FRAME_SIZE,
    MESSAGE_SIZE,
    STATUS_OK,
    STATUS_RESTARTED,
    TYPE_ACK,
    TYPE_DATA,
    TYPE_MESSAGE,
    VERSION,
)
from protocols.emp.counters import Counters
from protocols.emp.descriptors import DescriptorError, Descriptors
from protocols.emp.receiver import Receiver
from protocols.emp.sender import Sender
from protocols.emp.settings import Settings
from protocols.emp.transfers import Peer, Posted

_MASK = 0xFFFF_FFFF
_FIRST_INCARNATION = 1
_NO_CHECK = bytes(4)
_CHECK = FRAME_SIZE - 4  # the frame header's last field


class Firmware:
    """One NIC's. Implements `protocols.core.firmware.Firmware`."""

    __slots__ = ("_card", "_looping", "_receiver", "_sender", "settings")

    def __init__(
        self, adapter: Adapter, nic: Nic, memory: HostMemory, descriptors: Descriptors, settings: Settings
    ) -> None:
        self._card = Card(adapter, nic, memory, descriptors, settings)
        self.settings = settings
        self._sender = Sender(self._card)
        self._receiver = Receiver(self._card)
        self._looping = False

    @property
    def counters(self) -> Counters:
        return self._card.counters

    @property
    def deadline(self) -> int | None:
        return self._sender.timers.deadline

    def counted(self) -> Mapping[str, int]:
        return self._card.counters.counted()

    def waiting(self) -> list[str]:
        return [*self._sender.waiting(), *self._receiver.waiting()]

    def receive(self, now: int, frame: bytes) -> None:
        self._receive(now, frame)
        if self._card.looped:
            self._loop_back(now)

    def ring(self, now: int, index: int) -> None:
        card = self._card
        if not 0 <= index < card.descriptors.count:
            card.counters.invalid += 1
            return
        head = card.descriptors.read(index)
        if head.stat != stat.NIC or card.taken[index]:
            card.counters.invalid += 1  # it is not the NIC's, or in use since before: neither may be touched
            return
        card.taken[index] = 1
        try:
            scatter = card.descriptors.scatter(index, head, card.memory)
        except DescriptorError:
            card.give_back(index, stat.INVALID, 0, head.peer, head.tag)
            return
        if head.kind & stat.RECEIVE:
            if head.peer >= len(card.adapter.addresses) and head.peer != stat.ANY_SOURCE:
                card.give_back(index, stat.INVALID, 0, head.peer, head.tag)
                return
            self._receiver.post(Posted(index, head.peer, head.tag, bool(head.kind & stat.ANY_TAG), scatter))
        elif head.peer >= len(card.adapter.addresses):
            card.give_back(index, stat.INVALID, 0, head.peer, head.tag)
        else:
            self._sender.begin(now, card.peer(head.peer), index, head.tag, scatter)
        if card.looped:
            self._loop_back(now)

    def tick(self, now: int) -> None:
        self._sender.tick(now)
        if self._card.looped:
            self._loop_back(now)

    def _receive(self, now: int, frame: bytes) -> None:
        card = self._card
        counters = card.counters
        counters.frames_received += 1
        if len(frame) < FRAME_SIZE:
            counters.malformed += 1
            return
        (
            destination, source, ethertype, version, kind, flags, unit, sender, receiver, message, number, length,
            status, check,
        ) = FRAME.unpack_from(frame)  # fmt: skip
        end = (MESSAGE_SIZE if kind == TYPE_MESSAGE else FRAME_SIZE) + length
        if ethertype != ETHERTYPE or version != VERSION or end > len(frame) or not unit:
            counters.malformed += 1
            return
        if crc32(frame[FRAME_SIZE:end], crc32(_NO_CHECK, crc32(frame[:_CHECK]))) != check:
            counters.corrupt += 1
            return
        known = card.numbers.get(source)
        if known is None or destination != card.address:
            counters.strangers += 1
            return
        peer = card.peers.get(known) or card.peer(known)
        own = card.adapter.incarnation
        if kind == TYPE_ACK:
            if sender != own or not self._knows(now, peer, receiver):
                counters.stale += 1
            elif status == STATUS_OK:
                self._sender.acknowledged(now, peer, message, number)
            elif status == STATUS_RESTARTED:
                counters.stale += 1  # `_knows` has done what there is to do
            else:
                counters.malformed += 1
        elif kind in (TYPE_MESSAGE, TYPE_DATA):
            if not self._knows(now, peer, sender):
                counters.stale += 1
            elif receiver != own and (receiver or own != _FIRST_INCARNATION):
                counters.stale += 1
                card.acknowledge(peer, frame, STATUS_RESTARTED)
            else:
                self._receiver.data(peer, frame, kind, flags, unit, message, number, length)
        else:
            counters.malformed += 1

    def _knows(self, now: int, peer: Peer, incarnation: int) -> bool:
        """Whether it is the peer's last incarnation; a later one than was known becomes that."""
        if incarnation == peer.incarnation:
            return incarnation != 0
        if peer.incarnation:
            if (incarnation - peer.incarnation) & _MASK >= 1 << 31:
                return False
            self._card.counters.restarts += 1
            self._receiver.restarted(peer)
            peer.incarnation = incarnation
            self._sender.restarted(now, peer)
        elif incarnation:
            peer.incarnation = incarnation
            if incarnation != _FIRST_INCARNATION:
                self._sender.introduced(now, peer)
        return incarnation != 0

    def _loop_back(self, now: int) -> None:
        """What the NIC sends to itself. A host that posts upon what it is shown finds this going on already."""
        if self._looping:
            return
        self._looping = True
        looped = self._card.looped
        try:
            while looped:
                self._receive(now, looped.popleft())
        finally:
            self._looping = False
