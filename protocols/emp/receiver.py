"""The receiving half of EMP's firmware: admission of headers in order, matching, and acknowledgement of complete
collections.

Section 3.1.1: "if there is no pre-posted receive for the incoming frame, the frame is simply dropped"; the sender's
timer repairs that. Beyond the paper, message headers are admitted in the order of message ids, and an unmatched header is
kept although its data is dropped; a receive matches the oldest kept header. So messages never overtake one another, and
receives may be posted in another order than messages arrive.

A probe, also beyond the paper, reports the oldest matching message that has no receive. It may claim the message: then
only a receive that names it gets it.

The receiver keeps no state of completed messages: a message is taken for complete if its id precedes the next one to be
admitted, and it is not being received. Frames of such a message are acknowledged again, since the first acknowledgement may
have been lost.
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.memory import Span
from protocols.emp import descriptors as stat
from protocols.emp.card import MESSAGE_HEADER_SIZE, NO_INCOMING_MESSAGES, CachedHeader, Card, Peer
from protocols.emp.codec import FLAGS_LAST
from protocols.emp.sender import Segmentation

# Message ids are 32-bit serial numbers: a is not before b if (a - b) & _MASK < _HALF.
_MASK = 0xFFFF_FFFF
_HALF = 1 << 31
_ANY_SOURCE: Final = stat.ANY_SOURCE
_DONE: Final = stat.DONE


class PostedReceive:
    """A receive, or a probe, that waits for its message. index: of its descriptor. is_standing: no program waits for it.
    tag, mask: it matches a message if the message's tag & mask == tag. span: the receive's buffer."""

    __slots__ = ("index", "is_standing", "mask", "source", "span", "tag")

    def __init__(self, index: int, source: int, tag: int, any_tag: int, span: Span) -> None:
        self.index = index
        self.is_standing = False
        self.source = source
        if any_tag:
            self.tag = tag & stat.CONTEXT
            self.mask = stat.CONTEXT
        else:
            self.tag = tag
            self.mask = 0xFFFF_FFFF
        self.span = span

    def matches(self, source: int, tag: int) -> bool:
        """Whether a message with this source and tag matches."""
        return tag & self.mask == self.tag and self.source in (source, _ANY_SOURCE)

    def describe_match(self) -> str:
        """Describe the source and the tag that match."""
        source = "any node" if self.source == _ANY_SOURCE else f"node {self.source}"
        return f"{source}, any tag" if self.mask == stat.CONTEXT else f"{source}, tag {self.tag}"


class IncomingMessage(Segmentation):
    """An incoming message whose header has been admitted.

    receive: the receive that it matches; None: none yet. complete_below: all collections with lower numbers are complete.
    incomplete_collection_count: number of collections that are not complete, begun or not. missing_frames: by number of a
    collection that has begun to arrive, a bit mask of its missing frames. So memory use grows with the frames that have
    arrived, whatever total a header claims.

    While frames arrive in order, `missing_frames` stays empty: next_frame is the number of the next frame; next_begin and
    next_end are the bounds of its bytes in the message. After a frame out of order, next_frame is -1. span: the destination
    of the data, if the receive has contiguous memory for the whole message; else None.
    """

    __slots__ = (
        "complete_below", "id", "incomplete_collection_count", "missing_frames", "next_begin", "next_end", "next_frame",
        "receive", "source", "span", "tag",
    )  # fmt: skip

    def __init__(self, message_id: int, source: int, tag: int, total: int, full_payload: int, unit: int) -> None:
        Segmentation.__init__(self, total, full_payload, unit)
        self.id = message_id
        self.source = source
        self.tag = tag
        self.incomplete_collection_count = self.collection_count
        self.complete_below = 0
        self.missing_frames: dict[int, int] = {}
        self.receive: PostedReceive | None = None
        self.span: memoryview | None = None
        self.next_frame = self.next_begin = 0
        self.next_end = min(full_payload - MESSAGE_HEADER_SIZE, total)

    def match(self, receive: PostedReceive) -> None:
        """Match the message with a receive."""
        self.receive = receive
        if type(receive.span) is memoryview and 0 < self.total <= len(receive.span):
            self.span = receive.span

    def frame_mask(self, collection: int) -> int:
        """Return the bit mask of a collection's frames."""
        return (1 << self.frames_in(collection)) - 1

    def track_missing(self) -> None:
        """Switch to `missing_frames`, because a frame arrives out of order."""
        collection, arrived_frames = divmod(self.next_frame, self.unit)
        if arrived_frames:
            self.missing_frames[collection] = self.frame_mask(collection) >> arrived_frames << arrived_frames
        self.next_frame = -1


