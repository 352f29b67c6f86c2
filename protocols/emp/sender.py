"""The sending half of EMP's firmware: collections, their timers, and acknowledgements.

Section 4.1: a message is sent as collections of frames. When a collection's frames have been sent, its timer starts. When
the timer expires, all frames of the collection are sent again. When every collection has been acknowledged, the host is
notified. Acknowledgements are not cumulative: one of a later collection does not acknowledge an earlier one.

The window of unacknowledged collections is ours. So is the rule that keeps messages whose receives are not posted from
blocking later messages: a message is parked if its first collection times out before any of its collections has been
acknowledged. A parked message does not count against the window. Its first collection, which has the header, is resent by
its timer; the others are resent after the first acknowledgement. So the headers of all messages reach the receiver, in
order, at the cost of one timeout for each window full of messages without receives.
"""

from __future__ import annotations

from functools import partial

from protocols.core.firmware import Buffer
from protocols.core.memory import Span
from protocols.core.timers import Timers
from protocols.emp import descriptors as stat
from protocols.emp.card import EMPTY_QUEUE, MESSAGE_HEADER_SIZE, Card, Peer
from protocols.emp.codec import FLAGS_LAST, STATUS_OK, TYPE_DATA

CollectionKey = tuple[int, int, int]
"""The peer's number, message id, number of the collection."""

# Message ids are 32-bit serial numbers: a is not before b if (a - b) & _MASK < _HALF.
_MASK = 0xFFFF_FFFF
_HALF = 1 << 31


class Segmentation:
    """Division of a message into frames, and of frames into collections.

    The first frame has two headers, and so less data: frame n of a message, unless it is the last, ends before byte
    (n + 1) * full_payload - MESSAGE_HEADER_SIZE.

    total: bytes of the message. full_payload: bytes of payload of a full frame without a message header. unit: frames
    per collection; the last collection may be shorter.
    """

    __slots__ = ("collection_count", "frame_count", "full_payload", "total", "unit")

    def __init__(self, total: int, full_payload: int, unit: int) -> None:
        self.total = total
        self.full_payload = full_payload
        self.unit = unit
        self.frame_count = frame_count = (total + MESSAGE_HEADER_SIZE + full_payload - 1) // full_payload
        self.collection_count = (frame_count + unit - 1) // unit

    def frames_in(self, collection: int) -> int:
        """Return the number of a collection's frames."""
        return min(self.unit, self.frame_count - collection * self.unit)


class OutgoingMessage(Segmentation):
    """An outgoing message. index: of its descriptor. sent_collection_count: number of collections sent at least once.
    open_collections: by number of each collection that has been sent and not acknowledged, how often it has been resent.
    unacknowledged_collection_count: number of collections not acknowledged, sent or not. is_parked: see `sender`.
    progress_at: time of the last acknowledgement, or of the last transmission of a collection for the first time."""

    __slots__ = (
        "id", "index", "is_parked", "open_collections", "progress_at", "sent_collection_count", "span", "tag",
        "unacknowledged_collection_count",
    )  # fmt: skip

    def __init__(self, message_id: int, index: int, tag: int, span: Span, full_payload: int, unit: int) -> None:
        Segmentation.__init__(self, len(span), full_payload, unit)
        self.id = message_id
        self.index = index
        self.tag = tag
        self.span = span
        self.sent_collection_count = 0
        self.unacknowledged_collection_count = self.collection_count
        self.open_collections: dict[int, int] = {}
        self.is_parked = False
        self.progress_at = 0


