"""Pending notices to other NICs: that an endpoint which they have sent requests to no longer exists.

A notice is sent and given up like any message: otherwise it would hold its channel for ever. But its receiver waits,
and may itself have nothing to send. So a notice that was given up is kept, and sent again when a frame arrives from
there, or a route leads there again. In addition, one notice is sent at increasing intervals: both sides might be
waiting for each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocols.am2.peers import Peer
from protocols.am2.sender import Sender
from protocols.am2.settings import SECOND
from protocols.am2.transport import Message

_FIRST_PAUSE: Final = 1 * SECOND
"""Pause after giving up, doubled each time: the silence then lasts at most twice as long as its cause."""
_LAST_PAUSE: Final = _FIRST_PAUSE << 16
"""Eighteen hours. A peer that has been silent for longer gets its notices when it is heard from."""


class PeerNotices:
    """Pending notices of a peer. words: by the endpoints' numbers, whose range is limited. next_at: when one is tried;
    None: one is in flight, or none will be. pause: nanoseconds before it."""

    __slots__ = ("next_at", "pause", "words")

    def __init__(self) -> None:
        self.words: Final[dict[int, Message]] = {}
        self.next_at: int | None = None
        self.pause = _FIRST_PAUSE


class PendingNotices:
    """Pending notices by peer. by_peer: for the peers that have not received theirs."""

    __slots__ = ("_sender", "by_peer")

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.by_peer: Final[dict[Peer, PeerNotices]] = {}

    @property
    def deadline(self) -> int | None:
        times = [notices.next_at for notices in self.by_peer.values()]
        return min((when for when in times if when is not None), default=None)

    def keep(self, now: int, words: Iterable[Message]) -> None:
        """Keep notices that were given up."""
        for word in words:
            notices = self.by_peer.get(word.peer)
            if notices is None:
                notices = self.by_peer[word.peer] = PeerNotices()
            notices.words[word.endpoint.number] = word
            if notices.next_at is None and notices.pause <= _LAST_PAUSE:
                notices.next_at = now + notices.pause

    def on_timer(self, now: int) -> None:
        """Send one notice to each peer that is due."""
        for notices in self.by_peer.values():
            if notices.next_at is not None and notices.next_at <= now:
                notices.next_at = None
                notices.pause *= 2
                word = notices.words.pop(next(iter(notices.words)))
                self._sender.send_own(now, word.unsent_copy(), once=True)

    def flush(self, now: int, peer: Peer) -> None:
        """Send all notices to a peer: a frame of the incarnation that they are for has arrived, or a route to it."""
        if peer.route is not None and (notices := self.by_peer.pop(peer, None)) is not None:
            for word in notices.words.values():
                self._sender.send_own(now, word.unsent_copy())

    def mapped(self, now: int) -> None:
        """Send notices along new routes."""
        for peer in list(self.by_peer):
            self.flush(now, peer)

    def forget(self, peer: Peer) -> None:
        """Discard the notices to a restarted peer: nobody waits there any more."""
        self.by_peer.pop(peer, None)

    def waiting(self) -> Iterable[str]:
        """Yield a sentence for every silent peer."""
        for peer, notices in self.by_peer.items():
            if notices.words:
                yield f"node {peer.number} does not answer, and has not heard that of ours are gone: {[*notices.words]}"
