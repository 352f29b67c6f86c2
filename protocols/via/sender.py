"""Send queues: messages segmented into frames and, at the reliable levels, resent until acknowledged.

The reliable levels use go-back-N with cumulative acknowledgements. Ethernet keeps the order of a connection's frames,
so a frame out of order nearly always indicates a loss. The receiver needs no reassembly memory: it writes each frame to
its target at once, in the order that section 2.5 of the specification requires. A frame is acknowledged when its data
is in the target memory, so reliable delivery and reliable reception are the same here.

At the unreliable level a message is complete when its last frame has been sent.

An RDMA Read is sequenced with the other frames, and is complete when its data has arrived. A descriptor with QFENCE
waits until all earlier RDMA Reads are complete. Responses to a peer's RDMA Reads precede local messages: otherwise two
sides with fences would deadlock.
"""

from __future__ import annotations

from typing import Final

from protocols.via.card import AGENT, COMPLETED, RDMA_READ_ENABLED, Card, Outgoing, Vi, ViolationError
from protocols.via.codec import FLAGS_IMMEDIATE, FLAGS_LAST, TYPE_RDMA_READ, TYPE_READ_REPLY
from protocols.via.connections import Connections
from protocols.via.states import CONNECTED
from protocols.via.vipl_names import IMMEDIATE, QFENCE, UNRELIABLE, AsyncError, Done

_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 1 << 31
_MAX_DOUBLINGS: Final = 30