class Sender:
    """All outgoing messages."""

    __slots__ = ("_card", "_pack_frame", "_pack_frame_behind", "_pack_message", "_pack_message_behind", "timers")

    def __init__(self, card: Card) -> None:
        self._card = card
        self._pack_frame = card.codec.pack_frame
        self._pack_message = card.codec.pack_message
        self._pack_frame_behind = card.codec.pack_frame_behind
        self._pack_message_behind = card.codec.pack_message_behind
        self.timers: Timers[CollectionKey] = Timers()

    def begin(self, now: int, peer: Peer, index: int, tag: int, span: Span) -> None:
        """Begin to send a message that the host has posted, after all earlier messages to its peer. index: of its
        descriptor."""
        card = self._card
        settings = card.settings
        message_id, unit = peer.next_id, settings.unit
        must_wait = peer.send_queue or peer.unacknowledged_collection_count >= settings.window
        is_single_frame = not must_wait and len(span) <= card.max_single_frame_size
        is_queued = None
        if is_single_frame:  # sent before the bookkeeping, which then does not delay the frame
            is_queued = self._send_single(peer, unit, message_id, tag, span)
        peer.next_id = (message_id + 1) & _MASK
        peer.outgoing_messages[message_id] = message = OutgoingMessage(
            message_id, index, tag, span, card.full_payload, unit
        )
        if must_wait:
            self._ensure_send_queue(peer).append(message)
            return
        if is_single_frame:
            card.counters.frames_sent += 1
            self._record_first_transmission(now, peer, message, 0, is_queued)
            return
        self._send_next(now, peer, message)
        if message.collection_count > 1:
            self._ensure_send_queue(peer).append(message)
            self.pump(now, peer)

    def pump(self, now: int, peer: Peer) -> None:
        """Send collections as far as the window permits."""
        queue, settings = peer.send_queue, self._card.settings
        while queue and peer.unacknowledged_collection_count < settings.window:
            message = queue[0]
            self._send_next(now, peer, message)
            if message.sent_collection_count == message.collection_count:
                del queue[0]

    def on_acknowledgement(self, now: int, peer: Peer, message_id: int, frame_number: int) -> None:
        """Handle an acknowledgement from this incarnation of the peer, for this incarnation of the NIC."""
        counters = self._card.counters
        message = peer.outgoing_messages.get(message_id)
        if message is None:
            if (message_id - peer.next_id) & _MASK < _HALF:
                counters.wrong_acknowledgements += 1
            else:
                counters.late_acknowledgements += 1
            return
        collection = frame_number // message.unit
        if collection not in message.open_collections or frame_number >= message.frame_count:
            if collection < message.sent_collection_count and frame_number < message.frame_count:
                counters.late_acknowledgements += 1
            else:
                counters.wrong_acknowledgements += 1
            return
        counters.acknowledgements_received += 1
        message.progress_at = now
        message.unacknowledged_collection_count = unacknowledged = message.unacknowledged_collection_count - 1
        self._close_collection(peer, message, collection)
        if message.is_parked:
            self._unpark(now, peer, message)
        if not unacknowledged:
            counters.messages_sent += 1
            del peer.outgoing_messages[message_id]
            if not peer.outgoing_messages:
                peer.outgoing_messages.clear()  # a dict does not shrink by itself, which matters with many peers
            self._return_descriptor(peer, message, stat.DONE)
        if peer.send_queue:
            self.pump(now, peer)

    def on_timer(self, now: int) -> None:
        """Resend collections that have timed out. Section 4.1: "if any collection times out then all the frames of that
        collection are resent"."""
        card = self._card
        settings, counters = card.settings, card.counters
        for number, message_id, collection in self.timers.expired(now):
            peer = card.peers.known[number]
            message = peer.outgoing_messages.get(message_id)
            if message is None or collection not in message.open_collections:
                continue  # the message has failed on the timeout of another of its collections
            if settings.give_up and now - message.progress_at >= settings.give_up:
                counters.given_up += 1
                self._fail(peer, message, stat.GAVE_UP)
                self.pump(now, peer)
                continue
            if (
                collection == 0
                and not message.is_parked
                and message.unacknowledged_collection_count == message.collection_count
            ):
                self._park(peer, message)
                self._resend(now, peer, message, 0)
                self.pump(now, peer)
            elif collection == 0 or not message.is_parked:
                self._resend(now, peer, message, collection)

    def on_peer_introduced(self, now: int, peer: Peer) -> None:
        """Resend what is in progress to a peer whose incarnation is now known. It has dropped the frames sent before,
        which did not name its incarnation."""
        for message in list(peer.outgoing_messages.values()):
            for collection in list(message.open_collections):
                if collection == 0 or not message.is_parked:
                    self._resend(now, peer, message, collection)

    def on_peer_restarted(self, now: int, peer: Peer) -> None:
        """Fail the messages to a restarted peer that have begun to be sent; the others go to its new incarnation."""
        started_messages = [message for message in peer.outgoing_messages.values() if message.sent_collection_count]
        for message in started_messages:
            self._remove(peer, message)
        # Completions come last: the host may post at once, and headers name the oldest message.
        for message in started_messages:
            self._return_descriptor(peer, message, stat.RESTARTED)
        self.pump(now, peer)

    def pending_work(self) -> list[str]:
        """Return a sentence for each message."""
        return [
            f"message {message.id} to node {peer.number} (tag {message.tag}, {message.total} bytes): "
            + (
                f"{message.sent_collection_count} of {message.collection_count} collections sent, "
                + _describe_open(message)
                + (": perhaps no receive has been posted for it" if message.is_parked else "")
                if message.sent_collection_count
                else f"not begun, as {peer.unacknowledged_collection_count} collections to that node are not acknowledged"
            )
            for peer in self._card.peers.known.values()
            for message in peer.outgoing_messages.values()
        ]

    def _send_next(self, now: int, peer: Peer, message: OutgoingMessage) -> None:
        """Send a message's next collection for the first time."""
        collection = message.sent_collection_count
        self._card.counters.frames_sent += message.frames_in(collection)
        is_queued = self._send_collection(peer, message, collection)
        self._record_first_transmission(now, peer, message, collection, is_queued)

    def _record_first_transmission(
        self, now: int, peer: Peer, message: OutgoingMessage, collection: int, is_queued: bool | None
    ) -> None:
        """Record that a collection has been sent for the first time. is_queued: its last frame has not left the NIC yet."""
        message.sent_collection_count = collection + 1
        message.open_collections[collection] = 0
        message.progress_at = now
        peer.unacknowledged_collection_count += 1
        if is_queued:
            timeout = self._card.settings.timeout
            self._card.nic.when_sent(partial(self._start_timer, peer, message, collection, timeout))
        else:
            self.timers.set((peer.number, message.id, collection), now + self._card.settings.timeout)

    def _start_timer(self, peer: Peer, message: OutgoingMessage, collection: int, timeout: int, now: int) -> None:
        """Start a collection's timer after its frames have left, unless the collection has been acknowledged or its message
        has ended or been parked. Section 4.1: "once 3 consecutive frames have been sent the timer for that collection
        starts"."""
        is_open = collection in message.open_collections and peer.outgoing_messages.get(message.id) is message
        if is_open and (collection == 0 or not message.is_parked):
            self.timers.set((peer.number, message.id, collection), now + timeout)

    def _close_collection(self, peer: Peer, message: OutgoingMessage, collection: int) -> None:
        del message.open_collections[collection]
        if not message.is_parked:
            peer.unacknowledged_collection_count -= 1
        self.timers.cancel((peer.number, message.id, collection))

    def _resend(self, now: int, peer: Peer, message: OutgoingMessage, collection: int) -> None:
        card = self._card
        settings, counters = card.settings, card.counters
        resends = message.open_collections[collection] = message.open_collections[collection] + 1
        counters.frames_resent += message.frames_in(collection)
        counters.collections_resent += 1
        is_queued = self._send_collection(peer, message, collection)
        # At most 32 doublings, so that the number stays small; with usual settings it reaches the longest timeout earlier.
        timeout = min(settings.timeout << min(resends, 32), settings.longest_timeout)
        if is_queued:
            self._card.nic.when_sent(partial(self._start_timer, peer, message, collection, timeout))
        else:
            self.timers.set((peer.number, message.id, collection), now + timeout)

    def _park(self, peer: Peer, message: OutgoingMessage) -> None:
        """Park a message: see `sender`."""
        if message.sent_collection_count < message.collection_count:
            peer.send_queue.remove(message)
        peer.unacknowledged_collection_count -= len(message.open_collections)
        message.is_parked = True
        for collection in message.open_collections:
            if collection:
                self.timers.cancel((peer.number, message.id, collection))

    def _unpark(self, now: int, peer: Peer, message: OutgoingMessage) -> None:
        message.is_parked = False
        peer.unacknowledged_collection_count += len(message.open_collections)
        if message.sent_collection_count < message.collection_count:
            self._ensure_send_queue(peer).insert(0, message)
        for collection in message.open_collections:
            if collection:  # the first collection's timer is still running
                self._resend(now, peer, message, collection)

    def _ensure_send_queue(self, peer: Peer) -> list[OutgoingMessage]:
        """Return the peer's own send queue, creating it for the first message that waits."""
        if peer.send_queue is EMPTY_QUEUE:
            peer.send_queue = []
        return peer.send_queue

    def _fail(self, peer: Peer, message: OutgoingMessage, status: int) -> None:
        self._remove(peer, message)
        self._return_descriptor(peer, message, status)

    def _remove(self, peer: Peer, message: OutgoingMessage) -> None:
        for collection in list(message.open_collections):
            self._close_collection(peer, message, collection)
        del peer.outgoing_messages[message.id]
        if message.sent_collection_count < message.collection_count and not message.is_parked:
            peer.send_queue.remove(message)

    def _return_descriptor(self, peer: Peer, message: OutgoingMessage, status: int) -> None:
        self._card.return_descriptor(message.index, status, message.total, peer.number, message.tag)

    def _send_single(self, peer: Peer, unit: int, message_id: int, tag: int, span: Span) -> bool | None:
        """Send a message of one frame, from host memory to the wire. Returns True if the frame waits in the NIC."""
        if peer.unit != unit:
            self._cache_single_header(peer, unit)
        card = self._card
        size, oldest = len(span), next(iter(peer.outgoing_messages)) if peer.outgoing_messages else message_id
        payload: Buffer = b""
        if size:
            payload = card.nic.dma_read((span,)) if type(span) is memoryview else self._gather(span, 0, size)
        return peer.send(
            self._pack_message_behind(
                peer.single_prefix, message_id, 0, STATUS_OK, card.number, peer.number, tag, size, oldest, payload
            )
        )

    def _send_collection(self, peer: Peer, message: OutgoingMessage, collection: int) -> bool | None:
        """Send the frames of a collection, from host memory to the wire. Returns True if the last one waits in the
        NIC."""
        if message.frame_count == 1:
            return self._send_single(peer, message.unit, message.id, message.tag, message.span)
        card = self._card
        send, unit, full_payload, message_id = peer.send, message.unit, message.full_payload, message.id
        span, dma_read = message.span, card.nic.dma_read
        frame_number = collection * unit
        end_frame, last_frame = min(frame_number + unit, message.frame_count), message.frame_count - 1
        is_queued = None
        if not frame_number:
            is_queued = send(
                self._pack_message(
                    peer.address, card.address, 0, unit, card.incarnation, peer.incarnation, message_id, 0, STATUS_OK,
                    card.number, peer.number, message.tag, message.total, next(iter(peer.outgoing_messages)),
                    self._gather(span, 0, full_payload - MESSAGE_HEADER_SIZE),
                )
            )  # fmt: skip
            frame_number = 1
        if peer.unit != unit:
            self._cache_single_header(peer, unit)
        pack, prefix = self._pack_frame_behind, peer.middle_prefix or self._cache_middle_header(peer)
        end = frame_number * full_payload - MESSAGE_HEADER_SIZE
        while frame_number < end_frame and frame_number < last_frame:
            begin, end = end, end + full_payload
            payload = dma_read((span[begin:end],)) if type(span) is memoryview else self._gather(span, begin, end)
            is_queued = send(pack(prefix, message_id, frame_number, STATUS_OK, payload))
            frame_number += 1
        if end_frame > last_frame:
            is_queued = send(
                self._pack_frame(
                    peer.address, card.address, TYPE_DATA, FLAGS_LAST, unit, card.incarnation, peer.incarnation,
                    message_id, last_frame, STATUS_OK, self._gather(span, end, message.total),
                )
            )  # fmt: skip
        return is_queued

    def _gather(self, span: Span, begin: int, end: int) -> Buffer:
        """Read the bytes of a message from begin to end (none if these are equal) from host memory by DMA."""
        dma_read = self._card.nic.dma_read
        return dma_read((span[begin:end],) if type(span) is memoryview else span.views(begin, end))

    def _cache_single_header(self, peer: Peer, unit: int) -> None:
        """Cache the first bytes of single-frame messages to a peer."""
        card = self._card
        destination, source, sender, receiver = peer.address, card.address, card.incarnation, peer.incarnation
        frame = self._pack_message(
            destination, source, FLAGS_LAST, unit, sender, receiver, 0, 0, STATUS_OK, 0, 0, 0, 0, 0
        )
        peer.unit, peer.single_prefix, peer.middle_prefix = unit, frame[: card.prefix_size], b""

    def _cache_middle_header(self, peer: Peer) -> bytes:
        """Cache the first bytes of frames to a peer that are neither the first nor the last of their message."""
        card = self._card
        destination, source, sender, receiver = peer.address, card.address, card.incarnation, peer.incarnation
        frame = self._pack_frame(destination, source, TYPE_DATA, 0, peer.unit, sender, receiver, 0, 0, STATUS_OK)
        peer.middle_prefix = prefix = frame[: card.prefix_size]
        return prefix


def _describe_open(message: OutgoingMessage) -> str:
    """Describe the collections that have been sent and not acknowledged."""
    numbers = list(message.open_collections)
    if not numbers:
        return "all of them acknowledged"
    return f"no acknowledgement of collections {', '.join(map(str, numbers[:4]))}{', ...' if len(numbers) > 4 else ''}"
