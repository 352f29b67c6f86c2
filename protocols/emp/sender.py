"""The sending half of EMP's firmware: collections, their timers, and acknowledgements.

Section 4.1: a message is sent as collections of frames; once a collection's frames have been sent its timer starts; when
that is over all frames of the collection are sent again; when every collection has been acknowledged the host is told.
A collection is acknowledged by itself: that a later one was says nothing of it.

Ours is the window of unacknowledged collections, and what keeps it from locking out a message whose receive has been
posted, behind others whose receives have not: a message of which nothing is acknowledged when its first collection's time
is over is parked. It leaves the window to the messages behind it; of its collections only the first, which has the header,
is sent again by its timer; the others follow upon the first acknowledgement. So the headers of all messages come to the
receiver, in order, at the price of one time-out for each window of messages that nobody receives yet.
"""

from __future__ import annotations

from protocols.core.memory import Span
from protocols.core.timers import Timers
from protocols.emp import descriptors as stat
from protocols.emp.card import Card
from protocols.emp.transfers import NO_QUEUE, Peer, Sending

Collection = tuple[int, int, int]
"""Peer, message id, number of the collection."""

_MASK = 0xFFFF_FFFF


class Sender:
    """All messages on their way out."""

    __slots__ = ("_card", "timers")

    def __init__(self, card: Card) -> None:
        self._card = card
        self.timers: Timers[Collection] = Timers()

    def begin(self, now: int, peer: Peer, index: int, tag: int, span: Span) -> None:
        """A message that the host has posted. Messages to one peer are begun in that order."""
        card = self._card
        settings = card.settings
        identity, unit = peer.next_id, settings.unit
        waits = peer.queue or peer.unacknowledged >= settings.window
        single = not waits and len(span) <= card.single
        if single:  # it leaves before it is written down: its receiver waits for it, and nobody for the rest
            card.send_single(peer, unit, identity, tag, span)
        peer.next_id = (identity + 1) & _MASK
        peer.sending[identity] = sending = Sending(identity, index, tag, span, card.full, unit)
        if waits:
            self._queue(peer).append(sending)
            return
        if single:
            card.counters.frames_sent += 1
            self._sent(now, peer, sending, 0)
            return
        self._send_next(now, peer, sending)
        if sending.collections > 1:
            self._queue(peer).append(sending)
            self.pump(now, peer)

    def pump(self, now: int, peer: Peer) -> None:
        """Send what may be sent: as many collections as may be unacknowledged."""
        queue, settings = peer.queue, self._card.settings
        while queue and peer.unacknowledged < settings.window:
            sending = queue[0]
            self._send_next(now, peer, sending)
            if sending.sent == sending.collections:
                del queue[0]

    def acknowledged(self, now: int, peer: Peer, message: int, frame: int) -> None:
        """An acknowledgement from this incarnation of the peer, for this incarnation of the NIC."""
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
                peer.sending.clear()  # a dict keeps the room of what it had: much, where there are many peers
            self._give_back(peer, sending, stat.DONE)
        if peer.queue:
            self.pump(now, peer)

    def tick(self, now: int) -> None:
        """Section 4.1: "if any collection times out then all the frames of that collection are resent"."""
        card = self._card
        settings, counters = card.settings, card.counters
        for number, identity, collection in self.timers.expired(now):
            peer = card.peers[number]
            sending = peer.sending.get(identity)
            if sending is None or collection not in sending.open:
                continue  # it has ended, through another collection whose time was over as well
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
        """The peer has told who it is, and no incarnation of it has taken what did not say so."""
        for sending in list(peer.sending.values()):
            for number in list(sending.open):
                if number == 0 or not sending.parked:
                    self._resend(now, peer, sending, number)

    def restarted(self, now: int, peer: Peer) -> None:
        """The peer knows nothing any more of what was begun; what was not goes to its new incarnation."""
        begun = [one for one in peer.sending.values() if one.sent]
        for sending in begun:
            self._forget(peer, sending)
        # The host may post at once when it sees this: only now, as headers name the oldest message.
        for sending in begun:
            self._give_back(peer, sending, stat.RESTARTED)
        self.pump(now, peer)

    def waiting(self) -> list[str]:
        """A sentence for each message."""
        return [
            f"message {sending.id} to node {peer.number} (tag {sending.tag}, {sending.total} bytes): "
            + (
                f"{sending.sent} of {sending.collections} collections sent, "
                f"no acknowledgement of {', '.join(map(str, list(sending.open)[:4]))}"
                + (": perhaps no receive has been posted for it" if sending.parked else "")
                if sending.sent
                else f"not begun, as {peer.unacknowledged} collections to that node are not acknowledged"
            )
            for peer in self._card.peers.values()
            for sending in peer.sending.values()
        ]

    def _send_next(self, now: int, peer: Peer, sending: Sending) -> None:
        """The next collection, for the first time."""
        card, number = self._card, sending.sent
        card.counters.frames_sent += card.send_collection(peer, sending, number)
        self._sent(now, peer, sending, number)

    def _sent(self, now: int, peer: Peer, sending: Sending, number: int) -> None:
        """A collection has been, for the first time."""
        sending.sent = number + 1
        sending.open[number] = 0
        sending.progress = now
        peer.unacknowledged += 1
        self.timers.set((peer.number, sending.id, number), now + self._card.settings.timeout)

    def _close(self, peer: Peer, sending: Sending, number: int) -> None:
        del sending.open[number]
        if not sending.parked:
            peer.unacknowledged -= 1
        self.timers.cancel((peer.number, sending.id, number))

    def _resend(self, now: int, peer: Peer, sending: Sending, number: int) -> None:
        card = self._card
        settings, counters = card.settings, card.counters
        again = sending.open[number] = sending.open[number] + 1
        counters.frames_resent += card.send_collection(peer, sending, number)
        counters.collections_resent += 1
        # Beyond some doublings the longest is reached, whatever it is.
        timeout = min(settings.timeout << min(again, 32), settings.longest_timeout)
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
            if number:  # the first one's timer has not been stopped
                self._resend(now, peer, sending, number)

    def _queue(self, peer: Peer) -> list[Sending]:
        """To put something into."""
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
