"""Watch for peers that have accepted requests and do not reply, since their NIC may be gone for ever.

An accepted request has no deadline: the peer's program replies when it handles the request. But a NIC that has died, or that
a network has cut off for good, sends nothing, and nothing of this NIC is unanswered. So when a peer that has accepted
requests has sent no reply for `Settings.keepalive`, the NIC asks its hosts whether they wait for that peer: they alone know
which requests have not ended, since a reply may be late, or nobody's. If one does, the peer is sent a keepalive. Its NIC
acknowledges it, and the interval is doubled, since its program may just be slow. If the keepalive is given up like any
message, the hosts end the requests as unreachable.
"""

from __future__ import annotations

from typing import Final

from protocols.am2.nic_endpoint import NicEndpoint
from protocols.am2.peers import Peer


class PeerWatch:
    """Watch of one peer. endpoint: in whose name keepalives are sent; its messages are those in flight. interval:
    nanoseconds between looks. replied: the peer's count of replies at the last look. due_at: time of the next look; None:
    there is none. is_asked: the hosts have been asked whether they wait for the peer."""

    __slots__ = ("due_at", "endpoint", "interval", "is_asked", "replied")

    def __init__(self, endpoint: NicEndpoint) -> None:
        self.endpoint: Final = endpoint
        self.interval = self.replied = 0
        self.due_at: int | None = None
        self.is_asked = False


class ReplyWatch:
    """Watches of all peers. interval: nanoseconds without a reply before the hosts are asked; 0: nothing is watched. new:
    peers that have accepted requests and are not watched yet, each with the endpoint of a request. due_at: time of the
    earliest look; None: there is none."""

    __slots__ = ("_interval", "_watches", "due_at", "new")

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._watches: dict[Peer, PeerWatch] = {}
        self.new: Final[dict[Peer, NicEndpoint]] = {}
        self.due_at: int | None = None

    def on_accepted(self, peer: Peer, endpoint: NicEndpoint) -> None:
        """Watch a peer that has accepted a request, and is not watched yet."""
        if self._interval:
            peer.is_watched = True
            self.new[peer] = endpoint

    def begin(self, now: int) -> None:
        """Begin to watch the new peers."""
        for peer, endpoint in self.new.items():
            watch = self._watches.get(peer)
            if watch is None:
                # A NIC endpoint of its own: the requester's may leave its frame, or be destroyed, meanwhile.
                watch = self._watches[peer] = PeerWatch(NicEndpoint(endpoint.number, endpoint.frames))
            self._look_later(now, peer, watch, self._interval)
        self.new.clear()
        self._update_due_at()

    def silent_peers(self, now: int) -> list[Peer]:
        """Look at the peers that are due; return those that have sent no reply since the last look, about which the hosts
        are to be asked."""
        silent = []
        for peer, watch in self._watches.items():
            if watch.due_at is None or watch.due_at > now:
                continue
            if watch.replied != peer.replied:
                self._look_later(now, peer, watch, self._interval)
            elif watch.endpoint.messages:  # it is known soon whether the peer answers
                self._look_later(now, peer, watch, watch.interval)
            else:
                watch.due_at, watch.is_asked, peer.is_watched = None, True, False
                silent.append(peer)
        self._update_due_at()
        return silent

    def on_awaited(self, now: int, peer: Peer) -> NicEndpoint | None:
        """Handle a host's answer that it waits for a peer's replies; return the endpoint in whose name a keepalive is to be
        sent, or None if the hosts have not been asked or another has answered."""
        watch = self._watches.get(peer)
        if watch is None or not watch.is_asked:
            return None
        watch.is_asked, peer.is_watched = False, True
        self._look_later(now, peer, watch, 2 * watch.interval)
        self._update_due_at()
        return watch.endpoint

    def end(self, peer: Peer) -> None:
        """End the watch of a peer that has restarted or is unreachable."""
        self.new.pop(peer, None)
        self._watches.pop(peer, None)
        peer.is_watched = False
        self._update_due_at()

    def _look_later(self, now: int, peer: Peer, watch: PeerWatch, interval: int) -> None:
        watch.replied, watch.interval, watch.due_at = peer.replied, interval, now + interval

    def _update_due_at(self) -> None:
        times = [watch.due_at for watch in self._watches.values() if watch.due_at is not None]
        self.due_at = min(times, default=None)
