"""Receive queues, the target side of RDMA, and the data of RDMA Read responses.

Every access is checked before memory is written: handle, protection tag, bounds and permission of the target memory,
and the permission of the VI; for a Send, and for an RDMA Write with immediate data, that a receive descriptor is
posted. A violation breaks the connection at every reliability level. So does a message without a receive descriptor at
the reliable levels; at the unreliable level the message is dropped (section 2.5 of the specification).
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.memory import Span
from protocols.via.card import (
    AGENT,
    RDMA_READ_ENABLED,
    RDMA_WRITE_ENABLED,
    WRITABLE,
    Card,
    Outgoing,
    Target,
    Vi,
    ViolationError,
)
from protocols.via.codec import FLAGS_IMMEDIATE, FLAGS_LAST, FLAGS_MISSING, TYPE_ACK, TYPE_RDMA_READ, TYPE_READ_REPLY
from protocols.via.connections import Connections
from protocols.via.sender import Sender
from protocols.via.vip_descriptors import MalformedDescriptorError, Segment
from protocols.via.vipl_names import UNRELIABLE, AsyncError, Done

_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 1 << 31
_MAX_REPLIES: Final = 64
"""Maximum number of pending RDMA Reads of a VI's peer; further reads are dropped, and the peer resends them."""


class Receiver:
    """The receiving side of one NIC's VIs."""

    def __init__(self, card: Card, connections: Connections, sender: Sender) -> None:
        self._card = card
        self._connections = connections
        self._sender = sender

    def on_data(
        self,
        vi: Vi,
        kind: int,
        flags: int,
        sequence: int,
        message: int,
        total: int,
        offset: int,
        immediate: int,
        remote: Segment | None,
        payload: Buffer,
    ) -> None:
        """Handle a sequenced frame of a connected VI: data, or an RDMA Read. kind: the frame's type. total: bytes of the
        message. offset: offset of the payload in the message. remote: for RDMA, where the message begins in this host's
        memory."""
        self._card.work.spend(AGENT)
        if vi.reliability == UNRELIABLE:
            if kind in (TYPE_RDMA_READ, TYPE_READ_REPLY):
                self._card.counters.malformed += 1
                return
            if sequence - vi.expected & _MASK >= _HALF:  # a copy, or late: a message arrives at most once (section 2.5)
                self._card.counters.duplicates += 1
                return
            vi.expected = sequence + 1 & _MASK
            if offset and (vi.target is None or vi.target.message != message or vi.stored_bytes != offset):
                self._card.counters.partial += 1
                vi.target = None
                return
            self._store(vi, flags, message, total, offset, immediate, remote, payload)
            return
        ahead = sequence - vi.expected & _MASK
        if ahead:
            self._handle_out_of_order(vi, ahead)
            return
        if kind == TYPE_RDMA_READ:
            is_accepted = remote is not None and self._serve_read(vi, message, total, remote)
        elif kind == TYPE_READ_REPLY:
            is_accepted = self._store_reply(vi, message, total, offset, payload)
        elif offset != (vi.stored_bytes if vi.target is not None else 0):
            self._card.counters.malformed += 1
            is_accepted = False
        else:
            is_accepted = self._store(vi, flags, message, total, offset, immediate, remote, payload)
        if not is_accepted:
            return
        vi.expected = vi.expected + 1 & _MASK
        vi.is_gap_reported = False
        vi.frames_to_acknowledge += 1
        if flags & FLAGS_LAST or vi.frames_to_acknowledge >= self._card.settings.acknowledge:
            self._acknowledge(vi)

    def _handle_out_of_order(self, vi: Vi, ahead: int) -> None:
        if ahead >= _HALF:
            self._card.counters.duplicates += 1
            self._acknowledge(vi)
            return
        self._card.counters.early += 1
        if not vi.is_gap_reported:
            vi.is_gap_reported = True
            self._acknowledge(vi, FLAGS_MISSING)

    def _acknowledge(self, vi: Vi, flags: int = 0) -> None:
        vi.frames_to_acknowledge = 0
        self._card.counters.acknowledgements_sent += 1
        self._card.send_frame(vi, TYPE_ACK, flags, vi.expected)

    def _store(
        self,
        vi: Vi,
        flags: int,
        message: int,
        total: int,
        offset: int,
        immediate: int,
        remote: Segment | None,
        payload: Buffer,
    ) -> bool:
        """Write a frame's data to the message's buffer; the last frame completes the message. Returns False if the frame
        was refused."""
        card, end = self._card, offset + len(payload)
        if end > total or bool(flags & FLAGS_LAST) != (end == total):
            card.counters.malformed += 1
            return False
        consumes_receive = remote is None or bool(flags & FLAGS_IMMEDIATE)
        if consumes_receive and not vi.receives:
            self._handle_missing_receive(vi)
            return False
        target = vi.target
        if target is None or not target.is_of(message, total, remote, card.registration_epoch):
            target = self._check_target(vi, message, total, remote)
            if target is None:
                return False
            vi.target = target
        self._write(target.buffer, offset, payload)
        card.counters.data_stored += 1
        vi.stored_bytes = end
        if end == total:
            self._complete(vi, flags, total, immediate, remote is not None)
        return True

    def _check_target(self, vi: Vi, message: int, total: int, remote: Segment | None) -> Target | None:
        """Check the access to a message's destination. Returns None if the message was refused."""
        card = self._card
        try:
            if remote is not None:
                if not vi.attributes & RDMA_WRITE_ENABLED:
                    raise ViolationError
                buffer: Span = card.view_region(vi.ptag, remote, total, RDMA_WRITE_ENABLED)
            else:
                buffer = card.span(vi.ptag, card.slots.read(vi.receives[0]).data, WRITABLE)
        except (ViolationError, MalformedDescriptorError):
            self._refuse(vi, remote is not None, Done.RDMA_PROT_ERROR if remote is not None else Done.PROTECTION_ERROR)
            return None
        if total > len(buffer):
            self._refuse(vi, False, Done.LENGTH_ERROR)
            return None
        return Target(message, total, remote, card.registration_epoch, buffer)

    def _write(self, buffer: Span, offset: int, payload: Buffer) -> None:
        end = offset + len(payload)
        if isinstance(buffer, memoryview):
            if payload:
                self._card.nic.dma_write(buffer[offset:end], payload)
            return
        start = 0
        for view in buffer.views(offset, end):
            self._card.nic.dma_write(view, payload[start : start + len(view)])
            start += len(view)

    def _serve_read(self, vi: Vi, message: int, total: int, remote: Segment) -> bool:
        """Queue the response to an RDMA Read. Returns False if the read was refused or dropped."""
        card = self._card
        if len(vi.replies) >= _MAX_REPLIES:
            return False
        try:
            if not vi.attributes & RDMA_READ_ENABLED or total > vi.max_transfer:
                raise ViolationError
            span = card.view_region(vi.ptag, remote, total, RDMA_READ_ENABLED)
        except ViolationError:
            card.counters.violations += 1
            self._connections.lose(vi, "violation", AsyncError.RDMAR_PROT, peer_cause=Done.RDMA_PROT_ERROR)
            return False
        reply = Outgoing(
            TYPE_READ_REPLY,
            -1,
            0,
            0,
            None,
            (Segment(remote.address, remote.handle, total),),
            span,
            card.registration_epoch,
        )
        reply.number = message
        vi.replies.append(reply)
        card.counters.reads_served += 1
        return True

    def _store_reply(self, vi: Vi, message: int, total: int, offset: int, payload: Buffer) -> bool:
        """Store data of the oldest RDMA Read. Returns False if the frame was refused."""
        card = self._card
        read = next(
            (outgoing for outgoing in vi.queue if outgoing.kind == TYPE_RDMA_READ and not outgoing.is_finished), None
        )
        if (
            read is None
            or (read.number, read.length, read.received_bytes) != (message, total, offset)
            or offset + len(payload) > total
        ):
            card.counters.malformed += 1
            return False
        try:
            buffer = card.span(vi.ptag, read.segments, WRITABLE)
        except ViolationError:  # the memory has been deregistered meanwhile
            card.counters.violations += 1
            self._connections.lose(vi, "violation", AsyncError.COMP_PROT, Done.PROTECTION_ERROR)
            return False
        self._write(buffer, offset, payload)
        card.counters.data_stored += 1
        read.received_bytes += len(payload)
        if read.received_bytes == total:
            read.is_finished = True
            vi.read_count -= 1
            self._sender.complete(vi)
        return True

    def _complete(self, vi: Vi, flags: int, total: int, immediate: int, is_remote: bool) -> None:
        vi.target = None
        self._card.counters.messages_received += 1
        if is_remote and not flags & FLAGS_IMMEDIATE:
            return
        status = Done.DONE | (Done.COMPLETED_REMOTE_RDMA_WRITE if is_remote else Done.COMPLETED_RECEIVE)
        if flags & FLAGS_IMMEDIATE:
            status |= Done.IMMEDIATE
        self._card.finish(vi.receives.popleft(), status, total, immediate)

    def _handle_missing_receive(self, vi: Vi) -> None:
        self._card.counters.receive_queue_empty += 1
        vi.target = None
        if vi.reliability == UNRELIABLE:
            self._card.report(AsyncError.RECVQ_EMPTY, vi.number)
        else:
            self._connections.lose(
                vi, "no receive descriptor", AsyncError.RECVQ_EMPTY, peer_cause=Done.REMOTE_DESC_ERROR
            )

    def _refuse(self, vi: Vi, is_remote: bool, cause: int) -> None:
        """Break the connection because a message is not permitted. cause: bit of a descriptor's status."""
        card = self._card
        card.counters.violations += 1
        if not is_remote:
            card.finish(vi.receives.popleft(), Done.DONE | Done.COMPLETED_RECEIVE | cause)
        error = AsyncError.RDMAW_PROT if is_remote else AsyncError.COMP_PROT
        self._connections.lose(vi, "violation", error, peer_cause=cause if is_remote else Done.REMOTE_DESC_ERROR)
