"""The receiving half of EMP's firmware: headers admitted in order, matching, and collections acknowledged when complete.

Section 3.1.1: "if there is no pre-posted receive for the incoming frame, the frame is simply dropped"; the sender's timer
repairs that. Beyond the paper, a message's header is admitted in the order of message ids and kept although the data is
dropped, and a receive takes the oldest message that fits: so messages never overtake one another, and receives may be
posted in another order than messages come.

Which messages have been received needs no memory: every id before the next one to be admitted that is not being received
has been, and whatever still comes of it is acknowledged again, or its sender would never end.
"""

from __future__ import annotations

from protocols.emp import descriptors as stat
from protocols.emp.card import Card
from protocols.emp.codec import FLAGS_LAST, FRAME_SIZE, MESSAGE, MESSAGE_SIZE, TYPE_MESSAGE
from protocols.emp.transfers import Framing, Peer, Posted, Receiving

_MASK = 0xFFFF_FFFF


class Receiver:
    """All messages on their way in, and all receives that wait."""

    __slots__ = ("_card", "_held", "_posted")

    def __init__(self, card: Card) -> None:
        self._card = card
        self._posted: list[Posted] = []  # in the order in which they were posted
        self._held: list[tuple[Peer, Receiving]] = []  # messages without a receive, in the order of their admission

    def post(self, posted: Posted) -> None:
        """A receive from the host: for the oldest message that fits, or for one that is still to come."""
        for place, (peer, receiving) in enumerate(self._held):
            if posted.takes(receiving.source, receiving.tag):
                del self._held[place]
                peer.held -= 1
                receiving.posted = posted
                return
        self._posted.append(posted)

    def data(
        self, peer: Peer, frame: bytes, kind: int, flags: int, unit: int, message: int, number: int, length: int
    ) -> None:
        """A frame of a message, its check good, from this incarnation of the peer."""
        counters = self._card.counters
        begin = FRAME_SIZE
        if number:
            receiving = peer.receiving.get(message)
            if receiving is not None and kind != TYPE_MESSAGE:  # most frames
                self._take(peer, receiving, frame, begin, flags, unit, number, length)
                return
        if (kind == TYPE_MESSAGE) == (number > 0):
            counters.malformed += 1
            return
        if kind == TYPE_MESSAGE:
            begin = MESSAGE_SIZE
            if not self._open(peer, frame, message):
                counters.malformed += 1
                return
        if peer.expected is None:
            counters.unknown += 1
            return
        if (message - peer.expected) & _MASK < 1 << 31:
            if message != peer.expected or kind != TYPE_MESSAGE:
                counters.early += 1
                return
            if peer.held >= self._card.settings.held:
                counters.held_full += 1
                return
            receiving = self._admit(peer, frame, flags, unit, message, length)
            if receiving is None:
                counters.malformed += 1
                return
        else:
            known = peer.receiving.get(message)
            if known is None:
                counters.duplicates += 1
                if flags & FLAGS_LAST or number % unit == unit - 1:
                    counters.reacknowledgements_sent += 1
                    self._card.acknowledge(peer, frame)
                return
            receiving = known
        self._take(peer, receiving, frame, begin, flags, unit, number, length)

    def restarted(self, peer: Peer) -> None:
        """What the peer was sending will never be complete."""
        peer.expected = None
        self._drop(peer, list(peer.receiving.values()), stat.RESTARTED)

    def waiting(self) -> list[str]:
        """A sentence for each receive that waits, each message that is incomplete, and each that nobody receives."""
        out = []
        for posted in self._posted:
            source = "any node" if posted.source == stat.ANY_SOURCE else f"node {posted.source}"
            out.append(f"a receive from {source}, tag {posted.tag}: no message has come")
        for peer in self._card.peers.values():
            if peer.held >= self._card.settings.held:
                out.append(
                    f"node {peer.number}: {peer.held} of its messages wait for a receive, and no more headers are kept"
                )
            for receiving in peer.receiving.values():
                what = f"message {receiving.id} from node {peer.number} (tag {receiving.tag})"
                if receiving.posted is None:
                    out.append(f"{what}: no receive has been posted for it")
                else:
                    out.append(f"{what}: {receiving.left} of {receiving.framing.collections} collections are missing")
        return out

    def _open(self, peer: Peer, frame: bytes, message: int) -> bool:
        """Looks at a message header: whether it can be one. What the sender has given up is given up here, too."""
        *_, source, destination, _, _, oldest = MESSAGE.unpack_from(frame)
        if source != peer.number or destination != self._card.adapter.number or (message - oldest) & _MASK >= 1 << 31:
            return False
        if peer.expected is None:
            peer.expected = oldest
        if (oldest - peer.expected) & _MASK < 1 << 31:
            peer.expected = oldest
        gone = [one for one in peer.receiving.values() if (oldest - one.id - 1) & _MASK < 1 << 31]
        if gone:
            self._card.counters.abandoned += len(gone)
            self._drop(peer, gone, stat.ABANDONED)
        return True

    def _admit(self, peer: Peer, frame: bytes, flags: int, unit: int, message: int, length: int) -> Receiving | None:
        """The next message's header: it gets the oldest receive that fits, or is held until one is posted."""
        *_, source, _, tag, total, _ = MESSAGE.unpack_from(frame)
        # A first frame that is not the last one is full: so the receiver knows how its peer cuts messages.
        full = length + MESSAGE_SIZE - FRAME_SIZE
        if (length != total) if flags & FLAGS_LAST else (not length or length >= total):
            return None
        receiving = Receiving(message, source, tag, Framing(total, full, unit))
        peer.expected = (message + 1) & _MASK
        peer.receiving[message] = receiving
        self._card.counters.headers_admitted += 1
        for place, posted in enumerate(self._posted):
            if posted.takes(source, tag):
                del self._posted[place]
                receiving.posted = posted
                return receiving
        peer.held += 1
        self._held.append((peer, receiving))
        return receiving

    def _take(
        self, peer: Peer, receiving: Receiving, frame: bytes, at: int, flags: int, unit: int, number: int, length: int
    ) -> None:
        """A frame of a message that is not complete."""
        card, framing = self._card, receiving.framing
        counters = card.counters
        if unit != framing.unit or number >= framing.frames:
            counters.malformed += 1
            return
        begin, end = framing.span(number)
        if end - begin != length or (number == framing.frames - 1) != bool(flags & FLAGS_LAST):
            counters.malformed += 1
            return
        collection = number // unit
        missing = receiving.missing.get(collection)
        if missing == 0 or collection < receiving.below:
            counters.duplicates += 1
            if flags & FLAGS_LAST or number % unit == unit - 1:
                counters.reacknowledgements_sent += 1
                card.acknowledge(peer, frame)
            return
        posted = receiving.posted
        if posted is None:
            counters.unmatched += 1
            return
        if missing is None:
            missing = (1 << len(framing.collection(collection))) - 1
        bit = 1 << number % unit
        if not missing & bit:
            counters.duplicates += 1
            return
        counters.data_stored += 1
        scatter, store = posted.scatter, card.nic.store
        for piece in scatter.pieces(begin, min(end, scatter.size)):
            size = len(piece)
            store(piece, frame[at : at + size])
            at += size
        begun = receiving.missing
        begun[collection] = missing = missing ^ bit
        if missing:
            return
        while begun.get(receiving.below) == 0:
            del begun[receiving.below]
            receiving.below += 1
        receiving.left -= 1
        counters.acknowledgements_sent += 1
        card.acknowledge(peer, frame)
        if not receiving.left:
            counters.messages_received += 1
            status = stat.DONE if framing.total <= posted.scatter.size else stat.TRUNCATED
            del peer.receiving[receiving.id]
            card.give_back(posted.index, status, framing.total, receiving.source, receiving.tag)

    def _drop(self, peer: Peer, dropped: list[Receiving], status: int) -> None:
        for receiving in dropped:
            del peer.receiving[receiving.id]
            if receiving.posted is None:
                self._held.remove((peer, receiving))
                peer.held -= 1
        # The host may post at once when it sees this: only now, as no receive is to find what is dropped.
        for receiving in dropped:
            posted = receiving.posted
            if posted is not None:
                self._card.give_back(posted.index, status, receiving.framing.total, receiving.source, receiving.tag)
