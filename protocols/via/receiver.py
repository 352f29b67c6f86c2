"""Receive queues and the target side of RDMA Writes.

Every access is checked before anything is written: handle, protection tag, bounds and permission of the target memory;
for a Send, and for an RDMA Write with immediate data, that a receive descriptor is posted. A violation breaks the
connection at every level of reliability. So does a message without a receive descriptor at the reliable levels; at the
unreliable one it is dropped (section 2.5 of the specification).
"""

from __future__ import annotations

from typing import Final

from protocols.core.memory import Scatter
from protocols.via.card import AGENT, Card, Vi, ViolationError
from protocols.via.codec import FLAGS_IMMEDIATE, FLAGS_LAST, FLAGS_MISSING, TYPE_ACK
from protocols.via.connections import Connections
from protocols.via.vip_descriptors import MalformedDescriptorError, Segment
from protocols.via.vipl_names import AsyncError, Done, Reliability

_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 1 << 31


class Receiver:
    """The receiving side of one NIC's VIs."""

    def __init__(self, card: Card, connections: Connections) -> None:
        self._card = card
        self._connections = connections

    def data(
        self,
        vi: Vi,
        flags: int,
        sequence: int,
        message: int,
        total: int,
        offset: int,
        immediate: int,
        remote: Segment | None,
        payload: memoryview,
    ) -> None:
        """Handle a frame of a connected VI with data. remote: of an RDMA Write, where its message begins."""
        self._card.work.spend(AGENT)
        if vi.reliability == Reliability.UNRELIABLE:
            if offset and (vi.target is None or vi.target[0] != message or vi.stored != offset):
                self._card.counters.partial += 1
                vi.target = None
                return
            self._store(vi, flags, message, total, offset, immediate, remote, payload)
            return
        ahead = sequence - vi.expected & _MASK
        if ahead:
            self._out_of_turn(vi, ahead)
            return
        if offset != (vi.stored if vi.target is not None else 0):
            self._card.counters.malformed += 1
            return
        if not self._store(vi, flags, message, total, offset, immediate, remote, payload):
            return
        vi.expected = vi.expected + 1 & _MASK
        vi.is_gap_told = False
        vi.unconfirmed += 1
        if flags & FLAGS_LAST or vi.unconfirmed >= self._card.settings.acknowledge:
            self._acknowledge(vi)

    def _out_of_turn(self, vi: Vi, ahead: int) -> None:
        if ahead >= _HALF:
            self._card.counters.duplicates += 1
            self._acknowledge(vi)
            return
        self._card.counters.early += 1
        if not vi.is_gap_told:
            vi.is_gap_told = True
            self._acknowledge(vi, FLAGS_MISSING)

    def _acknowledge(self, vi: Vi, flags: int = 0) -> None:
        vi.unconfirmed = 0
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
        payload: memoryview,
    ) -> bool:
        """Write a frame's data to its place, and complete the message. False: it was refused."""
        card, end = self._card, offset + len(payload)
        if end > total or bool(flags & FLAGS_LAST) != (end == total):
            card.counters.malformed += 1
            return False
        takes_receive = remote is None or bool(flags & FLAGS_IMMEDIATE)
        if takes_receive and not vi.receives:
            self._no_receive(vi)
            return False
        try:
            if remote is not None:
                place: Scatter | memoryview = card.reach(vi.ptag, remote, total, remote=True)
            else:
                place = card.span(vi.ptag, card.slots.read(vi.receives[0]).data)
        except (ViolationError, MalformedDescriptorError):
            self._refuse(vi, remote is not None, Done.RDMA_PROT_ERROR if remote is not None else Done.PROTECTION_ERROR)
            return False
        if total > len(place):
            self._refuse(vi, False, Done.LENGTH_ERROR)
            return False
        if not offset:
            vi.target = (message, place)
        if payload:
            if isinstance(place, Scatter):
                at = 0
                for piece in place.pieces(offset, end):
                    card.nic.dma_write(piece, payload[at : at + len(piece)])
                    at += len(piece)
            else:
                card.nic.dma_write(place[offset:end], payload)
        card.counters.data_stored += 1
        vi.stored = end
        if end == total:
            self._complete(vi, flags, total, immediate, remote is not None)
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

    def _no_receive(self, vi: Vi) -> None:
        self._card.counters.receive_queue_empty += 1
        vi.target = None
        if vi.reliability == Reliability.UNRELIABLE:
            self._card.report(AsyncError.RECVQ_EMPTY, vi.number)
        else:
            self._connections.lose(vi, AsyncError.RECVQ_EMPTY, told=Done.REMOTE_DESC_ERROR)

    def _refuse(self, vi: Vi, is_remote: bool, cause: Done) -> None:
        """Break a connection: its peer's message may not be written."""
        card = self._card
        card.counters.violations += 1
        if not is_remote:
            card.finish(vi.receives.popleft(), Done.DONE | Done.COMPLETED_RECEIVE | cause)
        error = AsyncError.RDMAW_PROT if is_remote else AsyncError.COMP_PROT
        self._connections.lose(vi, error, told=cause if is_remote else Done.REMOTE_DESC_ERROR)
