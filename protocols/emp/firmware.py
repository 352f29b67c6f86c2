"""EMP's firmware: dispatch of frames, descriptors and timers.

A frame passes these checks in this order, and is dropped and counted at the first that fails: it is addressed to this NIC;
it is long enough and of this version; its checksum is right; its sender is a known peer; it belongs to the last
incarnations of both NICs (`protocols.core.peers`); unless it is an acknowledgement, the program of its sender has not
crashed. The sender (`sender`) or the receiver (`receiver`) then handles it.

A NIC that has restarted accepts a peer's messages from the oldest one that is not completely acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from protocols.core import firmware
from protocols.core.announcements import Announcements
from protocols.core.firmware import Adapter, FirmwareActions
from protocols.core.malformed import MalformedError
from protocols.core.memory import DmaMemory, Span, UnpinnedError
from protocols.core.peers import PeerEvents, Standing
from protocols.emp import descriptors as stat
from protocols.emp.card import CachedHeader, Card, Codec, Peer
from protocols.emp.codec import STATUS_OK, TYPE_ACK, TYPE_DATA, TYPE_MESSAGE
from protocols.emp.counters import Counters
from protocols.emp.descriptors import SIZE, DescriptorError, Descriptors, unpack_head
from protocols.emp.receiver import PostedReceive, Receiver
from protocols.emp.sender import Sender
from protocols.emp.settings import Settings

_RECEIVE: Final = stat.RECEIVE
_PROBE: Final = stat.PROBE
_EMPTY: Final = memoryview(b"")
_CHECK = "check"  # `MalformedError.reason` for a wrong checksum


class Firmware(firmware.Firmware, PeerEvents[Peer]):
    """The firmware of one NIC."""

    __slots__ = (
        "_announcements",
        "_cached_headers",
        "_card",
        "_codec",
        "_counters",
        "_crashed_peers",
        "_loopback_frames",
        "_node_count",
        "_peers",
        "_prefix_size",
        "_receiver",
        "_sender",
        "_unpack_frame",
        "_unpack_message",
        "settings",
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
        self._card = Card(adapter, nic, memory, descriptors, settings, codec)
        self.settings = settings
        self._announcements: Announcements[int] | None = None  # set by `take_over`
        self._crashed_peers: set[int] = set()  # until a later incarnation is known
        self._sender = Sender(self._card)
        self._receiver = Receiver(self._card)
        self._counters = self._card.counters
        self._node_count = len(adapter.addresses)
        self._peers = self._card.peers
        self._cached_headers = self._peers.cached_headers
        self._loopback_frames = self._peers.loopback.frames
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
        next_announcement = self._announcements.timers.deadline
        if next_announcement is None or (deadline is not None and deadline <= next_announcement):
            return deadline
        return next_announcement

    def counter_values(self) -> Mapping[str, int]:
        return self._card.counters.counter_values()

    def pending_work(self) -> list[str]:
        return [*self._sender.pending_work(), *self._receiver.pending_work()]

    def receive(self, now: int, frame: bytes) -> None:
        counters = self._counters
        counters.frames_received += 1
        cached = self._cached_headers.get(frame[: self._prefix_size])
        if cached is None:
            cached = self._read_header(now, frame)
            if cached is None:
                return
        kind = cached.kind
        try:
            if kind == TYPE_MESSAGE:
                message_id, frame_number, _, source, destination, tag, total, oldest, payload = self._unpack_message(
                    frame
                )
                if frame_number:
                    counters.malformed += 1
                else:
                    self._receiver.on_first_frame(cached, message_id, source, destination, tag, total, oldest, payload)
                return
            message_id, frame_number, status, payload = self._unpack_frame(frame)
        except MalformedError as error:
            self._count_malformed(error)
            return
        if kind == TYPE_DATA:
            self._receiver.on_later_frame(cached, message_id, frame_number, payload)
        elif status == STATUS_OK:
            self._sender.on_acknowledgement(now, cached.peer, message_id, frame_number)
        else:
            counters.stale += 1  # `Peers.admit` has handled the restart

    def _read_header(self, now: int, frame: bytes) -> CachedHeader | None:
        """Read and cache the header of a frame whose header is not cached: a peer's first frame of a kind, for example.
        None: the frame is dropped."""
        card, codec = self._card, self._codec
        if not frame.startswith(card.address):  # a switch that has not learned the address floods the frame
            card.counters.strangers += 1
            return None
        try:
            if codec.type_of(frame) == TYPE_MESSAGE:
                kind = TYPE_MESSAGE
                _, address, flags, unit, sender, receiver, message_id, frame_number, *_ = codec.unpack_message(frame)
            else:
                _, address, kind, flags, unit, sender, receiver, message_id, frame_number, *_ = codec.unpack_frame(
                    frame
                )
        except MalformedError as error:
            self._count_malformed(error)
            return None
        return self._cache_header(now, frame, address, kind, flags, unit, sender, receiver, message_id, frame_number)

    def _cache_header(
        self,
        now: int,
        frame: bytes,
        address: bytes,
        kind: int,
        flags: int,
        unit: int,
        sender: int,
        receiver: int,
        message_id: int,
        frame_number: int,
    ) -> CachedHeader | None:
        """Make the cached header of a frame with these fields, and cache it by the frame's prefix. None: the frame is
        dropped. address: the MAC of its source."""
        card, peers = self._card, self._peers
        counters = card.counters
        peer = peers.by_address(address)
        if not unit:
            counters.malformed += 1
            return None
        if peer is None:
            counters.strangers += 1
            return None
        if kind != TYPE_ACK:
            standing = peers.classify(now, peer, sender, receiver, self)
            if standing is not Standing.CURRENT:
                counters.stale += 1
                if standing is Standing.MISDIRECTED:
                    card.reject_frame(peer, flags, unit, message_id, frame_number)
                return None
            if peer.number in self._crashed_peers:  # the rest of its message will not come
                counters.stale += 1
                return None
        elif sender != card.incarnation or not peers.admit(now, peer, receiver, self):
            counters.stale += 1
            return None
        if self._announcements is not None:
            self._announcements.stop(peer.number)
        cached = card.make_cached_header(peer, kind, flags, unit)
        peers.cache_header(frame[: self._prefix_size], cached)
        return cached

    def _count_malformed(self, error: MalformedError) -> None:
        """Count a frame that is dropped for this error."""
        if error.reason == _CHECK:
            self._card.counters.corrupt += 1
        else:
            self._card.counters.malformed += 1

    def on_doorbell(self, now: int, index: int) -> None:
        """Start the transfer of a descriptor, or execute its command. The doorbells after those of the descriptors cancel
        the descriptors' receives; the doorbells after these report crashed peers."""
        card, descriptors = self._card, self._card.descriptors
        if not 0 <= index < descriptors.count:
            self._on_other_doorbell(index)
            return
        head: stat.Head = unpack_head(descriptors.memory, index * SIZE)
        status, kind, length, address, peer, tag, count = head
        if status != stat.NIC or card.in_use[index]:
            card.counters.invalid += 1  # owned by the host, or already in use: it must not be changed
            return
        card.in_use[index] = 1
        span: Span = _EMPTY
        try:
            if count == 1 and not kind & stat.FORMAT:
                if length:
                    span = card.memory.view(address, length)
            elif kind & stat.FORMAT == stat.SET_UNIT:
                self._set_unit(index, kind, peer, tag)
                return
            else:
                span = descriptors.locate(index, kind, length, address, count, card.memory)
        except (DescriptorError, UnpinnedError):
            card.reject_descriptor(index, peer, tag)
            return
        is_node = peer < self._node_count
        if kind & _RECEIVE and (is_node or peer == stat.ANY_SOURCE):
            receive = PostedReceive(index, peer, tag, kind & stat.ANY_TAG, span)
            if kind < _PROBE:
                self._receiver.post(receive)
            elif kind & stat.PROBE:
                self._receiver.probe(receive, bool(kind & stat.WAIT), bool(kind & stat.CLAIM))
            elif kind & stat.STANDING:
                receive.is_standing = True
                self._receiver.post(receive)
            else:
                self._receiver.post_claimed(receive)
        elif is_node:
            self._sender.begin(now, self._peers.known.get(peer) or self._peers.peer(peer), index, tag, span)
        else:
            card.reject_descriptor(index, peer, tag)
        if self._loopback_frames:
            self._peers.loopback.run(now, self.receive)

    def _on_other_doorbell(self, index: int) -> None:
        """Handle a doorbell that passes no descriptor."""
        descriptor_count = self._card.descriptors.count
        number = index - 2 * descriptor_count
        if descriptor_count <= index < 2 * descriptor_count:
            self._receiver.cancel(index - descriptor_count)
        elif 0 <= number < self._node_count and number != self._card.number:
            self._on_peer_crashed(self._peers.peer(number))
        else:
            self._counters.invalid += 1

    def _on_peer_crashed(self, peer: Peer) -> None:
        """Drop the incomplete messages of a peer whose program has crashed, and data frames that still arrive from it, until
        it has restarted. Acknowledgements from it are accepted: they complete sends."""
        self._crashed_peers.add(peer.number)
        self._cached_headers.clear()
        self._receiver.on_peer_crashed(peer)

    def _set_unit(self, index: int, kind: int, peer: int, unit: int) -> None:
        """Set the frames per collection of messages that begin from now on; messages in flight keep theirs, which their
        frames name. Section 3.1.2: "configuring the unit of acknowledgement on the fly"."""
        try:
            if kind != stat.SET_UNIT:
                raise ValueError(f"a command of kind {kind}")
            # A copy, since NICs of one process may share their settings.
            self.settings = self._card.settings = replace(self.settings, unit=unit)
        except ValueError:
            self._card.reject_descriptor(index, peer, unit)
            return
        self._card.return_descriptor(index, stat.DONE, 0, peer, unit)

    def loop_through_nic(self) -> None:
        """Send frames to this NIC itself by the environment's NIC, which loops them back and may limit their rate."""
        loopback_peer, nic = self._peers.peer(self._peers.number), self._card.nic
        loopback_peer.send, loopback_peer.send_later = nic.send, nic.send_later

    def on_timer(self, now: int) -> None:
        self._sender.on_timer(now)
        if self._announcements is not None:
            self._announcements.on_timer(now, self.settings.timeout, self.settings.longest_timeout)
        if self._loopback_frames:
            self._peers.loopback.run(now, self.receive)

    def take_over(self, former: Firmware) -> None:
        """Take the place of former firmware. If that had an earlier incarnation, its peers are notified at the next
        `on_timer`. If it had the present one, announcements continue to the peers that do not use this incarnation yet."""
        announced, peers = former._announcements, former._peers
        unnotified = announced.pending() if announced is not None else {}
        if peers.incarnation != self._peers.incarnation:
            unnotified |= {number: peer.incarnation for number, peer in peers.known.items() if peer.incarnation}
        self._announcements = announcements = Announcements(self._card.announce)
        for number, incarnation in unnotified.items():
            if number != self._peers.number:
                announcements.begin(number, incarnation)

    # Implements `protocols.core.peers.PeerEvents`.

    def on_peer_introduced(self, now: int, peer: Peer) -> None:
        self._crashed_peers.discard(peer.number)
        peer.unit = 0  # the cached first bytes of frames to it are invalid
        self._sender.on_peer_introduced(now, peer)

    def on_peer_restarting(self, peer: Peer) -> None:
        self._counters.restarts += 1
        self._crashed_peers.discard(peer.number)
        self._receiver.on_peer_restarted(peer)

    def on_peer_restarted(self, now: int, peer: Peer) -> None:
        peer.unit = 0
        self._sender.on_peer_restarted(now, peer)
