"""EMP's firmware: what happens to a frame, to a descriptor that the host hands over, and when a timer is over.

A frame is looked at in this order, and dropped (and counted) by the first that it fails: it is long enough and of this
version; its check fits; it is for this NIC, from a known peer; it belongs to this incarnation of both. What remains is
the sender's (`sender`) or the receiver's (`receiver`).

A NIC that starts again has a greater incarnation. It takes messages from the oldest that its peer still has, and a peer
that hears of it returns to its host what was under way: whether such a message had arrived before cannot be known.
A frame names the incarnation that it is meant for, and no other one takes it: so no message is received by two. To whom it
has not heard of, a NIC that counts and has not started again (`Adapter.incarnation`) writes as to one of its kind; any other
one names 0, which nobody takes: who gets such a frame says who it is, and what nobody can have had is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocols.core.firmware import Actions, Adapter, Buffer
from protocols.core.malformed import MalformedError
from protocols.core.memory import Reachable, Span, UnpinnedError
from protocols.emp import descriptors as stat
from protocols.emp.announcements import Announcements
from protocols.emp.card import Card, Codec
from protocols.emp.codec import STATUS_OK, TYPE_ACK, TYPE_DATA, TYPE_MESSAGE
from protocols.emp.counters import Counters
from protocols.emp.descriptors import SIZE, DescriptorError, Descriptors, unpack_head
from protocols.emp.host_transfers import IN_USE
from protocols.emp.receiver import Receiver
from protocols.emp.sender import Sender
from protocols.emp.settings import Settings
from protocols.emp.transfers import Lane, Peer, Posted

_MASK = 0xFFFF_FFFF
_NIC: Final = stat.NIC
_RECEIVE: Final = stat.RECEIVE
_PROBE: Final = stat.PROBE
_NOTHING: Final = memoryview(b"")
_MOST_LANES = 128
"""Whoever hears from many NICs keeps those only that it hears from now."""
_CHECK = "check"  # the field that does not fit where bits were changed on the way


class Firmware:
    """One NIC's. Implements `protocols.core.firmware.Firmware`."""

    __slots__ = (
        "_announcements", "_card", "_codec", "_counters", "_lanes", "_looping", "_nodes", "_prefix_size", "_receiver",
        "_sender", "_unpack_frame", "_unpack_message", "settings",
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
        self._card = Card(adapter, nic, memory, descriptors, settings, codec)
        self.settings = settings
        self._announcements: Announcements | None = None  # of who has come in the place of another one
        self._sender = Sender(self._card)
        self._receiver = Receiver(self._card)
        self._looping = False
        self._counters = self._card.counters
        self._nodes = len(adapter.addresses)
        self._lanes: dict[bytes, Lane] = {}  # by how their frames begin
        self._prefix_size = codec.PREFIX_SIZE
        self._codec = codec
        self._unpack_frame = codec.unpack_frame_behind
        self._unpack_message = codec.unpack_message_behind

    @property
    def counters(self) -> Counters:
        return self._card.counters

    @property
    def deadline(self) -> int | None:
        deadline = self._sender.timers.deadline
        if self._announcements is None:
            return deadline
        other = self._announcements.timers.deadline
        return other if deadline is None or (other is not None and other < deadline) else deadline

    def counted(self) -> Mapping[str, int]:
        return self._card.counters.counted()

    def waiting(self) -> list[str]:
        return [*self._sender.waiting(), *self._receiver.waiting()]

    def receive(self, now: int, frame: bytes) -> None:
        counters = self._counters
        counters.frames_received += 1
        lane = self._lanes.get(frame[: self._prefix_size])
        if lane is None:
            self._look_closely(now, frame)
            return
        try:
            if lane.kind == TYPE_MESSAGE:
                message, number, _, source, destination, tag, total, oldest, payload = self._unpack_message(frame)
                if number:
                    counters.malformed += 1
                else:
                    self._receiver.first(lane, message, source, destination, tag, total, oldest, payload)
                return
            message, number, status, payload = self._unpack_frame(frame)
        except MalformedError as error:
            self._dropped(error)
            return
        self._take(now, lane, message, number, status, payload)

    def _take(self, now: int, lane: Lane, message: int, number: int, status: int, payload: Buffer) -> None:
        """A frame that is not a message's first."""
        if lane.kind == TYPE_DATA:
            self._receiver.another(lane, message, number, payload)
        elif status == STATUS_OK:
            self._sender.acknowledged(now, lane.peer, message, number)
        else:
            self._counters.stale += 1  # `_knows` has done what there is to do

    def _look_closely(self, now: int, frame: bytes) -> None:
        """As none has begun like this frame since the last incarnation of a peer was heard of."""
        card, codec = self._card, self._codec
        counters = card.counters
        if not frame.startswith(card.address):  # a switch that has not learned yet sends frames to all
            counters.strangers += 1
            return
        try:
            if codec.type_of(frame) == TYPE_MESSAGE:
                (
                    _, by, flags, unit, sender, receiver, message, number, _, source, destination, tag, total, oldest,
                    payload,
                ) = codec.unpack_message(frame)  # fmt: skip
                lane = self._lane(now, frame, by, TYPE_MESSAGE, flags, unit, sender, receiver, message, number)
                if lane is None:
                    return
                if number:
                    counters.malformed += 1
                else:
                    self._receiver.first(lane, message, source, destination, tag, total, oldest, payload)
                return
            _, by, kind, flags, unit, sender, receiver, message, number, status, payload = codec.unpack_frame(frame)
        except MalformedError as error:
            self._dropped(error)
            return
        lane = self._lane(now, frame, by, kind, flags, unit, sender, receiver, message, number)
        if lane is not None:
            self._take(now, lane, message, number, status, payload)

    def _lane(
        self,
        now: int,
        frame: bytes,
        by: bytes,
        kind: int,
        flags: int,
        unit: int,
        sender: int,
        receiver: int,
        message: int,
        number: int,
    ) -> Lane | None:
        """Of a frame whose fields are these, and of those that will begin like it; None: it is dropped."""
        card = self._card
        counters = card.counters
        peer = card.peers_by_address.get(by) or card.peer_at(by)
        if not unit:
            counters.malformed += 1
            return None
        if peer is None:
            counters.strangers += 1
            return None
        if kind != TYPE_ACK:
            if not self._belongs(now, peer, sender, receiver, flags, unit, message, number):
                return None
        elif sender != card.incarnation or not self._knows(now, peer, receiver):
            counters.stale += 1
            return None
        if self._announcements is not None:
            self._announcements.heard(peer)
        if len(self._lanes) >= _MOST_LANES:
            self._lanes.clear()
        self._lanes[frame[: self._prefix_size]] = lane = card.lane(peer, kind, flags, unit)
        return lane

    def _dropped(self, error: MalformedError) -> None:
        if error.reason == _CHECK:
            self._card.counters.corrupt += 1
        else:
            self._card.counters.malformed += 1

    def ring(self, now: int, index: int) -> None:
        card = self._card
        handed = card.handed.get(index)
        if handed is not None:
            if handed.status != _NIC:
                card.counters.invalid += 1
                return
            handed.status = IN_USE
            kind, peer, tag = handed.kind, handed.peer, handed.tag
            span: Span = handed.span
        elif (written := self._written(index)) is not None:
            kind, peer, tag, span = written
        else:
            return
        known = peer < self._nodes
        if kind & _RECEIVE and (known or peer == stat.ANY_SOURCE):
            posted = Posted(index, peer, tag, kind & stat.ANY_TAG, span)
            if kind < _PROBE:
                self._receiver.post(posted)
            elif kind & stat.PROBE:
                self._receiver.probe(posted, bool(kind & stat.WAIT), bool(kind & stat.CLAIM))
            else:
                self._receiver.post_claimed(posted)
        elif known:
            self._sender.begin(now, card.peers.get(peer) or card.peer(peer), index, tag, span)
        else:
            card.refuse(index, peer, tag)
        if card.looped:
            self._loop_back(now)

    def _written(self, index: int) -> tuple[int, int, int, Span] | None:
        """What a descriptor says: kind, peer, tag, and where the message is in host memory. None: no more is to be done
        about it."""
        card, descriptors = self._card, self._card.descriptors
        many = descriptors.count
        if not 0 <= index < many:
            if many <= index < 2 * many:
                self._receiver.take_back(index - many)
            else:
                card.counters.invalid += 1
            return None
        status, kind, length, address, peer, tag, count = unpack_head(descriptors.memory, index * SIZE)
        if status != stat.NIC or card.taken[index]:
            card.counters.invalid += 1  # it is not the NIC's, or in use since before: neither may be touched
            return None
        card.taken[index] = 1
        try:
            if count == 1 and not kind & stat.FORMAT:
                return kind, peer, tag, card.memory.view(address, length) if length else _NOTHING
            return kind, peer, tag, descriptors.scatter(index, kind, length, address, count, card.memory)
        except (DescriptorError, UnpinnedError):
            card.refuse(index, peer, tag)
            return None

    def loop_outside(self) -> None:
        """What the NIC sends to itself leaves it, too: whoever has it brings it back, and may do so a little at a time."""
        card = self._card
        own = card.peer(card.number)
        own.send, own.send_later = card.nic.send, card.nic.send_later

    def tick(self, now: int) -> None:
        self._sender.tick(now)
        if self._announcements is not None:
            self._announcements.tick(now)
        if self._card.looped:
            self._loop_back(now)

    def succeed(self, former: Firmware) -> None:
        """Come in the place of another one: of a former incarnation, whose peers are told at the next tick who is here now;
        or of the same, and those are told again that have not shown yet that they know."""
        card, told = self._card, former._announcements
        untold = told.left() if told is not None else {}
        if former._card.incarnation != card.incarnation:
            untold |= {number: peer.incarnation for number, peer in former._card.peers.items() if peer.incarnation}
        self._announcements = announcements = Announcements(card)
        for number, incarnation in untold.items():
            if number != card.number:
                announcements.begin(number, incarnation)

    def _belongs(
        self, now: int, peer: Peer, sender: int, receiver: int, flags: int, unit: int, message: int, number: int
    ) -> bool:
        """Whether a message's frame is from and for the last incarnations of both; its sender is told if not."""
        card = self._card
        if not self._knows(now, peer, sender):
            card.counters.stale += 1
            return False
        if receiver != card.incarnation:
            card.counters.stale += 1
            card.refuse_frame(peer, flags, unit, message, number)
            return False
        return True

    def _knows(self, now: int, peer: Peer, incarnation: int) -> bool:
        """Whether it is the peer's last incarnation; a later one than was known, or presumed, becomes that."""
        if incarnation == peer.incarnation or not incarnation:
            return incarnation != 0
        if peer.incarnation:
            if (incarnation - peer.incarnation) & _MASK >= 1 << 31:
                return False
            self._card.counters.restarts += 1
            self._receiver.restarted(peer)
            self._greet(peer, incarnation)
            self._sender.restarted(now, peer)
        else:
            self._greet(peer, incarnation)
            self._sender.introduced(now, peer)
        return True

    def _greet(self, peer: Peer, incarnation: int) -> None:
        """A peer is another one than before: so is how frames begin, from it and to it. No frame was taken from one of whom
        nothing was known."""
        if peer.incarnation:
            self._lanes.clear()
        peer.incarnation = incarnation
        peer.unit = 0

    def _loop_back(self, now: int) -> None:
        """What the NIC sends to itself. A host that posts upon what it is shown finds this going on already."""
        if self._looping:
            return
        self._looping = True
        looped = self._card.looped
        try:
            while looped:
                self.receive(now, looped.popleft())
        finally:
            self._looping = False