class Sender:
    """The send queues of one NIC."""

    def __init__(self, card: Card, connections: Connections) -> None:
        self._card = card
        self._connections = connections

    def post(self, now: int, vi: Vi, outgoing: Outgoing) -> None:
        """Append a message to a connected VI's queue."""
        outgoing.number = vi.next_message
        vi.next_message = vi.next_message + 1 & _MASK
        vi.queue.append(outgoing)
        vi.unsent.append(outgoing)
        self.pump(now, vi)

    def on_acknowledgement(self, now: int, vi: Vi, sequence: int, is_missing: bool) -> None:
        """Handle an acknowledgement of all frames before `sequence`. is_missing: the receiver has dropped later
        frames."""
        counters, unacknowledged = self._card.counters, vi.unacknowledged
        oldest = unacknowledged[0][0] if unacknowledged else vi.next_sequence
        count = sequence - oldest & _MASK
        if count > len(unacknowledged) or (not count and not is_missing):
            counters.late_acknowledgements += 1
            return
        if count:
            counters.acknowledgements_received += 1
            vi.retries = 0
            vi.progress_time = now
            for _ in range(count):
                unacknowledged.popleft()
            self.complete(vi)
        if is_missing and unacknowledged and vi.resent_from != sequence:
            vi.resent_from = sequence
            self._resend(vi)
        self._set_timer(now, vi)
        if vi.unsent or vi.replies:
            self.pump(now, vi)

    def on_timer(self, now: int, vi: Vi) -> None:
        """Resend the unacknowledged frames after a time-out."""
        settings = self._card.settings
        if settings.give_up and now - vi.progress_time >= settings.give_up:
            self._connections.lose(vi, "gave up", AsyncError.CONN_LOST, Done.TRANSPORT_ERROR)
            return
        self._card.counters.timeouts += 1
        vi.retries += 1
        vi.resent_from = -1
        self._resend(vi)
        self._set_timer(now, vi)

    def _resend(self, vi: Vi) -> None:
        peer = vi.peer
        assert peer is not None
        for _, frame in vi.unacknowledged:
            self._card.counters.frames_resent += 1
            peer.send(frame)

    def _set_timer(self, now: int, vi: Vi) -> None:
        key, settings = vi.number << 1 | 1, self._card.settings
        if vi.unacknowledged:
            delay = min(settings.timeout << min(vi.retries, _MAX_DOUBLINGS), settings.longest_timeout)
            if settings.give_up:
                delay = max(1, min(delay, vi.progress_time + settings.give_up - now))
            self._card.timers.set(key, now + delay)
        else:
            self._card.timers.cancel(key)

    def pump(self, now: int, vi: Vi) -> None:
        """Send frames until the window is full."""
        window = self._card.settings.window
        is_reliable = vi.reliability != UNRELIABLE
        was_empty = not vi.unacknowledged
        while len(vi.unacknowledged) < window:
            unsent = vi.replies or vi.unsent
            if not unsent:
                break
            outgoing = unsent[0]
            if vi.read_count and outgoing.control & QFENCE:
                break
            try:
                frame = self._frame(vi, outgoing)
            except ViolationError:  # the memory was deregistered after the post
                self._card.counters.violations += 1
                error = AsyncError.RDMAR_PROT if outgoing.kind == TYPE_READ_REPLY else AsyncError.COMP_PROT
                self._connections.lose(vi, "violation", error, Done.PROTECTION_ERROR)
                return
            if is_reliable:
                vi.unacknowledged.append((vi.next_sequence, frame))
            vi.next_sequence = vi.next_sequence + 1 & _MASK
            self._card.counters.frames_sent += 1
            peer = vi.peer
            assert peer is not None
            peer.send(frame)
            if outgoing.sent_bytes == outgoing.length:
                outgoing.last = vi.next_sequence - 1 & _MASK
                unsent.popleft()
                if outgoing.kind == TYPE_RDMA_READ:
                    vi.read_count += 1
                if not is_reliable:
                    self.complete(vi)
        if was_empty and vi.unacknowledged and vi.state == CONNECTED:
            vi.progress_time = now
            self._set_timer(now, vi)

    def _frame(self, vi: Vi, outgoing: Outgoing) -> bytes:
        """Build the next frame of a message. Raises ViolationError."""
        card, peer, remote = self._card, vi.peer, outgoing.remote
        assert peer is not None
        card.work.spend(AGENT)
        if outgoing.registration_epoch != card.registration_epoch:
            access = RDMA_READ_ENABLED if outgoing.kind == TYPE_READ_REPLY else 0
            for segment in outgoing.segments:
                card.view_region(vi.ptag, segment, segment.length, access)
            outgoing.registration_epoch = card.registration_epoch
        begin, total = outgoing.sent_bytes, outgoing.length
        if outgoing.kind == TYPE_RDMA_READ:
            outgoing.sent_bytes = total
            assert remote is not None
            return card.codec.pack_read(
                peer.address, card.address, FLAGS_LAST, card.incarnation, peer.incarnation, vi.peer_vi,
                vi.peer_session, vi.number, vi.session, vi.next_sequence, outgoing.number, total, 0, 0, remote.address,
                remote.handle, b"",
            )  # fmt: skip
        end = min(total, begin + (card.max_send if remote is None else card.max_remote))
        span, data = outgoing.span, b""
        if end > begin:
            data = card.nic.dma_read([span[begin:end]] if isinstance(span, memoryview) else span.views(begin, end))
        flags = FLAGS_LAST if end == total else 0
        if outgoing.control & IMMEDIATE:
            flags |= FLAGS_IMMEDIATE
        outgoing.sent_bytes = end
        if remote is None:
            return card.codec.pack_frame(
                peer.address, card.address, outgoing.kind, flags, card.incarnation, peer.incarnation, vi.peer_vi,
                vi.peer_session, vi.number, vi.session, vi.next_sequence, outgoing.number, total, begin, outgoing.immediate,
                data,
            )  # fmt: skip
        return card.codec.pack_remote(
            peer.address, card.address, flags, card.incarnation, peer.incarnation, vi.peer_vi, vi.peer_session,
            vi.number, vi.session, vi.next_sequence, outgoing.number, total, begin, outgoing.immediate, remote.address,
            remote.handle, data,
        )  # fmt: skip

    def complete(self, vi: Vi) -> None:
        """Complete the oldest messages whose frames are all acknowledged (at the unreliable level: sent)."""
        card, queue = self._card, vi.queue
        oldest = vi.unacknowledged[0][0] if vi.unacknowledged else vi.next_sequence
        while queue:
            outgoing = queue[0]
            if outgoing.last is None or not outgoing.is_finished or (oldest - outgoing.last - 1 & _MASK) >= _HALF:
                return
            queue.popleft()
            card.counters.messages_sent += 1
            card.finish(outgoing.slot, Done.DONE | COMPLETED[outgoing.kind], outgoing.length)
