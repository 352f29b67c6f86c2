"""VIA's firmware: dispatch of frames, doorbells and timers; the kernel agent's commands.

A frame is checked in this order, and dropped and counted at the first check that fails: it is long enough and of this
version; its check is right; it is for this NIC, from a known peer; it belongs to the last incarnations of both
(`protocols.core.peers`); it belongs to a VI's connection. The sender of data for a connection that does not exist is
told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from protocols.core.announcements import Announcements
from protocols.core.firmware import Adapter, FirmwareActions
from protocols.core.malformed import MalformedError
from protocols.core.memory import Reachable, UnpinnedError
from protocols.core.peers import Peer, Standing
from protocols.via.card import REGISTER, Card, Codec, Outgoing, Region, Vi, ViolationError
from protocols.via.codec import (
    FLAGS_MISSING,
    STEP_PEER_REQUEST,
    STEP_REQUEST,
    TYPE_ACK,
    TYPE_CONNECT,
    TYPE_ERROR,
    TYPE_RDMA_WRITE,
    TYPE_SEND,
)
from protocols.via.connections import Connections
from protocols.via.receiver import Receiver
from protocols.via.sender import Sender
from protocols.via.settings import Settings
from protocols.via.vip_descriptors import Command, MalformedDescriptorError, Op, Queue, Segment, Slots, rung
from protocols.via.vipl_names import (
    OP_MASK,
    OP_RDMAREAD,
    OP_RDMAWRITE,
    AsyncError,
    Done,
    Reliability,
    Result,
    ViState,
)

RDMA_WRITE_ENABLED: Final = 1
"""Attribute of registered memory: peers may write there by RDMA."""
_MAX_VIS: Final = 65_536


class Firmware:
    """The firmware of one NIC. Implements `protocols.core.firmware.Firmware`."""

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        memory: Reachable,
        slots: Slots,
        settings: Settings,
        codec: Codec,
        is_vacant: bool = False,
    ) -> None:
        """is_vacant: it has no host yet, and leaves connection requests unanswered, so that they come again."""
        self.settings: Final = settings
        self._is_vacant = is_vacant
        self._card = card = Card(adapter, nic, memory, slots, settings, codec)
        self._connections = Connections(card)
        self._sender = Sender(card, self._connections)
        self._receiver = Receiver(card, self._connections)
        self._announcements: Announcements | None = None  # made when it succeeds other firmware

    @property
    def deadline(self) -> int | None:
        deadline = self._card.timers.deadline
        if self._announcements is None:
            return deadline
        other = self._announcements.timers.deadline
        return other if deadline is None or (other is not None and other < deadline) else deadline

    def counted(self) -> Mapping[str, int]:
        return self._card.counters.counted()

    def waiting(self) -> list[str]:
        sending = [
            f"VI {vi.number} has {len(vi.queue)} messages to node {vi.peer.number} that are not acknowledged"
            for vi in self._card.vis.values()
            if vi.queue and vi.peer is not None
        ]
        return [*self._connections.waiting(), *sending]

    def receive(self, now: int, frame: bytes) -> None:
        self._take(now, frame)
        self._settle(now)

    def on_timer(self, now: int) -> None:
        card = self._card
        for key in card.timers.expired(now):
            vi = card.vis[key >> 1]
            if key & 1 and vi.state is ViState.CONNECTED:
                self._sender.on_timer(now, vi)
            elif not key & 1 and vi.state is ViState.CONNECT_PENDING:
                self._connections.on_timer(now, vi)
        if self._announcements is not None:
            self._announcements.on_timer(now, self.settings.timeout, self.settings.longest_timeout)
        self._settle(now)

    def on_doorbell(self, now: int, index: int) -> None:
        card = self._card
        queue, number, slot = rung(index)
        if not 0 <= slot < card.slots.count or card.taken[slot]:
            card.counters.invalid += 1
            return
        if queue == Queue.COMMAND:
            card.taken[slot] = 1
            self._command(now, slot)
        elif (vi := card.vis.get(number)) is None:
            card.counters.invalid += 1
            card.finish(slot, Done.DONE | Done.FORMAT_ERROR)
        else:
            card.taken[slot] = 1
            if queue == Queue.RECEIVE:
                self._post_receive(vi, slot)
            else:
                self._post_send(now, vi, slot)
        self._settle(now)

    def succeed(self, former: Firmware) -> None:
        """Take the place of former firmware, whose host has ended: peers that it knew are told of the new incarnation."""
        told, peers = former._announcements, former._card.peers
        untold = told.left() if told is not None else {}
        if peers.incarnation != self._card.incarnation:
            untold |= {number: peer.incarnation for number, peer in peers.known.items() if peer.incarnation}
        self._announcements = announcements = Announcements(self._announce)
        for number, incarnation in untold.items():
            if number != self._card.number:
                announcements.begin(number, incarnation)

    def loop_outside(self) -> None:
        """Send frames to this NIC itself by the outer NIC, too, which delivers them and may limit their rate."""
        own, nic = self._card.peers.peer(self._card.number), self._card.nic
        own.send, own.send_later = nic.send, nic.send_later

    def _settle(self, now: int) -> None:
        """Deliver frames to this NIC itself, and show the host what is returned to it."""
        loopback = self._card.peers.loopback
        if loopback.frames:
            loopback.run(now, self._take)
        self._card.show_returned()
        if loopback.frames and not loopback.is_running:
            self._settle(now)

    # Frames.

    def _take(self, now: int, frame: bytes) -> None:
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
                    _, by, flags, sender, receiver, number, session, from_vi, from_session, sequence, message, total,
                    offset, immediate, address, handle, payload,
                ) = codec.unpack_remote(frame)  # fmt: skip
                remote = Segment(address, handle)
            elif kind == TYPE_CONNECT:
                (
                    _, by, flags, sender, receiver, number, session, from_vi, from_session, sequence, message, total,
                    offset, immediate, step, reliability, max_transfer, payload,
                ) = codec.unpack_connection(frame)  # fmt: skip
            else:
                (
                    _, by, kind, flags, sender, receiver, number, session, from_vi, from_session, sequence, message,
                    total, offset, immediate, payload,
                ) = codec.unpack_frame(frame)  # fmt: skip
        except MalformedError as error:
            if error.reason == "check":
                counters.corrupt += 1
            else:
                counters.malformed += 1
            return
        peer = card.peers.at(by)
        if peer is None:
            counters.strangers += 1
            return
        standing = card.peers.look(now, peer, sender, receiver, self)
        if standing is not Standing.CURRENT:
            counters.stale += 1
            if standing is Standing.MISDIRECTED and kind != TYPE_ERROR:
                self._disown(peer, from_vi, from_session)
            return
        if self._announcements is not None:
            self._announcements.heard(peer.number)
        if step in (STEP_REQUEST, STEP_PEER_REQUEST):
            self._connections.requested(peer, step, from_vi, from_session, reliability, max_transfer, bytes(payload))
            return
        vi = card.vis.get(number)
        if vi is None or vi.peer is not peer or vi.session != session:
            counters.unconnected += 1
            if kind in (TYPE_SEND, TYPE_RDMA_WRITE):
                self._disown(peer, from_vi, from_session)
        elif step:
            self._connections.answered(vi, step, from_vi, from_session)
        elif vi.state is not ViState.CONNECTED:
            counters.unconnected += 1
            if kind in (TYPE_SEND, TYPE_RDMA_WRITE) and vi.state is ViState.ERROR:
                self._disown(peer, from_vi, from_session)
        elif kind == TYPE_ACK:
            if vi.reliability != Reliability.UNRELIABLE:
                self._sender.acknowledged(now, vi, sequence, bool(flags & FLAGS_MISSING))
        elif kind == TYPE_ERROR:
            self._connections.lose(vi, AsyncError.CONN_LOST, total & 0x1FE, is_told=False)
        else:
            self._receiver.data(vi, flags, sequence, message, total, offset, immediate, remote, payload)

    def _disown(self, peer: Peer, vi: int, session: int) -> None:
        """Tell a peer that there is no such connection here, or not in this incarnation."""
        card = self._card
        peer.send_later(
            partial(
                card.codec.pack_frame, peer.address, card.address, TYPE_ERROR, 0, card.incarnation, peer.incarnation,
                vi, session, 0, 0, 0, 0, int(Done.TRANSPORT_ERROR), 0, 0,
            )
        )  # fmt: skip

    def _announce(self, number: int, incarnation: int) -> None:
        """Tell a peer about this incarnation, unasked. incarnation: the peer's."""
        card = self._card
        peer = card.peers.peer(number)
        peer.send_later(
            partial(
                card.codec.pack_frame, peer.address, card.address, TYPE_ERROR, 0, card.incarnation, incarnation, 0, 0,
                0, 0, 0, 0, 0, 0, 0,
            )
        )  # fmt: skip

    # Doorbells.

    def _post_receive(self, vi: Vi, slot: int) -> None:
        card = self._card
        status = Done.DONE | Done.COMPLETED_RECEIVE
        try:
            card.span(vi.ptag, card.slots.read(slot).data)
        except MalformedDescriptorError:
            self._refuse(slot, status | Done.FORMAT_ERROR)
        except ViolationError:
            self._refuse(slot, status | Done.PROTECTION_ERROR)
        else:
            if vi.state is ViState.ERROR:
                card.finish(slot, status | Done.DESC_FLUSHED_ERROR)
            else:
                vi.receives.append(slot)

    def _post_send(self, now: int, vi: Vi, slot: int) -> None:
        card = self._card
        try:
            posted = card.slots.read(slot)
            span = card.span(vi.ptag, posted.data)
        except MalformedDescriptorError:
            self._refuse(slot, Done.DONE | Done.FORMAT_ERROR)
            return
        except ViolationError:
            self._refuse(slot, Done.DONE | Done.PROTECTION_ERROR)
            return
        operation = posted.control & OP_MASK
        if operation >= OP_RDMAREAD:  # an option of the specification, which these providers do not have
            self._refuse(slot, Done.DONE | Done.FORMAT_ERROR)
        elif len(span) > vi.max_transfer or len(span) != posted.length:
            self._refuse(slot, Done.DONE | Done.LENGTH_ERROR)
        elif vi.state is not ViState.CONNECTED:
            card.finish(slot, Done.DONE | Done.DESC_FLUSHED_ERROR)
        else:
            remote = posted.remote if operation == OP_RDMAWRITE else None
            outgoing = Outgoing(slot, posted.control, posted.immediate, remote, posted.data, span)
            self._sender.post(now, vi, outgoing)

    def _refuse(self, slot: int, status: int) -> None:
        self._card.counters.invalid += 1
        self._card.finish(slot, status)

    def _command(self, now: int, slot: int) -> None:
        """Carry out a command. Those that wait are answered later."""
        card, command = self._card, self._card.slots.read_command(slot)
        op = command.op
        if op == Op.WAIT:
            self._connections.wait(slot, command.name)
        elif op == Op.NEXT_ERROR:
            card.await_error(slot)
        elif op == Op.REJECT:
            self._connections.reject(slot, command)
        elif op in (Op.CONNECT, Op.CONNECT_PEER, Op.ACCEPT, Op.DISCONNECT, Op.DESTROY_VI):
            vi = card.vis.get(command.vi)
            if vi is None:
                card.answer(slot, Result.INVALID_PARAMETER, command)
            else:
                self._command_vi(now, slot, vi, command)
        else:
            result = self._command_memory(command)
            if result is not Result.SUCCESS:
                card.counters.invalid += 1
            card.answer(slot, result, command)

    def _command_vi(self, now: int, slot: int, vi: Vi, command: Command) -> None:
        """Carry out a command for a VI."""
        card, op = self._card, command.op
        if op == Op.DISCONNECT:
            self._connections.disconnect(vi)
            card.answer(slot, Result.SUCCESS, command)
        elif vi.state is not ViState.IDLE:
            card.answer(slot, Result.INVALID_STATE, command)
        elif op == Op.DESTROY_VI:
            if vi.receives or vi.queue:
                card.answer(slot, Result.ERROR_RESOURCE, command)
            else:
                del card.vis[vi.number]
                card.answer(slot, Result.SUCCESS, command)
        elif op == Op.ACCEPT:
            self._connections.accept(slot, vi, command)
        elif command.number >= card.nodes:
            card.answer(slot, Result.NOT_REACHABLE, command)
        else:
            self._connections.connect(now, slot, vi, command)

    def _command_memory(self, command: Command) -> Result:
        """Carry out a command for protection tags, memory or a new VI."""
        card = self._card
        op, number, ptag = command.op, command.number, command.ptag
        if op in (Op.REGISTER, Op.DEREGISTER):
            card.work.spend(REGISTER, command.size)
        if op == Op.CREATE_PTAG:
            card.ptags.add(ptag)
        elif op == Op.DESTROY_PTAG:
            if ptag not in card.ptags:
                return Result.INVALID_PARAMETER
            if any(region.ptag == ptag for region in card.regions.values()) or any(
                vi.ptag == ptag for vi in card.vis.values()
            ):
                return Result.ERROR_RESOURCE
            card.ptags.discard(ptag)
        elif op == Op.REGISTER:
            if ptag not in card.ptags:
                return Result.INVALID_PTAG
            if number in card.regions:
                return Result.INVALID_PARAMETER
            try:
                card.memory.view(command.address, command.size)
            except UnpinnedError:
                return Result.INVALID_PARAMETER
            is_writable = bool(command.value & RDMA_WRITE_ENABLED)
            card.regions[number] = Region(command.address, command.size, ptag, is_writable)
        elif op == Op.DEREGISTER:
            if card.regions.pop(number, None) is None:
                return Result.INVALID_PARAMETER
        elif op == Op.CREATE_VI:
            return self._create_vi(command)
        else:
            return Result.ERROR_NOT_SUPPORTED
        return Result.SUCCESS

    def _create_vi(self, command: Command) -> Result:
        card, settings = self._card, self.settings
        if command.ptag not in card.ptags:
            return Result.INVALID_PTAG
        if command.vi in card.vis or command.vi >= _MAX_VIS:
            return Result.INVALID_PARAMETER
        if command.value not in [int(level) for level in Reliability] or command.value > settings.reliability:
            return Result.INVALID_RELIABILITY_LEVEL
        if not 0 < command.size <= settings.max_transfer:
            return Result.INVALID_MTU
        card.vis[command.vi] = Vi(command.vi, command.ptag, command.value, command.size)
        return Result.SUCCESS

    # Implements `protocols.core.peers.PeerEvents`.

    def introduced(self, now: int, peer: Peer) -> None:  # noqa: ARG002
        self._connections.introduced(peer)

    def restarting(self, peer: Peer) -> None:
        self._card.counters.restarts += 1
        self._connections.restarting(peer)

    def restarted(self, now: int, peer: Peer) -> None:  # noqa: ARG002
        self._connections.introduced(peer)
