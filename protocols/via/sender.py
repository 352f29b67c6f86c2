"""Send queues: messages cut into frames and, at the reliable levels, resent until acknowledged.

The reliable levels use go-back-N with cumulative acknowledgements: a connection's frames have one order, which Ethernet
keeps, so a frame out of turn nearly always means a loss. The receiver then needs no memory for frames, and writes each
into its target at once, in the order that section 2.5 of the specification requires. A frame is acknowledged when its
data is in the target memory, so reliable delivery and reliable reception are one.

At the unreliable level a message is complete when its last frame has been sent.

An RDMA Read takes a place in this order, and is complete when its data has come. A descriptor with QFENCE waits until all
RDMA Reads before it are complete. The answers to a peer's RDMA Reads go before this side's own messages: behind them, two
sides with fences would wait for each other.
"""

from __future__ import annotations

from typing import Final

from protocols.via.card import AGENT, COMPLETED, RDMA_READ_ENABLED, Card, Outgoing, Vi, ViolationError
from protocols.via.codec import FLAGS_IMMEDIATE, FLAGS_LAST, TYPE_RDMA_READ, TYPE_READ_REPLY
from protocols.via.connections import Connections
from protocols.via.states import CONNECTED
from protocols.via.vipl_names import IMMEDIATE, QFENCE, AsyncError, Done, Reliability

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
        outgoing.number = vi.message
        vi.message = vi.message + 1 & _MASK
        vi.queue.append(outgoing)
        vi.unsent.append(outgoing)
        self.pump(now, vi)

    def acknowledged(self, now: int, vi: Vi, sequence: int, is_missing: bool) -> None:
        """Handle an acknowledgement of all frames before `sequence`. is_missing: later ones have come, and were dropped."""
        counters, waiting = self._card.counters, vi.unacknowledged
        oldest = waiting[0][0] if waiting else vi.sequence
        news = sequence - oldest & _MASK
        if news > len(waiting) or (not news and not is_missing):
            counters.late_acknowledgements += 1
            return
        if news:
            counters.acknowledgements_received += 1
            vi.tries = 0
            vi.heard_at = now
            for _ in range(news):
                waiting.popleft()
            self.complete(vi)
        if is_missing and waiting and vi.resent_from != sequence:
            vi.resent_from = sequence
            self._resend(vi)
        self._set_timer(now, vi)
        self.pump(now, vi)

    def on_timer(self, now: int, vi: Vi) -> None:
        """Resend what has been unacknowledged for too long."""
        settings = self._card.settings
        if settings.give_up and now - vi.heard_at >= settings.give_up:
            self._connections.lose(vi, "gave up", AsyncError.CONN_LOST, Done.TRANSPORT_ERROR)
            return
        self._card.counters.timeouts += 1
        vi.tries += 1
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
            delay = min(settings.timeout << min(vi.tries, _MAX_DOUBLINGS), settings.longest_timeout)
            if settings.give_up:
                delay = max(1, min(delay, vi.heard_at + settings.give_up - now))
            self._card.timers.set(key, now + delay)
        else:
            self._card.timers.cancel(key)

    def pump(self, now: int, vi: Vi) -> None:
        """Send frames, as far as the window permits."""
        window = self._card.settings.window
        is_reliable = vi.reliability != Reliability.UNRELIABLE
        was_empty = not vi.unacknowledged
        while len(vi.unacknowledged) < window:
            unsent = vi.replies or vi.unsent
            if not unsent:
                break
            outgoing = unsent[0]
            if vi.reads and outgoing.control & QFENCE:
                break
            try:
                frame = self._frame(vi, outgoing)
            except ViolationError:  # the memory has been deregistered meanwhile
                self._card.counters.violations += 1
                error = AsyncError.RDMAR_PROT if outgoing.kind == TYPE_READ_REPLY else AsyncError.COMP_PROT
                self._connections.lose(vi, "violation", error, Done.PROTECTION_ERROR)
                return
            if is_reliable:
                vi.unacknowledged.append((vi.sequence, frame))
            vi.sequence = vi.sequence + 1 & _MASK
            self._card.counters.frames_sent += 1
            peer = vi.peer
            assert peer is not None
            peer.send(frame)
            if outgoing.sent == outgoing.length:
                outgoing.last = vi.sequence - 1 & _MASK
                unsent.popleft()
                if outgoing.kind == TYPE_RDMA_READ:
                    vi.reads += 1
                if not is_reliable:
                    self.complete(vi)
        if was_empty and vi.unacknowledged and vi.state == CONNECTED:
            vi.heard_at = now
            self._set_timer(now, vi)

    def _frame(self, vi: Vi, outgoing: Outgoing) -> bytes:
        """Make a message's next frame. Raises ViolationError."""
        card, peer, remote = self._card, vi.peer, outgoing.remote
        assert peer is not None
        card.work.spend(AGENT)
        if outgoing.registration_epoch != card.registration_epoch:
            access = RDMA_READ_ENABLED if outgoing.kind == TYPE_READ_REPLY else 0
            for segment in outgoing.segments:
                card.reach(vi.ptag, segment, segment.length, access)
            outgoing.registration_epoch = card.registration_epoch
        begin, total = outgoing.sent, outgoing.length
        if outgoing.kind == TYPE_RDMA_READ:
            outgoing.sent = total
            assert remote is not None
            return card.codec.pack_read(
                peer.address, card.address, FLAGS_LAST, card.incarnation, peer.incarnation, vi.peer_vi,
                vi.peer_session, vi.number, vi.session, vi.sequence, outgoing.number, total, 0, 0, remote.address,
                remote.handle, b"",
            )  # fmt: skip
        end = min(total, begin + (card.max_send if remote is None else card.max_remote))
        data = card.nic.dma_read(outgoing.span.views(begin, end)) if end > begin else b""
        flags = FLAGS_LAST if end == total else 0
        if outgoing.control & IMMEDIATE:
            flags |= FLAGS_IMMEDIATE
        outgoing.sent = end
        if remote is None:
            return card.codec.pack_frame(
                peer.address, card.address, outgoing.kind, flags, card.incarnation, peer.incarnation, vi.peer_vi,
                vi.peer_session, vi.number, vi.session, vi.sequence, outgoing.number, total, begin, outgoing.immediate,
                data,
            )  # fmt: skip
        return card.codec.pack_remote(
            peer.address, card.address, flags, card.incarnation, peer.incarnation, vi.peer_vi, vi.peer_session,
            vi.number, vi.session, vi.sequence, outgoing.number, total, begin, outgoing.immediate, remote.address,
            remote.handle, data,
        )  # fmt: skip

    def complete(self, vi: Vi) -> None:
        """Complete the oldest messages, as far as all their frames are acknowledged, or at the unreliable level sent."""
        card, queue = self._card, vi.queue
        oldest = vi.unacknowledged[0][0] if vi.unacknowledged else vi.sequence
        while queue:
            outgoing = queue[0]
            if outgoing.last is None or not outgoing.is_finished or (oldest - outgoing.last - 1 & _MASK) >= _HALF:
                return
            queue.popleft()
            card.counters.messages_sent += 1
            card.finish(outgoing.slot, Done.DONE | COMPLETED[outgoing.kind], outgoing.length)
