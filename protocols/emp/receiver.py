"""The receiving half of EMP's firmware: headers admitted in order, matching, and acknowledgement of complete
collections.

Section 3.1.1: "if there is no pre-posted receive for the incoming frame, the frame is simply dropped"; the sender's
timer repairs that. Beyond the paper, a message's header is admitted in the order of message ids and kept although the
data is dropped, and a receive takes the oldest matching message: so messages never overtake one another, and receives
may be posted in another order than messages arrive.

A probe, also beyond the paper, reports the oldest matching message that no receive has taken. It may claim the message:
then only a receive that names it gets it.

No memory of completed messages is needed: every id before the next one to be admitted that is not being received is
complete. Frames of such messages are acknowledged again, since their sender would otherwise never finish.
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.memory import Span
from protocols.emp import descriptors as stat
from protocols.emp.card import MESSAGE_HEADER, NO_RECEIVING, CachedHeader, Card, Peer
from protocols.emp.codec import FLAGS_LAST
from protocols.emp.sender import Framing

_MASK = 0xFFFF_FFFF
_HALF = 1 << 31
_ANY_SOURCE: Final = stat.ANY_SOURCE
_DONE: Final = stat.DONE


class Posted:
    """A receive, or a probe, that waits for its message. is_standing: nobody waits for it."""

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

    def takes(self, source: int, tag: int) -> bool:
        return tag & self.mask == self.tag and self.source in (source, _ANY_SOURCE)


class Receiving(Framing):
    """An incoming message, from its header on.

    posted: the receive that it matches, once there is one. below: all collections before this one are complete.
    missing: missing frames of the others that have begun, as bit masks. left: number of incomplete collections. Memory
    use grows with the frames that have arrived, whatever length a header claims.

    While frames arrive in order, `missing` stays empty: next is the number of the next frame, at and until are the
    bounds of its bytes in the message. After a frame out of order, next is -1. span: the destination of the data, if
    the receive has contiguous memory for the whole message; else None.
    """

    __slots__ = ("at", "below", "id", "left", "missing", "next", "posted", "source", "span", "tag", "until")

    def __init__(self, identity: int, source: int, tag: int, total: int, full: int, unit: int) -> None:
        Framing.__init__(self, total, full, unit)
        self.id = identity
        self.source = source
        self.tag = tag
        self.left = self.collections
        self.below = 0
        self.missing: dict[int, int] = {}
        self.posted: Posted | None = None
        self.span: memoryview | None = None
        self.next = self.at = 0
        self.until = min(full - MESSAGE_HEADER, total)

    def goes_to(self, posted: Posted) -> None:
        """Match the message with a receive."""
        self.posted = posted
        if type(posted.span) is memoryview and 0 < self.total <= len(posted.span):
            self.span = posted.span

    def frames_of(self, collection: int) -> int:
        """Return the bit mask of a collection's frames."""
        return (1 << self.size_of(collection)) - 1

    def lose_order(self) -> None:
        """Switch to `missing`, because a frame arrives out of order."""
        collection, come = divmod(self.next, self.unit)
        if come:
            self.missing[collection] = self.frames_of(collection) >> come << come
        self.next = -1


