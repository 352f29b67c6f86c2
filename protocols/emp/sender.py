"""The sending half of EMP's firmware: collections, their timers, and acknowledgements.

Section 4.1: a message is sent as collections of frames. When a collection's frames have been sent, its timer starts;
when it expires, all frames of the collection are sent again; when every collection has been acknowledged, the host is
notified. Acknowledgements are not cumulative: one for a later collection says nothing about an earlier one.

The window of unacknowledged collections is ours. So is the rule that keeps messages whose receives are not posted from
blocking those behind them: a message of which nothing is acknowledged when its first collection times out is parked. It
leaves the window to the messages behind it. Of its collections only the first, which has the header, is resent by its
timer; the others follow the first acknowledgement. So the headers of all messages reach the receiver, in order, at the
cost of one timeout for each window of messages without receives.
"""

from __future__ import annotations

from functools import partial

from protocols.core.firmware import Buffer
from protocols.core.memory import Span
from protocols.core.timers import Timers
from protocols.emp import descriptors as stat
from protocols.emp.card import MESSAGE_HEADER, NO_QUEUE, Card, Peer
from protocols.emp.codec import FLAGS_LAST, STATUS_OK, TYPE_DATA

Collection = tuple[int, int, int]
"""Peer, message id, number of the collection."""

_MASK = 0xFFFF_FFFF


class Framing:
    """Division of a message into frames, and of frames into collections.

    The first frame holds less data, since it has two headers: frame n of a message, unless it is the last, ends before
    byte (n + 1) * full - MESSAGE_HEADER.

    total: bytes of the message. full: bytes of payload of a full frame. unit: frames per collection; the last one may
    be short.
    """

    __slots__ = ("collections", "frames", "full", "total", "unit")

    def __init__(self, total: int, full: int, unit: int) -> None:
        self.total = total
        self.full = full
        self.unit = unit
        self.frames = frames = (total + MESSAGE_HEADER + full - 1) // full
        self.collections = (frames + unit - 1) // unit

    def size_of(self, collection: int) -> int:
        """Return the number of a collection's frames."""
        return min(self.unit, self.frames - collection * self.unit)


class Sending(Framing):
    """An outgoing message. sent: collections sent at least once. open: collections sent and not acknowledged, with
    their number of resends. left: collections not acknowledged, sent or not. parked: nothing of it was acknowledged in
    time (see `sender`). progress: time of its last acknowledgement, or of its first sending."""

    __slots__ = ("id", "index", "left", "open", "parked", "progress", "sent", "span", "tag")

    def __init__(self, identity: int, index: int, tag: int, span: Span, full: int, unit: int) -> None:
        Framing.__init__(self, len(span), full, unit)
        self.id = identity
        self.index = index
        self.tag = tag
        self.span = span
        self.sent = 0
        self.left = self.collections
        self.open: dict[int, int] = {}
        self.parked = False
        self.progress = 0