class Receiver:
    """All incoming messages, and all waiting receives."""

    __slots__ = ("_card", "_claimed", "_counters", "_posted_receives", "_probes", "_unmatched")

    def __init__(self, card: Card) -> None:
        self._card = card
        self._counters = card.counters
        self._posted_receives: list[PostedReceive] = []  # in the order in which they were posted
        self._unmatched: list[tuple[Peer, IncomingMessage]] = []  # neither received nor claimed, in order of admission
        self._claimed: dict[tuple[int, int], IncomingMessage] = {}  # by peer and message id
        self._probes: list[tuple[PostedReceive, bool]] = []  # waiting probes; True: it claims the message

    def post(self, receive: PostedReceive) -> None:
        """Post a receive: match it with the oldest suitable message, or keep it for a later one."""
        if self._unmatched:
            for index, (peer, message) in enumerate(self._unmatched):
                if receive.matches(message.source, message.tag):
                    del self._unmatched[index]
                    peer.held_count -= 1
                    message.match(receive)
                    return
        self._posted_receives.append(receive)

    def post_claimed(self, receive: PostedReceive) -> None:
        """Post a receive for a message that the host has claimed."""
        message = self._claimed.pop((receive.source, receive.tag), None)
        if message is None:
            self._card.return_descriptor(receive.index, stat.ABANDONED, 0, receive.source, receive.tag)
            return
        self._card.peers.known[receive.source].held_count -= 1
        message.match(receive)

    def probe(self, probe: PostedReceive, wait: bool, claim: bool) -> None:
        """Answer a probe with the message that such a receive would get. wait: if there is none, keep the probe until there
        is one; otherwise return it at once. claim: claim the message."""
        for index, (peer, message) in enumerate(self._unmatched):
            if probe.matches(message.source, message.tag):
                if claim:
                    del self._unmatched[index]
                    self._claimed[peer.number, message.id] = message
                self._complete_probe(probe, message)
                return
        if wait:
            self._probes.append((probe, claim))
        else:
            self._card.return_descriptor(probe.index, stat.NO_MESSAGE, 0, probe.source, probe.tag)

    def cancel(self, index: int) -> None:
        """Return a receive's descriptor to the host, unless the receive has matched a message."""
        for position, receive in enumerate(self._posted_receives):
            if receive.index == index:
                del self._posted_receives[position]
                self._card.return_descriptor(index, stat.CANCELLED, 0, receive.source, receive.tag)
                return

    def on_first_frame(
        self,
        cached: CachedHeader,
        message_id: int,
        source: int,
        destination: int,
        tag: int,
        total: int,
        oldest: int,
        payload: Buffer,
    ) -> None:
        """Handle a message's first frame, whose checksum is right."""
        card, peer, counters = self._card, cached.peer, self._counters
        if (
            source != peer.number
            or destination != card.number
            or (message_id != oldest and (message_id - oldest) & _MASK >= _HALF)
        ):
            counters.malformed += 1
            return
        if peer.incoming_messages:
            self._drop_abandoned(peer, oldest)
        expected_id = peer.expected_id
        if message_id != expected_id:
            if expected_id is None or (oldest - expected_id) & _MASK < _HALF:
                peer.expected_id = expected_id = oldest
            if (message_id - expected_id) & _MASK >= _HALF:
                if (admitted := peer.incoming_messages.get(message_id)) is not None:
                    self._store_frame(cached, admitted, 0, payload)
                else:
                    self._acknowledge_again(cached, message_id, 0)
                return
            if message_id != expected_id:
                counters.early += 1
                return
        if peer.held_count >= card.settings.held:
            counters.held_full += 1
            return
        length, is_last = len(payload), cached.flags & FLAGS_LAST
        # A first frame that is not the last is full: it shows the peer's frame size.
        if (length != total) if is_last else (not length or length >= total):
            counters.malformed += 1
            return
        peer.expected_id = (message_id + 1) & _MASK
        counters.headers_admitted += 1
        # The oldest matching receive gets the message. `PostedReceive.matches` is inlined, since every message passes here.
        for index, receive in enumerate(self._posted_receives):
            if tag & receive.mask == receive.tag and (receive.source == source or receive.source == _ANY_SOURCE):
                del self._posted_receives[index]
                break
        else:
            receive = None
        if receive is not None and is_last:  # the message is complete
            counters.data_stored += 1
            span = receive.span
            buffer_size = len(span)
            if 0 < length == buffer_size and type(span) is memoryview:
                card.nic.dma_write(span, payload)
            else:
                self._write_range(span, 0, length, payload)
            counters.acknowledgements_sent += 1
            card.acknowledge(cached, message_id, 0)
            counters.messages_received += 1
            status = _DONE if length <= buffer_size else stat.TRUNCATED
            card.return_descriptor(receive.index, status, length, source, tag)
            return
        message = IncomingMessage(message_id, source, tag, total, length + MESSAGE_HEADER_SIZE, cached.unit)
        if peer.incoming_messages is NO_INCOMING_MESSAGES:
            peer.incoming_messages = {}
        peer.incoming_messages[message_id] = message
        if receive is None:
            peer.held_count += 1
            self._unmatched.append((peer, message))
        else:
            message.match(receive)
        self._store_frame(cached, message, 0, payload)
        if receive is None and self._probes:
            self._answer_probes(peer, message)

    def on_later_frame(self, cached: CachedHeader, message_id: int, frame_number: int, payload: Buffer) -> None:
        """Handle a frame that is not the first of its message, and whose checksum is right."""
        peer = cached.peer
        if not frame_number:
            self._card.counters.malformed += 1
        elif (message := peer.incoming_messages.get(message_id)) is not None:
            self._store_frame(cached, message, frame_number, payload)
        elif peer.expected_id is None:
            self._card.counters.unknown += 1
        elif (message_id - peer.expected_id) & _MASK < _HALF:
            self._card.counters.early += 1
        else:
            self._acknowledge_again(cached, message_id, frame_number)

    def on_peer_restarted(self, peer: Peer) -> None:
        """Drop the incomplete messages of a restarted peer."""
        peer.expected_id = None
        self._drop(peer, list(peer.incoming_messages.values()), stat.RESTARTED)

    def on_peer_crashed(self, peer: Peer) -> None:
        """Drop the incomplete messages of a peer whose program has crashed."""
        self._drop(peer, list(peer.incoming_messages.values()), stat.CRASHED)

    def pending_work(self) -> list[str]:
        """Return a sentence for each waiting receive, each incomplete message, and each message without a receive."""
        sentences = []
        for receive in self._posted_receives:
            if receive.is_standing:
                continue
            sentences.append(f"a receive from {receive.describe_match()}: no message has come")
        sentences += [
            f"a probe for a message from {probe.describe_match()}: none has come" for probe, _ in self._probes
        ]
        for peer in self._card.peers.known.values():
            if peer.held_count >= self._card.settings.held:
                sentences.append(
                    f"node {peer.number}: {peer.held_count} of its messages wait for a receive, and no more headers are kept"
                )
            for message in peer.incoming_messages.values():
                what = f"message {message.id} from node {peer.number} (tag {message.tag})"
                if message.receive is None:
                    sentences.append(f"{what}: no receive has been posted for it")
                else:
                    missing_count = message.incomplete_collection_count
                    sentences.append(f"{what}: {missing_count} of {message.collection_count} collections are missing")
        return sentences

    def _answer_probes(self, peer: Peer, message: IncomingMessage) -> None:
        """Answer the probes that match a message, the oldest first, until one claims it."""
        answered = []
        for probe, claims in self._probes:
            if probe.matches(message.source, message.tag):
                answered.append(probe)
                if claims:
                    self._unmatched.remove((peer, message))
                    self._claimed[peer.number, message.id] = message
                    break
        self._probes = [(probe, claims) for probe, claims in self._probes if probe not in answered]
        for probe in answered:
            self._complete_probe(probe, message)

    def _complete_probe(self, probe: PostedReceive, message: IncomingMessage) -> None:
        """Return a probe's descriptor with a message's envelope."""
        length = message.id << 32 | message.total
        self._card.return_descriptor(probe.index, stat.MESSAGE_FOUND, length, message.source, message.tag)

    def _store_frame(self, cached: CachedHeader, message: IncomingMessage, frame_number: int, payload: Buffer) -> None:
        """Handle a frame of an incomplete message. The fast path is for the next frame in order, into contiguous memory."""
        card, unit, counters = self._card, cached.unit, self._counters
        span, end = message.span, message.next_begin + len(payload)
        if (
            frame_number == message.next_frame
            and span is not None
            and end == message.next_end
            and unit == message.unit
            and (end == message.total) == (cached.flags & FLAGS_LAST)
        ):
            counters.data_stored += 1
            card.nic.dma_write(span[message.next_begin : end], payload)
            message.next_frame = next_frame = frame_number + 1
            message.next_begin = end
            next_end = end + message.full_payload
            total = message.total
            message.next_end = next_end if next_end < total else total  # noqa: FURB136  faster than min()
            if not next_frame % unit or end == total:
                message.complete_below += 1
                self._complete_collection(cached, message, frame_number)
            return
        self._store_any_order(cached, message, frame_number, payload)

    def _store_any_order(
        self, cached: CachedHeader, message: IncomingMessage, frame_number: int, payload: Buffer
    ) -> None:
        """Handle a frame of an incomplete message, in any order."""
        card, unit, counters = self._card, cached.unit, self._counters
        length = len(payload)
        full_payload, is_last = message.full_payload, frame_number == message.frame_count - 1
        begin = frame_number * full_payload - MESSAGE_HEADER_SIZE if frame_number else 0
        end = message.total if is_last else (frame_number + 1) * full_payload - MESSAGE_HEADER_SIZE
        if (
            begin + length != end
            or is_last != (cached.flags & FLAGS_LAST)
            or unit != message.unit
            or frame_number >= message.frame_count
        ):
            counters.malformed += 1
            return
        receive = message.receive
        if receive is not None and message.next_frame >= 0:
            message.track_missing()
        collection = frame_number // unit
        missing_frames = message.missing_frames
        missing = missing_frames.get(collection)
        if missing is None:
            if collection < message.complete_below:
                self._acknowledge_again(cached, message.id, frame_number)
                return
            missing = message.frame_mask(collection)
        elif not missing:
            self._acknowledge_again(cached, message.id, frame_number)
            return
        if receive is None:
            counters.unmatched += 1
            return
        bit = 1 << frame_number % unit
        if not missing & bit:
            counters.duplicates += 1
            return
        counters.data_stored += 1
        if message.span is not None:
            card.nic.dma_write(message.span[begin:end], payload)
        else:
            self._write_range(receive.span, begin, end, payload)
        missing_frames[collection] = missing = missing ^ bit
        if missing:
            return
        while missing_frames.get(message.complete_below) == 0:
            del missing_frames[message.complete_below]
            message.complete_below += 1
        self._complete_collection(cached, message, frame_number)

    def _complete_collection(self, cached: CachedHeader, message: IncomingMessage, frame_number: int) -> None:
        """Acknowledge the collection that this frame has completed. If it was the last one missing, complete the receive."""
        card, counters = self._card, self._counters
        message.incomplete_collection_count -= 1
        counters.acknowledgements_sent += 1
        card.acknowledge(cached, message.id, frame_number)
        receive = message.receive
        if not message.incomplete_collection_count and receive is not None:
            del cached.peer.incoming_messages[message.id]
            counters.messages_received += 1
            status = stat.DONE if message.total <= len(receive.span) else stat.TRUNCATED
            card.return_descriptor(receive.index, status, message.total, message.source, message.tag)

    def _write_range(self, span: Span, begin: int, end: int, payload: Buffer) -> None:
        """Write the message's bytes from begin to end to the receive's segments; bytes beyond them are dropped."""
        offset, end, dma_write = 0, min(end, len(span)), self._card.nic.dma_write
        if begin >= end:
            return
        for segment in [span[begin:end]] if type(span) is memoryview else span.views(begin, end):
            dma_write(segment, payload[offset : offset + len(segment)])
            offset += len(segment)

    def _acknowledge_again(self, cached: CachedHeader, message_id: int, frame_number: int) -> None:
        """Drop a frame of a collection that is complete already. At the collection's last frame, repeat the
        acknowledgement, which may have been lost."""
        counters = self._card.counters
        counters.duplicates += 1
        if cached.flags & FLAGS_LAST or frame_number % cached.unit == cached.unit - 1:
            counters.reacknowledgements_sent += 1
            self._card.acknowledge(cached, message_id, frame_number)

    def _drop_abandoned(self, peer: Peer, oldest: int) -> None:
        """Drop the incoming messages older than the sender's oldest: the sender has given them up."""
        abandoned = [
            message for message in peer.incoming_messages.values() if (oldest - message.id - 1) & _MASK < _HALF
        ]
        if abandoned:
            self._card.counters.abandoned += len(abandoned)
            self._drop(peer, abandoned, stat.ABANDONED)

    def _drop(self, peer: Peer, messages: list[IncomingMessage], status: int) -> None:
        """Drop incoming messages, and return the descriptors of their receives with this status."""
        for message in messages:
            del peer.incoming_messages[message.id]
            if message.receive is None:
                if self._claimed.pop((peer.number, message.id), None) is None:
                    self._unmatched.remove((peer, message))
                peer.held_count -= 1
        # Completions come last: the host may post a receive at once, which must not match a dropped message.
        for message in messages:
            receive = message.receive
            if receive is not None:
                self._card.return_descriptor(receive.index, status, message.total, message.source, message.tag)