class Receiver:
    """All incoming messages, and all waiting receives."""

    __slots__ = ("_card", "_claimed", "_counters", "_held", "_posted", "_probes")

    def __init__(self, card: Card) -> None:
        self._card = card
        self._counters = card.counters
        self._posted: list[Posted] = []  # in the order in which they were posted
        self._held: list[tuple[Peer, Receiving]] = []  # messages without a receive, in the order of their admission
        self._claimed: dict[tuple[int, int], Receiving] = {}  # claimed messages, no longer in _held, by peer and id
        self._probes: list[tuple[Posted, bool]] = []  # and whether they claim the message found

    def post(self, posted: Posted) -> None:
        """Post a receive: for the oldest matching message, or for a future one."""
        if self._held:
            for index, (peer, receiving) in enumerate(self._held):
                if posted.takes(receiving.source, receiving.tag):
                    del self._held[index]
                    peer.held -= 1
                    receiving.goes_to(posted)
                    return
        self._posted.append(posted)

    def post_claimed(self, posted: Posted) -> None:
        """Post a receive for a message that the host has claimed."""
        receiving = self._claimed.pop((posted.source, posted.tag), None)
        if receiving is None:
            self._card.give_back(posted.index, stat.ABANDONED, 0, posted.source, posted.tag)
            return
        self._card.peers.known[posted.source].held -= 1
        receiving.goes_to(posted)

    def probe(self, posted: Posted, wait: bool, claim: bool) -> None:
        """Answer a probe: find the message that such a receive would get."""
        for index, (peer, receiving) in enumerate(self._held):
            if posted.takes(receiving.source, receiving.tag):
                if claim:
                    del self._held[index]
                    self._claimed[peer.number, receiving.id] = receiving
                self._announce(posted, receiving)
                return
        if wait:
            self._probes.append((posted, claim))
        else:
            self._card.give_back(posted.index, stat.NOTHING, 0, posted.source, posted.tag)

    def cancel(self, index: int) -> None:
        """Return a receive's descriptor to the host, unless the receive has matched a message."""
        for position, posted in enumerate(self._posted):
            if posted.index == index:
                del self._posted[position]
                self._card.give_back(index, stat.CANCELLED, 0, posted.source, posted.tag)
                return

    def first(
        self,
        cached: CachedHeader,
        message: int,
        source: int,
        destination: int,
        tag: int,
        total: int,
        oldest: int,
        payload: Buffer,
    ) -> None:
        """Handle a message's first frame, whose check is right."""
        card, peer, counters = self._card, cached.peer, self._counters
        if (
            source != peer.number
            or destination != card.number
            or (message != oldest and (message - oldest) & _MASK >= _HALF)
        ):
            counters.malformed += 1
            return
        if peer.receiving:
            self._abandon(peer, oldest)
        expected = peer.expected
        if message != expected:
            if expected is None or (oldest - expected) & _MASK < _HALF:
                peer.expected = expected = oldest
            if (message - expected) & _MASK >= _HALF:
                if (known := peer.receiving.get(message)) is not None:
                    self._take(cached, known, 0, payload)
                else:
                    self._acknowledge_again(cached, message, 0)
                return
            if message != expected:
                counters.early += 1
                return
        if peer.held >= card.settings.held:
            counters.held_full += 1
            return
        length, last = len(payload), cached.flags & FLAGS_LAST
        # A first frame that is not the last is full: it shows the peer's frame size.
        if (length != total) if last else (not length or length >= total):
            counters.malformed += 1
            return
        peer.expected = (message + 1) & _MASK
        counters.headers_admitted += 1
        for index, posted in enumerate(self._posted):  # the oldest matching receive gets the message
            if tag & posted.mask == posted.tag and (posted.source == source or posted.source == _ANY_SOURCE):
                del self._posted[index]
                break
        else:
            posted = None
        if posted is not None and last:  # the message is complete
            counters.data_stored += 1
            span = posted.span
            room = len(span)
            if 0 < length == room and type(span) is memoryview:
                card.nic.dma_write(span, payload)
            else:
                self._store(span, 0, length, payload)
            counters.acknowledgements_sent += 1
            card.acknowledge(cached, message, 0)
            counters.messages_received += 1
            card.give_back(posted.index, _DONE if length <= room else stat.TRUNCATED, length, source, tag)
            return
        receiving = Receiving(message, source, tag, total, length + MESSAGE_HEADER, cached.unit)
        if peer.receiving is NO_RECEIVING:
            peer.receiving = {}
        peer.receiving[message] = receiving
        if posted is None:
            peer.held += 1
            self._held.append((peer, receiving))
        else:
            receiving.goes_to(posted)
        self._take(cached, receiving, 0, payload)
        if posted is None and self._probes:
            self._answer(peer, receiving)

    def another(self, cached: CachedHeader, message: int, number: int, payload: Buffer) -> None:
        """Handle a later frame of a message; its check is right."""
        peer = cached.peer
        if not number:
            self._card.counters.malformed += 1
        elif (receiving := peer.receiving.get(message)) is not None:
            self._take(cached, receiving, number, payload)
        elif peer.expected is None:
            self._card.counters.unknown += 1
        elif (message - peer.expected) & _MASK < _HALF:
            self._card.counters.early += 1
        else:
            self._acknowledge_again(cached, message, number)

    def restarted(self, peer: Peer) -> None:
        """Drop the incomplete messages of a restarted peer."""
        peer.expected = None
        self._drop(peer, list(peer.receiving.values()), stat.RESTARTED)

    def waiting(self) -> list[str]:
        """Return a sentence for each waiting receive, each incomplete message, and each message without a receive."""
        out = []
        for posted in self._posted:
            if posted.is_standing:
                continue
            source = "any node" if posted.source == stat.ANY_SOURCE else f"node {posted.source}"
            out.append(f"a receive from {source}, tag {posted.tag}: no message has come")
        for probe, _ in self._probes:
            source = "any node" if probe.source == stat.ANY_SOURCE else f"node {probe.source}"
            out.append(f"a probe for a message from {source}, tag {probe.tag}: none has come")
        for peer in self._card.peers.known.values():
            if peer.held >= self._card.settings.held:
                out.append(
                    f"node {peer.number}: {peer.held} of its messages wait for a receive, and no more headers are kept"
                )
            for receiving in peer.receiving.values():
                what = f"message {receiving.id} from node {peer.number} (tag {receiving.tag})"
                if receiving.posted is None:
                    out.append(f"{what}: no receive has been posted for it")
                else:
                    out.append(f"{what}: {receiving.left} of {receiving.collections} collections are missing")
        return out

    def _answer(self, peer: Peer, receiving: Receiving) -> None:
        """Answer the probes that match a message, the oldest first, until one claims it."""
        replies = []
        for probe in self._probes:
            if probe[0].takes(receiving.source, receiving.tag):
                replies.append(probe)
                if probe[1]:
                    self._held.remove((peer, receiving))
                    self._claimed[peer.number, receiving.id] = receiving
                    break
        self._probes = [probe for probe in self._probes if probe not in replies]
        for posted, _ in replies:
            self._announce(posted, receiving)

    def _announce(self, posted: Posted, receiving: Receiving) -> None:
        length = receiving.id << 32 | receiving.total
        self._card.give_back(posted.index, stat.FOUND, length, receiving.source, receiving.tag)

    def _take(self, cached: CachedHeader, receiving: Receiving, number: int, payload: Buffer) -> None:
        """Handle a frame of an incomplete message."""
        card, unit, counters = self._card, cached.unit, self._counters
        span, end = receiving.span, receiving.at + len(payload)
        if (
            number == receiving.next
            and span is not None
            and end == receiving.until
            and unit == receiving.unit
            and (end == receiving.total) == (cached.flags & FLAGS_LAST)
        ):
            counters.data_stored += 1
            card.nic.dma_write(span[receiving.at : end], payload)
            receiving.next = number = number + 1
            receiving.at = end
            until = end + receiving.full
            receiving.until = until if until < receiving.total else receiving.total  # noqa: FURB136  faster than min()
            if not number % unit or end == receiving.total:
                receiving.below += 1
                self._complete(cached, receiving, number - 1)
            return
        self._store_any_order(cached, receiving, number, payload)

    def _store_any_order(self, cached: CachedHeader, receiving: Receiving, number: int, payload: Buffer) -> None:
        """Handle a frame of an incomplete message, in any order."""
        card, unit, counters = self._card, cached.unit, self._counters
        length = len(payload)
        full, is_last = receiving.full, number == receiving.frames - 1
        begin = number * full - MESSAGE_HEADER if number else 0
        end = receiving.total if is_last else (number + 1) * full - MESSAGE_HEADER
        if (
            begin + length != end
            or is_last != (cached.flags & FLAGS_LAST)
            or unit != receiving.unit
            or number >= receiving.frames
        ):
            counters.malformed += 1
            return
        posted = receiving.posted
        if posted is not None and receiving.next >= 0:
            receiving.lose_order()
        collection = number // unit
        missing_by_collection = receiving.missing
        missing = missing_by_collection.get(collection)
        if missing is None:
            if collection < receiving.below:
                self._acknowledge_again(cached, receiving.id, number)
                return
            missing = receiving.frames_of(collection)
        elif not missing:
            self._acknowledge_again(cached, receiving.id, number)
            return
        if posted is None:
            counters.unmatched += 1
            return
        bit = 1 << number % unit
        if not missing & bit:
            counters.duplicates += 1
            return
        counters.data_stored += 1
        if receiving.span is not None:
            card.nic.dma_write(receiving.span[begin:end], payload)
        else:
            self._store(posted.span, begin, end, payload)
        missing_by_collection[collection] = missing = missing ^ bit
        if missing:
            return
        while missing_by_collection.get(receiving.below) == 0:
            del missing_by_collection[receiving.below]
            receiving.below += 1
        self._complete(cached, receiving, number)

    def _complete(self, cached: CachedHeader, receiving: Receiving, number: int) -> None:
        """Acknowledge a collection, which this frame has completed."""
        card, counters = self._card, self._counters
        receiving.left -= 1
        counters.acknowledgements_sent += 1
        card.acknowledge(cached, receiving.id, number)
        posted = receiving.posted
        if not receiving.left and posted is not None:
            del cached.peer.receiving[receiving.id]
            counters.messages_received += 1
            status = stat.DONE if receiving.total <= len(posted.span) else stat.TRUNCATED
            card.give_back(posted.index, status, receiving.total, receiving.source, receiving.tag)

    def _store(self, span: Span, begin: int, end: int, payload: Buffer) -> None:
        """Store the message's bytes from begin to end, as far as the receive has room."""
        at, end, store = 0, min(end, len(span)), self._card.nic.dma_write
        if begin >= end:
            return
        for segment in [span[begin:end]] if type(span) is memoryview else span.views(begin, end):
            store(segment, payload[at : at + len(segment)])
            at += len(segment)

    def _acknowledge_again(self, cached: CachedHeader, message: int, number: int) -> None:
        """Handle a frame of a collection that was already complete: its acknowledgement may have been lost."""
        counters = self._card.counters
        counters.duplicates += 1
        if cached.flags & FLAGS_LAST or number % cached.unit == cached.unit - 1:
            counters.reacknowledgements_sent += 1
            self._card.acknowledge(cached, message, number)

    def _abandon(self, peer: Peer, oldest: int) -> None:
        """Drop the messages that their sender has given up."""
        gone = [receiving for receiving in peer.receiving.values() if (oldest - receiving.id - 1) & _MASK < _HALF]
        if gone:
            self._card.counters.abandoned += len(gone)
            self._drop(peer, gone, stat.ABANDONED)

    def _drop(self, peer: Peer, dropped: list[Receiving], status: int) -> None:
        for receiving in dropped:
            del peer.receiving[receiving.id]
            if receiving.posted is None:
                if self._claimed.pop((peer.number, receiving.id), None) is None:
                    self._held.remove((peer, receiving))
                peer.held -= 1
        # Completions come last: the host may post a receive at once, which must not match a dropped message.
        for receiving in dropped:
            posted = receiving.posted
            if posted is not None:
                self._card.give_back(posted.index, status, receiving.total, receiving.source, receiving.tag)
