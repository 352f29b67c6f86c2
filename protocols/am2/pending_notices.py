"""Pending notices to other NICs: that an endpoint to which they have sent requests no longer exists, or that the reply
to one of their requests was given up.

A notice is sent, and may be given up, like any message: otherwise it could occupy its channel forever. But the peer's
programs wait for replies, and may have nothing to send. So a notice that was given up is kept, and sent again when a
frame of the peer arrives, or a route to the peer is known again. In addition, one notice is sent at increasing
intervals, in case both NICs wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocols.am2.codec import FORM_GONE
from protocols.am2.peers import Peer
from protocols.am2.sender import Sender
from protocols.am2.settings import SECOND
from protocols.am2.transport import Message

_FIRST_PAUSE: Final = 1 * SECOND
"""Nanoseconds. The pause after a notice is given up doubles each time, so that a notice arrives after at most twice the
time for which the peer was unreachable."""
_LAST_PAUSE: Final = _FIRST_PAUSE << 16
"""Eighteen hours. A peer that has been silent for longer gets the notices only after its next frame."""


class PeerNotices:
    """Pending notices to a peer. messages: the notices by body, so that none is kept twice. next_at: time at which one
    of them is sent; None: one is in flight, or the pauses are used up. pause: nanoseconds before the next sending."""

    __slots__ = ("messages", "next_at", "pause")

    def __init__(self) -> None:
        self.messages: Final[dict[bytes, Message]] = {}
        self.next_at: int | None = None
        self.pause = _FIRST_PAUSE


class PendingNotices:
    """Pending notices to all peers. by_peer: notices that have been given up or could not be sent, by peer."""

    __slots__ = ("_sender", "by_peer")

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.by_peer: Final[dict[Peer, PeerNotices]] = {}

    @property
    def deadline(self) -> int | None:
        """Time at which `on_timer` is due, or None."""
        times = [notices.next_at for notices in self.by_peer.values()]
        return min((time for time in times if time is not None), default=None)

    def add(self, now: int, messages: Iterable[Message]) -> None:
        """Keep notices that were given up or could not be sent."""
        for message in messages:
            notices = self.by_peer.get(message.peer)
            if notices is None:
                notices = self.by_peer[message.peer] = PeerNotices()
            notices.messages[message.body] = message
            if notices.next_at is None and notices.pause <= _LAST_PAUSE:
                notices.next_at = now + notices.pause

    def on_timer(self, now: int) -> None:
        """Send one notice to each peer for which it is due."""
        for notices in self.by_peer.values():
            if notices.next_at is not None and notices.next_at <= now:
                notices.next_at = None
                notices.pause *= 2
                message = notices.messages.pop(next(iter(notices.messages)))
                self._sender.send_own(now, message.unsent_copy(), once=True)

    def flush(self, now: int, peer: Peer) -> None:
        """Send all notices to a peer, after a frame of the incarnation that they are for, or a route, has arrived."""
        if peer.route is not None and (notices := self.by_peer.pop(peer, None)) is not None:
            for message in notices.messages.values():
                self._sender.send_own(now, message.unsent_copy())

    def on_routes(self, now: int) -> None:
        """Send all notices to the peers that have a route, after routes have been installed."""
        for peer in list(self.by_peer):
            self.flush(now, peer)

    def discard(self, peer: Peer) -> None:
        """Discard the notices to a restarted peer, which has lost its requests."""
        self.by_peer.pop(peer, None)

    def pending_work(self) -> Iterable[str]:
        """Yield a sentence for every peer with pending notices."""
        for peer, notices in self.by_peer.items():
            gone = [str(message.endpoint.number) for body, message in notices.messages.items() if body[0] == FORM_GONE]
            if gone:
                yield f"node {peer.number} does not acknowledge that these endpoints no longer exist: {', '.join(gone)}"
            if lost := len(notices.messages) - len(gone):
                yield f"node {peer.number} does not acknowledge that {lost} replies to its requests are lost"
