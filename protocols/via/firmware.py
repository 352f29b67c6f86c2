"""VIA's firmware: dispatch of frames, doorbells and timers.

A received frame is checked in this order, and dropped and counted at the first check that fails: destination; length and
version; CRC-32; known peer; current incarnations of both NICs (`protocols.core.peers`); connection of a VI. The sender of
data for a connection that does not exist gets an error frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocols.core import firmware
from protocols.core.announcements import Announcements
from protocols.core.firmware import Adapter, FirmwareActions
from protocols.core.malformed import MalformedError
from protocols.core.memory import DmaMemory
from protocols.core.peers import Peer, PeerEvents, Standing
from protocols.via.card import COMPLETED, WRITABLE, Card, Codec, Outgoing, Vi, ViolationError
from protocols.via.codec import (
    FLAGS_MISSING,
    STEP_ACCEPT,
    STEP_DISCONNECT,
    STEP_PEER_REQUEST,
    STEP_REQUEST,
    TYPE_ACK,
    TYPE_CONNECT,
    TYPE_ERROR,
    TYPE_RDMA_READ,
    TYPE_RDMA_WRITE,
    TYPE_READ_REPLY,
    TYPE_SEND,
)
from protocols.via.connections import Connections
from protocols.via.kernel_agent import KernelAgent
from protocols.via.pending_disconnects import DISCONNECT_TIMERS
from protocols.via.receiver import Receiver
from protocols.via.sender import Sender
from protocols.via.settings import Settings
from protocols.via.states import CONNECTED, ERROR, IDLE, PENDING, VACANT
from protocols.via.vip_descriptors import MAX_VIS, MalformedDescriptorError, Queue, Segment, Slots, decode_doorbell
from protocols.via.vipl_names import (
    OP_MASK,
    OP_RDMAREAD,
    OP_RDMAWRITE,
    OP_SENDRECV,
    STATUS_ERRORS,
    UNRELIABLE,
    AsyncError,
    Done,
)

_KINDS: Final = {OP_SENDRECV: TYPE_SEND, OP_RDMAWRITE: TYPE_RDMA_WRITE, OP_RDMAREAD: TYPE_RDMA_READ}
_SEQUENCED: Final = (TYPE_SEND, TYPE_RDMA_WRITE, TYPE_RDMA_READ, TYPE_READ_REPLY)
"""Frame types that are sequenced."""


class Firmware(firmware.Firmware, PeerEvents[Peer]):
    """The firmware of one NIC."""

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        memory: DmaMemory,
        slots: Slots,
        settings: Settings,
        codec: Codec,
        is_vacant: bool = False,
    ) -> None:
        """is_vacant: the NIC has no host yet, and leaves connection requests unanswered; peers resend them."""
        self.settings: Final = settings
        self._card = card = Card(adapter, nic, memory, slots, settings, codec)
        self._connections = Connections(card)
        self._sender = Sender(card, self._connections)
        self._receiver = Receiver(card, self._connections, self._sender)
        self._agent = KernelAgent(card, self._connections)
        if not is_vacant:
            card.step("host attaches")
        self._announcements: Announcements[int] | None = None  # created on demand
        if adapter.is_restarted:  # a peer that does not send would not detect the restart
            self._announcements = Announcements(card.announce)
            for number in range(len(adapter.addresses)):
                if number != adapter.number:
                    self._announcements.begin(number, 0)

    @property
    def deadline(self) -> int | None:
        deadline = self._card.timers.deadline
        if self._announcements is None:
            return deadline
        announcement = self._announcements.timers.deadline
        return announcement if deadline is None or (announcement is not None and announcement < deadline) else deadline

    def counter_values(self) -> Mapping[str, int]:
        return self._card.counters.counter_values()

    def pending_work(self) -> list[str]:
        sending = [
            f"VI {vi.number} has {len(vi.queue)} unacknowledged messages to node {vi.peer.number}"
            for vi in self._card.vis.values()
            if vi.queue and vi.peer is not None
        ]
        return [*self._connections.pending_work(), *sending]

    def receive(self, now: int, frame: bytes) -> None:
        self._handle_frame(now, frame)
        self._flush(now)

    def on_timer(self, now: int) -> None:
        card = self._card
        for key in card.timers.expired(now):
            if key < 0:
                self._agent.expire(~key)
                continue
            if key >= DISCONNECT_TIMERS:
                self._connections.pending_disconnects.on_timer(now, key - DISCONNECT_TIMERS)
                continue
            vi = card.vis[key >> 1]
            if key & 1 and vi.state == CONNECTED:
                self._sender.on_timer(now, vi)
            elif not key & 1 and vi.state == PENDING:
                self._connections.on_timer(now, vi)
        if self._announcements is not None:
            self._announcements.on_timer(now, self.settings.timeout, self.settings.longest_timeout)
        self._flush(now)

    def on_doorbell(self, now: int, index: int) -> None:
        card = self._card
        queue, number, slot = decode_doorbell(index)
        if number >= MAX_VIS or not 0 <= slot < card.slots.count or card.in_use[slot]:
            card.counters.invalid += 1
            return
        if queue == Queue.COMMAND:
            card.in_use[slot] = 1
            self._agent.execute(now, slot)
        elif (vi := card.vis.get(number)) is None:
            card.counters.invalid += 1
            card.finish(slot, Done.DONE | Done.FORMAT_ERROR)
            card.report(AsyncError.POST_DESC, number)
        else:
            card.in_use[slot] = 1
            if queue == Queue.RECEIVE:
                self._post_receive(vi, slot)
            else:
                self._post_send(now, vi, slot)
        self._flush(now)

    def take_over(self, former: Firmware) -> None:
        """Replace the firmware of a host that has ended, and announce the new incarnation to its peers."""
        if former._card.state != VACANT:
            former._card.step("host detaches")
        previous, peers = former._announcements, former._card.peers
        pending = previous.pending() if previous is not None else {}
        if peers.incarnation != self._card.incarnation:
            pending |= {number: peer.incarnation for number, peer in peers.known.items() if peer.incarnation}
        self._announcements = announcements = Announcements(self._card.announce)
        for number, incarnation in pending.items():
            if number != self._card.number:
                announcements.begin(number, incarnation)

    def loop_through_nic(self) -> None:
        """Send loopback frames through the outer NIC, which delivers them and may limit their rate."""
        loopback_peer, nic = self._card.peers.peer(self._card.number), self._card.nic
        loopback_peer.send, loopback_peer.send_later = nic.send, nic.send_later

    def _flush(self, now: int) -> None:
        """Deliver loopback frames, and post completions to the host."""
        card, disconnects = self._card, self._connections.pending_disconnects
        loopback = card.peers.loopback
        if loopback.frames:
            loopback.run(now, self._handle_frame)
        if disconnects.new:
            disconnects.start_timers(now)
        if card.returned:
            card.post_returned()
        if loopback.frames and not loopback.is_running:
            self._flush(now)

    # Frames.

    def _handle_frame(self, now: int, frame: bytes) -> None:
        card, codec = self._card, self._card.codec
        counters = card.counters
        counters.frames_received += 1
        if not frame.startswith(card.address):  # a switch that has not learned the address floods the frame
            counters.strangers += 1
            return
        remote: Segment | None = None
        step = reliability = max_transfer = 0
        try:
            kind = codec.type_of(frame)
            if kind == TYPE_RDMA_WRITE:
                (
                    _, source, flags, sender, receiver, number, session, from_vi, from_session, sequence, message, total,
                    offset, immediate, address, handle, payload,
                ) = codec.unpack_remote(frame)  # fmt: skip
                remote = Segment(address, handle)
            elif kind == TYPE_RDMA_READ:
                (
                    _, source, flags, sender, receiver, number, session, from_vi, from_session, sequence, message, total,
                    offset, immediate, address, handle, payload,
                ) = codec.unpack_read(frame)  # fmt: skip
                remote = Segment(address, handle)
            elif kind == TYPE_CONNECT:
                (
                    _, source, flags, sender, receiver, number, session, from_vi, from_session, sequence, message, total,
                    offset, immediate, step, reliability, max_transfer, payload,
                ) = codec.unpack_connection(frame)  # fmt: skip
            else:
                (
                    _, source, kind, flags, sender, receiver, number, session, from_vi, from_session, sequence, message,
                    total, offset, immediate, payload,
                ) = codec.unpack_frame(frame)  # fmt: skip
        except MalformedError as error:
            if error.reason == "check":
                counters.corrupt += 1
            else:
                counters.malformed += 1
            return
        peer = card.peers.by_address(source)
        if peer is None:
            counters.strangers += 1
            return
        standing = card.peers.classify(now, peer, sender, receiver, self)
        if standing is not Standing.CURRENT:
            counters.stale += 1
            if standing is Standing.MISDIRECTED and kind != TYPE_ERROR:
                # No error for the connection, which may exist: a request of the VI may have been answered meanwhile.
                card.announce(peer.number, peer.incarnation)
            return
        if self._announcements is not None:
            self._announcements.stop(peer.number)
        if step in (STEP_REQUEST, STEP_PEER_REQUEST):
            if card.state == VACANT:
                counters.unconnected += 1
                return
            self._connections.on_request(peer, step, from_vi, from_session, reliability, max_transfer, bytes(payload))
            return
        if step == STEP_DISCONNECT:
            self._connections.on_disconnect(peer, number, session, from_vi, from_session, total)
            self._card.send_unconnected(peer, from_vi, from_session)
            return
        vi = card.vis.get(number)
        if vi is None or vi.peer is not peer or vi.session != session or vi.state in (IDLE, ERROR):
            self._handle_unconnected(peer, session, kind, step, from_vi, from_session)
        elif step:
            self._connections.on_answer(vi, step, from_vi, from_session)
        elif vi.state != CONNECTED:  # data arrived before the answer to the request
            counters.unconnected += 1
        elif kind == TYPE_ACK:
            if vi.reliability != UNRELIABLE:
                self._sender.on_acknowledgement(now, vi, sequence, bool(flags & FLAGS_MISSING))
        elif kind == TYPE_ERROR:
            # The peer still has the connection if it has rejected a frame with wrong numbers, so `lose` notifies it.
            self._connections.lose(vi, "error at the peer", AsyncError.CONN_LOST, total & STATUS_ERRORS)
        else:
            self._receiver.on_data(vi, kind, flags, sequence, message, total, offset, immediate, remote, payload)
            if kind in (TYPE_RDMA_READ, TYPE_READ_REPLY) and vi.state == CONNECTED:
                self._sender.pump(now, vi)

    def _handle_unconnected(
        self, peer: Peer, session: int, kind: int, step: int, from_vi: int, from_session: int
    ) -> None:
        """Handle a frame for a connection that has ended or never existed: resend the disconnect frame, or send an
        error."""
        pending_disconnects = self._connections.pending_disconnects
        if kind == TYPE_ERROR and pending_disconnects.on_confirmation(peer, session):
            return
        self._card.counters.unconnected += 1
        if (kind in _SEQUENCED or step == STEP_ACCEPT) and not pending_disconnects.repeat(session):
            self._card.send_unconnected(peer, from_vi, from_session)

    # Doorbells.

    def _post_receive(self, vi: Vi, slot: int) -> None:
        card = self._card
        status = Done.DONE | Done.COMPLETED_RECEIVE
        try:
            for segment in card.slots.read(slot).data:
                if segment.length:
                    card.view_region(vi.ptag, segment, segment.length, WRITABLE)
        except MalformedDescriptorError:
            self._refuse(slot, status | Done.FORMAT_ERROR)
        except ViolationError:
            self._refuse(slot, status | Done.PROTECTION_ERROR)
        else:
            if vi.state == ERROR:
                card.finish(slot, status | Done.DESC_FLUSHED_ERROR)
            else:
                vi.receives.append(slot)

    def _post_send(self, now: int, vi: Vi, slot: int) -> None:
        card = self._card
        try:
            posted = card.slots.read(slot)
            operation = posted.control & OP_MASK
            span = card.span(vi.ptag, posted.data, WRITABLE if operation == OP_RDMAREAD else 0)
        except MalformedDescriptorError:
            self._refuse(slot, Done.DONE | Done.FORMAT_ERROR)
            return
        except ViolationError:
            self._refuse(slot, Done.DONE | Done.PROTECTION_ERROR)
            return
        kind = _KINDS.get(operation)
        is_read = kind == TYPE_RDMA_READ
        if kind is None or (is_read and (vi.reliability == UNRELIABLE or not self.settings.rdma_read)):
            self._refuse(slot, Done.DONE | Done.FORMAT_ERROR)
        elif len(span) > vi.max_transfer or len(span) != posted.length:
            self._refuse(slot, Done.DONE | Done.LENGTH_ERROR)
        elif vi.state != CONNECTED:
            card.finish(slot, Done.DONE | Done.DESC_FLUSHED_ERROR | COMPLETED[kind])
        else:
            remote = posted.remote if kind != TYPE_SEND else None
            outgoing = Outgoing(
                kind, slot, posted.control, posted.immediate, remote, posted.data, span, card.registration_epoch
            )
            self._sender.post(now, vi, outgoing)

    def _refuse(self, slot: int, status: int) -> None:
        self._card.counters.invalid += 1
        self._card.finish(slot, status)

    # Implements `protocols.core.peers.PeerEvents`.

    def on_peer_introduced(self, now: int, peer: Peer) -> None:  # noqa: ARG002
        self._connections.on_peer_introduced(peer)

    def on_peer_restarting(self, peer: Peer) -> None:
        self._card.counters.restarts += 1
        self._connections.on_peer_restarting(peer)

    def on_peer_restarted(self, now: int, peer: Peer) -> None:  # noqa: ARG002
        self._connections.on_peer_introduced(peer)