class Sender:
    """All outgoing messages."""

    __slots__ = ("_card", "_pack_frame", "_pack_frame_behind", "_pack_message", "_pack_message_behind", "timers")

    def __init__(self, card: Card) -> None:
        self._card = card
        self._pack_frame = card.codec.pack_frame
        self._pack_message = card.codec.pack_message
        self._pack_frame_behind = card.codec.pack_frame_behind
        self._pack_message_behind = card.codec.pack_message_behind
        self.timers: Timers[Collection] = Timers()

    def begin(self, now: int, peer: Peer, index: int, tag: int, span: Span) -> None:
        """Begin a message that the host has posted. Messages to one peer are begun in the order of these calls."""
        card = self._card
        settings = card.settings
        identity, unit = peer.next_id, settings.unit
        waits = peer.queue or peer.unacknowledged >= settings.window
        single = not waits and len(span) <= card.single
        remains = None
        if single:  # sent before the bookkeeping, which delays nobody
            remains = self._send_single(peer, unit, identity, tag, span)
        peer.next_id = (identity + 1) & _MASK
        peer.sending[identity] = sending = Sending(identity, index, tag, span, card.full, unit)
        if waits:
            self._queue(peer).append(sending)
            return
        if single:
            card.counters.frames_sent += 1
            self._sent(now, peer, sending, 0, remains)
            return
        self._send_next(now, peer, sending)
        if sending.collections > 1:
            self._queue(peer).append(sending)
            self.pump(now, peer)

    def pump(self, now: int, peer: Peer) -> None:
        """Send collections as far as the window permits."""
        queue, settings = peer.queue, self._card.settings
        while queue and peer.unacknowledged < settings.window:
            sending = queue[0]
            self._send_next(now, peer, sending)
            if sending.sent == sending.collections:
                del queue[0]

    def acknowledged(self, now: int, peer: Peer, message: int, frame: int) -> None:
        """Handle an acknowledgement from this incarnation of the peer, for this incarnation of the NIC."""
        counters = self._card.counters
        sending = peer.sending.get(message)
        if sending is None:
            if (message - peer.next_id) & _MASK < 1 << 31:
                counters.wrong_acknowledgements += 1
            else:
                counters.late_acknowledgements += 1
            return
        number = frame // sending.unit
        if number not in sending.open or frame >= sending.frames:
            if number < sending.sent and frame < sending.frames:
                counters.late_acknowledgements += 1
            else:
                counters.wrong_acknowledgements += 1
            return
        counters.acknowledgements_received += 1
        sending.progress = now
        sending.left = left = sending.left - 1
        self._close(peer, sending, number)
        if sending.parked:
            self._unpark(now, peer, sending)
        if not left:
            counters.messages_sent += 1
            del peer.sending[message]
            if not peer.sending:
                peer.sending.clear()  # a dict does not shrink by itself, which matters with many peers
            self._give_back(peer, sending, stat.DONE)
        if peer.queue:
            self.pump(now, peer)

    def on_timer(self, now: int) -> None:
        """Resend collections that have timed out. Section 4.1: "if any collection times out then all the frames of that
        collection are resent"."""
        card = self._card
        settings, counters = card.settings, card.counters
        for number, identity, collection in self.timers.expired(now):
            peer = card.peers.known[number]
            sending = peer.sending.get(identity)
            if sending is None or collection not in sending.open:
                continue  # the message has ended, by another collection that had timed out as well
            if settings.give_up and now - sending.progress >= settings.give_up:
                counters.given_up += 1
                self._end(peer, sending, stat.GAVE_UP)
                self.pump(now, peer)
                continue
            if collection == 0 and not sending.parked and sending.left == sending.collections:
                self._park(peer, sending)
                self._resend(now, peer, sending, 0)
                self.pump(now, peer)
            elif collection == 0 or not sending.parked:
                self._resend(now, peer, sending, collection)

    def introduced(self, now: int, peer: Peer) -> None:
        """Resend what is in progress to a peer whose incarnation is now known: none of its incarnations has accepted
        frames without it."""
        for sending in list(peer.sending.values()):
            for number in list(sending.open):
                if number == 0 or not sending.parked:
                    self._resend(now, peer, sending, number)

    def restarted(self, now: int, peer: Peer) -> None:
        """Fail the messages begun to a restarted peer; those not begun go to its new incarnation."""
        started = [candidate for candidate in peer.sending.values() if candidate.sent]
        for sending in started:
            self._forget(peer, sending)
        # Completions come last: the host may post at once, and headers name the oldest message.
        for sending in started:
            self._give_back(peer, sending, stat.RESTARTED)
        self.pump(now, peer)

    def waiting(self) -> list[str]:
        """Return a sentence for each message."""
        return [
            f"message {sending.id} to node {peer.number} (tag {sending.tag}, {sending.total} bytes): "
            + (
                f"{sending.sent} of {sending.collections} collections sent, "
                f"no acknowledgement of {', '.join(map(str, list(sending.open)[:4]))}"
                + (": perhaps no receive has been posted for it" if sending.parked else "")
                if sending.sent
                else f"not begun, as {peer.unacknowledged} collections to that node are not acknowledged"
            )
            for peer in self._card.peers.known.values()
            for sending in peer.sending.values()
        ]

    def _send_next(self, now: int, peer: Peer, sending: Sending) -> None:
        """Send the next collection for the first time."""
        number = sending.sent
        self._card.counters.frames_sent += sending.size_of(number)
        self._sent(now, peer, sending, number, self._send_collection(peer, sending, number))

    def _sent(self, now: int, peer: Peer, sending: Sending, number: int, remains: bool | None) -> None:
        """Record that a collection has been sent for the first time. remains: its last frame has not left the NIC."""
        sending.sent = number + 1
        sending.open[number] = 0
        sending.progress = now
        peer.unacknowledged += 1
        if remains:
            self._card.nic.when_sent(partial(self._start, peer, sending, number, self._card.settings.timeout))
        else:
            self.timers.set((peer.number, sending.id, number), now + self._card.settings.timeout)

    def _start(self, peer: Peer, sending: Sending, number: int, timeout: int, now: int) -> None:
        """Start a collection's timer: its frames have left. Section 4.1: "once 3 consecutive frames have been sent the
        timer for that collection starts"."""
        if number in sending.open and (number == 0 or not sending.parked) and peer.sending.get(sending.id) is sending:
            self.timers.set((peer.number, sending.id, number), now + timeout)

    def _close(self, peer: Peer, sending: Sending, number: int) -> None:
        del sending.open[number]
        if not sending.parked:
            peer.unacknowledged -= 1
        self.timers.cancel((peer.number, sending.id, number))

    def _resend(self, now: int, peer: Peer, sending: Sending, number: int) -> None:
        card = self._card
        settings, counters = card.settings, card.counters
        again = sending.open[number] = sending.open[number] + 1
        counters.frames_resent += sending.size_of(number)
        counters.collections_resent += 1
        remains = self._send_collection(peer, sending, number)
        # Limits the shift: by then the longest timeout has been reached.
        timeout = min(settings.timeout << min(again, 32), settings.longest_timeout)
        if remains:
            self._card.nic.when_sent(partial(self._start, peer, sending, number, timeout))
        else:
            self.timers.set((peer.number, sending.id, number), now + timeout)

    def _park(self, peer: Peer, sending: Sending) -> None:
        if sending.sent < sending.collections:
            peer.queue.remove(sending)
        peer.unacknowledged -= len(sending.open)
        sending.parked = True
        for number in sending.open:
            if number:
                self.timers.cancel((peer.number, sending.id, number))

    def _unpark(self, now: int, peer: Peer, sending: Sending) -> None:
        sending.parked = False
        peer.unacknowledged += len(sending.open)
        if sending.sent < sending.collections:
            self._queue(peer).insert(0, sending)
        for number in sending.open:
            if number:  # the first one's timer is still running
                self._resend(now, peer, sending, number)

    def _queue(self, peer: Peer) -> list[Sending]:
        """Return the peer's queue, for adding to it."""
        if peer.queue is NO_QUEUE:
            peer.queue = []
        return peer.queue

    def _end(self, peer: Peer, sending: Sending, status: int) -> None:
        self._forget(peer, sending)
        self._give_back(peer, sending, status)

    def _forget(self, peer: Peer, sending: Sending) -> None:
        for number in list(sending.open):
            self._close(peer, sending, number)
        del peer.sending[sending.id]
        if sending.sent < sending.collections and not sending.parked:
            peer.queue.remove(sending)

    def _give_back(self, peer: Peer, sending: Sending, status: int) -> None:
        self._card.give_back(sending.index, status, sending.total, peer.number, sending.tag)

    def _send_single(self, peer: Peer, unit: int, message: int, tag: int, span: Span) -> bool | None:
        """Send the only frame of a message, from host memory to the wire. Returns True if it remains in the NIC."""
        if peer.unit != unit:
            self._cache_single_header(peer, unit)
        card = self._card
        size, oldest = len(span), next(iter(peer.sending)) if peer.sending else message
        payload: Buffer = b""
        if size:
            payload = card.nic.dma_read((span,)) if type(span) is memoryview else self._gather(span, 0, size)
        return peer.send(
            self._pack_message_behind(
                peer.single, message, 0, STATUS_OK, card.number, peer.number, tag, size, oldest, payload
            )
        )

    def _send_collection(self, peer: Peer, sending: Sending, number: int) -> bool | None:
        """Send the frames of a collection, from host memory to the wire. Returns True if the last one remains in the
        NIC."""
        if sending.frames == 1:
            return self._send_single(peer, sending.unit, sending.id, sending.tag, sending.span)
        card = self._card
        send, unit, full, message, span = peer.send, sending.unit, sending.full, sending.id, sending.span
        dma_read = card.nic.dma_read
        frame = number * unit
        behind, last = min(frame + unit, sending.frames), sending.frames - 1
        remains = None
        if not frame:
            remains = send(
                self._pack_message(
                    peer.address, card.address, 0, unit, card.incarnation, peer.incarnation, message, 0, STATUS_OK,
                    card.number, peer.number, sending.tag, sending.total, next(iter(peer.sending)),
                    self._gather(span, 0, full - MESSAGE_HEADER),
                )
            )  # fmt: skip
            frame = 1
        if peer.unit != unit:
            self._cache_single_header(peer, unit)
        pack, prefix = self._pack_frame_behind, peer.middle or self._cache_middle_header(peer)
        end = frame * full - MESSAGE_HEADER
        while frame < behind and frame < last:
            begin, end = end, end + full
            payload = dma_read((span[begin:end],)) if type(span) is memoryview else self._gather(span, begin, end)
            remains = send(pack(prefix, message, frame, STATUS_OK, payload))
            frame += 1
        if behind > last:
            remains = send(
                self._pack_frame(
                    peer.address, card.address, TYPE_DATA, FLAGS_LAST, unit, card.incarnation, peer.incarnation, message,
                    last, STATUS_OK, self._gather(span, end, sending.total),
                )
            )  # fmt: skip
        return remains

    def _gather(self, span: Span, begin: int, end: int) -> Buffer:
        """Fetch a message's bytes from begin to end, if any, from host memory."""
        dma_read = self._card.nic.dma_read
        return dma_read((span[begin:end],) if type(span) is memoryview else span.views(begin, end))

    def _cache_single_header(self, peer: Peer, unit: int) -> None:
        """Cache the beginning of single-frame messages to a peer."""
        card = self._card
        to, own, sender, receiver = peer.address, card.address, card.incarnation, peer.incarnation
        single = self._pack_message(to, own, FLAGS_LAST, unit, sender, receiver, 0, 0, STATUS_OK, 0, 0, 0, 0, 0)
        peer.unit, peer.single, peer.middle = unit, single[: card.prefix_size], b""

    def _cache_middle_header(self, peer: Peer) -> bytes:
        """Cache the beginning of frames to a peer that are neither the first nor the last of their message."""
        card = self._card
        to, own, sender, receiver = peer.address, card.address, card.incarnation, peer.incarnation
        middle = self._pack_frame(to, own, TYPE_DATA, 0, peer.unit, sender, receiver, 0, 0, STATUS_OK)
        peer.middle = prefix = middle[: card.prefix_size]
        return prefix
